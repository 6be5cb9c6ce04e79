"""A kernel's parameters, by its declaration, and the arguments that they take.

This module knows pointers, ``const``, the builtin types and the arguments of templates. A parameter
of another type (a struct, a typedef) takes a buffer, or any NumPy scalar, because that has a dtype.
It takes no Python number.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ..._dtypes import DTYPES, NAMES, as_dtype
from ...memory import GpuRef
from ...ops import require_readable, require_writable
from ._declarations import split
from ._scalars import is_scalar, scalar_for
from .structures import is_struct, structure
from .tensor_map import TensorMap
from .texture import Surface, Texture
from .wire.messages import Array, Scalar, Structure, SurfaceObject, TextureObject, TiledMap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...memory import Block, MemoryMap
    from ...ops import Driver
    from ._declarations import Declarations

_C_TYPES: Final[dict[str, str]] = {
    "bool": "bool",
    **dict.fromkeys(("char", "signed char", "int8_t"), "int8"),
    **dict.fromkeys(("unsigned char", "uint8_t"), "uint8"),
    **dict.fromkeys(("short", "short int", "int16_t"), "int16"),
    **dict.fromkeys(("unsigned short", "unsigned short int", "uint16_t"), "uint16"),
    **dict.fromkeys(("int", "signed", "signed int", "int32_t"), "int32"),
    **dict.fromkeys(("unsigned", "unsigned int", "uint32_t"), "uint32"),
    **dict.fromkeys(("long", "long int", "long long", "long long int"), "int64"),
    **dict.fromkeys(("int64_t", "ptrdiff_t", "ssize_t"), "int64"),
    **dict.fromkeys(("unsigned long", "unsigned long int", "unsigned long long"), "uint64"),
    **dict.fromkeys(("unsigned long long int", "uint64_t", "size_t", "uintptr_t"), "uint64"),
    "float": "float32",
    "double": "float64",
    **dict.fromkeys(("__half", "half"), "float16"),
    **dict.fromkeys(("__nv_bfloat16", "nv_bfloat16"), "bfloat16"),
    **dict.fromkeys(("float2", "cuFloatComplex", "cuComplex"), "complex64"),
    **dict.fromkeys(("double2", "cuDoubleComplex"), "complex128"),
    "__nv_fp8_e4m3": "float8_e4m3fn",
    "__nv_fp8_e5m2": "float8_e5m2",
}

_NOISE: Final = re.compile(
    r"\b(const|volatile|__restrict__|__restrict|restrict|__grid_constant__|std::)\b"
)


_VALUE: Final = (
    r"\b(?:CUtensorMap|cudaTextureObject_t|cudaSurfaceObject_t|dim3|enum|struct|union"
    r"|u?(?:char|short|int|long|longlong)[1-4]|(?:float|double)[1-4])\b"
)
"""Types that are no pointers by another name."""

_MAY_BE_SEVERAL: Final = re.compile(r"\.\.\.|\w\s*\((?!\s*[*&])|^\w+$")
"""Declarations that may stand for any number of parameters: packs, and possible macros."""

_TYPE_PARAMETER: Final = re.compile(r"(?:typename|class)\s+(\w+)\s*(?:=(.*))?", re.DOTALL)

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
        text: its declaration.
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
        """A buffer for this parameter has its element type, up to signedness.

        Raises:
            TypeError: it has not.
        """
        expected, actual = self.dtype, ref.dtype
        if expected is None or expected is actual:
            return
        if expected.itemsize == actual.itemsize and expected.kind in "iu" and actual.kind in "iu":
            return
        raise TypeError(
            f"argument {position} has dtype {actual.name}, but the kernel declares "
            f"'{self.text}', which is {expected.name}"
        )

    def scalar(self, value: object, position: int) -> np.generic:
        """Convert a number to the type of this parameter, if that changes only its width.

        Raises:
            TypeError: the value is of another kind, is not a scalar, or has no known width.
            OverflowError: the value does not fit.
        """
        expected = self.dtype
        if expected is not None:
            return scalar_for(value, expected, f"argument {position}", self.text)
        if not isinstance(value, np.generic):
            if not is_scalar(value):
                raise TypeError(
                    f"argument {position} must be a scalar for '{self.text}', "
                    f"not {type(value).__name__}"
                )
            raise TypeError(
                f"argument {position} is a Python {type(value).__name__}, but the source does "
                f"not tell the type of '{self.text}'; pass {_spelled(value)}"
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

    def array(self, arg: Any, memory: MemoryMap, reads: list[Block], writes: list[Block]) -> Array:
        """Convert a buffer to its form in messages.

        Args:
            arg: the caller's argument.
            memory: the memory in which it must be.
            reads: gets its block, if the kernel only reads it.
            writes: gets its block, if the kernel may write it.

        Raises:
            TypeError: it is not a buffer, or is one of another element type.
            ValueError, GpuRefStale, GpuRefSealed: as for all buffers.
        """
        block = self._check(arg, memory, self._name)
        ref: GpuRef = arg
        parameter = self.parameter
        if ref.dtype is not parameter.dtype:
            parameter.check_ref(ref, self._at)
        (writes if parameter.written else reads).append(block)
        return Array(block.address, ref.shape, NAMES[ref.dtype])

    def value(
        self, arg: object, driver: Driver, reads: list[Block], writes: list[Block]
    ) -> Array | Scalar | Structure | TiledMap | TextureObject | SurfaceObject:
        """Convert a number, struct, tensor map, texture or surface to its form in messages.

        If the type that the kernel declares is unknown, the argument may also be a buffer.

        Args:
            arg: the caller's argument.
            driver: driver of the launch, for the array of a tensor map, texture or surface.
            reads: gets the block of that array, if the kernel only loads from it.
            writes: gets the block of that array, if the kernel may store to it.

        Raises:
            TypeError, OverflowError: as ``Parameter.scalar``.
            TypeError, ValueError: as ``structure``, and of such an array.
        """
        if self._pack is not None and type(arg) is self._packs:
            try:
                return Scalar(self._pack(arg), self._type)
            except (struct.error, OverflowError):
                pass  # it does not fit, which is said below
        if isinstance(arg, TensorMap | Texture | Surface):
            other = Surface if isinstance(arg, Texture) else Texture
            if other.declared in self.parameter.text or not arg._fits(
                self.parameter.dtype, self._size
            ):
                raise TypeError(
                    f"argument {self._at} is a {type(arg).__name__}, but the kernel declares "
                    f"'{self.parameter.text}'; it is for '{arg.declared}'"
                )
            return arg._message(driver, self._name, reads, writes)
        fields = self.parameter.struct
        if fields is not None or is_struct(arg):
            if self.parameter.dtype is not None:
                raise TypeError(
                    f"argument {self._at} is a struct, but the kernel declares "
                    f"'{self.parameter.text}', which is {self._type}"
                )
            return structure(arg, fields, self._size, self._name)
        if isinstance(arg, GpuRef):
            if self.parameter.written and self._size in (None, _POINTER):
                return self.array(arg, driver.memory, reads, writes)  # such as a typedef of one
            raise TypeError(
                f"argument {self._at} is a GpuRef, but the kernel declares "
                f"'{self.parameter.text}', which is no pointer"
            )
        value = self.parameter.scalar(arg, self._at)
        if self._size is not None and value.dtype.itemsize != self._size[0]:
            raise TypeError(
                f"argument {self._at} is a {value.dtype.name} of {value.dtype.itemsize} bytes, but "
                f"'{self.parameter.text}' takes {self._size[0]}"
            )
        return Scalar(value.tobytes(), value.dtype.name)


def read_signature(
    declarations: Declarations,
    name: str,
    structs: Mapping[str, np.dtype[np.void]] | None = None,
    sizes: tuple[tuple[int, int], ...] | None = None,
) -> tuple[Parameter, ...] | None:
    """Return the parameters of a kernel.

    Args:
        declarations: the declarations of its source.
        name: the kernel's name, perhaps qualified or with template arguments.
        structs: the fields of structs, by their names.
        sizes: bytes and alignment of each parameter, if the compiler has reported them.

    Returns:
        The parameters. If the kernel is declared in several ways, they have only the properties
        on which all declarations agree. None if the source does not determine them: the kernel may
        come from an include or a macro, or have declarations that contradict each other.
    """
    values = re.compile("|".join((_VALUE, *map(r"\b{}\b".format, declarations.types))))
    _, _, arguments = name.partition("<")
    given = split(arguments.rpartition(">")[0])
    ways: list[tuple[Parameter, ...]] = []
    functions = declarations.functions(name)
    for function in functions:
        if function.parameters is None:
            return None
        types = _template_types(function.template or (), given)
        way = tuple(_parameter(each, types, structs or {}, values) for each in function.parameters)
        if len(functions) > 1 and any(map(_MAY_BE_SEVERAL.search, function.parameters)):
            return None
        if sizes is None or _fits(way, sizes):
            ways.append(way)
    if not ways or len({len(way) for way in ways}) > 1:
        return None
    ways = [*dict.fromkeys(ways)]
    merged = [_common(parameters) for parameters in zip(*ways, strict=True)]
    return None if None in merged else tuple(filter(None, merged))


def _fits(parameters: tuple[Parameter, ...], sizes: tuple[tuple[int, int], ...]) -> bool:
    """Return whether parameters match the sizes that the compiler reports."""
    return len(parameters) == len(sizes) and all(
        parameter.pointer or parameter.dtype is None or parameter.dtype.itemsize == size
        for parameter, (size, _) in zip(parameters, sizes, strict=True)
    )


def _common(ways: tuple[Parameter, ...]) -> Parameter | None:
    """Merge several declarations of a parameter; None if only some of them are pointers."""
    if len({*ways}) == 1:
        return ways[0]
    if len({each.pointer for each in ways}) > 1:
        return None
    first = ways[0]
    alike = all(each.dtype is first.dtype for each in ways)
    same = all(each.struct == first.struct for each in ways)
    return Parameter(
        " or ".join(dict.fromkeys(each.text for each in ways)),
        first.pointer,
        any(each.written for each in ways),
        first.dtype if alike else None,
        first.struct if same else None,
    )


def _template_types(parameters: tuple[str, ...], arguments: list[str]) -> dict[str, str]:
    """Return the types that a template's type parameters stand for, if they are given."""
    types: dict[str, str] = {}
    for at, parameter in enumerate(parameters):
        found = _TYPE_PARAMETER.fullmatch(parameter)
        if found is not None:
            stands_for = arguments[at] if at < len(arguments) else (found[2] or "").strip()
            # Within 'const T', a pointer type would not be what it is as text.
            if stands_for and not re.search(r"[*&\[(]", stands_for):
                types[found[1]] = stands_for
    return types


