"""Checks of arguments that all BLAS facades share."""

from __future__ import annotations

import numbers
import operator
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np

from ..._dtypes import DTYPES, NAMES
from ..._errors import Unsupported
from ...arrays import GpuRef
from ...ops import D, Facade, LaneSpec, Request, require_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...memory import Block
    from ...ops import DeviceView, Preparer, Submission
    from .wire._messages import Scalar

T = TypeVar("T")

TF32: Final = "32F_FAST_TF32"
"""The vendor's name for products of 32-bit floats whose factors are rounded to ten bits."""

LANE: Final = LaneSpec(
    "blas",
    {
        "cpu": "atomr_accel.libraries.blas.host._cpu:CpuBlas",
        "cuda": "atomr_accel.libraries.blas.host._cuda:CudaBlas",
    },
    max_streams=4,
)

Number = complex | np.number[Any]
Trans = bool | int | Literal["N", "T", "C"]
"""Transposition of a matrix: 0 or ``"N"`` for none, 1 or ``"T"`` for the transpose, 2 or ``"C"``
for the conjugate transpose. False and True are 0 and 1.
"""

Side = int | Literal["L", "R"]

SINGLE_OR_DOUBLE: Final = ("float32", "float64", "complex64", "complex128")
FLOATS: Final = ("float16", "bfloat16", *SINGLE_OR_DOUBLE)
REAL_OF: Final = {"complex64": DTYPES["float32"], "complex128": DTYPES["float64"]}
INT32: Final = DTYPES["int32"]
INT64: Final = DTYPES["int64"]
UINT8: Final = DTYPES["uint8"]

_OPERATIONS: Final[dict[Any, int]] = {0: 0, 1: 1, 2: 2, "N": 0, "T": 1, "C": 2}
_SIDES: Final[dict[Any, bool]] = {0: False, 1: True, "L": False, "R": True}

LARGEST_INT: Final = 2**31 - 1
"""Largest size that the vendor functions without 64-bit sizes accept."""


class BlasPart(Facade[D]):
    """Base of the classes that ``device.blas`` consists of."""

    def __init__(self, device: DeviceView) -> None:
        self.home = device

    def _request(self, name: str, prepare: Callable[[Preparer], Submission[T]]) -> Request[T]:
        return Request(LANE, f"blas.{name}", prepare)


def operation(trans: Trans, name: str) -> int:
    """0, 1 or 2 for a ``Trans``."""
    try:
        return _OPERATIONS[_exactly(trans)]
    except (KeyError, TypeError):
        raise ValueError(f"{name} must be 0 ('N'), 1 ('T') or 2 ('C'), not {trans!r}") from None


def _exactly(option: Any) -> Any:
    """An option as a key: 1.0 equals 1, but is none."""
    if isinstance(option, str | np.bool_):
        return option
    return operator.index(option)


def on_the_right(side: Side) -> bool:
    """Return True if ``side`` is the right side."""
    try:
        return _SIDES[_exactly(side)]
    except (KeyError, TypeError):
        raise ValueError(f"side must be 0 ('L') or 1 ('R'), not {side!r}") from None


def scalar(value: Any, dtype: np.dtype[Any], name: str) -> Scalar:
    """A number as messages carry it: two parts for complex dtypes."""
    if not isinstance(value, numbers.Number):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    number: Any = value
    try:
        if dtype.kind == "c":
            parts = complex(number)
            return parts.real, parts.imag
        if isinstance(value, (complex, np.complexfloating)):
            raise TypeError(f"{name} must be real for dtype {dtype.name}, not {value!r}")
        return float(number)
    except OverflowError:
        raise ValueError(f"{name} is an integer that is too large for a float") from None


SCALAR_BYTES: Final = 16
"""Room for a number of any dtype."""


def place_scalars(
    preparer: Preparer, given: Sequence[tuple[str, Any, np.dtype[Any]]]
) -> tuple[tuple[int, ...], list[Block], list[Block]]:
    """Return the addresses of scalars if at least one of them is a buffer on the device.

    Returns:
        An address for each scalar, and one of room for one more; the blocks of the buffers; the
        block of the room for numbers.
    """
    room = preparer.output((SCALAR_BYTES * (len(given) + 1),), UINT8).block
    places: list[int] = []
    read: list[Block] = []
    for name, value, dtype in given:
        place = room.address + SCALAR_BYTES * len(places)
        if isinstance(value, GpuRef):
            block = require_readable(value, preparer.memory, name)
            require_numbers(value, (), name)
            if value.dtype is not dtype:
                raise TypeError(f"{name} must have dtype {dtype.name}, not {value.dtype.name}")
            read.append(block)
            place = block.address
        places.append(place)
    return (*places, room.address + SCALAR_BYTES * len(places)), read, [room]


def require_numbers(ref: GpuRef, shape: tuple[int, ...], name: str) -> None:
    """A buffer of one number, or as many as always go together."""
    if ref.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {ref.shape}")


def require_kind(ref: GpuRef, dtypes: tuple[str, ...], routine: str) -> str:
    """The name of the ref's dtype, which must be one of these."""
    name = NAMES[ref.dtype]
    if name not in dtypes:
        raise TypeError(f"dtypes of {routine} must be one of {', '.join(dtypes)}, not {name}")
    return name


def require_matrix(ref: GpuRef, shape: tuple[int, int], name: str, why: str) -> None:
    """``ref`` is a matrix of that shape, because of ``why``."""
    if ref.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, because {why}, not {ref.shape}")


def scales_nothing(beta: Scalar | None, out: GpuRef | None) -> bool:
    """Return True if beta is 0, so that the output is not read.

    Any other beta needs ``out``. None stands for a beta on the device, which may have any value.
    """
    if beta in (0.0, (0.0, 0.0)):
        return True
    if out is None:
        shown = "a buffer" if beta is None else beta
        raise ValueError(f"beta must be 0 without out, not {shown}; pass the out that it scales")
    return False


def require_terms(*operands: GpuRef) -> None:
    """Refuse sums without terms, for which cuBLAS would not write the output.

    The program does not know the value of a beta on the device, so it cannot scale the output
    itself.
    """
    if not all(operand.size for operand in operands):
        raise Unsupported("a sum of no terms, where alpha or beta is on the device")
