"""cuBLASLt: matrix products with epilogues and scales."""

from ._facade import BlasLt, BlasLtStatistics
from ._layout import Layout

__all__ = ["BlasLt", "BlasLtStatistics", "Layout"]
