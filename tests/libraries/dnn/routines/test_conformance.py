"""cuDNN's routines against naive references."""

from __future__ import annotations

from ...conformance import MARKS, conform
from ..rows.routines import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS)
