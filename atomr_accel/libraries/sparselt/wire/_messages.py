"""Messages of the lane of structured sparsity."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Final, Literal

import msgspec

from ....wire import Address, Message
from ....wire import encode as encode_part

Algorithm = Literal["strip", "tile"]

GROUP: Final = {"float32": 2}
"""Number of elements of a row of which half are zero; 4 for other types."""


class Structured(msgspec.Struct, frozen=True, array_like=True):
    """A matrix by rows without gaps, half of whose elements are zero.

    Attributes:
        rows, columns: its shape.
        dtype: element type.
    """

    rows: int
    columns: int
    dtype: str

    @property
    def group(self) -> int:
        """The number of elements of a row of which half are zero."""
        return GROUP.get(self.dtype, 4)


class DenseOperand(msgspec.Struct, frozen=True, array_like=True):
    """A matrix that lies by rows or by columns.

    Attributes:
        rows, columns: its shape.
        ld: elements from one row, or column, to the next.
        by_rows: whether the elements of a row follow each other.
        dtype: element type.
    """

    rows: int
    columns: int
    ld: int
    by_rows: bool
    dtype: str


class SparseLtSpec(msgspec.Struct, frozen=True, array_like=True):
    """A product without addresses and numbers: ``d = epilogue(alpha * a @ b + beta * c)``.

    Attributes:
        a: the compressed matrix.
        b, c, d: the others.
        activation: ``"relu"``, ``"gelu"`` or the empty string.
        bias: dtype of the bias; the empty string for none.
        tuned: whether algorithms are tried the first time.
    """

    a: Structured
    b: DenseOperand
    c: DenseOperand
    d: DenseOperand
    activation: str
    bias: str
    tuned: bool


def encode(spec: SparseLtSpec) -> bytes:
    """A spec as messages carry it; equal ones give the same bytes."""
    return encode_part(spec, "sparselt.matmul")


@lru_cache(512)
def decode(encoded: bytes) -> SparseLtSpec:
    """The spec that ``encode`` was given."""
    return msgspec.msgpack.decode(encoded, type=SparseLtSpec)


class Prune(Message, frozen=True):
    """Set the smaller half of each group of elements to zero.

    Attributes:
        algorithm: the shape of groups.
        source: its address.
        target: address of the result, possibly the same.
    """

    matrix: Structured
    algorithm: Algorithm
    source: Address
    target: Address


class CheckSparsity(Message, frozen=True):
    """Tell whether half of each group of elements is zero."""

    returns: ClassVar[Any] = bool

    matrix: Structured
    source: Address


class MeasureCompressed(Message, frozen=True):
    """Tell how many bytes a compressed matrix has, and how many it takes to compress it."""

    returns: ClassVar[Any] = tuple[int, int]

    matrix: Structured


class Compress(Message, frozen=True):
    """Compress a matrix.

    Attributes:
        source: its address.
        target: address of the result.
        scratch: scratch memory.
    """

    matrix: Structured
    source: Address
    target: Address
    scratch: Address


class MultiplyCompressed(Message, frozen=True):
    """Multiply a compressed matrix.

    Attributes:
        spec: an encoded ``SparseLtSpec``.
        a, b, c, d: addresses; d may be c.
        bias: address of the bias, or 0.
        alpha, beta: numbers; with beta 0, c is not read.
    """

    spec: bytes
    a: Address
    b: Address
    c: Address
    d: Address
    bias: Address
    alpha: float
    beta: float
