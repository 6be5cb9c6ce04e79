"""cuDNN: convolution, normalisation, activations, attention, and graphs of them."""
