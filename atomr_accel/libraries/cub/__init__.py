"""CUB: reductions, scans, sorts and selections."""
