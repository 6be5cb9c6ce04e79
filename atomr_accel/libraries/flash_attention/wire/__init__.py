"""FlashAttention: code that both sides of the wall share."""
