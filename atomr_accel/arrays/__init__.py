"""Arrays on the device as programs see them: refs, their views, and expressions."""
