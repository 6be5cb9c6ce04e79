"""Arrays: messages of their lanes."""
