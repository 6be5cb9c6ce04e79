"""Calls besides those of libraries: functions in the host, events, retries and requests."""
