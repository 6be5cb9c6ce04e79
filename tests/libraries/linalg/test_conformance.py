"""``device.linalg`` against NumPy and SciPy in double precision."""

from __future__ import annotations

from ..conformance import MARKS, conform, put_strided
from .rows import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS, take=8)
test_conforms_on_views = conform(OPERATIONS, take=32, of="linalg on views", put=put_strided)
