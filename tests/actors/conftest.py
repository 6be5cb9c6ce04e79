from __future__ import annotations

import pytest

from atomr_accel.actors._supervision import SupervisionMachine


@pytest.fixture(autouse=True, scope="session")
def _validated_machines() -> None:
    """Every supervisor of every test checks its invariants after every event."""
    SupervisionMachine.validate = True
