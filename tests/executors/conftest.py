from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ..fakes.driver import FakeDriver, installed

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """A driver on the host's memory, which executors for CUDA call."""
    with installed(FakeDriver()) as fake:
        yield fake
