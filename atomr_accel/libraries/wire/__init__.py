"""What both sides of the wall share, whatever the library."""
