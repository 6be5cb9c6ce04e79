"""Messages of the sparse lanes.

A call's ``SparseSpec`` holds everything except addresses and numbers. It is sent as bytes, which
are the key of a lane's records, such as the scratch memory that a call needs.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Literal

import msgspec

from ....wire import Address, Message
from ....wire import encode as encode_part

Scalar = float | tuple[float, float]
"""A number; complex ones as their two parts."""
Format = Literal["csr", "csc", "coo", "bsr"]
AnyFormat = Format | Literal["blocked-ell", "sliced-ell"]


class Matrix(msgspec.Struct, frozen=True, array_like=True):
    """A sparse matrix without its content. It has three parts: two of indices, and the data.

    A ``blocked-ell`` matrix has no pointers, and its indices for the first part, too.

    Attributes:
        format: SciPy's name.
        shape: rows and columns.
        nnz: stored elements; blocks of ``bsr`` and, with padding, of ``blocked-ell``.
        index: dtype of its indices.
        dtype: element type.
        block: rows and columns of a block; of ``sliced-ell`` rows of a slice, and 1.
        padded: elements of ``sliced-ell`` with padding.
    """

    format: AnyFormat
    shape: tuple[int, int]
    nnz: int
    index: str
    dtype: str
    block: tuple[int, int] = (1, 1)
    padded: int = 0


class DenseMatrix(msgspec.Struct, frozen=True, array_like=True):
    """A dense vector, or a matrix that lies by rows or by columns.

    Attributes:
        shape: one or two extents.
        by_rows: whether the elements of a row follow each other.
        ld: elements from one row, or column, to the next.
    """

    shape: tuple[int, ...]
    by_rows: bool = True
    ld: int = 0


class SparseSpec(msgspec.Struct, frozen=True, array_like=True):
    """A call with everything but addresses and numbers.

    Attributes:
        op: which; see the executors.
        dtype: element type.
        matrices: the sparse operands.
        dense: the dense ones, behind them.
        trans: how to take the first matrix: 0, 1 (transposed) or 2 (conjugate transposed).
        sizes: further ones.
        flags: further options, as the op has them.
        deterministic: whether results must be the same each time.
    """

    op: str
    dtype: str
    matrices: tuple[Matrix, ...] = ()
    dense: tuple[DenseMatrix, ...] = ()
    trans: int = 0
    sizes: tuple[int, ...] = ()
    flags: tuple[bool, ...] = ()
    deterministic: bool = False


def encode(spec: SparseSpec) -> bytes:
    """A spec as messages carry it; equal ones give the same bytes."""
    return encode_part(spec, f"sparse.{spec.op}")


@lru_cache(512)
def decode(encoded: bytes) -> SparseSpec:
    """The spec that ``encode`` was given."""
    return msgspec.msgpack.decode(encoded, type=SparseSpec)


class MeasureSparse(Message, frozen=True):
    """Tell how many bytes of scratch memory a call needs."""

    returns: ClassVar[Any] = int
    prepares: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    spec: bytes


class RunSparse(Message, frozen=True):
    """Run a call.

    Attributes:
        spec: its ``SparseSpec``, encoded.
        operands: addresses: three of each matrix, then one of each dense operand.
        alpha, beta: numbers; with beta 0, the output is not read.
        workspace: address of scratch memory.
        work: bytes of it; a call that needs more uses the executor's own memory.
    """

    unchecked: ClassVar[bool] = True

    spec: bytes
    operands: tuple[Address, ...]
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    workspace: Address = 0
    work: int = 0


class Analyse(Message, frozen=True):
    """Analyse a triangular matrix, and keep the analysis under a number.

    Attributes:
        number: the number of the analysis in later messages.
        spec: of the later solves.
        matrix: the addresses of the matrix's three parts.
    """

    unchecked: ClassVar[bool] = True

    prepares: ClassVar[bool] = True

    number: int
    spec: bytes
    matrix: tuple[Address, ...]


class Solve(Message, frozen=True):
    """Solve a triangular system with the analysis of ``Analyse``, which is made if it is missing.

    Attributes:
        number: the number of the analysis; 0 keeps none.
        spec: as for ``Analyse``.
        operands: addresses of the matrix's parts, the right-hand side and the solution.
        alpha: a factor for the right-hand side.
    """

    unchecked: ClassVar[bool] = True

    number: int
    spec: bytes
    operands: tuple[Address, ...]
    alpha: Scalar


class FindStructure(Message, frozen=True):
    """Find the structure of a product of sparse matrices, and keep it under a number.

    Returns:
        How many elements it has.
    """

    unchecked: ClassVar[bool] = True

    returns: ClassVar[Any] = int

    number: int
    spec: bytes
    operands: tuple[Address, ...]


class ComputeProduct(Message, frozen=True):
    """Compute a product whose structure is kept.

    Attributes:
        number: the number of the structure.
        spec: as for ``FindStructure``.
        operands: addresses of the parts of both matrices and of the product.
        structure: also write the product's indices.
        alpha: a factor for the product.
    """

    unchecked: ClassVar[bool] = True

    number: int
    spec: bytes
    operands: tuple[Address, ...]
    structure: bool
    alpha: Scalar


class ForgetSparse(Message, frozen=True):
    """Drop the analysis or the structure that is kept under a number."""

    everywhere: ClassVar[bool] = True

    number: int