def _spelled(value: object) -> str:
    return next((text for kind, text in _OF_PYTHON.items() if isinstance(value, kind)), "")


def _parameter(
    text: str,
    types: dict[str, str],
    structs: Mapping[str, np.dtype[np.void]],
    values: re.Pattern[str],
) -> Parameter:
    written_as = " ".join(text.split("=", maxsplit=1)[0].split())
    declared = re.sub(r"\w+", lambda word: types.get(word[0], word[0]), written_as)
    outer = declared
    while (inner := re.sub(r"<[^<>]*>", "", outer)) != outer:
        outer = inner  # what a type is made of does not make it a pointer, nor constant
    base = " ".join(each.rpartition("::")[2] for each in outer.split())
    if to_arrays := re.match(r"([^(]*)\(\s*\*", outer):
        outer = f"{to_arrays[1]}*"
    if outer.endswith("]"):
        outer = f"{outer.partition('[')[0]}*"
    pointer = "*" in outer
    target, _, _ = declared.partition("*") if "*" in declared else declared.partition("[")
    words = _NOISE.sub(" ", target).split()
    if declared != target and "*" in declared:
        type_words = words  # what follows the star is the parameter's name
    else:
        type_words = words[:-1] if len(words) > 1 and " ".join(words) not in _C_TYPES else words
    spelled = " ".join(type_words)
    name = _C_TYPES.get(spelled)
    if declared.count("*") > 1:
        name = None  # pointers to pointers live in a buffer of addresses
    struct = None if pointer else structs.get(spelled.removeprefix("struct "))
    dtype = DTYPES[name] if name else None
    # What is known by no name here may be a pointer by another.
    written = dtype is None and struct is None and not values.search(base)
    if pointer:
        written = not re.search(r"\bconst\b", outer.split("*")[-2])
    return Parameter(written_as, pointer, written, dtype, struct)
