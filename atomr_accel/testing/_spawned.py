"""A fresh interpreter that runs one test of a session, with the session's options."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import Any

import pytest
from _pytest.config import _prepareconfig

from ._children import ValueBox, begin_child
from ._isolation import IsolatedTests
from ._relay import Relay

OVERRIDDEN: dict[str, Any] = {
    "isolate": False,
    "cacheclear": False,
    "failedfirst": False,
    "lf": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "xmlpath": None,
    "report_log": None,
    "keyword": "",
    "markexpr": "",
    "deselect": None,
    "maxfail": 0,
    "dist": "no",
    "numprocesses": None,
    "maxprocesses": None,
    "tx": [],
    "looponfail": False,
}
"""Options that are about more than one test, or about files that the session itself writes."""


def main() -> None:
    """Run the test that the standard input names."""
    box, stacks, *output = map(int, sys.argv[1].split(","))
    told = json.load(sys.stdin)
    begin_child(told["parent"], stacks)
    sys.path[:] = told["path"]
    os.chdir(told["folder"])
    options = told["options"]
    arguments = [told["file"], f"--rootdir={told['root']}"]
    if told["settings"]:
        arguments.append(f"-c{told['settings']}")
    arguments += [f"-p{name}" for name in options.get("plugins") or []]
    arguments += [f"-o{setting}" for setting in options.get("override_ini") or []]
    arguments += [f"-W{each}" for each in options.get("pythonwarnings") or []]
    arguments += ["--noconftest"] if options.get("noconftest") else []
    if options.get("confcutdir"):
        arguments.append(f"--confcutdir={options['confcutdir']}")
    if options.get("importmode"):
        arguments.append(f"--import-mode={options['importmode']}")
    config = _prepareconfig(arguments)
    vars(config.option).update(options)
    vars(config.option).update(OVERRIDDEN, plugins=[], file_or_dir=arguments[:1])
    config.pluginmanager.register(OneTest(told["nodeid"], ValueBox(box), output))
    config.hook.pytest_cmdline_main(config=config)
    os._exit(0)  # as forks do: what waits for the interpreter's end is not of the test


class OneTest:
    """Leaves a test alone in its session, and sends home how it went."""

    def __init__(self, nodeid: str, box: ValueBox, output: list[int]) -> None:
        self._nodeid = nodeid
        self._box = box
        self._output = output
        self._relay: Relay | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Have reports go home, and all that pytest itself would say go nowhere."""
        config.get_terminal_writer()._file = io.StringIO()
        self._share_capture(config)
        self._relay = Relay(config, self._box)
        isolated = config.pluginmanager.getplugin("isolated_tests")
        assert isinstance(isolated, IsolatedTests)
        isolated.relay_to(self._relay)

    def _share_capture(self, config: pytest.Config) -> None:
        """Have pytest capture into files that the session can read if this process dies."""
        manager = config.pluginmanager.getplugin("capturemanager")
        capture = getattr(manager, "_global_capturing", None)
        for stream, fd in zip(("out", "err"), self._output, strict=True):
            file = getattr(getattr(capture, stream, None), "tmpfile", None)
            try:
                os.dup2(fd, file.fileno())  # type: ignore[union-attr] # caught
            except (AttributeError, OSError):
                continue  # not a file: pytest captures in another way

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out all others."""
        items[:] = [item for item in items if item.nodeid == self._nodeid]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the test."""
        assert self._relay is not None
        with self._relay.everything_else(session):
            for item in session.items:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return True


if __name__ == "__main__":
    main()
