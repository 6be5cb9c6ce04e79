"""FlashAttention: attention by cuDNN or by kernels of this package, whichever can."""
