"""BLASLt against NumPy in higher precision."""

from __future__ import annotations

from ..conformance import MARKS, conform
from .rows import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS)
