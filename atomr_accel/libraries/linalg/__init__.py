"""cuSOLVER: factorizations of matrices, and what is solved with them."""
