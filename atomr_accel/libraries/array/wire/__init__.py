"""Arrays: what program and host share."""
