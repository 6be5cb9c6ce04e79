"""Arrays: copies between layouts, and what NumPy does with them."""
