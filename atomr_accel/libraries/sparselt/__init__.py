"""cuSPARSELt: products with matrices of which two of four elements are zero."""
