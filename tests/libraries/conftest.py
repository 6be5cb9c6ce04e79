from __future__ import annotations

import pytest

from atomr_accel.lanes import Isolation

from .conformance import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]


@pytest.fixture(scope="session")
def accel_isolation() -> Isolation:
    """Ops are the same in either isolation, and a device of threads opens faster."""
    return "thread"
