"""Graphs as users build them, and how a graph is run."""
