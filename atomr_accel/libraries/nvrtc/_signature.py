"""A kernel's parameters, read from its source.

The driver tells only sizes, and the CPU backend has no compiler, so the declaration
itself is read: enough C++ to know pointers, ``const`` and the builtin types. A type that
is not known here (a struct, a typedef, a template parameter) takes any scalar.
"""

from __future__ import annotations

import cmath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np

from ..._dtypes import DTYPES, as_dtype

if TYPE_CHECKING:
    from ...memory import GpuRef

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


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a kernel.

    Attributes:
        text: its declaration.
        pointer: whether it takes a buffer.
        written: whether the kernel may write through it.
        dtype: element or value type; None where any fits.
    """

    text: str
    pointer: bool
    written: bool
    dtype: np.dtype[Any] | None

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
            TypeError: it is of another kind, or no scalar.
            OverflowError: it does not fit.
        """
        if not isinstance(value, (bool, int, float, complex, np.generic)):
            raise TypeError(
                f"argument {position} must be a scalar for '{self.text}', "
                f"not {type(value).__name__}"
            )
        expected = self.dtype
        if expected is None:
            free: Any = value if isinstance(value, np.generic) else np.asarray(value)[()]
            as_dtype(getattr(free, "dtype", object))
            return free  # type: ignore[no-any-return]
        # NumPy makes an object of an int that fits none of its types.
        kind = "i" if type(value) is int else np.asarray(value).dtype.kind
        if _RANK.get(kind, 9) > _RANK.get(expected.kind, 3):
            raise TypeError(
                f"argument {position} is {value!r}, but the kernel declares '{self.text}', "
                f"which is {expected.name}"
            )
        if isinstance(value, np.generic) and value.dtype.itemsize > expected.itemsize:
            raise TypeError(
                f"argument {position} is a {value.dtype.name}, which is wider than "
                f"'{self.text}'; convert it with numpy.{expected.name}(...)"
            )
        lost: object = None
        if expected.kind in "iu":
            limits = np.iinfo(expected)
            if not limits.min <= int(value) <= limits.max:  # type: ignore[arg-type]
                lost = f"{limits.min} to {limits.max}"
        elif not isinstance(value, np.generic):
            try:
                with np.errstate(over="ignore"):
                    narrowed = complex(expected.type(value))
                if cmath.isfinite(value) and not cmath.isfinite(narrowed):
                    lost = f"up to {ml_dtypes.finfo(expected).max}"  # type: ignore[no-untyped-call]
            except OverflowError as error:
                lost = error
        if lost is not None:
            raise OverflowError(
                f"argument {position} does not fit '{self.text}' ({lost}): {value!r:.40}"
            )
        result: np.generic = expected.type(value)
        return result


_RANK: Final = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}
"""Kinds in the order in which a value of one may stand for the next."""


def read_signature(source: str, name: str) -> tuple[Parameter, ...] | None:
    """The parameters of kernel ``name`` in ``source``.

    Args:
        source: CUDA C++.
        name: the kernel's name, perhaps qualified or with template arguments.

    Returns:
        None if no ``__global__`` function of that name is declared in plain sight (it may
        come from an include or a macro; the compiler has the last word).
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    bare = re.escape(name.split("<", maxsplit=1)[0].rsplit("::", maxsplit=1)[-1].strip())
    for match in re.finditer(rf"\b{bare}\s*\(", text):
        head = re.split(r"[;{}]", text[: match.start()])[-1]
        if "__global__" in head:
            inside = _until_closed(text, match.end())
            return tuple(map(_parameter, _split(inside)))
    return None


def _until_closed(text: str, start: int) -> str:
    depth = 1
    for at in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
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


def _parameter(text: str) -> Parameter:
    declared = " ".join(text.split("=", maxsplit=1)[0].split())
    pointer = "*" in declared or declared.endswith("]")
    target, _, _ = declared.partition("*") if "*" in declared else declared.partition("[")
    written = pointer and not re.search(r"\bconst\b", target)
    words = _NOISE.sub(" ", target).split()
    if declared != target and "*" in declared:
        type_words = words  # what follows the star is the parameter's name
    else:
        type_words = words[:-1] if len(words) > 1 and " ".join(words) not in _C_TYPES else words
    name = _C_TYPES.get(" ".join(type_words))
    if declared.count("*") > 1:
        name = None  # pointers to pointers live in a buffer of addresses
    return Parameter(declared, pointer, written, DTYPES[name] if name else None)
