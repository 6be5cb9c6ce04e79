"""Messages from a test's process to the session's: reports, warnings, coverage, wishes to stop."""

from __future__ import annotations

import base64
import importlib
import json
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._children import ValueBox


class Relay:
    """The way home of a test's process.

    Args:
        config: pytest's configuration.
        box: where values go.
    """

    def __init__(self, config: pytest.Config, box: ValueBox) -> None:
        self._config: Final = config
        self._box: Final = box
        self._refused = False

    def report(self, report: pytest.TestReport) -> None:
        """Send a report; one that holds other than plain values is sent as a failure."""
        hook = self._config.hook.pytest_report_to_serializable
        data = cast("dict[str, Any]", hook(config=self._config, report=report))
        if wrong := {name: value for name, value in data.items() if not _is_plain(value)}:
            data = {name: value for name, value in data.items() if name not in wrong}
            data |= {
                "user_properties": data.get("user_properties", []),
                "sections": data.get("sections", []),
            }
        if wrong and not self._refused:  # one error; properties are in all reports of a test
            self._refused = True
            data |= {
                "outcome": "failed",
                "longrepr": "\n".join(
                    f"the report's {name} must be made of plain values, which can leave the "
                    f"test's process, not {value!r}"
                    for name, value in wrong.items()
                ),
            }
        self._box.send("report", data)

    @contextmanager
    def everything_else(self, session: pytest.Session) -> Iterator[None]:
        """Send the block's warnings, and whether the session shall stop."""
        before = session.shouldstop, session.shouldfail
        with warnings.catch_warnings(record=True) as caught:
            try:
                yield
            except pytest.exit.Exception as error:
                self._box.send("exit", (error.msg, error.returncode))
            except KeyboardInterrupt:
                self._box.send("interrupt")
        for each in caught:
            kind = each.category.__module__, each.category.__qualname__
            self._box.send("warning", (*kind, str(each.message), each.filename, each.lineno))
        if (session.shouldstop, session.shouldfail) != before:
            self._box.send("stop", (session.shouldstop, session.shouldfail))
        for stream in sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__:
            if stream is not None:
                stream.flush()

    @staticmethod
    def warning(value: tuple[str, str, str, str, int]) -> warnings.WarningMessage:
        """Return a warning that was sent."""
        module, name, text, filename, line = value
        try:
            category = importlib.import_module(module)
            for part in name.split("."):
                category = getattr(category, part)
            kind = cast("type[Warning]", category)
            message = kind(text)
        except Exception:  # noqa: BLE001 # made in a test, or of more than a text
            kind = Warning
            message = Warning(f"{name}: {text}")
        return warnings.WarningMessage(message, kind, filename, line)

    @contextmanager
    def coverage(self) -> Iterator[None]:
        """Send the lines that the block has run, if coverage is measured."""
        measuring = _measuring()
        if measuring is None:
            yield
            return
        import coverage

        # In memory: the session's own file is not to be written by two processes.
        data = coverage.CoverageData(no_disk=True)
        measuring._data = data
        measuring._collector.covdata = data
        yield
        measuring.stop()
        lines = base64.b64encode(measuring.get_data().dumps()).decode()
        self._box.send("coverage", lines)

    @staticmethod
    def add_coverage(value: str) -> None:
        """Add lines that were sent to those measured here."""
        measuring = _measuring()
        if measuring is None:
            return
        import coverage

        data = coverage.CoverageData(no_disk=True)
        data.loads(base64.b64decode(value))
        measuring.get_data().update(data)


def _measuring() -> Any:
    coverage = sys.modules.get("coverage")
    return None if coverage is None else coverage.Coverage.current()


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
