"""A kernel's parameters, by the compiler's name for its type, and the arguments that they take.

A parameter of a type without a dtype, such as an enumeration or a class, takes any NumPy scalar or
struct of its size. It takes no Python number.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ..._dtypes import DTYPES, NAMES, as_dtype
from ..._errors import said_of
from ...arrays import GpuRef, no_ref_error
from ...ops import require_readable, require_writable
from ._scalars import is_scalar, scalar_for
from .structures import is_struct, structure
from .tensor_map import TensorMap
from .texture import Surface, Texture
from .wire._mangled import function_type
from .wire.messages import (
    NULL,
    ArrayArgument,
    Scalar,
    StructArgument,
    SurfaceObject,
    TextureObject,
    TiledMap,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...memory import Block, MemoryMap
    from ...ops import Preparer
    from .wire._mangled import CppType

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    spelled: DTYPES[name]
    for spelled, name in {
        "bool": "bool",
        "char": "int8",
        "signed char": "int8",
        "unsigned char": "uint8",
        "short": "int16",
        "unsigned short": "uint16",
        "int": "int32",
        "unsigned int": "uint32",
        "long": "int64",
        "unsigned long": "uint64",
        "long long": "int64",
        "unsigned long long": "uint64",
        "float": "float32",
        "double": "float64",
        "__half": "float16",
        "__nv_bfloat16": "bfloat16",
        "float2": "complex64",
        "double2": "complex128",
        "__nv_fp8_e4m3": "float8_e4m3fn",
        "__nv_fp8_e5m2": "float8_e5m2",
    }.items()
}
"""Dtypes of C++'s types, without their other names, which the compiler resolves."""

_POINTER: Final = 8, 8
"""Bytes of a pointer, and how it is aligned."""

