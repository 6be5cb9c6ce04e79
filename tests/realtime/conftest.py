from __future__ import annotations

import pytest

from atomr_accel.lanes import Isolation


@pytest.fixture(scope="session")
def accel_isolation() -> Isolation:
    """Simulations are the same in either isolation, and a device of threads opens faster."""
    return "thread"
