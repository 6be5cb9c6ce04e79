"""Everything that ``device.blas`` can do, as rows for the conformance tests."""

from .factor import FACTORIZATIONS
from .products import PRODUCTS
from .routines import ROUTINES
from .stacked import STACKED

OPERATIONS = [*ROUTINES, *PRODUCTS, *STACKED, *FACTORIZATIONS]

__all__ = ["OPERATIONS"]
