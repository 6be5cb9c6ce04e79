"""The fixture ``device`` where pytest-trio is missing."""

from __future__ import annotations

import pytest


@pytest.fixture
def device() -> None:
    """Fail with the name of the missing package."""
    pytest.fail(
        "the fixture `device` needs pytest-trio: pip install pytest-trio. Without it, plain "
        "tests can use `module_device`",
        pytrace=False,
    )
