"""What runs inside a host, and nowhere else: lanes' threads and what they execute.

Nothing in a folder of this name imports trio or the program's half; every rebuild waits for its
imports.
"""
