"""Tests in processes of their own: what ``pytest --isolate`` does.

A test runs in a fork of the session's process, which has imported the test modules and set up
fixtures of wider scope. The fork does all that pytest does for a test, setup to teardown, and
sends its reports, warnings and coverage home. If it dies, the report of the phase in which it
died is made here.

Forks of a process that has initialized a driver cannot use it. A session's process in that state
runs each test in a fresh interpreter instead: see ``_spawned``.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import pytest
from _pytest.runner import runtestprotocol
from _pytest.skipping import evaluate_xfail_marks, xfailed_key

from . import _driver
from ._children import EndedChild, ValueBox, run_forked, run_spawned
from ._early_fixtures import EarlyFixtures
from ._relay import Relay

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from _pytest.capture import CaptureManager

_TAIL: Final = 1 << 16
"""Characters of a dead test's output that its report shows."""


_PLUMBING: Final = re.compile(
    r'  File ".*/(_pytest|pluggy|pytest|atomr_accel/testing)/\w+\.py"|  File "<frozen runpy>"'
    r'|  File ".*/_pytest/config/'
)


class IsolationHooks:
    """Hooks by which a ``conftest.py`` tells of devices that are not CUDA's."""

    @pytest.hookspec(firstresult=True)
    def pytest_isolate_in_use(self) -> bool | None:
        """Return True if this process has used a device so that its forks cannot; else None."""

    @pytest.hookspec(firstresult=True)
    def pytest_isolate_fault(self) -> str | None:
        """Return the name of a fault after which a device of this process does nothing more."""


