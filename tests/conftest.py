"""Which tests run where, and how Hypothesis behaves."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import signal
from collections.abc import Generator, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from atomr_accel.lanes import Isolation

from . import seeds
from .fakes.driver import FakeDriver, installed
from .harness import BACKEND, ON_CUDA, Gate, Shared, on_mock_clock, program

PLUGIN = "atomr_accel.testing.pytest_plugin"

# An installed package brings its plugin along; one that is only on the path does not.
if all(entry.value != PLUGIN for entry in entry_points(group="pytest11")):
    pytest_plugins = [PLUGIN]

# The same examples in every run. To look for new ones: pytest --hypothesis-profile=explore,
# or pytest --seed 5; see seeds.py.
settings.register_profile(
    "repeatable",
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("explore", settings.get_profile("repeatable"), derandomize=False)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the seed of all random choices."""
    parser.addoption("--seed", type=int, help="seed of what tests choose by chance; 0 by default")
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="fail instead of skipping what needs a program or package, those of ELSEWHERE apart",
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis looks at its own option
def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed. One that was asked for is Hypothesis's as well."""
    explore = config.getoption("hypothesis_profile") == "explore"
    asked = config.getoption("seed") is not None or bool(os.environ.get(seeds.VARIABLE))
    seeds.choose_run_seed(config.getoption("seed"), explore=explore)
    if explore or (asked and seeds.run_seed() != seeds.DEFAULT):
        settings.load_profile("explore")
        config.option.hypothesis_seed = config.getoption("hypothesis_seed") or seeds.run_seed()


def pytest_report_header() -> str:
    """Say how to repeat this run."""
    return f"seed: {seeds.run_seed()} (--seed or {seeds.VARIABLE})"


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Begin the seeds of a module with its name, for choices at import."""
    seeds.begin(collector.nodeid)


def pytest_collection_finish() -> None:
    """Freeze the present objects, so that the tests' many collections skip them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Each test has seeds of its own."""
    seeds.begin(item.nodeid)


MISSING = re.compile(r"not installed|could not import|here is no C|no Chromium|refuses to be run")
"""Reasons to skip that name a program or a package."""

ELSEWHERE = re.compile(
    r"torch'|PyTorch|transformers'|matplotlib'|'ray'|OpenTelemetry collector|kubernetes-validate"
)
"""Programs and packages among them that neither ``.ci/run`` nor a session installs."""


def _count_skip(config: pytest.Config, report: pytest.TestReport | pytest.CollectReport) -> None:
    """With ``--no-skips``, make a failure of a skip whose reason could be taken away here."""
    if not (report.skipped and config.getoption("no_skips") and isinstance(report.longrepr, tuple)):
        return
    path, line, reason = report.longrepr
    if MISSING.search(reason) and not ELSEWHERE.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{path}:{line}: {reason}; --no-skips makes this a failure"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Count modules that skip themselves."""
    report = yield
    _count_skip(collector.config, report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say how to repeat the random choices of a failed test."""
    report = yield
    _count_skip(item.config, report)
    if report.failed and seeds.current().drawn:
        again = f"pytest --seed {seeds.run_seed()} '{item.nodeid}'"
        report.sections.append(("seed", f"{seeds.VARIABLE}={seeds.run_seed()}: {again}"))
    return report


OF_PYTEST_TRIO = {"device", "nursery", "mock_clock", "autojump_clock"}
"""Its fixtures, and those that need it, apart from async functions."""


CLOCKS = {"real": program, "mock": on_mock_clock}


def _needs_pytest_trio(item: pytest.Function) -> bool:
    fixtures = [each.func for some in item._fixtureinfo.name2fixturedefs.values() for each in some]
    return not OF_PYTEST_TRIO.isdisjoint(item.fixturenames) or any(
        inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each) for each in fixtures
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-trio takes all async tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run async tests by trio, and not for ever; count those of the contract as of the GPU on one.

    Tests with async fixtures are run by pytest-trio.
    """
    here = Path(__file__).parent
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and inspect.iscoroutinefunction(item.obj)
            and not _needs_pytest_trio(item)
        ):
            clock = item.get_closest_marker("clock")
            item.obj = CLOCKS[clock.args[0] if clock else "real"](item.obj)
        if ON_CUDA and any(
            item.path.is_relative_to(here / part)
            for part in ("contract", "ordering", "transfers", "interop", "memory")
        ):
            item.add_marker("gpu")
        elif not ON_CUDA and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU; the backend is {BACKEND!r}"))


@pytest.fixture(scope="module", autouse=True)
def frozen_past() -> None:
    """Freeze what earlier modules left, for the same reason."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty cache, which is removed after the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOMR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def heeded_ctrl_c() -> Iterator[None]:
    """Python's own handler, also where the tests run in the background, whose shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def needs_both(where: str) -> bool:
    """Return whether tests of a file run with hosts in threads, and with hosts in processes.

    Tests of operations run in one of them: their messages are sent in the same way, and on the CPU
    backend their numbers do not depend on where the host runs. A test of conformance makes every
    operation in both. Transfers, faults, order and cancelling are tested elsewhere in both.
    """
    if where == "llm/test_model.py":  # a model is made of operations
        return ON_CUDA
    return ON_CUDA or not where.startswith("libraries/") or where.endswith("/test_conformance.py")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the isolations of shared devices."""
    if "shared" in metafunc.fixturenames:
        where = Path(metafunc.module.__file__).relative_to(Path(__file__).parent).as_posix()
        isolations = ["thread", "process"] if needs_both(where) else ["thread"]
        metafunc.parametrize("shared", isolations, indirect=True, scope="session")


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    """A device that tests share; see ``on_shared``."""
    with contextlib.closing(Shared(isolation=request.param)) as device:
        yield device


@pytest.fixture(params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> Isolation:
    """Both isolations, for tests that open a device of their own."""
    isolation: Isolation = request.param
    return isolation


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A kernel that waits; see ``Gate``."""
    with contextlib.closing(Gate(tmp_path)) as gate:
        yield gate


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """A driver on the host's memory, which executors for CUDA call."""
    with installed(FakeDriver()) as fake:
        yield fake
