"""A kernel's parameters, read from its source.

The driver tells only sizes, and the CPU backend has no compiler, so the declaration
itself is read: enough C++ to know pointers, ``const``, the builtin types and what a template's
parameters stand for. A type that is not known here (a struct, a typedef) takes any scalar that
says itself of which type it is: one of NumPy's, not one of Python's.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ..._dtypes import DTYPES, NAMES, as_dtype
from ...memory import GpuRef
from .._arguments import require_readable, require_writable
from ._scalars import is_scalar, scalar_for
from ._structures import is_struct, structure
from ._tensor_map import TensorMap
from ._texture import Surface, Texture
from .wire._messages import Array, Scalar, Structure, SurfaceObject, TextureObject, TiledMap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...memory import Block, MemoryMap
    from .._request import Driver

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


_JOINED: Final = r"(?:\\\r?\n)*"
"""Where lines are joined, which may be anywhere."""

_TOKEN: Final = re.compile(
    rf"""
      (?P<comment> /{_JOINED}/ (?: \\\r?\n | [^\n] )*  |  /{_JOINED}\* .*? (?: \*{_JOINED}/ | \Z ) )
    | (?P<literal>
        (?: u{_JOINED}8 | [uUL] )? {_JOINED} R {_JOINED}
            "(?P<delimiter> [^\s()\\]{{0,16}} ) \( .*? \) (?P=delimiter) "
        | " (?: \\{_JOINED}[^\n] | \\\r?\n | [^"\\\n] )* "
        | ' (?: \\{_JOINED}[^\n] | \\\r?\n | [^'\\\n] )* ' )
    | \.?{_JOINED}[0-9] (?: [eEpP][+-] | '{_JOINED}\w | [\w.] | \\\r?\n )*  # such as 1'000
    | [^\W\d] (?: \w | \\\r?\n )*  # so that the R of a name's end begins no literal
    | \\\r?\n
    """,
    re.VERBOSE | re.DOTALL,
)
"""What must be told apart to know where code is, and only that."""

_TYPE_PARAMETER: Final = re.compile(r"(?:typename|class)\s+(\w+)\s*(?:=(.*))?", re.DOTALL)

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
        written: whether the kernel may write through it.
        dtype: element or value type; None where any fits.
        struct: the fields of a struct by value, where they are told.
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
        """``value`` as what this parameter takes, if that changes nothing but its width.

        Raises:
            TypeError: it is of another kind, or no scalar; or nobody knows how wide it
                should be.
            OverflowError: it does not fit.
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
"""How Python's numbers are packed, where that alone makes them what the kernel takes."""


@final
class Position:
    """Where a kernel takes an argument: what is known before there is one.

    Args:
        at: the position.
        parameter: what the kernel declares there.
        size: bytes that it takes and how they are aligned, where the compiler has told.
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
        """A buffer as the message has it.

        Args:
            arg: what the caller gave.
            memory: where it has to be.
            reads: gets its block, if the kernel only reads it.
            writes: gets it, if the kernel may write it.

        Raises:
            TypeError: it is no buffer, or one of another element type.
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
    ) -> Scalar | Structure | TiledMap | TextureObject | SurfaceObject:
        """A number, a struct, a tensor map, a texture or a surface as the message has it.

        Args:
            arg: what the caller gave.
            driver: that of the launch, for the array of a tensor map, texture or surface.
            reads: gets the block of that, if the kernel only loads from it.
            writes: gets it, if the kernel may store to it.

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


def read_kernels(source: str) -> list[str]:
    """The names of all kernels that a source declares, without its templates.

    Args:
        source: CUDA C++.

    Returns:
        Each once, in the order of their first declarations, qualified by namespaces.
    """
    text = _TOKEN.sub(_blank, source)
    names: dict[str, None] = {}
    scopes: list[str | None] = []
    head = 0
    for mark in re.finditer(r"[{};]", text):
        declared = text[head : mark.start()]
        head = mark.end()
        if "__global__" in declared and None not in scopes:
            found = re.search(
                r"\b(\w+)\s*\((?!.*\b__global__\b)", _without_calls(declared), re.DOTALL
            )
            if found is not None and not re.search(r"\btemplate\s*<", declared):
                names["::".join([*filter(None, scopes), found[1]])] = None
        if mark[0] == "{":
            space = re.search(r"\bnamespace\b\s*([\w:\s]*)$", declared)
            linkage = re.search(r'\bextern\s*""\s*$', declared)
            if space is not None:
                scopes.append("".join(space[1].split()))
            else:
                scopes.append("" if linkage is not None else None)
        elif mark[0] == "}" and scopes:
            scopes.pop()
    return [*names]


def _without_calls(declared: str) -> str:
    """A declaration from ``__global__`` on, without what may be called there beside the kernel."""
    _, _, after = declared.partition("__global__")
    return re.sub(
        r"\b__(?:launch_bounds|cluster_dims|block_size|maxnreg|nv_pure|align)__\s*\([^()]*\)",
        " ",
        after,
    )


def is_constant(source: str, name: str) -> bool:
    """Whether a source declares a variable as ``__constant__``."""
    text = _TOKEN.sub(_blank, source)
    bare = re.escape(name.rsplit("::", maxsplit=1)[-1])
    return re.search(rf"\b__constant__\b[^;{{}}()=]*\b{bare}\b", text) is not None


def read_signature(
    source: str, name: str, structs: Mapping[str, np.dtype[np.void]] | None = None
) -> tuple[Parameter, ...] | None:
    """The parameters of kernel ``name`` in ``source``.

    Args:
        source: CUDA C++.
        name: the kernel's name, perhaps qualified or with template arguments.
        structs: the fields of structs, by their names.

    Returns:
        None if no ``__global__`` function of that name is declared in plain sight (it may
        come from an include or a macro; the compiler has the last word).
    """
    text = _TOKEN.sub(_blank, source)
    plain, _, arguments = name.partition("<")
    bare = re.escape(plain.rsplit("::", maxsplit=1)[-1].strip())
    for match in re.finditer(rf"\b{bare}\s*\(", text):
        head = re.split(r"[;{}]", text[: match.start()])[-1]
        if "__global__" in head:
            types = _template_types(head, _split(arguments.rpartition(">")[0]))
            inside = _until_closed(text, match.end())
            return tuple(_parameter(part, types, structs or {}) for part in _split(inside))
    return None


def _blank(token: re.Match[str]) -> str:
    """What a token leaves of itself where only code counts."""
    if token["comment"] is not None:
        return " "
    if token["literal"] is not None:
        return '""'
    return re.sub(_JOINED, "", token[0])


def _template_types(head: str, arguments: list[str]) -> dict[str, str]:
    """What a template's type parameters stand for, as far as that is said."""
    types: dict[str, str] = {}
    template = re.search(r"\btemplate\s*<", head)
    if template is None:
        return types
    parameters = _split(_until_closed(head, template.end(), "<>"))
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


def _until_closed(text: str, start: int, brackets: str = "()") -> str:
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == brackets[0]) - (text[at] == brackets[1])
        if not depth:
            return text[start:at]
    return text[start:]


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(char, 0)
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip() not in ("", "void")]


def _parameter(
    text: str, types: dict[str, str], structs: Mapping[str, np.dtype[np.void]]
) -> Parameter:
    written_as = " ".join(text.split("=", maxsplit=1)[0].split())
    declared = re.sub(r"\w+", lambda word: types.get(word[0], word[0]), written_as)
    pointer = "*" in declared or declared.endswith("]")
    target, _, _ = declared.partition("*") if "*" in declared else declared.partition("[")
    written = pointer and not re.search(r"\bconst\b", target)
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
    return Parameter(written_as, pointer, written, DTYPES[name] if name else None, struct)
