"""BLAS against NumPy and SciPy in higher precision."""

from __future__ import annotations

from .blas_rows import OPERATIONS
from .conformance import MARKS, conform

pytestmark = MARKS

test_conforms = conform(OPERATIONS)
