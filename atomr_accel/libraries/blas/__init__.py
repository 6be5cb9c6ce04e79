"""cuBLAS: basic linear algebra."""
