"""Shared by tests of commands."""

from __future__ import annotations

import pytest

from .commands import Commands


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    """Runs commands in this process."""
    return Commands(capsys)
