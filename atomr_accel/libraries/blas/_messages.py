"""What the BLAS lane executes."""

from __future__ import annotations

from ...host import Message


class Gemm(Message, frozen=True):
    """``c = alpha * op(a) @ op(b) + beta * c``, all row-major and contiguous.

    Attributes:
        a, b, c: addresses.
        m, n, k: op(a) is (m, k), op(b) is (k, n), c is (m, n).
        dtype: name of the element type of all three.
        trans_a, trans_b: whether op transposes.
        alpha, beta: scalars; with beta 0, c is not read.
    """

    a: int
    b: int
    c: int
    m: int
    n: int
    k: int
    dtype: str
    trans_a: bool
    trans_b: bool
    alpha: float
    beta: float
