"""Fixtures of wider scope, set up in the session's process where its forks can use them.

A trial decides: a fork sets a fixture up and tears it down again. If a device is in use then, or
if there are more threads than before, which no fork inherits, the fixture is set up in the test's
process, for each test. So are those that do not end, or end the process.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from ._children import run_forked

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from _pytest.capture import CaptureManager

    from ._children import ValueBox

_PYTESTS_OWN: Final = frozenset(
    f"_pytest.{name}" for name in ("cacheprovider", "doctest", "fixtures", "junitxml", "tmpdir")
)
"""Modules whose fixtures need no trial."""

_KEPT: Final = (Exception, pytest.fail.Exception, pytest.skip.Exception)
"""Errors of fixtures that pytest raises again for each test, without another try."""


class EarlyFixtures:
    """Decides for each fixture, once, and sets up those that may be set up.

    Args:
        config: pytest's configuration.
        in_use: whether this process uses a device.
    """

    def __init__(self, config: pytest.Config, in_use: Callable[[], bool]) -> None:
        self._config = config
        self._in_use = in_use
        self._early: dict[Hashable, bool] = {}
        self._late = frozenset(config.getini("isolate_late_fixtures"))

    def set_up(self, item: pytest.Item, seconds: float) -> None:
        """Set up what a test needs and others may need, too."""
        capture = cast(
            "CaptureManager | None", self._config.pluginmanager.getplugin("capturemanager")
        )
        if paths := getattr(self._config, "_tmp_path_factory", None):
            paths.getbasetemp()  # or each test would make a folder of its own
        if not (fixtures := self._wider(item)) and item.parent in item.session._setupstate.stack:
            return
        with capture.item_capture("setup", item) if capture else nullcontext(), _errors_kept():
            item.session._setupstate.setup(cast("pytest.Item", item.parent))
            with _active(item):
                self._decide(item, fixtures, seconds, capture)
                for name, key in fixtures.items():
                    if self._early.get(key):
                        _set_up(item, name)

    def _wider(self, item: pytest.Item) -> dict[str, Hashable]:
        """Return the fixtures of wider scope by name, with what a decision about each holds for."""
        info = getattr(item, "_fixtureinfo", None)
        if info is None or not hasattr(item, "_request"):
            return {}
        callspec = getattr(item, "callspec", None)
        indices = {} if callspec is None else callspec.indices
        found = {}
        for name in item.fixturenames:  # type: ignore[attr-defined]
            if definitions := info.name2fixturedefs.get(name):
                scope = definitions[-1].scope
                if callspec is not None and name in callspec._arg2scope:
                    scope = callspec._arg2scope[name].value
                if scope != "function":
                    found[name] = definitions[-1]
        # A fixture may do other things with other parameters of those that it uses.
        values = tuple((name, index) for name, index in indices.items() if name in found)
        return {name: (fixture, values) for name, fixture in found.items()}

    def _decide(
        self,
        item: pytest.Item,
        fixtures: dict[str, Hashable],
        seconds: float,
        capture: CaptureManager | None,
    ) -> None:
        for name, key in fixtures.items():
            fixture = cast("tuple[Any, object]", key)[0]
            function = fixture.func
            if name in self._late:
                self._early[key] = False
            elif (
                function.__module__ in _PYTESTS_OWN
                or getattr(function, "__name__", "") == "get_direct_param_fixture_func"
            ):
                self._early[key] = True
        while unknown := [name for name, key in fixtures.items() if key not in self._early]:
            before = capture.read_global_capture() if capture else ("", "")
            early = [name for name, key in fixtures.items() if self._early.get(key)]
            ended = run_forked(partial(self._try, item, early, unknown), seconds)
            if capture:
                capture.read_global_capture()  # of the trial
                for text, stream in zip(before, (1, 2), strict=True):
                    _write_again(stream, text)
            if not ended.values:
                return
            kind, last = ended.values[-1]
            if kind != "over":
                # It ended with this fixture. Others may do so, too: they are tried again.
                self._early[fixtures[last]] = False
                continue
            begun = [value for kind, value in ended.values if kind == "begun"]
            safe = {value for kind, value in ended.values if kind == "safe"}
            for name in begun:
                self._early[fixtures[name]] = name in safe
            if not begun or any(kind == "failed" for kind, _ in ended.values):
                return  # those that follow are not set up for this test

    def _try(self, item: pytest.Item, early: list[str], unknown: list[str], box: ValueBox) -> None:
        setup_state = item.session._setupstate
        for finalizers, _ in setup_state.stack.values():
            finalizers.clear()  # of fixtures that stay
        try:
            for name in early:
                _set_up(item, name)
            threads = _threads()
            for name in unknown:
                box.send("begun", name)
                kept = True
                try:
                    # Those that use it end before this, and what it yielded to ends after.
                    _set_up(item, name).addfinalizer(partial(box.send, "leaving", name))
                except BaseException as error:
                    # Pytest keeps these errors, for each test. Others leave it in a wrong state.
                    kept = isinstance(error, _KEPT)
                    box.send("failed", name)
                    raise
                finally:
                    spoiled = self._in_use() or bool(_threads() - threads) or not kept
                    if not spoiled:
                        box.send("safe", name)
                if spoiled:
                    break
        finally:
            with suppress(BaseException):  # the test's report has it
                setup_state.teardown_exact(None)
            box.send("over")


@contextmanager
def _errors_kept() -> Iterator[None]:
    """Leave out errors of a test: pytest keeps them, and the test's process raises them again."""
    try:
        yield
    except pytest.exit.Exception:
        raise
    except _KEPT:
        return


@contextmanager
def _active(item: pytest.Item) -> Iterator[None]:
    """Have pytest take a test for one that is set up, which may ask for fixtures."""
    stack = item.session._setupstate.stack
    stack[item] = ([], None)
    try:
        yield
    finally:
        del stack[item]


def _set_up(item: pytest.Item, name: str) -> pytest.FixtureDef[Any]:
    definition = item._request._get_active_fixturedef(name)  # type: ignore[attr-defined]
    return cast("pytest.FixtureDef[Any]", definition)


def _threads() -> set[str]:
    """Return which threads there are: another one may end while a fixture starts its own."""
    return {each.name for each in Path("/proc/self/task").iterdir()}


def _write_again(stream: int, text: str) -> None:
    if text:
        (sys.stdout if stream == 1 else sys.stderr).write(text)
