"""Tests of pytest's features, each run with ``--isolate`` and without, and compared."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

pytest_plugins = ["pytester"]

PLUGIN = "atomr_accel.testing.pytest_plugin"


class Row(NamedTuple):
    """A feature: tests that use it, pytest's options, and outcomes in any order."""

    source: str
    options: tuple[str, ...] = ()
    outcomes: str = "passed"


SAME: dict[str, Row] = {
    "capsys": Row(
        """
        def test(capsys):
            print("text")
            assert capsys.readouterr().out == "text\\n"
        """
    ),
    "capfd": Row(
        """
        import os
        def test(capfd):
            os.write(1, b"text")
            assert capfd.readouterr().out == "text"
        """
    ),
    "captured output": Row(
        """
        import sys, pytest
        @pytest.fixture
        def around():
            print("before")
            yield
            print("after", file=sys.stderr)
        def test(around):
            print("in the test")
            assert 0
        """,
        outcomes="failed",
    ),
    "caplog": Row(
        """
        import logging
        def test(caplog):
            logging.warning("text")
            assert caplog.messages == ["text"]
        def test_shown():
            logging.warning("text")
            assert 0
        """,
        outcomes="passed failed",
    ),
    "tmp_path": Row(
        """
        import os
        def test_one(tmp_path, tmp_path_factory):
            (tmp_path / "a").write_text("b")
            assert tmp_path.parent == tmp_path_factory.getbasetemp()
        def test_two(tmp_path):
            assert not list(tmp_path.iterdir())
            assert (tmp_path.parent / "test_one0").exists() or os.environ
        """,
        outcomes="passed passed",
    ),
    "monkeypatch": Row(
        """
        import os
        def test_one(monkeypatch):
            monkeypatch.setenv("MINE", "1")
            assert os.environ["MINE"]
        def test_two():
            assert "MINE" not in os.environ
        """,
        outcomes="passed passed",
    ),
    "parametrization": Row(
        """
        import pytest
        @pytest.fixture(params=["x", "y"], scope="module")
        def letter(request):
            return request.param
        @pytest.mark.parametrize("n", [1, 2])
        def test(letter, n):
            assert letter * n != "yy"
        """,
        outcomes="passed passed passed failed",
    ),
    "indirect parametrization": Row(
        """
        import pytest
        @pytest.fixture(scope="module")
        def doubled(request):
            return request.param * 2
        @pytest.mark.parametrize("doubled", [1, 2], indirect=True, scope="module")
        def test(doubled):
            assert doubled in (2, 4)
        """,
        outcomes="passed passed",
    ),
    "skip and xfail": Row(
        """
        import pytest
        def test_skip():
            pytest.skip("why")
        @pytest.mark.skip(reason="mark")
        def test_skip_mark():
            assert 0
        @pytest.mark.xfail(reason="known")
        def test_xfail():
            assert 0
        @pytest.mark.xfail(strict=True)
        def test_xpass_strict():
            pass
        @pytest.mark.xfail(run=False)
        def test_not_run():
            raise SystemExit
        def test_added(request):
            request.node.add_marker(pytest.mark.xfail)
            assert 0
        """,
        outcomes="skipped skipped xfailed failed xfailed xfailed",
    ),
    "xpass": Row(
        """
        import pytest
        @pytest.mark.xfail(strict=False)
        def test():
            pass
        """,
        outcomes="xpassed",
    ),
    "setup and teardown functions": Row(
        """
        seen = []
        def setup_module():
            seen.append("module")
        def setup_function():
            seen.append("function")
        class TestIt:
            @classmethod
            def setup_class(cls):
                cls.value = 3
            def setup_method(self):
                self.other = 4
            def test(self):
                assert (self.value, self.other, seen) == (3, 4, ["module"])
        def test():
            assert seen == ["module", "function"]
        """,
        outcomes="passed passed",
    ),
    "unittest": Row(
        """
        import unittest
        class It(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.value = 3
            def setUp(self):
                self.other = 4
            def test_passes(self):
                self.assertEqual((self.value, self.other), (3, 4))
            def test_fails(self):
                self.assertEqual(1, 2)
            @unittest.skip("why")
            def test_skipped(self):
                pass
        """,
        outcomes="failed passed skipped",
    ),
    "fixture errors": Row(
        """
        import pytest
        @pytest.fixture(scope="module")
        def broken():
            raise ValueError("mine")
        @pytest.fixture(scope="module")
        def skipping():
            pytest.skip("not here")
        @pytest.fixture
        def late():
            yield
            raise ValueError("at the end")
        def test_broken(broken): pass
        def test_again(broken): pass
        def test_skipping(skipping): pass
        def test_late(late): pass
        def test_unknown(nothing_of_this_name): pass
        """,
        outcomes="error error skipped passed error error",
    ),
    "an error in a module's teardown": Row(
        """
        import pytest
        @pytest.fixture(scope="module")
        def late():
            yield
            raise ValueError("at the end")
        def test_one(late): pass
        def test_two(late): pass
        """,
        outcomes="passed passed error",
    ),
    "assertion rewriting": Row(
        """
        def test():
            assert {"a": [1, 2, 3]} == {"a": [1, 2, 4]}, "words"
        """,
        outcomes="failed",
    ),
    "warnings": Row(
        """
        import warnings
        def test_recorded(recwarn):
            warnings.warn("mine")
            assert len(recwarn) == 1
        def test_shown():
            warnings.warn("mine", FutureWarning)
        """,
        ("-Wdefault",),
        outcomes="passed passed",
    ),
    "warnings as errors": Row(
        """
        import warnings
        def test():
            warnings.warn("mine")
        """,
        ("-Werror",),
        "failed",
    ),
    "properties": Row(
        """
        def test(record_property):
            record_property("key", 3)
        """,
        ("-ojunit_family=legacy",),
    ),
    "doctest": Row(
        '''
        def double(x):
            """
            >>> double(2)
            4
            >>> double(3)
            7
            """
            return 2 * x
        ''',
        ("--doctest-modules",),
        "failed",
    ),
    "-x": Row(
        """
        def test_one(): assert 0
        def test_two(): pass
        """,
        ("-x",),
        "failed",
    ),
    "--maxfail": Row(
        """
        def test_one(): assert 0
        def test_two(): assert 0
        def test_three(): assert 0
        """,
        ("--maxfail=2",),
        "failed failed",
    ),
    "a test that stops the session": Row(
        """
        def test_one(request): request.session.shouldstop = "enough"
        def test_two(): pass
        """,
    ),
    "subtests": Row(
        """
        def test(subtests):
            for i in range(3):
                with subtests.test(i=i):
                    assert i != 1
        """,
        outcomes="failed failed passed passed",
    ),
    "chance": Row(
        """
        import random
        random.seed(3)
        def test():
            assert random.random() == 0.23796462709189137
        """
    ),
    "-k and -m": Row(
        """
        import pytest
        @pytest.mark.skipif(True, reason="why")
        def test_one(): pass
        def test_two(): pass
        """,
        ("-kone",),
        "skipped",
    ),
    "SystemExit": Row(
        """
        import sys
        def test(): sys.exit(3)
        """,
        outcomes="failed",
    ),
    "exceptions that nobody sees": Row(
        """
        def test():
            class Late:
                def __del__(self): raise ValueError("in a finalizer")
            Late()
        """,
        ("-Werror",),
        "failed",
    ),
}
"""Features that work as they do without isolation: all reports are equal."""


