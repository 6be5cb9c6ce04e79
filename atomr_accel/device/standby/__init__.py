"""Standby hosts: their preparation, memory and history."""
