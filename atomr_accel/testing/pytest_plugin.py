"""Pytest fixtures for programs that use devices. Needs pytest-trio.

    async def test_doubles(device):
        ...

``device`` is opened for each test with the backend of ``--accel-backend`` (or of the
environment's ``ATOMR_TEST_BACKEND``) and the isolation of ``--accel-isolation``. Override
the fixtures ``accel_backend`` and ``accel_isolation`` to choose per module.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atomr_accel import Device
    from atomr_accel.lanes import Isolation


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("accel", "accelerator devices")
    group.addoption(
        "--accel-backend",
        default=os.environ.get("ATOMR_TEST_BACKEND", "auto"),
        help="backend of the device fixtures: auto, cuda or cpu",
    )
    group.addoption(
        "--accel-isolation",
        default="process",
        choices=("process", "thread"),
        help="isolation of the device fixtures",
    )


@pytest.fixture(scope="session")
def accel_backend(pytestconfig: pytest.Config) -> str:
    """The backend that the ``device`` fixture opens."""
    return cast("str", pytestconfig.getoption("--accel-backend"))


@pytest.fixture(scope="session")
def accel_isolation(pytestconfig: pytest.Config) -> Isolation:
    """The isolation that the ``device`` fixture opens with."""
    return cast("Isolation", pytestconfig.getoption("--accel-isolation"))


if importlib.util.find_spec("pytest_trio") is not None:
    from pytest_trio import trio_fixture

    @trio_fixture  # type: ignore[untyped-decorator]
    async def device(accel_backend: str, accel_isolation: Isolation) -> AsyncIterator[Device]:
        """An open device, closed after the test."""
        from atomr_accel import CpuFallbackWarning, open_device

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CpuFallbackWarning)
            context = open_device(0, backend=accel_backend, isolation=accel_isolation)
            opened = await context.__aenter__()
        try:
            yield opened
        finally:
            await context.__aexit__(None, None, None)
