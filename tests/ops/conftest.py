from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..fakes.driver import FakeDriver, installed


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """A driver on the host's memory, which executors for CUDA call."""
    with installed(FakeDriver()) as fake:
        yield fake
