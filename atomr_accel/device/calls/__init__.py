"""Calls of a device that are no library's: functions in the host, events, retries, requests."""
