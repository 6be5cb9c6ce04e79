"""Messages of the lane of structured sparsity."""

from __future__ import annotations

from dataclasses import KW_ONLY
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, final

import msgspec

from ....wire import Address, Message
from ....wire import encode as encode_part
from ....wire.operations import In, Operation, Out

if TYPE_CHECKING:
    from ....arrays import GpuRef

Algorithm = Literal["strip", "tile"]

GROUP: Final = {"float32": 2}
"""Number of elements of a row of which half are zero; 4 for other types."""


RESULTS: Final[dict[str, tuple[str, ...]]] = {
    "float16": ("float16",),
    "bfloat16": ("bfloat16",),
    "float32": ("float32",),
    "int8": ("int32", "int8", "float16", "bfloat16"),
    "float8_e4m3fn": ("bfloat16", "float16", "float32", "float8_e4m3fn"),
    "float8_e5m2": ("bfloat16", "float16", "float32", "float8_e5m2"),
}
"""The dtypes of results, by that of the matrices; the first is the default."""

STRUCTURED: Final = {1: 32, 2: 16, 4: 8}
"""Number of which extents must be multiples, by the bytes of an element."""

ALIGNMENT: Final = 16
WHY: Final = f"cuSPARSELt reads {ALIGNMENT} bytes at a time"
HALVED: Final = In("m k", tuple(RESULTS), multiple=STRUCTURED, aligned=ALIGNMENT, why=WHY)
"""A matrix that is, or may be, half zeros."""


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


@final
class Prune(Operation["GpuRef"]):
    """Set half of the elements of each group to zero, so that the largest ones are kept.

    Vendor function: ``cusparseLtSpMMAPrune2``.

    Args:
        a: shape (m, k), of a dtype of the table.
        alg: "strip" keeps the two largest magnitudes of each four elements of a row, or one of
            two for float32. "tile" keeps half of each row and each column of squares of 4 x 4,
            or 2 x 2 for float32, with the largest sum of magnitudes. The transpose is then
            pruned too.
        out: where to put the result: of the same shape and dtype, not in the memory of ``a``.

    Raises:
        ValueError: extents that are not the required multiples, another ``alg``, or ``out``
            shares memory with ``a``.
        LibraryMissing: cuSPARSELt is not installed.
    """

    a: Annotated[GpuRef, HALVED]
    _: KW_ONLY
    alg: Algorithm = "strip"
    out: Annotated[GpuRef | None, Out(like="a", aligned=ALIGNMENT, why=WHY)] = None


@final
class CheckSparsity(Operation[bool]):
    """Check that half of each group's elements are zero, as compression needs.

    Vendor function: ``cusparseLtSpMMAPruneCheck2``.

    Args:
        a: as for ``prune``.

    Returns:
        True if they are.

    Raises:
        Unsupported: in a batch or a recording.
    """

    a: Annotated[GpuRef, HALVED]


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
