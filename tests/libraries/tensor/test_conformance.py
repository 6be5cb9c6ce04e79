"""cuTENSOR's operations, from a table."""

from __future__ import annotations

import pytest

from ..conformance import MARKS, conform, on_cuda, put_strided
from .rows import ROWS

pytestmark = MARKS
if on_cuda():
    pytest.importorskip("cutensor")

test_tensors_conform = conform(ROWS, take=2)
test_views_conform = conform(ROWS, take=4, of="tensor, on views", put=put_strided)
