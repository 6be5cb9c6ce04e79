"""DNN against NumPy in higher precision."""

from __future__ import annotations

from .conformance import MARKS, conform
from .dnn_rows import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS)
