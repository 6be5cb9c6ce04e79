"""Programs of the CUDA toolkit, which pip brings, too."""

from __future__ import annotations

import shutil
from contextlib import suppress

_ROOTS = ("/usr/local/cuda/bin",)
"""Where a toolkit is that nobody has told of."""


def find_tool(name: str) -> str | None:
    """Where a program is: on the PATH, in a package of pip's, in a toolkit; None if nowhere.

    Args:
        name: such as ``"compute-sanitizer"``.
    """
    found = shutil.which(name)
    if found is None:
        with suppress(ImportError, ValueError, RuntimeError):  # older releases know no programs
            from cuda.pathfinder import find_nvidia_binary_utility

            found = find_nvidia_binary_utility(name)
    return found or shutil.which(name, path=":".join(_ROOTS))
