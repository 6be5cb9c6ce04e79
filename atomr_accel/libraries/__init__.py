"""Libraries of a device as typed actors: one folder each, made with ``ops`` and ``executors``.

In each folder, ``wire/`` has the modules that both sides of the wall share, ``host/`` those that
run in the host, and the rest belongs to the program.
"""
