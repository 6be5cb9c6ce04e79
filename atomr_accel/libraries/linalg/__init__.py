"""cuSOLVER: factorizations of matrices, and solutions with them."""
