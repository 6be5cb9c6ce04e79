"""Groups of devices: opening them, the links between them, and placement of work."""
