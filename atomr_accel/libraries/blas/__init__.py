"""cuBLAS: basic linear algebra."""

from ._facade import LANE, Blas
from ._gemm import BlasStatistics

__all__ = ["LANE", "Blas", "BlasStatistics"]
