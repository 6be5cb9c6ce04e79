"""Lookup of libraries by name.

The libraries of this package are found even if the package is on the path without being installed.
Another package adds a library by an entry point.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pkgutil import resolve_name
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from .._errors import DeviceUnavailable, said_of
from .._other_names import add_other_name, is_other_name
from ..arrays.expressions import ELSEWHERE
from ..lanes import uninterrupted
from ..ops import Facade, Library
from .names import BUILT_IN, GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable


_RESERVED: Final = ("digests", "memory", "recordings", "results", "run")
"""Names of lanes that each device has."""


@final
class Catalogue:
    """The libraries of the devices of this process.

    Attributes:
        all: every library by name.
        facades: the class of the facade of each library that has one.
        in_order: the names of these libraries in an order in which the facades can be made.
        library_of_lane: the name of the library with a facade that has a lane.
        lanes: the names of all lanes.
        brought_by: where each library comes from.
    """

    def __init__(self, libraries: Iterable[tuple[str, Library]]) -> None:
        self.all: Final[dict[str, Library]] = {}
        self.facades: Final[dict[str, type[Facade[Any]]]] = {}
        self.in_order: Final[list[str]] = []
        self.library_of_lane: Final[dict[str, str]] = {}
        self.lanes: Final[list[str]] = []
        self.brought_by: Final[dict[str, str]] = {}
        for where, library in libraries:
            self._note(where, library)
        for library in self.all.values():
            if library.facade is not None:
                self.facades[library.name] = self._facade(library)
        for name in self.facades:
            self._order(name, ())
        self._name_for_numpy()

    def _note(self, where: str, library: Library) -> None:
        name = library.name
        if name in self.all:
            raise ValueError(
                f"two packages bring a library {name!r}: {self.brought_by[name]} and {where}; "
                "uninstall one of them"
            )
        self.all[name] = library
        self.brought_by[name] = where
        for lane in library.lanes:
            if lane.name in {*self.lanes, *_RESERVED}:
                raise ValueError(
                    f"the lane {lane.name!r} of {where} must have a name of its own; another "
                    "lane of devices has that one"
                )
            self.lanes.append(lane.name)
            if library.facade is not None:
                self.library_of_lane[lane.name] = name

    def _facade(self, library: Library) -> type[Facade[Any]]:
        where = self.brought_by[library.name]
        assert library.facade is not None
        facade, *objects = (_resolved(each, where) for each in (library.facade, *library.objects))
        if not (isinstance(facade, type) and issubclass(facade, Facade)):
            raise TypeError(f"the facade of {where} must be a subclass of Facade, not {facade!r}")
        for made in (facade, *objects):
            uninterrupted(made)
        return facade

    def _order(self, name: str, users: tuple[str, ...]) -> None:
        if name in self.in_order:
            return
        for used in self.all[name].uses:
            if used in (*users, name) or used not in self.facades:
                raise ValueError(
                    f"{self.brought_by[name]} uses library {used!r}, which must be another one "
                    "with a facade that does not use it in turn"
                )
            self._order(used, (*users, name))
        self.in_order.append(name)

    def _name_for_numpy(self) -> None:
        """Let errors about NumPy's functions name the ops that do the same."""
        ranked: list[tuple[int, str, str]] = []
        for library in self.all.values():
            for rank, module in enumerate(library.numpy_modules):
                ranked.append((rank, library.name, module))
        for _, name, module in sorted(ranked, reverse=True):
            calls = ELSEWHERE.setdefault(module, {})
            facade = self.facades[name]
            for method in dir(facade):
                if not method.startswith("_") and not is_other_name(facade, method):
                    calls[method] = f"{name}.{method}"
        for namespace in (np, np.linalg, np.fft):
            for method, call in ELSEWHERE.get(namespace.__name__, {}).items():
                if callable(getattr(namespace, method, None)) and method not in self.facades:
                    add_other_name(method, f"await device.{call}(...)")


def described() -> list[tuple[str, Library]]:
    """Return the libraries of this package and of all installed ones, with where they come from.

    Raises:
        DeviceUnavailable: the package that brings a library cannot be loaded.
    """
    found = [("atomr_accel", resolve_name(value)) for value in BUILT_IN.values()]
    for entry in entry_points(group=GROUP):
        if BUILT_IN.get(entry.name) == entry.value:
            continue
        of = "" if entry.dist is None else f" of {entry.dist.name} {entry.dist.version}"
        where = f"the entry point '{entry.name} = {entry.value}' of group {GROUP}{of}"
        library = _resolved(entry.value, where)
        if not isinstance(library, Library):
            raise TypeError(f"{where} must be a Library, not {library!r}")
        found.append((where, library))
    return found


_lock: Final = Lock()
_known: Catalogue | None = None


def catalogue() -> Catalogue:
    """Return the libraries of this process, which the first call looks up.

    Raises:
        DeviceUnavailable: the package that brings a library cannot be loaded.
    """
    global _known  # noqa: PLW0603 - installed packages are those of the process
    with _lock:
        if _known is None:
            _known = Catalogue(described())
        return _known


def add_library(library: Library) -> None:
    """Add a library to this process, as an entry point adds it to every process.

    Devices that are opened from now on have it. Use it in a notebook, in a test, or in a program
    without a package of its own.

    Args:
        library: the library.

    Raises:
        DeviceUnavailable: its facade, or a class of its objects, cannot be loaded.
        TypeError: it is not a ``Library``.
        ValueError: a library has that name, or has a lane of the same name.
    """
    global _known  # noqa: PLW0603
    if not isinstance(library, Library):
        raise TypeError(f"add_library takes a Library, not {said_of(library)}")
    known = catalogue()
    present = [(known.brought_by[name], each) for name, each in known.all.items()]
    extended = Catalogue([*present, (f"library {library.name!r} of this program", library)])
    with _lock:
        _known = extended


def _resolved(reference: str, where: str) -> Any:
    try:
        return resolve_name(reference)
    except Exception as error:
        raise DeviceUnavailable(
            f"{where} cannot be loaded: {type(error).__name__}: {error}; reinstall or update the "
            "package that brings it"
        ) from error
