"""Tests in processes of their own, and fixtures for programs that use devices.

    pytest --isolate             # each test in a fork: a fault, hang or abort fails one test

    @pytest.mark.isolated        # or this one, or a class or a module of them
    def test_faults(): ...

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

import os
import sys
from typing import TYPE_CHECKING, cast

import pytest

from ._isolation import IsolatedTests, IsolationHooks, positive_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atomr_accel.lanes import Isolation

    from .. import Blocking, Device


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
    group = parser.getgroup("isolate", "tests in processes of their own")
    try:
        group.addoption(
            "--isolate", action="store_true", help="run each test in a process of its own"
        )
        group.addoption(
            "--isolate-timeout",
            default="300",
            metavar="SECONDS",
            help="time that an isolated test may take, 300 seconds by default",
        )
    except ValueError as error:
        raise pytest.UsageError(
            f"another plugin has options of the same names ({error}): leave one out, with "
            "-p no:isolate or -p no:atomr_accel.testing.pytest_plugin"
        ) from None
    parser.addini(
        "isolate_late_fixtures",
        type="args",
        default=[],
        help="fixtures of wider scope that isolated tests set up in their own processes",
    )


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the hooks of isolated tests."""
    pluginmanager.add_hookspecs(IsolationHooks)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Have ``torch.cuda.is_available()`` ask NVML, after which a process can still be forked."""
    if early_config.known_args_namespace.isolate:
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare for isolated tests, and add the fixture of pytest-trio's tests."""
    config.addinivalue_line(
        "markers", "isolated(timeout=None): run in a process of its own, for some seconds at most"
    )
    if config.getoption("isolate"):
        if not hasattr(os, "memfd_create"):
            raise pytest.UsageError("--isolate needs Linux: leave it out")
        if config.getoption("usepdb") or config.getoption("trace"):
            raise pytest.UsageError(
                "--isolate must come without --pdb and --trace: a debugger works in the session's "
                "own process; leave one of them out"
            )
    try:
        seconds = positive_seconds("--isolate-timeout", config.getoption("isolate_timeout"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    isolated = IsolatedTests(config, everything=config.getoption("isolate"), seconds=seconds)
    config.pluginmanager.register(isolated, "isolated_tests")
    trio = "trio" if "pytest_trio" in sys.modules else "no_trio"
    config.pluginmanager.import_plugin(f"{__package__}._{trio}_fixture")


@pytest.fixture(scope="session")
def accel_backend(pytestconfig: pytest.Config) -> str:
    """The backend that the fixtures open."""
    return cast("str", pytestconfig.getoption("--accel-backend"))


@pytest.fixture(scope="session")
def accel_isolation(pytestconfig: pytest.Config) -> Isolation:
    """The isolation that the fixtures open with."""
    return cast("Isolation", pytestconfig.getoption("--accel-isolation"))


@pytest.fixture(scope="module")
def module_device(accel_backend: str, accel_isolation: Isolation) -> Iterator[Blocking[Device]]:
    """A device that is open for all tests of a module, in a thread with a trio run of its own.

    ``module_device.run(function, *args)`` calls an async function with the device. Tests that use
    it are plain functions, so Hypothesis can call them again and again.
    """
    from .. import open_blocking
    from ._fixture_device import opened

    with open_blocking(opened(accel_backend, accel_isolation)) as device:
        yield device


@pytest.fixture
def _one_call(request: pytest.FixtureRequest) -> None:
    """Refuse tests that Hypothesis calls again and again, before its own complaint."""
    if getattr(request.function, "is_hypothesis_test", False):
        pytest.fail(
            "`device` must be used by tests that are called once, not with @given: pytest opens "
            "it once, and it would be closed for the second example; use `module_device` in a "
            "plain test: module_device.run(function, *args)",
            pytrace=False,
        )
