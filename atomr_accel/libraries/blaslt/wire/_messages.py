"""Messages of the BLASLt lane.

A ``BlasLtSpec`` describes a product once, and is sent as bytes. The lane keeps its prepared product
under those bytes, and decodes them only the first time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ....wire import Address, Message

Scalar = float | tuple[float, float]
"""A number; complex ones as their two parts."""


class MatrixLayout(msgspec.Struct, frozen=True, array_like=True):
    """The layout of a matrix in memory: rows of ``columns`` elements, ``ld`` apart.

    Attributes:
        rows, columns: as stored, before any transposition.
        ld: elements from one row to the next.
        step: elements from one matrix of the batch to the next; 0 repeats it.
        dtype: element type.
        alignment: bytes to which every address of it is aligned.
    """

    rows: int
    columns: int
    ld: int
    step: int
    dtype: str
    alignment: int = 256


class BlasLtSpec(msgspec.Struct, frozen=True, array_like=True):
    """A product without its addresses: ``d = epilogue(alpha * op(a) @ op(b) + beta * c)``.

    Attributes:
        m, n, k: op(a) is (m, k), op(b) is (k, n).
        batch: the number of products.
        a, b, c, d: layouts of the matrices in memory.
        op_a, op_b: 0 for none, 1 for the transpose, 2 for the conjugate transpose.
        compute: compute type, as the vendor names it without ``CUBLAS_COMPUTE_``.
        scale_type: dtype of alpha and beta.
        epilogue: its name; the empty string for none.
        bias_dtype: dtype of the bias or its gradient.
        bias_step: elements from one bias of the batch to the next.
        aux_ld: elements (of a bit mask: bits) from one row of aux to the next.
        bias_alignment, aux_alignment: bytes to which their addresses are aligned.
        scaling: the scaling of a and b: ``""``, ``"tensor"``, ``"rows"``, or one of ``BLOCKS``.
        scale_a, scale_b, scale_d: True if a, b and d have scales.
        amax: True to compute the largest magnitude of the result.
        fast: True if fp8 products may accumulate less precisely.
        factors: True if there is an alpha for each column.
    """

    m: int
    n: int
    k: int
    batch: int
    a: MatrixLayout
    b: MatrixLayout
    c: MatrixLayout
    d: MatrixLayout
    op_a: int
    op_b: int
    compute: str
    scale_type: str
    epilogue: str
    bias_dtype: str
    bias_step: int
    aux_ld: int
    bias_alignment: int
    aux_alignment: int
    scaling: str
    scale_a: bool
    scale_b: bool
    scale_d: bool
    amax: bool
    fast: bool
    factors: bool = False


class Heuristic(Message, frozen=True):
    """Ask which algorithms suit a product.

    Attributes:
        spec: an encoded ``BlasLtSpec``.
        workspace: the most bytes an algorithm may want.
        most: how many to return; answered by (algorithm, bytes of workspace, number) each.
    """

    returns: ClassVar[Any] = list[tuple[bytes, int, int]]

    spec: bytes
    workspace: int
    most: int


class RunBlasLt(Message, frozen=True):
    """Run a product.

    Attributes:
        spec: an encoded ``BlasLtSpec``.
        algorithm: an answer of ``Heuristic``; empty to take the best.
        a, b, c, d: addresses; d may be c.
        bias: address of the bias, or of its gradient.
        aux: address of the buffer that the epilogue writes, or reads.
        scale_a, scale_b, scale_d: addresses of scales, or 0.
        amax: address of the largest magnitude, or 0.
        workspace, workspace_bytes: memory for the algorithm.
        packed_a, packed_b, packed_scales: memory for operands that are rearranged.
        zeros: bytes to clear at ``a`` first, which then stands for empty operands.
        alpha, beta: scalars; with beta 0, c is not read.
        factors: address of an alpha for each column, which then stands for ``alpha``.
    """

    spec: bytes
    algorithm: bytes
    a: Address
    b: Address
    c: Address
    d: Address
    bias: Address
    aux: Address
    scale_a: Address
    scale_b: Address
    scale_d: Address
    amax: Address
    workspace: Address
    workspace_bytes: int
    packed_a: Address
    packed_b: Address
    packed_scales: Address
    zeros: Address
    alpha: Scalar
    beta: Scalar
    factors: Address = 0


class TuneBlasLt(Message, frozen=True):
    """Time algorithms on a product; the answer is the position of the fastest.

    Attributes:
        product: the product to run, with outputs that are discarded.
        candidates: the answer of ``Heuristic``.
    """

    returns: ClassVar[Any] = int

    product: RunBlasLt
    candidates: tuple[tuple[bytes, int, int], ...]


class EpilogueSpec(msgspec.Struct, frozen=True):
    """An operation on a product before it is stored.

    Attributes:
        vendor: the vendor's name for it, in its column-major view.
        bias: a bias is added.
        makes_aux: auxiliary output is stored for the backward pass.
        takes_aux: auxiliary output is read.
        bias_gradient: a bias gradient is computed, of length ``"n"`` or ``"m"``.
        mask: aux is a mask of bits.
    """

    vendor: str
    bias: bool = False
    makes_aux: bool = False
    takes_aux: bool = False
    bias_gradient: str = ""
    mask: bool = False


EPILOGUES = {
    "": EpilogueSpec("DEFAULT"),
    "bias": EpilogueSpec("BIAS", bias=True),
    "relu": EpilogueSpec("RELU"),
    "relu_bias": EpilogueSpec("RELU_BIAS", bias=True),
    "relu_aux": EpilogueSpec("RELU_AUX", makes_aux=True, mask=True),
    "relu_aux_bias": EpilogueSpec("RELU_AUX_BIAS", bias=True, makes_aux=True, mask=True),
    "drelu": EpilogueSpec("DRELU", takes_aux=True, mask=True),
    "drelu_bgrad": EpilogueSpec("DRELU_BGRAD", takes_aux=True, mask=True, bias_gradient="n"),
    "gelu": EpilogueSpec("GELU"),
    "gelu_bias": EpilogueSpec("GELU_BIAS", bias=True),
    "gelu_aux": EpilogueSpec("GELU_AUX", makes_aux=True),
    "gelu_aux_bias": EpilogueSpec("GELU_AUX_BIAS", bias=True, makes_aux=True),
    "dgelu": EpilogueSpec("DGELU", takes_aux=True),
    "dgelu_bgrad": EpilogueSpec("DGELU_BGRAD", takes_aux=True, bias_gradient="n"),
    # In the vendor's column-major view a and b change places.
    "bgrada": EpilogueSpec("BGRADB", bias_gradient="m"),
    "bgradb": EpilogueSpec("BGRADA", bias_gradient="n"),
}
"""The epilogues by name."""
