"""Lookup of backends by name.

The two backends of this package are found even if the package is on the path without being
installed. Another package adds a backend by an entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Final, Literal

from .._errors import DeviceUnavailable, said_of
from . import Backend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "atomr_accel.backends"

BackendName = Literal["auto", "cuda", "cpu"]

BUILT_IN: Final = {
    "cpu": "atomr_accel.backends.cpu:BACKEND",
    "cuda": "atomr_accel.backends.cuda:BACKEND",
}
"""``module:attribute`` of this package's backends, the same as its entry points."""


_ADDED: Final[dict[str, Backend]] = {}


def add_backend(backend: Backend) -> None:
    """Add a backend to this process, as an entry point adds it to every process.

    Use it in a notebook, in a test, or in a program without a package of its own.

    Args:
        backend: the backend; an earlier one of the same name that was added so is replaced.

    Raises:
        TypeError: it is not a ``Backend``.
        ValueError: this package has a backend of that name.
    """
    if not isinstance(backend, Backend):
        raise TypeError(f"add_backend takes a Backend, not {said_of(backend)}")
    if backend.name in BUILT_IN or backend.name == "auto":
        raise ValueError(f"a backend must have a name of its own, not {backend.name!r}")
    _ADDED[backend.name] = backend


def find_backend(name: str) -> Backend:
    """Return the backend of that name."""
    if name in BUILT_IN:
        backend: Backend = resolve_name(BUILT_IN[name])
        return backend
    if name in _ADDED:
        return _ADDED[name]
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in others:
        return _load(others[name])
    # Once each: those that come with the package are entry points of it, too.
    names = ", ".join(map(repr, dict.fromkeys(["auto", *BUILT_IN, *others])))
    raise DeviceUnavailable(f"there is no backend {name!r}; expected one of {names}")


def _load(entry: EntryPoint) -> Backend:
    of = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
    where = f"the entry point '{entry.name} = {entry.value}' of group {GROUP}{of}"
    try:
        backend = entry.load()
    except Exception as error:
        raise DeviceUnavailable(
            f"{where} cannot be loaded: {type(error).__name__}: {error}; reinstall or update the "
            "package that brings it"
        ) from error
    if not isinstance(backend, Backend):
        raise TypeError(f"{where} is {backend!r}, not a Backend")
    return backend
