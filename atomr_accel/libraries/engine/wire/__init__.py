"""Messages of engines."""
