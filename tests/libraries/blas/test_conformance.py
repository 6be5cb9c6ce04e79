"""BLAS against NumPy and SciPy in higher precision."""

from __future__ import annotations

from ..conformance import MARKS, conform, on_cuda
from .rows import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS, take=1 if on_cuda() else 4)
