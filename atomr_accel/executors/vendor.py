"""Vendor libraries by ctypes: a table of prototypes becomes bound, checked functions.

A library folder writes its functions as one table. Tests hold every row against the vendor's header
and resolve every symbol, so a wrong row fails without a GPU. A number that an argument's type
cannot hold is refused for all callers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ctypes import (
    POINTER,
    c_byte,
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
from functools import partial, wraps
from numbers import Real
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, final

from .._errors import LibraryError, LibraryMissing, OutOfMemory, Unsupported
from .._install import cuda_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@final
class Id128(ctypes.Structure):
    """128 bytes that a function takes by value, such as ``ncclUniqueId``."""

    _fields_ = (("content", ctypes.c_char * 128),)


TYPES: Final[dict[str, Any]] = {
    "char": c_byte,
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
    "id128": Id128,
}
"""The words a prototype table may use."""

_LARGEST_FLOAT: Final = 3.4028234663852886e38
_LIMITS: Final[dict[str, tuple[float, float]]] = {
    "char": (-128, 127),
    "int": (-(2**31), 2**31 - 1),
    "uint": (0, 2**32 - 1),
    "i64": (-(2**63), 2**63 - 1),
    "u64": (0, 2**64 - 1),
    "size": (0, 2**64 - 1),
    "float": (-_LARGEST_FLOAT, _LARGEST_FLOAT),
}
"""Smallest and largest value of each; ctypes would silently cut off others."""

_NO_MEMORY: Final = (
    *("ALLOC_FAILED", "ALLOCATION_FAILED", "OUT_OF_MEMORY"),
    "cudaErrorMemoryAllocation",
)
"""Endings of statuses that mean that the device or the host is out of memory."""

_NOT_STARTED: Final = ("NOT_INITIALIZED", "INITIALIZATION_FAILED")
_MAKES: Final = ("Create", "create", "Init")

Prototypes = dict[str, str]
"""Function name to its parameter types, as words of ``TYPES``. All return a status."""


@final
class VendorLibrary:
    """A loaded library whose failing calls raise.

    ``status_name`` is a function of the library that names a status code, or else a table.
    """

    def __init__(
        self,
        name: str,
        prototypes: Prototypes,
        status_name: str | Mapping[int, str],
        *,
        extra: str = "cuda",
    ) -> None:
        self.name = name
        library = _load(name, extra)
        namer: Callable[[int], bytes | None]
        if isinstance(status_name, Mapping):
            names = {status: text.encode() for status, text in status_name.items()}
            namer = names.get
        else:
            namer = getattr(library, status_name)
            namer.restype, namer.argtypes = c_char_p, [c_int]  # type: ignore[attr-defined]
        self.functions: Final = _VendorFunctions(name, library, prototypes)
        self._namer = namer

    def call(self, function: str, *args: Any) -> None:
        """Call a function; see ``error`` for what this raises unless it returns zero."""
        status = self.functions[function](*args)
        if status:
            raise self.error(function, status)

    def prepare(self, function: str, *args: Any) -> Callable[[], int]:
        """Return a call with converted arguments; the conversion takes longer than most calls.

        Args:
            function: the function's name.
            *args: all its arguments. A ``ctypes`` object is passed without conversion, so its value
                may be set between calls.

        Returns:
            A function that makes the call and returns its status.
        """
        words = self.functions.words(function)
        self.functions[function]  # is there, or this raises
        for at, (word, arg) in enumerate(zip(words, args, strict=True)):
            _refuse_beyond(function, at, word, arg)
        # The result of ``from_param`` passes faster than an instance of the type.
        converted = [
            TYPES[word].from_param(arg) if isinstance(arg, (Real, NoneType, bytes)) else arg
            for word, arg in zip(words, args, strict=True)
        ]
        # A function of its own, without argtypes, which would have them converted again.
        return partial(self.functions.library[function], *converted)

    def error(self, function: str, status: int) -> LibraryError | OutOfMemory:
        """The error for a status."""
        name = (self._namer(status) or b"unknown status").decode()
        text = f"{function} returned {name} ({status})"
        if lacks_memory(function, name):
            return OutOfMemory(text, requested=0)
        return LibraryError(
            text,
            library=self.name,
            call=function,
            status=status,
            status_name=name,
        )


def lacks_memory(function: str, status_name: str) -> bool:
    """Return whether a status says that a call found no memory.

    Libraries start with their first object, such as a handle. If memory runs out for that, several
    only report that they are not initialized.
    """
    if status_name.endswith(_NO_MEMORY):
        return True
    return status_name.endswith(_NOT_STARTED) and any(word in function for word in _MAKES)


@final
class _VendorFunctions(dict[str, "Callable[..., int]"]):
    """The functions of a table, each bound when it is first wanted.

    Tables name what the newest release has; a program that does not use a function is
    not bothered by a release that lacks it.
    """

    def __init__(self, name: str, library: ctypes.CDLL, prototypes: Prototypes) -> None:
        super().__init__()
        self._name = name
        self.library: Final = library
        self._prototypes = prototypes

    def words(self, function: str) -> list[str]:
        """The types of a function's arguments."""
        return self._prototypes[function].split()

    def __missing__(self, function: str) -> Callable[..., int]:
        words = self.words(function)
        try:
            bound = getattr(self.library, function)
        except AttributeError:
            raise Unsupported(
                f"the {self._name} that is installed has no {function}; a newer release may"
            ) from None
        bound.restype = c_int
        bound.argtypes = [TYPES[word] for word in words]
        limited = tuple((at, *_LIMITS[word]) for at, word in enumerate(words) if word in _LIMITS)

        @wraps(bound, assigned=())
        def call(*args: Any) -> int:
            for at, least, most in limited:
                arg = args[at]
                kind = type(arg)
                if (kind is not int and kind is not float) or not least <= arg <= most:
                    _refuse_beyond(function, at, words[at], arg)
            return bound(*args)  # type: ignore[no-any-return]

        self[function] = call
        return call


def array(word: str, values: Sequence[float]) -> Any:
    """A C array of numbers, none of which it would cut off."""
    for at, value in enumerate(values):
        _refuse_beyond("an array", at, word, value)
    return (TYPES[word] * len(values))(*values)


@contextmanager
def undone_on_error() -> Iterator[ExitStack]:
    """Yield a stack of undo functions, which run if the block fails.

    If it does not fail, the holder of the stack can run them later.
    """
    stack = ExitStack()
    try:
        yield stack
    except BaseException:
        with suppress(Exception):  # the block's own error says more
            stack.close()
        raise


def _refuse_beyond(where: str, at: int, word: str, arg: object) -> None:
    """Refuse a number that ctypes would change; other arguments are its own business."""
    if word not in _LIMITS or not isinstance(arg, Real):
        return
    least, most = _LIMITS[word]
    number: Any = arg
    if least <= number <= most or (word == "float" and not math.isfinite(number)):
        return
    raise OverflowError(f"{where} takes '{word}' at position {at}, which cannot hold {arg}")


def _load(name: str, extra: str) -> ctypes.CDLL:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, RuntimeError, OSError) as error:
        raise LibraryMissing(
            f"the vendor library {name} is not installed ({error}): {cuda_command(extra)}",
            library=name,
        ) from error
