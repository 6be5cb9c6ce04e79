"""Functions that may crash the process: they run in a forked child."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn


def in_child(function: Callable[[], object]) -> None:
    """Call a function in a forked child, and fail if that crashes or raises."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads, on Python 3.12
        pid = os.fork()
    if not pid:
        _call(function, write)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == 0, said or f"the child ended with {code}"


def _call(function: Callable[[], object], write: int) -> NoReturn:
    code = 1
    try:
        function()
        code = 0
    finally:
        if code:
            os.write(write, traceback.format_exc()[-4000:].encode())
        os._exit(code)
