"""Pooling, softmax, dropout, LRN and other operations for which cuDNN has no graphs."""
