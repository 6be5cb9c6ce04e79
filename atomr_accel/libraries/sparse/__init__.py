"""cuSPARSE: sparse matrices, products with them and systems of them."""
