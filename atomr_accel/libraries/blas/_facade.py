"""``device.blas``: linear algebra on buffers, in NumPy's conventions."""

from __future__ import annotations

from typing import final

from ._checks import LANE
from ._factor import Factorizations
from ._gemm import Products
from ._level1 import Level1
from ._level2 import Level2
from ._level3 import Level3

__all__ = ["LANE", "Blas"]


@final
class Blas(Products, Level1, Level2, Level3, Factorizations):
    """Basic linear algebra: cuBLAS on CUDA, NumPy and SciPy on the CPU.

    Matrix products are called as in NumPy (``matmul``) or with the options of BLAS
    (``gemm``); routines of vectors and of structured matrices as in
    ``scipy.linalg.blas``; batched factorizations as in ``scipy.linalg.lapack``. Arrays are
    row-major throughout. Each routine says which dtypes it takes; there is no promotion,
    so inputs of one call have one dtype.

    Every result is a buffer on the device, also a scalar one, so that ops chain without
    transfers.
    """