_OF_PYTHON: Final[dict[type, str]] = {
    bool: "numpy.bool_(...)",
    int: "numpy.int32(...) or numpy.int64(...)",
    float: "numpy.float32(...) or numpy.float64(...)",
    complex: "numpy.complex64(...) or numpy.complex128(...)",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        text: its type in C++.
        pointer: whether it takes a buffer.
        written: whether the kernel may write through it, if it is a pointer.
        dtype: element or value type; None where any fits.
        struct: the fields of a struct by value, if they are given.
    """

    text: str
    pointer: bool
    written: bool
    dtype: np.dtype[Any] | None
    struct: np.dtype[np.void] | None = None

    def check_ref(self, ref: GpuRef, position: int) -> None:
        """Check that a buffer for this parameter has its element type, up to signedness."""
        expected, actual = self.dtype, ref.dtype
        if expected is None or expected is actual:
            return
        if expected.itemsize == actual.itemsize and expected.kind in "iu" and actual.kind in "iu":
            return
        raise TypeError(
            f"argument {position} must have dtype {expected.name}, because the kernel "
            f"declares '{self.text}', not {actual.name}"
        )

    def scalar(self, value: object, position: int) -> np.generic:
        """Convert a number to the type of this parameter, if that changes only its width."""
        expected = self.dtype
        if expected is not None:
            return scalar_for(value, expected, f"argument {position}", self.text)
        if not isinstance(value, np.generic):
            if not is_scalar(value):
                if self.text == "?":  # it may be a pointer as well
                    raise no_ref_error(value, f"argument {position}", "a scalar or a GpuRef")
                raise TypeError(
                    f"argument {position} must be a scalar for '{self.text}', not {said_of(value)}"
                )
            raise TypeError(
                f"argument {position} must have a type of its own, because the source "
                f"does not tell that of '{self.text}', not {type(value).__name__}; "
                f"pass {_spelled(value)}"
            )
        as_dtype(value.dtype)
        return value


_FORMATS: Final = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float32": "f",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
}
"""Formats that pack Python's numbers, for dtypes that need no other conversion."""


@final
class Position:
    """The position of an argument, with all that is known before a launch.

    Args:
        at: the position.
        parameter: the kernel's declaration of it.
        size: its bytes and their alignment, if the compiler has reported them.
    """

    __slots__ = (
        *("_at", "_check", "_name", "_pack", "_packs", "_size", "_type"),
        *("parameter", "pointer"),
    )

    def __init__(self, at: int, parameter: Parameter, size: tuple[int, int] | None = None) -> None:
        self.parameter: Final = parameter
        self._size = size
        self.pointer: Final = parameter.pointer
        self._at = at
        self._name = f"argument {at} ('{parameter.text}')"
        self._check = require_writable if parameter.written else require_readable
        self._type = "" if parameter.dtype is None else NAMES[parameter.dtype]
        self._packs = float if self._type.startswith("float") else int
        self._pack: Callable[[Any], bytes] | None = None
        if self._type in _FORMATS:
            self._pack = struct.Struct(f"={_FORMATS[self._type]}").pack

    def array(
        self, arg: Any, memory: MemoryMap, reads: list[Block], writes: list[Block]
    ) -> ArrayArgument | Scalar:
        """Convert a buffer, or None for a null pointer, to its form in messages.

        ``reads`` gets its block if the kernel only reads it, else ``writes`` does.
        """
        if arg is None:
            return NULL
        block = self._check(arg, memory, self._name)
        ref: GpuRef = arg
        parameter = self.parameter
        if ref.dtype is not parameter.dtype:
            parameter.check_ref(ref, self._at)
        (writes if parameter.written else reads).append(block)
        return ArrayArgument(block.address, ref.shape, NAMES[ref.dtype])

    def value(
        self, arg: object, preparer: Preparer, reads: list[Block], writes: list[Block]
    ) -> ArrayArgument | Scalar | StructArgument | TiledMap | TextureObject | SurfaceObject:
        """Convert a number, struct, tensor map, texture or surface to its form in messages.

        If the type that the kernel declares is unknown, the argument may also be a buffer, or None
        for a null pointer. The block of the array of a tensor map, texture or surface goes to
        ``reads`` if the kernel only loads from it, else to ``writes``.
        """
        if self._pack is not None and type(arg) is self._packs:
            try:
                return Scalar(self._pack(arg), self._type)
            except (struct.error, OverflowError):
                pass  # it does not fit, which is said below
        if isinstance(arg, TensorMap | Texture | Surface):
            if not arg._fits(self.parameter.dtype, self._size):
                raise TypeError(
                    f"argument {self._at} must be for '{self.parameter.text}', which "
                    f"the kernel declares, not a {type(arg).__name__} for "
                    f"'{arg.declared}'"
                )
            return arg._message(preparer, self._name, reads, writes)
        fields = self.parameter.struct
        if fields is not None or is_struct(arg):
            if self.parameter.dtype is not None:
                raise TypeError(
                    f"argument {self._at} must be {self._type}, because the kernel "
                    f"declares '{self.parameter.text}', not a struct"
                )
            return structure(arg, fields, self._size, self._name)
        if isinstance(arg, GpuRef):
            if self.parameter.written and self._size in (None, _POINTER):
                return self.array(arg, preparer.memory, reads, writes)  # such as a typedef of one
            raise TypeError(
                f"argument {self._at} must be a scalar, because the kernel declares "
                f"'{self.parameter.text}', not a GpuRef"
            )
        if arg is None and self.parameter.dtype is None and self._size in (None, _POINTER):
            return NULL
        value = self.parameter.scalar(arg, self._at)
        if self._size is not None and value.dtype.itemsize != self._size[0]:
            raise TypeError(
                f"argument {self._at} must have {self._size[0]} bytes, which "
                f"'{self.parameter.text}' takes, not {value.dtype.itemsize}, as "
                f"{value.dtype.name} has"
            )
        return Scalar(value.tobytes(), value.dtype.name)


def read_signature(
    symbol: str,
    structs: Mapping[str, np.dtype[np.void]] | None = None,
    spelled: Sequence[str] = (),
) -> tuple[Parameter, ...] | None:
    """Return the parameters of a kernel.

    Args:
        symbol: the compiler's name of a template's instance for the kernel's type.
        structs: the fields of structs, by their names in the program.
        spelled: the compiler's names for functions that take those structs, in the same order.

    Returns:
        The parameters; None if the name does not tell them.
    """
    function = function_type(symbol)
    if function is None:
        return None
    fields = {}
    for name, dtype in zip(spelled, (structs or {}).values(), strict=False):
        taking = function_type(name)
        if taking is not None:
            fields[taking.parameters[0].text] = dtype
    return tuple(_parameter(each, fields) for each in function.parameters)


def _parameter(given: CppType, structs: Mapping[str, np.dtype[np.void]]) -> Parameter:
    target = given.target
    if given.kind == "pointer" and target is not None and target.kind != "function":
        item = target
        while item.kind == "array" and item.target is not None:
            item = item.target
        element = _DTYPES.get(item.text.removeprefix("const "))
        return Parameter(given.text, True, not target.constant, element)
    struct = structs.get(given.text)
    dtype = _DTYPES.get(given.text)
    # A class without known fields may hold a pointer.
    maybe = given.kind == "class" and dtype is None and struct is None
    return Parameter(given.text, False, maybe, dtype, struct)


def _spelled(value: object) -> str:
    return next((text for kind, text in _OF_PYTHON.items() if isinstance(value, kind)), "")
