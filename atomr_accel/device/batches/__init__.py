"""Ops that are collected instead of awaited: batches and recordings."""
