"""Activities of a device, as CUPTI records them in hosts."""