DIFFERENT: dict[str, Row] = {
    "what a test leaves in the process": Row(
        """
        seen = []
        def test_one(): seen.append(1)
        def test_two(): assert seen == [1]
        """,
        outcomes="passed failed",
    ),
    "what a test leaves in a module's fixture": Row(
        """
        import pytest
        @pytest.fixture(scope="module")
        def kept(): return []
        def test_one(kept): kept.append(1)
        def test_two(kept): assert kept == [1]
        """,
        outcomes="passed failed",
    ),
    "a fixture of wider scope that a test asks for by name, set up in each": Row(
        """
        import os, pytest
        first = os.getpid()
        @pytest.fixture(scope="session")
        def where(): return os.getpid()
        def test_one(request): assert request.getfixturevalue("where") == first
        """,
        outcomes="failed",
    ),
    "a fixture of wider scope with a thread, set up in each": Row(
        """
        import os, threading, pytest
        first = os.getpid()
        @pytest.fixture(scope="module")
        def where():
            end = threading.Event()
            thread = threading.Thread(target=end.wait)
            thread.start()
            yield os.getpid()
            end.set()
            thread.join()
        def test_one(where): assert where == first
        """,
        outcomes="failed",
    ),
    "properties of a whole suite": Row(
        """
        def test_one(record_testsuite_property, request):
            from _pytest.junitxml import xml_key
            record_testsuite_property("key", "value")
        def test_two(record_testsuite_property, request):
            from _pytest.junitxml import xml_key
            assert request.config.stash[xml_key].global_properties
        """,
        ("--junitxml=out.xml",),
        "passed failed",
    ),
    "objects among a test's properties": Row(
        """
        def test(record_property): record_property("key", object())
        """,
        ("-Wdefault",),
        "failed",
    ),
}
"""Features that work in another way; without isolation all of these tests pass."""


