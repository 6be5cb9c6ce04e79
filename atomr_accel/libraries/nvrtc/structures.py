"""Structs by value: NumPy's structured dtypes and ``ctypes.Structure`` as C++ types."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from ..._dtypes import NAMES, NUMBER_KINDS, is_added, is_float, number_kind
from ._scalars import scalar_for
from .wire.messages import StructArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

StructType = np.dtype[np.void] | type[ctypes.Structure]
"""A description of the fields of a struct."""

StructValue = (
    np.void | np.ndarray[tuple[()], np.dtype[np.void]] | ctypes.Structure | tuple[Any, ...]
)
"""A struct as an argument; a tuple of its fields if the type of the parameter is known."""

_LARGEST: Final = 32764
"""Bytes of all of a kernel's parameters, on the newest devices."""


def structured(name: str, kind: object) -> np.dtype[np.void]:
    """The dtype for a C++ type.

    Args:
        name: name of the C++ type.
        kind: a structured dtype, or a ``ctypes.Structure``.

    Raises:
        TypeError: it is neither, or has objects, datetimes or bytes in another order in it.
        ValueError: it takes more bytes than a kernel's parameters may.
    """
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
        dtype: np.dtype[Any] = np.dtype(kind)
    elif isinstance(kind, np.dtype):
        dtype = kind
    else:
        raise TypeError(
            f"structs[{name!r}] must be a structured dtype of NumPy or a class derived of "
            f"ctypes.Structure, not {kind!r}"
        )
    if dtype.names is None or dtype.hasobject:
        raise TypeError(f"structs[{name!r}] must have fields, and none of objects: {dtype}")
    if not 0 < dtype.itemsize <= _LARGEST:
        raise ValueError(
            f"structs[{name!r}] takes {dtype.itemsize} bytes; a kernel's parameters take from 1 to "
            f"{_LARGEST}"
        )
    _require_ordinary(dtype, f"structs[{name!r}]")
    return dtype


def all_structured(structs: object) -> dict[str, np.dtype[np.void]]:
    """Return structured dtypes by C++ type."""
    if not isinstance(structs, Mapping) or not all(isinstance(name, str) for name in structs):
        raise TypeError(f"structs must map names of C++ types to dtypes, not {structs!r}")
    return {name: structured(name, kind) for name, kind in structs.items()}


def assertions(
    structs: Mapping[str, np.dtype[np.void]], variables: Mapping[str, np.ndarray[Any, Any]]
) -> Iterator[str]:
    """Return C++ that compiles only if layouts in memory are those of the dtypes.

    Of what a type is made is known of numbers and of arrays of them alone: an enumeration, a class
    or a pointer may stand for what takes as many bytes. NVRTC has ``offsetof`` only with a header,
    by this operator of its own.
    """
    if structs or variables:
        yield _KINDS
    for name, dtype in structs.items():
        yield (
            f"static_assert(sizeof({name}) == {dtype.itemsize}, "
            f'"{name} takes {dtype.itemsize} bytes in its dtype");'
        )
        assert dtype.fields is not None
        for field, (kind, offset, *_title) in dtype.fields.items():
            there = f"(({name}*)0)->{field}"
            yield (
                f"static_assert(__INTADDR__(&({there})) == {offset}, "
                f'"{name}::{field} is at byte {offset} in its dtype");'
            )
            yield _assertion(there, f"{name}::{field}", kind.itemsize, kind.base)
    for name, array in variables.items():
        yield _assertion(name, name, array.nbytes, array.dtype)


_NUMBERS: Final = {
    "f": ("float", "double"),
    "i": (
        *("bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int"),
        *("unsigned", "long", "unsigned long", "long long", "unsigned long long"),
    ),
}
"""C++'s numbers, by the kinds of number that NumPy distinguishes."""

_KINDS: Final = "\n".join(
    [
        # Names that no macro of a source is likely to have.
        "template <class atomr_T> struct atomr_made_of",
        "{ static constexpr int atomr_kind = 0, atomr_size = 0; };",
        "template <class atomr_T, unsigned long atomr_n>",
        "struct atomr_made_of<atomr_T[atomr_n]> : atomr_made_of<atomr_T> {};",
        *(
            f"template <> struct atomr_made_of<{number}>"
            f" {{ static constexpr int atomr_kind = '{kind}', atomr_size = sizeof({number}); }};"
            for kind, numbers in _NUMBERS.items()
            for number in numbers
        ),
    ]
)
"""C++ that determines the numbers of which a type is made."""


def _assertion(there: str, name: str, nbytes: int, dtype: np.dtype[Any]) -> str:
    """Return a ``static_assert`` that something takes ``nbytes`` bytes of numbers of a dtype."""
    right = f"sizeof({there}) == {nbytes}"
    of = f"atomr_made_of<decltype({there})>"
    if dtype in NAMES and dtype.kind != "c":  # a complex number may be two others
        made = f"{of}::atomr_size == {dtype.itemsize}"
        if dtype.kind in "biu":
            made += f" && {of}::atomr_kind == 'i'"
        elif is_float(dtype) and dtype.itemsize > 2:  # those of two bytes may be their bits
            made += f" && {of}::atomr_kind == 'f'"
        right += f" && ({of}::atomr_kind == 0 || ({made}))"
    return f'static_assert({right}, "{name} is {nbytes} bytes of {dtype.name} in its dtype");'


