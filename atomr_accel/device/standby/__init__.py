"""Standby hosts: their preparation, their budget and what they repeat."""
