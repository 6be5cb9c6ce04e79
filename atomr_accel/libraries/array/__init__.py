"""Arrays: copies between layouts, and expressions."""