@pytest.fixture
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Sessions without the plugins that this one has."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def seen(tests: pytest.Pytester, *options: str) -> list[Any]:
    """All that a session says of its tests, but for times and paths of temporary files."""
    recorder = tests.inline_run("-p", PLUGIN, "-p", "no:cacheprovider", *options)
    reports: list[Any] = [
        (
            report.nodeid,
            report.when,
            report.outcome,
            getattr(report, "wasxfail", None),
            report.location,
            re.sub(r"0x[0-9a-f]+|-\d+/", "", report.longreprtext),
            report.sections,
            report.user_properties,
            report.keywords,
        )
        for report in recorder.getreports("pytest_runtest_logreport")
    ]
    warned = [
        (call.nodeid, call.when, call.warning_message.category, str(call.warning_message.message))
        for call in recorder.getcalls("pytest_warning_recorded")
        if call.when == "runtest"
    ]
    return [*reports, *warned, recorder.ret]


def outcome(report: Any) -> str:
    if len(report) == 4:
        return ""  # a warning
    _, when, outcome, wasxfail, *_ = report
    if wasxfail is not None:
        return "xfailed" if outcome == "skipped" else "xpassed"
    if when != "call" and outcome == "failed":
        return "error"
    return outcome if when == "call" or outcome == "skipped" else ""


@pytest.mark.parametrize("feature", SAME)
def test_a_feature_works_the_same(alone: pytest.Pytester, feature: str) -> None:
    row = SAME[feature]
    alone.makepyfile(test_it=row.source)
    with_it, without = seen(alone, "--isolate", *row.options), seen(alone, *row.options)
    assert with_it == without
    found = [outcome(report) for report in without[:-1]]
    assert sorted(filter(None, found)) == sorted(row.outcomes.split())


@pytest.mark.parametrize("feature", DIFFERENT)
def test_a_feature_works_in_another_way(alone: pytest.Pytester, feature: str) -> None:
    row = DIFFERENT[feature]
    alone.makepyfile(test_it=row.source)
    assert seen(alone, *row.options)[-1] == pytest.ExitCode.OK
    found = [outcome(report) for report in seen(alone, "--isolate", *row.options)[:-1]]
    assert sorted(filter(None, found)) == sorted(row.outcomes.split())
