"""DNN against NumPy in higher precision."""

from __future__ import annotations

from ...conformance import MARKS, conform, on_cuda
from ..rows.ops import OPERATIONS

pytestmark = MARKS

# On a GPU each case is a plan to be made, which takes up to a second.
test_conforms = conform(OPERATIONS, take=6 if on_cuda() else 3)
