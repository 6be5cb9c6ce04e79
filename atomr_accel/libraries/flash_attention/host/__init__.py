"""FlashAttention: executors, inside a host."""
