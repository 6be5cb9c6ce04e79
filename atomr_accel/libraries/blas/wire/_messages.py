"""Messages of the BLAS lane.

Arrays are row-major. ``trans`` is 0 for none, 1 for the transpose and 2 for the conjugate
transpose. Addresses that an op does not use are 0.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ....wire import Address, Message

_SCALARS: Final = {"16F": "float16", "32F": "float32", "64F": "float64", "32I": "int32"}
"""The type of alpha and beta of real products, by the beginning of the compute type."""

_PLAIN: Final = {"float16": "32F", "bfloat16": "32F", "float32": "32F", "float64": "64F"}
"""The compute types of plain products."""

Scalar = float | tuple[float, float]
"""A number; complex ones as their two parts."""


class ProductOptions(msgspec.Struct, frozen=True, array_like=True):
    """Options that products of any types share.

    Attributes:
        dtype: element type of a and b.
        dtype_c: element type of c.
        compute: compute type, as the vendor names it without ``CUBLAS_COMPUTE_``.
        trans_a, trans_b: 0, 1 or 2.
    """

    dtype: str
    dtype_c: str
    compute: str
    trans_a: int
    trans_b: int

    @property
    def scalars(self) -> str:
        """The type of alpha and beta."""
        if self.dtype.startswith("complex"):
            return self.dtype
        return _SCALARS[self.compute[:3]]


class Gemm(Message, frozen=True):
    """``c = alpha * op(a) @ op(b) + beta * c``, of row-major matrices or batches of them.

    Attributes:
        a, b, c: addresses.
        sizes: m, n and k.
        batch: the batch's shape; c is contiguous over it.
        strides_a, strides_b: elements from one matrix to the next along each dimension of
            ``batch``; 0 repeats the matrix.
        options: see there.
        alpha, beta: scalars; with beta 0, c is not read.
        pointers: room for three pointers for each product, where one stride is not enough.
        rows: elements between stored rows of a, b and c; None if all are contiguous.
        strides_c: elements from one c to the next along each dimension of ``batch``; None if c is
            contiguous.
        at: addresses of alpha and beta on the device, as for a ``RunRoutine``.
    """

    a: Address
    b: Address
    c: Address
    sizes: tuple[int, int, int]
    batch: tuple[int, ...]
    strides_a: tuple[int, ...]
    strides_b: tuple[int, ...]
    options: ProductOptions
    alpha: Scalar | None
    beta: Scalar | None
    pointers: Address = 0
    rows: tuple[int, int, int] | None = None
    strides_c: tuple[int, ...] | None = None
    at: tuple[Address, ...] = ()

    @property
    def plain(self) -> bool:
        """True for one product of contiguous matrices that is computed in its own real type."""
        options = self.options
        return (
            not self.batch
            and self.rows is None
            and not self.at
            and options.dtype == options.dtype_c
            and _PLAIN.get(options.dtype) == options.compute
        )


class GemmList(Message, frozen=True):
    """Products of matrices that lie anywhere.

    Attributes:
        a, b, c: an address for each product.
        shapes: (m, n, k) of each product.
        options: see there.
        alpha, beta: scalars; with beta 0, c is not read.
        pointers: room for three pointers for each product.
    """

    a: tuple[Address, ...]
    b: tuple[Address, ...]
    c: tuple[Address, ...]
    shapes: tuple[tuple[int, int, int], ...]
    options: ProductOptions
    alpha: Scalar
    beta: Scalar
    pointers: Address


class RunRoutine(Message, frozen=True):
    """A call of a routine of levels 1 to 3, which a row of ``_rows`` describes.

    Attributes:
        row: the row's name.
        dtype: element type.
        sizes: in the row's order; of matrices after transposing.
        places: the address of each operand; for a vector, of its first element in memory.
        steps: for each operand, elements from one value of a vector to the next, where negative
            steps go from the last to the first; or elements from one row of a matrix to the next.
        scalars: in the row's order; None for one that is on the device.
        options: in the row's order; sides, triangles and diagonals of ones are 0 or 1.
        clear: fill the written operands with zeros first.
        scratch: room for a copy of a band.
        at: addresses of scalars on the device, in the row's order, and room for one more. Numbers
            in ``scalars`` are written there first. Empty if all scalars are numbers.
    """

    row: str
    dtype: str
    sizes: tuple[int, ...]
    places: tuple[Address, ...]
    steps: tuple[int, ...]
    scalars: tuple[Scalar | None, ...]
    options: tuple[int, ...]
    clear: bool = False
    scratch: Address = 0
    at: tuple[Address, ...] = ()


class RunStacked(Message, frozen=True):
    """A batch of products of a matrix and a vector, or of triangular systems.

    Attributes:
        routine: ``"gemv"`` or ``"trsm"``. ``gemv`` computes ``c = alpha * op(a) @ b + beta * c``.
            With ``trsm``, c solves ``op(a) @ c = alpha * b``, or ``c @ op(a) = alpha * b``.
        dtype: element type.
        a, b, c: addresses.
        sizes: stored rows and columns of a for ``gemv``, of c for ``trsm``.
        batch: the batch's shape; c is contiguous over it, and for ``trsm`` so is b.
        strides_a, strides_b: elements from one to the next along each dimension of ``batch``.
        options: of ``gemv`` trans; of ``trsm`` side, lower, trans and unit_diagonal.
        alpha, beta: scalars; with beta 0, c is not read.
        pointers: room for three pointers for each.
    """

    routine: str
    dtype: str
    a: Address
    b: Address
    c: Address
    sizes: tuple[int, int]
    batch: tuple[int, ...]
    strides_a: tuple[int, ...]
    strides_b: tuple[int, ...]
    options: tuple[int, ...]
    alpha: Scalar
    beta: Scalar
    pointers: Address


class Factor(Message, frozen=True):
    """A batched factorization or solve.

    Attributes:
        routine: its name, such as ``"getrf"``.
        dtype: element type.
        batch: how many matrices.
        m, n: the shape of each.
        nrhs: right-hand sides.
        trans: 0, 1 or 2.
        a: the matrices, or their factors.
        pivots: int32, one-based on the device and zero-based in memory.
        b: right-hand sides, or whatever else the routine reads.
        c: the result.
        tau: the scalars of the reflectors.
        info: int32 for each matrix: what LAPACK says.
        scratch: memory for column-major copies, pointers and pivots, as the routine takes it.
    """

    routine: str
    dtype: str
    batch: int
    m: int
    n: int
    nrhs: int = 0
    trans: int = 0
    a: Address = 0
    pivots: Address = 0
    b: Address = 0
    c: Address = 0
    tau: Address = 0
    info: Address = 0
    scratch: tuple[Address, ...] = ()
