"""Vendor libraries by ctypes: a table of prototypes becomes bound, checked functions.

A library folder writes its functions as one table. Tests hold every row against the
vendor's header and resolve every symbol, so a wrong row fails without a GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
)
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, final

from .._errors import LibraryError, LibraryMissing, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


class _Int(c_int):
    """An int that refuses what it cannot hold; ``c_int`` would take the lower 32 bits."""

    def __init__(self, value: int = 0) -> None:
        c_int.__init__(self, value)  # ctypes' types know no super()
        _require_held(self.value, value)

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """An argument as it is passed."""
        return cls(value) if isinstance(value, int) else c_int.from_param(value)


class _Unsigned(c_uint):
    """The same without a sign."""

    def __init__(self, value: int = 0) -> None:
        c_uint.__init__(self, value)
        _require_held(self.value, value)

    @classmethod
    def from_param(cls, value: Any) -> Any:
        """An argument as it is passed."""
        return cls(value) if isinstance(value, int) else c_uint.from_param(value)


def _require_held(held: int, value: int) -> None:
    if held != value:
        raise OverflowError(f"{value} is more than the library's 32 bits hold")


TYPES: Final[dict[str, Any]] = {
    "int": c_int,
    "uint": c_uint,
    "i64": c_int64,
    "u64": c_uint64,
    "size": c_size_t,
    "float": c_float,
    "double": c_double,
    "ptr": c_void_p,  # device pointers, handles, host scalars
    "str": c_char_p,
    "int*": POINTER(c_int),
    "i64*": POINTER(c_int64),
    "size*": POINTER(c_size_t),
    "ptr*": POINTER(c_void_p),
}
"""The words a prototype table may use."""

_CHECKED: Final[dict[str, Any]] = {"int": _Int, "uint": _Unsigned}

Prototypes = dict[str, str]
"""Function name to its parameter types, as words of ``TYPES``. All return a status."""


@final
class VendorLibrary:
    """A loaded library whose failing calls raise.

    Args:
        name: as cuda-pathfinder knows it, such as ``"cublas"``.
        prototypes: its functions.
        status_name: a function of the library that names a status code, or a table of
            names where the library has no such function.
    """

    def __init__(
        self, name: str, prototypes: Prototypes, status_name: str | Mapping[int, str]
    ) -> None:
        self.name = name
        library = _load(name)
        namer: Callable[[int], bytes | None]
        if isinstance(status_name, Mapping):
            names = {status: text.encode() for status, text in status_name.items()}
            namer = names.get
        else:
            namer = getattr(library, status_name)
            namer.restype, namer.argtypes = c_char_p, [c_int]  # type: ignore[attr-defined]
        self.functions: Final = _Functions(name, library, prototypes)
        self._namer = namer

    def call(self, function: str, *args: Any) -> None:
        """Call a function; LibraryError unless it returns zero."""
        status = self.functions[function](*args)
        if status:
            raise self.error(function, status)

    def prepare(self, function: str, *args: Any) -> Callable[[], int]:
        """A call whose arguments are converted once, which takes longer than most calls.

        Args:
            function: which one.
            *args: all of them. A ``ctypes`` object is taken as it is, so its value may be
                set between calls.

        Returns:
            What makes the call and returns its status.
        """
        types = self.functions[function].argtypes  # type: ignore[attr-defined]
        converted = [
            kind(arg) if isinstance(arg, (int, float, NoneType)) else arg
            for kind, arg in zip(types, args, strict=True)
        ]
        # A function of its own, without argtypes, which would have them converted again.
        return partial(self.functions.library[function], *converted)

    def error(self, function: str, status: int) -> LibraryError:
        """The error for a status."""
        name = (self._namer(status) or b"unknown status").decode()
        return LibraryError(
            f"{function} returned {name} ({status})",
            library=self.name,
            call=function,
            status=status,
            status_name=name,
        )


@final
class _Functions(dict[str, "Callable[..., int]"]):
    """The functions of a table, each bound when it is first wanted.

    Tables name what the newest release has; a program that does not use a function is
    not bothered by a release that lacks it.
    """

    def __init__(self, name: str, library: ctypes.CDLL, prototypes: Prototypes) -> None:
        super().__init__()
        self._name = name
        self.library: Final = library
        self._prototypes = prototypes

    def __missing__(self, function: str) -> Callable[..., int]:
        words = self._prototypes[function]
        try:
            bound = getattr(self.library, function)
        except AttributeError:
            raise Unsupported(
                f"the {self._name} that is installed has no {function}; a newer release may"
            ) from None
        bound.restype = c_int
        bound.argtypes = [_CHECKED.get(word, TYPES[word]) for word in words.split()]
        self[function] = bound
        return bound  # type: ignore[no-any-return]


def _load(name: str) -> ctypes.CDLL:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, RuntimeError, OSError) as error:
        raise LibraryMissing(
            f"the vendor library {name} is not installed; "
            f"pip install 'atomr-accel[cuda12]' (or [cuda13]) brings it: {error}",
            library=name,
        ) from error
