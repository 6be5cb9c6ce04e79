"""Pytest fixtures for programs that use devices.

    async def test_doubles(device):  # needs pytest-trio
        ...

    def test_doubles(module_device):  # also with Hypothesis
        module_device.run(doubles, 3)

``device`` is opened for each test, ``module_device`` once for each module. The backend is that of
``--accel-backend`` (or of the environment's ``ATOMR_TEST_BACKEND``), the isolation that of
``--accel-isolation``. Override the fixtures ``accel_backend`` and ``accel_isolation`` to choose
per module.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from atomr_accel import Device
    from atomr_accel.lanes import Isolation

    from ._module_device import ModuleDevice


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
    """The backend that the fixtures open."""
    return cast("str", pytestconfig.getoption("--accel-backend"))


@pytest.fixture(scope="session")
def accel_isolation(pytestconfig: pytest.Config) -> Isolation:
    """The isolation that the fixtures open with."""
    return cast("Isolation", pytestconfig.getoption("--accel-isolation"))


@asynccontextmanager
async def _opened(backend: str, isolation: Isolation) -> AsyncIterator[Device]:
    from atomr_accel import CpuFallbackWarning, open_device

    async with AsyncExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CpuFallbackWarning)
            opening = open_device(0, backend=backend, isolation=isolation)
            device = await stack.enter_async_context(opening)
        yield device


@pytest.fixture(scope="module")
def module_device(accel_backend: str, accel_isolation: Isolation) -> Iterator[ModuleDevice]:
    """A device that is open for all tests of a module, in a thread with a trio run of its own.

    ``module_device.run(function, *args)`` calls an async function with the device. Tests that use
    it are plain functions, so Hypothesis can call them again and again.
    """
    from ._module_device import ModuleDevice

    device = ModuleDevice(_opened(accel_backend, accel_isolation))
    yield device
    device.close()


if importlib.util.find_spec("pytest_trio") is not None:
    from pytest_trio import trio_fixture

    @trio_fixture  # type: ignore[untyped-decorator]
    async def device(accel_backend: str, accel_isolation: Isolation) -> AsyncIterator[Device]:
        """An open device, closed after the test."""
        async with _opened(accel_backend, accel_isolation) as opened:
            yield opened

else:

    @pytest.fixture
    def device() -> None:
        """Fail with the name of the missing package."""
        pytest.fail(
            "the fixture `device` needs pytest-trio: pip install pytest-trio. Without it, plain "
            "tests can use `module_device`",
            pytrace=False,
        )
