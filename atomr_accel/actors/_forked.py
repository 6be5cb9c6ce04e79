"""Children that the program forks while a system is open.

A fork copies the tasks of a run, but none of the threads and processes that they wait for, and it
shares the kernel's list of what the run waits for. A child that went on with them would wait for
ever, and take events from its parent. So it ends where it leaves the block of the system.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trio._core import _run

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def ending_children() -> Iterator[None]:
    """End a forked child that leaves this block, as the exception that it leaves with tells."""
    pid = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != pid:
            _end(error)
        raise
    if os.getpid() != pid:
        _end(SystemExit())


def _end(error: BaseException) -> None:
    """End this process without waiting for anything: nothing here is its own."""
    code = 1
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    elif isinstance(error.code, int):
        code = error.code & 0xFF
    elif error.code is None:
        code = 0
    else:
        with suppress(Exception):
            sys.stderr.write(f"{error.code}\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # there may be none
            stream.flush()
    os._exit(code)


def _leave_the_parents_poll() -> None:
    """Let nothing that the child's copy of a run does until then take events from its parent."""
    with suppress(AttributeError):  # no run, or one that has no epoll
        theirs = _run.GLOBAL_RUN_CONTEXT.runner.io_manager._epoll
        with select.epoll() as empty:
            os.dup2(empty.fileno(), theirs.fileno(), inheritable=False)


os.register_at_fork(after_in_child=_leave_the_parents_poll)
