"""Recurrent networks against a naive reference, and in ways that tables do not show."""

from __future__ import annotations

from ...conformance import MARKS, conform, on_cuda
from ..rows.rnn import OPERATIONS

pytestmark = MARKS

test_conforms = conform(OPERATIONS, take=1 if on_cuda() else 3)
