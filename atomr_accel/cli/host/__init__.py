"""What runs in child processes of the command line, which may end with a vendor's library."""
