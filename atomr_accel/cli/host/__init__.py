"""Code of the command line's child processes, which a vendor's library may crash."""
