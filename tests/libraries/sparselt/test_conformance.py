"""Products with matrices of structured sparsity, from a table."""

from __future__ import annotations

from ..conformance import MARKS, conform, installed, on_cuda
from .rows import OPERATIONS

pytestmark = [*MARKS, installed("cusparseLt")]

test_conforms = conform(OPERATIONS, take=1 if on_cuda() else 4)