class IsolatedTests:
    """The plugin of sessions with isolated tests.

    Args:
        config: pytest's configuration.
        everything: whether all tests are isolated, or those with a mark only.
        seconds: how long a test may take.
    """

    def __init__(self, config: pytest.Config, *, everything: bool, seconds: float) -> None:
        self._config = config
        self._everything = everything
        self._seconds = seconds
        self._relay: Relay | None = None
        self._spoiled: str | None = None
        self._fault_known = False
        self._early = EarlyFixtures(config, self._in_use)
        self._capture = cast(
            "CaptureManager | None", config.pluginmanager.getplugin("capturemanager")
        )

    def relay_to(self, relay: Relay) -> None:
        """Make this process one that runs a test of another: its reports go there."""
        self._relay = relay

    # --- the state of devices -----------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_isolate_in_use(self) -> bool | None:
        """Ask CUDA's driver."""
        return _driver.in_use() or None

    @pytest.hookimpl(trylast=True)
    def pytest_isolate_fault(self) -> str | None:
        """Ask CUDA's driver."""
        return _driver.fault()

    def _in_use(self) -> bool:
        return bool(self._config.hook.pytest_isolate_in_use())

    def _look(self, when: str) -> None:
        """Remember when a device was first in use."""
        if self._spoiled is None and self._in_use():
            self._spoiled = when

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Look for modules that use a device when they are imported."""
        if not isinstance(collector, pytest.File):
            return (yield)
        self._look("before test modules were imported")
        report = yield
        self._look(f"by the import of {collector.nodeid}")
        return report

    # --- in the session's process -------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run an isolated test."""
        if self._relay is not None or not (self._everything or item.get_closest_marker("isolated")):
            return None
        ihook = item.ihook
        ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem):
            ihook.pytest_runtest_logreport(report=report)
        ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _reports(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[pytest.TestReport]:
        if hasattr(item, "_request") and not item._request:
            item._initrequest()  # type: ignore[attr-defined] # it has run before
        try:
            *reports, last = self._run(item)
            yield from reports
            # As pytest does: a session that is about to stop tears everything down.
            stops = item.session.shouldfail or item.session.shouldstop
            yield from self._torn_down(item, None if stops else nextitem, last)
        finally:
            if hasattr(item, "_request"):
                item._request = False
                item.funcargs = None  # type: ignore[attr-defined]

    def _run(self, item: pytest.Item) -> list[pytest.TestReport]:
        """Run a test elsewhere; return its reports, the last of which is its teardown's."""
        began = time.time()
        try:
            seconds = self._seconds_for(item)
            ended = self._elsewhere(item, seconds)
        except (pytest.fail.Exception, OSError, ValueError) as error:
            cause = str(error)
            if isinstance(error, OSError):
                cause = f"no process could be started for it: {error}"
            return [
                self._report(item, "setup", cause, began),
                self._report(item, "teardown", None, began),
            ]
        reports = self._received(item, ended)
        phases = [report for report in reports if type(report) is pytest.TestReport]
        complete = bool(phases) and phases[-1].when == "teardown"
        if complete and ended.status == 0 and not ended.late:
            return reports
        if complete:
            reports.remove(phases[-1])  # it died after this
        when = "setup" if not phases else "teardown"
        if len(phases) == 1 and phases[0].passed:
            when = "call"
        self._show_remains(item, when, ended)
        cause = _cause(ended, seconds)
        reports.append(self._report(item, when, cause, began, ended.seconds))
        if when != "teardown":
            reports.append(self._report(item, "teardown", None, time.time()))
        return reports

    def _seconds_for(self, item: pytest.Item) -> float:
        mark = item.get_closest_marker("isolated")
        if mark is None or not (mark.args or mark.kwargs):
            return self._seconds
        if mark.args or mark.kwargs.keys() != {"timeout"}:
            raise ValueError("pytest.mark.isolated must have no arguments but timeout=seconds")
        return positive_seconds("the timeout of pytest.mark.isolated", mark.kwargs["timeout"])

    def _elsewhere(self, item: pytest.Item, seconds: float) -> EndedChild:
        self._look("by tests of this process that were not isolated")
        if self._spoiled is None:
            self._early.set_up(item, seconds)
            self._look(f"by the fixtures of {item.nodeid}, which had not used one in a trial")
        if self._spoiled is None:
            return run_forked(partial(self._in_child, item), seconds)
        self._say_once(item)
        shown = self._config.getoption("capture", "no") == "no"
        return run_spawned(_spawn_command(), _spawn_data(item), seconds, shown=shown)

    def _say_once(self, item: pytest.Item) -> None:
        if self._spoiled == "":
            return
        message = pytest.PytestWarning(
            f"--isolate: a device was used {self._spoiled}, so forks of this process cannot use "
            "it. Each isolated test runs in a fresh interpreter instead, which takes longer. Use "
            "devices in tests and fixtures only, not in what is imported."
        )
        # Past the filters: a session that makes errors of warnings shall not fail by this one.
        record = warnings.WarningMessage(message, pytest.PytestWarning, str(item.path), 1)
        self._tell(record, "")
        self._spoiled = ""

    def _tell(self, record: warnings.WarningMessage, nodeid: str) -> None:
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": record,
                "when": "runtest",
                "nodeid": nodeid,
                "location": None,
            }
        )

    def _received(self, item: pytest.Item, ended: EndedChild) -> list[pytest.TestReport]:
        """Take what a process has sent: reports are returned, the rest takes effect here."""
        reports = []
        for kind, value in ended.values:
            match kind:
                case "report":
                    hook = self._config.hook.pytest_report_from_serializable
                    reports.append(hook(config=self._config, data=value))
                    self._count_subtest(reports[-1])
                case "warning":
                    self._tell(Relay.warning(value), item.nodeid)
                case "stop":
                    item.session.shouldstop, item.session.shouldfail = value
                case "coverage":
                    Relay.add_coverage(value)
                case "exit":
                    pytest.exit(value[0], returncode=value[1])
                case "interrupt":
                    raise KeyboardInterrupt
        return reports

    def _count_subtest(self, report: pytest.TestReport) -> None:
        """Have pytest know of a failed subtest, which it counts where the test runs."""
        subtests = sys.modules.get("_pytest.subtests")  # pytest 8 has none
        if subtests is not None and isinstance(report, subtests.SubtestReport) and report.failed:
            counts = self._config.stash[subtests.failed_subtests_key]
            counts[getattr(report, "id", report.nodeid)] += 1

    def _show_remains(self, item: pytest.Item, when: str, ended: EndedChild) -> None:
        out, err = self._capture.read_global_capture() if self._capture else ("", "")
        out, err = out + ended.output[0], err + ended.output[1]
        for name, text in ("stdout", out), ("stderr", err), ("stacks", _own_frames(ended.stacks)):
            if text:
                cut = text if len(text) <= _TAIL else f"[...]{text[-_TAIL:]}"
                item.add_report_section(when, name, cut)

    def _report(
        self, item: pytest.Item, when: str, cause: str | None, began: float, seconds: float = 0.0
    ) -> pytest.TestReport:
        def happen() -> None:
            if cause is not None:
                pytest.fail(cause, pytrace=False)

        call = pytest.CallInfo.from_call(happen, when)  # type: ignore[arg-type]
        call.start, call.duration, call.stop = began, seconds, began + seconds
        # The process would have done so, and a test may be known to die.
        item.stash[xfailed_key] = evaluate_xfail_marks(item)
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        return cast("pytest.TestReport", report)

    def _torn_down(
        self, item: pytest.Item, nextitem: pytest.Item | None, report: pytest.TestReport
    ) -> Iterator[pytest.TestReport]:
        """Tear down fixtures of this process that the next test does not need."""
        began = time.time()
        setup_state = item.session._setupstate
        sections = len(item._report_sections)
        with self._capture.item_capture("teardown", item) if self._capture else nullcontext():
            call = pytest.CallInfo.from_call(
                partial(setup_state.teardown_exact, nextitem),
                "teardown",
                reraise=(pytest.exit.Exception, KeyboardInterrupt),
            )
        if call.excinfo is None:
            report.sections.extend(
                (f"Captured {key} {when}", text)
                for when, key, text in item._report_sections[sections:]
            )
            yield report
            return
        if not report.passed:
            yield report
        call.start = began
        yield item.ihook.pytest_runtest_makereport(item=item, call=call)

    # --- in the test's process ----------------------------------------------------------------

    def _in_child(self, item: pytest.Item, box: ValueBox) -> None:
        for finalizers, _ in item.session._setupstate.stack.values():
            finalizers.clear()  # the session's process calls these
        relay = Relay(self._config, box)
        self.relay_to(relay)
        listeners = self._config.hook.pytest_runtest_logreport
        for listener in listeners.get_hookimpls():
            if listener.plugin is not self:  # they listen in the session's process
                listeners._remove_plugin(listener.plugin)
        with relay.coverage(), relay.everything_else(item.session):
            runtestprotocol(item, log=True, nextitem=None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report home as soon as there is one."""
        if self._relay is not None:
            self._relay.report(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Look for a fault."""
        return (yield from self._checked(item, "setup"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Look for a fault."""
        return (yield from self._checked(item, "call"))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None]:
        """Look for a fault."""
        return (yield from self._checked(item, "teardown"))

    def _checked(self, item: pytest.Item, when: str) -> Generator[None]:
        try:
            yield
        except BaseException:
            if fault := self._new_fault():
                item.add_report_section(when, "device", fault)
            raise
        if fault := self._new_fault():
            pytest.fail(f"this test left a fault on the device: {fault}", pytrace=False)

    def _new_fault(self) -> str | None:
        if self._relay is None or self._fault_known:
            return None
        fault = cast("str | None", self._config.hook.pytest_isolate_fault())
        self._fault_known = fault is not None
        return fault


def positive_seconds(name: str, value: object) -> float:
    """Return a time limit as a number of seconds."""
    try:
        seconds = float(cast("str", value))
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} must be a positive number of seconds, not {value!r}")
    return seconds


def _cause(ended: EndedChild, seconds: float) -> str:
    if ended.status is None:
        return f"took longer than {seconds:g} s and could not be killed: a driver may hold it"
    if ended.late:
        return f"took longer than {seconds:g} s and was killed"
    if ended.status >= 0:
        return f"exited with status {ended.status} before it was over"
    number = -ended.status
    try:
        cause = f"killed by signal {number} ({signal.Signals(number).name})"
    except ValueError:
        cause = f"killed by signal {number}"
    if ended.short_of_memory:
        return f"{cause}; the kernel has killed processes here because memory is short"
    if number == signal.SIGKILL:
        return f"{cause}, as the kernel does when memory is short"
    return cause


def _own_frames(stacks: str) -> str:
    """Return stacks without the frames of pytest and of this module, which are in all of them."""
    lines = stacks.splitlines(keepends=True)
    return "".join(line for line in lines if not _PLUMBING.match(line))


def _spawn_command() -> list[str]:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-m", f"{__package__}._spawned"]


def _spawn_data(item: pytest.Item) -> bytes:
    """Return all that a fresh interpreter needs to know to run a test of this session."""
    config = item.config
    options = {}
    for name, value in vars(config.option).items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue  # not of the command line
        options[name] = value
    if paths := getattr(config, "_tmp_path_factory", None):
        options["basetemp"] = str(paths.mktemp("isolated"))  # or pytest would make one beside ours
    return json.dumps(
        {
            "path": sys.path,
            "folder": str(config.invocation_params.dir),
            "parent": os.getpid(),
            "root": str(config.rootpath),
            "settings": str(config.inipath) if config.inipath else None,
            "options": options,
            "file": str(item.path),
            "nodeid": item.nodeid,
        }
    ).encode()
