"""Mixtures of experts: each token is computed by the few experts that a router chooses for it."""
