"""Vendor libraries as typed actors: one folder each.

In each folder, ``wire/`` has the modules that both sides of the wall share, ``host/`` those that
run in the host, and the rest belongs to the program.
"""
