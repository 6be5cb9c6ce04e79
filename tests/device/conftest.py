"""For tests of hosts on standby."""

from __future__ import annotations

import pytest

from atomr_accel.device.contexts import context as _context
from atomr_accel.device.standby import _keeper
from tests.harness import AT_ONCE


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby may take its time to answer where the tests share their cores with others."""
    monkeypatch.setattr(_context, "_PROMPT_SECONDS", 20.0)
    monkeypatch.setattr(_keeper, "_STEP_SECONDS", 20.0)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for hosts only."""
    monkeypatch.setattr(_keeper, "_RETRY", AT_ONCE)
    monkeypatch.setattr(_keeper, "_BREATH_SECONDS", 0.0)
