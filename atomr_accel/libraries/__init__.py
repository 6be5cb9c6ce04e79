"""Vendor libraries as typed actors: one folder each.

In each ``wire/`` is what both sides of the wall know, ``host/`` what runs in the host, and the
rest is the program's.
"""
