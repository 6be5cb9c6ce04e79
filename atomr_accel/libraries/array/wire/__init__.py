"""Arrays: what goes over the lane."""
