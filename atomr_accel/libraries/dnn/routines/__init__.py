"""Pooling, softmax, dropout, LRN and what else is no graph in cuDNN."""
