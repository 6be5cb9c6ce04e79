"""cuBLAS: basic linear algebra."""

from ._facade import LANE, Blas

__all__ = ["LANE", "Blas"]
