"""Our kernels, and what stands for them on the CPU, against a naive reference."""

from __future__ import annotations

from ..conformance import MARKS, conform
from .rows import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS)
