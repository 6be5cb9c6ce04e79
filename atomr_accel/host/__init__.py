"""Code that runs inside a host only: the threads of lanes, and execution of their ops.

Modules in folders of this name import neither trio nor the program's half, because every rebuild
waits for their imports.
"""
