"""Everything that ``device.blas`` can do, as rows for the conformance tests."""

from .factor import FACTORIZATIONS
from .level1 import LEVEL1
from .level2 import LEVEL2
from .level3 import LEVEL3
from .products import PRODUCTS

OPERATIONS = [*LEVEL1, *LEVEL2, *LEVEL3, *PRODUCTS, *FACTORIZATIONS]

__all__ = ["OPERATIONS"]
