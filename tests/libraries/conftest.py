from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atomr_accel.lanes import Isolation

from ..fakes.driver import FakeDriver, installed
from .conformance import pytest_terminal_summary

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["pytest_terminal_summary"]


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """A driver on the host's memory, which executors for CUDA call."""
    with installed(FakeDriver()) as fake:
        yield fake


@pytest.fixture(scope="session")
def accel_isolation() -> Isolation:
    """Ops are the same in either isolation, and a device of threads opens faster."""
    return "thread"
