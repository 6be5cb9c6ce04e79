"""Descriptors of libraries, as entry points name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._errors import said_of
from ._library import LaneSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LibraryCheck:
    """A small computation, which ``atomr-accel probe`` compares with NumPy's.

    Attributes:
        what: a description of the computation.
        tolerance: the largest allowed deviation, in units of the largest element.
        compute: an async function of a device and a random generator. It returns the device's
            result and the expected one. A third value, if there is one, replaces ``what``.
        optional: whether the vendor's library has an extra of its own, so that it may be missing.
    """

    what: str
    tolerance: float
    compute: Callable[
        [Any, np.random.Generator],
        Awaitable[tuple[NDArray[Any], NDArray[Any]] | tuple[NDArray[Any], NDArray[Any], str]],
    ]
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package or a vendor's library that a library needs.

    Attributes:
        name: the name of the package, or of the vendor's library in cuda-pathfinder.
        use: its purpose.
        extra: the extra that installs it; None for a separate package.
        vendor: whether it is a library of the vendor, which hosts load by themselves.
    """

    name: str
    use: str
    extra: str | None = None
    vendor: bool = False


@dataclass(frozen=True, slots=True)
class Library:
    """A library, as an entry point in the group ``atomr_accel.libraries`` names it.

    Attributes:
        name: its attribute of devices, batches, recordings and requests.
        summary: its purpose in one line, for ``atomr-accel libraries``.
        facade: ``module:class`` of its facade. It is called with the device, followed by the
            facades of ``uses``. None for lanes that only other parts of a package use.
        lanes: all its lanes.
        uses: names of the libraries whose facades its facade works with.
        objects: ``module:class`` of the objects with ops that the facade makes, such as generators.
        numpy_modules: NumPy's modules in which errors look for names of its ops, such as
            ``"numpy.fft"``, the closest one first.
        needs: packages and vendor's libraries that it needs.
        check: the check of ``atomr-accel probe``, or None.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: the name is not a public identifier.
    """

    name: str
    summary: str
    facade: str | None
    lanes: tuple[LaneSpec, ...]
    uses: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    numpy_modules: tuple[str, ...] = ()
    needs: tuple[Requirement, ...] = ()
    check: LibraryCheck | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a library's name must be a string, not {said_of(self.name)}")
        if not self.name.isidentifier() or self.name.startswith("_"):
            raise ValueError(f"a library's name must be a public identifier, not {self.name!r}")
        if not all(isinstance(lane, LaneSpec) for lane in self.lanes):
            raise TypeError(f"the lanes of library {self.name!r} must be LaneSpecs")
