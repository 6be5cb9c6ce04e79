"""What a host imports in advance, and what functions of the program import in it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Final, final

from ..wire._control import MODULE_NAME, MOST_MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger("atomr_accel.hosts")


@final
class Imports:
    """Functions of the program do not run while something is imported for them in advance.

    Nor are they loaded, nor does an executor import what few programs need. Both threads would
    import the same modules, from two ends: where those import each other, Python gives one of the
    two what is imported in part only, or raises.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._waiting = 0
        self._importing = False

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """One module is imported, when no function runs or waits to run."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._running or self._waiting))
            self._importing = True
        try:
            yield
        finally:
            with self._changed:
                self._importing = False
                self._changed.notify_all()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """A function of the program is loaded or runs, as soon as no module is being imported."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._importing)
            self._waiting -= 1
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()


IMPORTS: Final = Imports()


def import_in_advance(name: str) -> None:
    """Import a module that the program's functions are going to import, if that can be done.

    One that another thread is importing is waited for, or what it is made of would come before it.
    """
    try:
        importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 (a module may do anything)
        _log.debug("%s cannot be imported in advance: %r", name, error)


def imported() -> list[str]:
    """The modules of this process that another one can import, in the order they came."""
    names = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        known = spec is not None and spec.loader is not None and spec.name == name
        if known and name != "__main__" and len(name) <= MODULE_NAME:
            names.append(name)
    return names[-MOST_MODULES:]
