"""Programs of the CUDA toolkit, which pip brings, too."""

from __future__ import annotations

import shutil
from contextlib import suppress

_ROOTS = ("/usr/local/cuda/bin",)
"""Folders of a toolkit that is not on the PATH."""


def find_tool(name: str) -> str | None:
    """Return the path of a program: on the PATH, in a package of pip, or in a toolkit.

    Args:
        name: the program, such as ``"compute-sanitizer"``.

    Returns:
        The path, or None if the program is not found.
    """
    found = shutil.which(name)
    if found is None:
        with suppress(ImportError, ValueError, RuntimeError):  # older releases know no programs
            from cuda.pathfinder import find_nvidia_binary_utility

            found = find_nvidia_binary_utility(name)
    return found or shutil.which(name, path=":".join(_ROOTS))
