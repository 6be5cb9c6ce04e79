"""BLASLt against NumPy in higher precision."""

from __future__ import annotations

from .blaslt_rows import OPERATIONS
from .conformance import MARKS, conform

pytestmark = MARKS

test_conforms = conform(OPERATIONS)
