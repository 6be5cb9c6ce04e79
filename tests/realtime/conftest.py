from __future__ import annotations

import pytest

from atomr_accel.lanes import Isolation


@pytest.fixture(scope="session")
def accel_isolation() -> Isolation:
    """Simulations are the same in either isolation, and a device of threads opens faster."""
    return "thread"


@pytest.fixture(params=["thread", pytest.param("process", marks=pytest.mark.slow)])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    """Both isolations, for tests of faults; processes take their time to start."""
    isolation: Isolation = request.param
    return isolation
