"""The CUDA context, its driver calls and its memory, inside a host."""
