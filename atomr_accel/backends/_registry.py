"""How a backend is found by its name.

The two that come with this package are there even where it is only on the path. Another
package brings one by an entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import resolve_name
from typing import Final, Literal

from .._errors import DeviceUnavailable
from . import Backend

GROUP: Final = "atomr_accel.backends"

BackendName = Literal["auto", "cuda", "cpu"]

BUILT_IN: Final = {
    "cpu": "atomr_accel.backends.cpu:BACKEND",
    "cuda": "atomr_accel.backends.cuda:BACKEND",
}
"""``module:attribute`` of those that come with this package, the same as its entry points."""


def find_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        DeviceUnavailable: no installed package provides it.
        TypeError: what is provided under that name is no backend.
    """
    if name in BUILT_IN:
        return _checked(name, resolve_name(BUILT_IN[name]))
    others = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name in others:
        return _checked(name, others[name].load())
    # Once each: those that come with the package are entry points of it, too.
    names = ", ".join(map(repr, dict.fromkeys(["auto", *BUILT_IN, *others])))
    raise DeviceUnavailable(f"there is no backend {name!r}; expected one of {names}")


def _checked(name: str, backend: object) -> Backend:
    if not isinstance(backend, Backend):
        raise TypeError(f"entry point {name!r} of {GROUP} is {backend!r}, not a Backend")
    return backend
