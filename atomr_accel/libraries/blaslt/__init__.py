"""cuBLASLt: matrix products with epilogues and scales."""
