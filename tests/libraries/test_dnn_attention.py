"""Attention against a naive reference, and in ways that tables do not show."""

from __future__ import annotations

from .attention_rows import OPERATIONS
from .conformance import MARKS, conform

pytestmark = MARKS

test_conforms = conform(OPERATIONS)