def is_struct(value: object) -> TypeGuard[np.void | ctypes.Structure]:
    """Return whether a value is a struct that knows its fields."""
    if isinstance(value, np.ndarray):
        return value.ndim == 0 and value.dtype.names is not None
    if isinstance(value, np.void):
        return value.dtype.names is not None
    return isinstance(value, ctypes.Structure)


def structure(
    value: object, dtype: np.dtype[np.void] | None, size: tuple[int, int] | None, name: str
) -> StructArgument:
    """Convert a struct to its form in messages.

    Args:
        value: the caller's argument.
        dtype: fields of the parameter; None for those of ``value``.
        size: bytes of the parameter and its alignment, if they are known.
        name: its name in errors.

    Raises:
        TypeError: ``value`` is not a struct, or has other fields, or fields that ``structured``
            refuses.
        ValueError: the struct and the parameter differ in size.
        OverflowError: a number does not fit its field.
    """
    if dtype is not None and isinstance(value, tuple):
        there = np.zeros((), dtype)
        try:
            _put(there, value, "")
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} takes the fields {dtype}, not {value!r}: {error}") from None
        except OverflowError as error:
            raise OverflowError(f"{name} takes the fields {dtype}: {error}") from None
        found = there[()]
    elif is_struct(value):
        found = _found(value)
    else:
        raise TypeError(
            f"{name} is a struct; it takes one of NumPy's (numpy.void of a structured dtype), a "
            f"ctypes.Structure or, where structs= tells the type, a tuple, not "
            f"{type(value).__name__}"
        )
    actual = found.dtype
    if dtype is not None and not _alike(actual, dtype):
        raise TypeError(f"{name} takes a struct of {dtype}, not of {actual}")
    if dtype is None:
        _require_ordinary(actual, name)
    if size is not None and actual.itemsize != size[0]:
        raise ValueError(
            f"a struct for {name} must have {size[0]} bytes, not {actual.itemsize}, as {actual} has"
        )
    fields = repr(np.lib.format.dtype_to_descr(actual))
    return StructArgument(found.tobytes(), fields)


def _require_ordinary(dtype: np.dtype[Any], name: str, field: str = "") -> None:
    """Check that a struct has only fields that a kernel reads as they lie."""
    base = dtype.base
    if base.fields is not None:
        for inner, (kind, *_) in base.fields.items():
            _require_ordinary(kind, name, f"{field}.{inner}" if field else inner)
    elif base.kind in "mMO":
        raise TypeError(f"field '{field}' of {name} is {base}, which C++ does not know")
    elif not base.isnative:
        raise TypeError(
            f"field '{field}' of {name} is {base.str}: its bytes are not in the device's order; "
            f"convert it to {base.newbyteorder('=')}"
        )


def _found(value: np.void | ctypes.Structure) -> Any:
    """A struct that says itself of which fields it is made, as NumPy has it."""
    if isinstance(value, ctypes.Structure):
        return np.frombuffer(bytes(value), np.dtype(type(value)))[0]
    return np.asarray(value)[()]


def _put(there: np.ndarray[Any, Any], value: Any, field: str) -> None:
    """Fill a field of a struct, numbers by the rules of scalars.

    Args:
        there: the memory of the field.
        value: the caller's value: numbers, tuples for structs, sequences for arrays.
        field: path of the field within the whole struct, for errors.
    """
    dtype = there.dtype
    if isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == there.shape:
        there[...] = value
    elif there.ndim:
        arrays = (list, tuple, np.ndarray, ctypes.Array)
        if not isinstance(value, arrays) or len(value) != len(there):
            raise TypeError(f"field '{field}' takes {len(there)} values, not {value!r}")
        for at, item in enumerate(value):
            _put(there[at : at + 1].reshape(there.shape[1:]), item, f"{field}[{at}]")
    elif dtype in NAMES or (number_kind(dtype) in NUMBER_KINDS and not is_added(dtype)):
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value[()]
        there[...] = scalar_for(value, dtype, f"field '{field}'", field)
    elif dtype.names is None:
        there[...] = value
    elif is_struct(value) and _alike(_found(value).dtype, dtype):
        there[...] = _found(value)
    elif isinstance(value, tuple):
        if len(value) != len(dtype.names):
            inside = f"field '{field}'" if field else "it"
            raise TypeError(f"{inside} has {len(dtype.names)} fields, not {len(value)}")
        for name, item in zip(dtype.names, value, strict=True):
            _put(there[name], item, f"{field}.{name}" if field else name)
    else:
        raise TypeError(f"field '{field}' takes a struct or a tuple, not {value!r}")


def _alike(one: np.dtype[Any], other: np.dtype[Any]) -> bool:
    """Return whether two structs have the same layout in memory."""
    return one.itemsize == other.itemsize and one.fields == other.fields
