"""Tests that die, hang or break a device, in sessions of their own with ``--isolate``."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys

import pytest

from atomr_accel.testing import _children

from ..harness import ROOT, sized

pytest_plugins = ["pytester"]

PLUGIN = "atomr_accel.testing.pytest_plugin"

PRETENDED_DEVICE = """
import os
import pytest

used_by, fault = None, None

def use():
    global used_by
    used_by = os.getpid()
    os.environ["USED"] = "1"

def break_down(name):
    global fault
    use()
    fault = name

def pytest_isolate_in_use():
    return used_by is not None or None

def pytest_isolate_fault():
    return fault

@pytest.fixture
def dev():
    assert used_by in (None, os.getpid()), "this fork cannot use the device"
    use()
"""
"""A ``conftest.py`` with a device that works in the process that began to use it only."""


@pytest.fixture
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Sessions without the plugins that this one has."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(PRETENDED_DEVICE)
    return pytester


def isolated(tests: pytest.Pytester, *options: str) -> pytest.RunResult:
    given = ("-p", PLUGIN, "-p", "no:cacheprovider", "--isolate", "-Wdefault", "-rA", *options)
    return tests.runpytest_inprocess(*given)


def dying(statement: str) -> str:
    return f"""
        import ctypes, os, signal, sys, time
        import pytest

        def test_before(): pass

        def test_dies():
            print("out of it")
            print("of its errors", file=sys.stderr)
            {statement}

        def test_after(): pass
        """


DEATHS = {
    "ctypes.string_at(0)": r"killed by signal 11 \(SIGSEGV\)",
    "os.abort()": r"killed by signal 6 \(SIGABRT\)",
    "os._exit(3)": r"exited with status 3 before it was over",
    "os._exit(0)": r"exited with status 0 before it was over",
    "os.kill(os.getpid(), signal.SIGKILL)": r"killed by signal 9 \(SIGKILL\), as the kernel does.*",
    "os.kill(os.getpid(), signal.SIGRTMIN + 3)": r"killed by signal 37",
    "os._exit = lambda status: None; os.abort()": r"killed by signal 6 \(SIGABRT\)",
}


@pytest.mark.parametrize("statement", DEATHS)
def test_a_death_fails_one_test(alone: pytest.Pytester, statement: str) -> None:
    alone.makepyfile(dying(statement))
    result = isolated(alone)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.re_match_lines_random([DEATHS[statement], "out of it", "of its errors"])


@pytest.mark.slow
def test_a_thread_that_ends_does_not_hide_one_that_a_fixture_starts(
    alone: pytest.Pytester,
) -> None:
    alone.makepyfile(
        """
        import os, threading, pytest

        first, others = os.getpid(), []

        def started():
            end = threading.Event()
            thread = threading.Thread(target=end.wait)
            thread.start()
            return end, thread

        def ended(end, thread):
            end.set()
            thread.join()

        os.register_at_fork(after_in_child=lambda: others.append(started()))

        @pytest.fixture(scope="module")
        def where():
            while others:
                ended(*others.pop())
            mine = started()
            yield os.getpid()
            ended(*mine)

        def test_it(where):
            assert where != first
        """
    )
    given = ("-p", PLUGIN, "-p", "no:cacheprovider", "--isolate", "-Wdefault")
    alone.runpytest_subprocess(*given).assert_outcomes(passed=1)


def test_a_watchdog_of_pytest_stays_behind(alone: pytest.Pytester) -> None:
    alone.makeini("[pytest]\nfaulthandler_timeout = 60")
    alone.makepyfile("def test_fails(): assert False\ndef test_after(): pass")
    result = isolated(alone, "--isolate-timeout=10")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.no_fnmatch_line("*was killed*")


@pytest.mark.slow
@pytest.mark.parametrize("capture", ["fd", "sys", "tee-sys", "no"])
def test_every_kind_of_capture(alone: pytest.Pytester, capture: str) -> None:
    alone.makepyfile(dying("os.abort()"))
    isolated(alone, f"--capture={capture}").assert_outcomes(passed=2, failed=1)


def test_a_test_that_cannot_end_is_killed(alone: pytest.Pytester) -> None:
    alone.makepyfile(dying("signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"))
    result = isolated(alone, "--isolate-timeout=0.2")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.re_match_lines(
        [
            "took longer than 0.2 s and was killed",
            "out of it",
            r'.*test_a.*\.py", line 9 in test_dies',
        ]
    )


@pytest.mark.slow
def test_a_kernel_without_descriptors_of_processes(
    alone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(pid: int) -> int:
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(os, "pidfd_open", missing)
    alone.makepyfile(dying("signal.pause()"))
    isolated(alone, "--isolate-timeout=0.3").assert_outcomes(passed=2, failed=1)


@pytest.mark.parametrize(
    ("short_of_memory", "cause"),
    [
        (False, "killed by signal 9 (SIGKILL), as the kernel does when memory is short"),
        (True, "killed by signal 9 (SIGKILL); the kernel has killed processes here *"),
    ],
)
def test_a_death_for_want_of_memory(
    alone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, short_of_memory: bool, cause: str
) -> None:
    kills = iter(range(100))
    monkeypatch.setattr(_children, "_kernel_kills", lambda: next(kills) if short_of_memory else 0)
    alone.makepyfile(dying("os.kill(os.getpid(), signal.SIGKILL)"))
    isolated(alone).stdout.fnmatch_lines([cause])


@pytest.mark.slow
def test_a_process_that_cannot_be_killed(
    alone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    def never(pid: int, seconds: float) -> bool:
        left.append(pid)
        return False

    monkeypatch.setattr(_children, "_wait", never)
    alone.makepyfile("import signal\ndef test(): signal.pause()")
    result = isolated(alone, "--isolate-timeout=3")
    os.waitpid(left[0], 0)
    outcomes = result.parseoutcomes()
    outcomes.pop("warnings", None)
    assert outcomes in ({"failed": 1}, {"errors": 1})  # it may have come to its call
    result.stdout.fnmatch_lines(["took longer than 3 s and could not be killed: a driver may*"])


def test_a_mark_isolates_and_has_its_own_limit(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import os, signal
        import pytest

        first = os.getpid()

        @pytest.mark.isolated(timeout=0.1)
        def test_hangs():
            signal.pause()

        @pytest.mark.isolated
        class TestElsewhere:
            def test(self):
                assert os.getppid() == first

        def test_here():
            assert os.getpid() == first
        """
    )
    result = alone.runpytest_inprocess("-p", PLUGIN)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["took longer than 0.1 s and was killed"])


@pytest.mark.parametrize(
    ("fixture", "outcomes"),
    [
        ("os.abort(); yield", {"errors": 1}),
        ("yield; os.abort()", {"passed": 1, "errors": 1}),
    ],
)
def test_a_death_in_a_fixture(
    alone: pytest.Pytester, fixture: str, outcomes: dict[str, int]
) -> None:
    alone.makepyfile(
        f"""
        import os, pytest

        @pytest.fixture
        def deadly():
            {fixture}

        def test(deadly): pass
        def test_after(): pass
        """
    )
    result = isolated(alone)
    result.assert_outcomes(**{**outcomes, "passed": outcomes.get("passed", 0) + 1})
    result.stdout.fnmatch_lines(["killed by signal 6 (SIGABRT)"])


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["os._exit(9)", "os.abort()", "signal.pause()"])
def test_a_death_in_the_teardown_of_a_wider_fixture(alone: pytest.Pytester, ends: str) -> None:
    alone.makepyfile(
        f"""
        import os, signal, pytest

        first = os.getpid()

        @pytest.fixture(scope="session")
        def outer():
            yield os.getpid()

        @pytest.fixture(scope="module")
        def deadly(outer):
            yield os.getpid()
            {ends}

        @pytest.fixture(scope="module")
        def other():
            yield os.getpid()

        def test_one(outer, deadly, other):
            assert outer == other == first != deadly
        def test_after(outer): pass
        """
    )
    result = isolated(alone, "--isolate-timeout=0.3")
    result.assert_outcomes(passed=2, errors=1)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["SystemExit(5)", "GeneratorExit", "BaseException('no')"])
def test_a_wider_fixture_that_raises_no_exception(alone: pytest.Pytester, error: str) -> None:
    alone.makepyfile(
        f"""
        import pytest

        @pytest.fixture(scope="module")
        def wrong():
            raise {error}

        def test(wrong): pass
        def test_after(): pass
        """
    )
    isolated(alone).assert_outcomes(passed=1, errors=1)


def test_a_wider_fixture_that_ends_the_session_when_it_ends(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="class")
        def last():
            yield
            pytest.exit("enough", returncode=7)

        class TestOne:
            def test(self, last): pass

        def test_after(): pass
        """
    )
    result = isolated(alone)
    assert result.ret == 7
    result.stdout.fnmatch_lines(["*Exit: enough*"])


def test_a_death_that_is_known(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import os, pytest

        @pytest.mark.xfail(reason="bad driver")
        def test_known(): os.abort()

        @pytest.mark.xfail(raises=ValueError)
        def test_other_error(): os.abort()
        """
    )
    isolated(alone).assert_outcomes(xfailed=1, failed=1)


LEAVING = {
    "a child": "subprocess.Popen(['sleep', '1000'], pass_fds=[fd])",
    "a session": "subprocess.Popen(['sleep', '1000'], pass_fds=[fd], start_new_session=True)",
    "a daemon": """
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    subprocess.Popen(['sleep', '1000'], pass_fds=[fd], start_new_session=True)
                    signal.pause()
                os._exit(0)
            os.wait()""",
}


@pytest.mark.parametrize("death", ["pass", "os.abort()"])
@pytest.mark.parametrize("leaving", LEAVING)
def test_processes_that_a_test_leaves_behind_end_with_it(
    alone: pytest.Pytester, leaving: str, death: str
) -> None:
    read, write = os.pipe()
    alone.makepyfile(
        f"""
        import os, signal, subprocess

        def test():
            fd = {write}
            {LEAVING[leaving]}
            {death}
        """
    )
    before = _children._children()
    result = isolated(alone)
    result.assert_outcomes(**({"passed": 1} if death == "pass" else {"failed": 1}))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""  # nothing has it open any more
    assert _children._children() == before


def test_a_test_sees_the_end_of_a_daemon(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import os, signal, time

        def test():
            read, write = os.pipe()
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                    os.write(write, str(os.getpid()).encode())
                    signal.pause()
                os._exit(0)
            os.wait()
            daemon = int(os.read(read, 100))
            os.kill(daemon, signal.SIGKILL)
            while os.path.exists(f"/proc/{daemon}"):
                os.sched_yield()
        """
    )
    isolated(alone, "--isolate-timeout=10").assert_outcomes(passed=1)


# --- devices ------------------------------------------------------------------------------


def test_the_next_test_has_a_clean_device(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import conftest, os, pytest

        def test_breaks(dev):
            conftest.break_down("ILLEGAL_ADDRESS")

        def test_breaks_and_fails(dev):
            conftest.break_down("ASSERT")
            assert 0

        def test_after(dev):
            assert conftest.fault is None
        """
    )
    result = isolated(alone)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "this test left a fault on the device: ILLEGAL_ADDRESS",
            "*Captured device call*",
            "ASSERT",
        ]
    )


def test_fixtures_are_set_up_before_the_fork_unless_they_use_a_device(
    alone: pytest.Pytester,
) -> None:
    alone.makepyfile(
        """
        import conftest, os, pytest

        first = os.getpid()

        @pytest.fixture(scope="session")
        def plain():
            yield os.getpid()

        @pytest.fixture(scope="module", params=["cpu", "gpu"])
        def kind(request):
            return request.param

        @pytest.fixture(scope="module")
        def data(kind, plain):
            if kind == "gpu":
                conftest.use()
            return os.getpid()

        @pytest.fixture(scope="module")
        def deadly():
            os.abort()

        @pytest.fixture(scope="module")
        def named():
            return os.getpid()

        def test_one(plain, kind, data, named):
            assert plain == first
            assert (data == first) == (kind == "cpu")
            assert named == os.getpid()

        def test_two(plain, deadly): pass

        def test_three(data, plain):
            assert plain == first == os.getppid()
        """
    )
    alone.makeini("[pytest]\nisolate_late_fixtures = named\n")
    isolated(alone).assert_outcomes(passed=4, errors=1)


def test_a_fixture_ends_in_the_process_that_made_it(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import conftest, os, pytest

        first = os.getpid()

        def tell(text):
            with open("told.txt", "a") as file:
                file.write(text)

        @pytest.fixture(scope="module", autouse=True)
        def early():
            tell("up ")
            yield
            tell("down " if os.getpid() == first else "trial ")

        @pytest.fixture(scope="module")
        def late():
            conftest.use()
            yield os.getpid()
            tell("late ")

        def test_one(): tell("one ")
        def test_two(late): assert late == os.getpid()
        def test_three(): tell("three ")
        """
    )
    isolated(alone).assert_outcomes(passed=3)
    told = (alone.path / "told.txt").read_text().split()
    # Each trial comes with the test that needs a fixture first.
    assert told == ["up", "trial", "up", "one", "late", "late", "three", "down"]


@pytest.mark.slow
def test_a_module_that_uses_a_device_on_import(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        test_first="def test(dev): pass",
        test_import="""
        import conftest, os, sys, pytest
        conftest.use()
        imported = os.getpid()

        def test(dev, tmp_path, capsys):
            assert os.getpid() == imported
            (tmp_path / "a").touch()

        @pytest.mark.parametrize("n", [1, 2])
        def test_numbers(n, record_property):
            record_property("n", n)
            assert n == 1

        def test_dies():
            print("out of it", flush=True)
            os.abort()
        """,
    )
    # As a program: each fresh interpreter imports what the session has imported.
    result = alone.runpytest_subprocess("-p", PLUGIN, "--isolate", "-vv", "-k", "not first")
    result.assert_outcomes(passed=2, failed=2, warnings=1, deselected=1)
    result.stdout.fnmatch_lines(
        ["*killed by signal 6 (SIGABRT)*", "*out of it*", "*by the import of test_import.py,*"]
    )
    assert result.stdout.str().count("--isolate: a device was used") == 1


@pytest.mark.slow
def test_tests_that_are_not_isolated_may_use_the_device(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import os
        import pytest

        first = os.getpid()

        def test_here(dev): pass

        @pytest.mark.isolated
        def test_elsewhere(dev): pass
        """
    )
    result = alone.runpytest_inprocess("-p", PLUGIN, "-Wdefault")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*used by tests of this process that were not isolated*"])


# --- bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_limit_must_be_positive(alone: pytest.Pytester, seconds: str) -> None:
    result = isolated(alone, f"--isolate-timeout={seconds}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*--isolate-timeout must be a positive number of seconds, not '{seconds}'*"]
    )


@pytest.mark.parametrize("option", ["--pdb", "--trace"])
def test_a_debugger_needs_the_sessions_process(alone: pytest.Pytester, option: str) -> None:
    result = isolated(alone, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--isolate must come without --pdb and --trace*"])


@pytest.mark.parametrize("arguments", ["timeout=0", "timeout='x'", "3", "seconds=3"])
def test_a_wrong_mark_fails_its_test(alone: pytest.Pytester, arguments: str) -> None:
    alone.makepyfile(
        f"""
        import pytest

        @pytest.mark.isolated({arguments})
        def test_wrong(): pass
        def test_after(): pass
        """
    )
    result = isolated(alone)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.re_match_lines([".*pytest.mark.isolated must .*"])


def test_a_child_that_cannot_be_forked(
    alone: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork, left = os.fork, [None, None]

    def scarce() -> int:
        left.pop() if left else None
        if len(left) == 1:
            raise OSError(errno.EAGAIN, "no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", scarce)
    alone.makepyfile("def test_one(): pass\ndef test_two(): pass\n")
    result = isolated(alone)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["no process could be started for it: *no more processes"])


def test_a_report_of_more_than_plain_values(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        def test_one(record_property):
            record_property("key", object())
        def test_two(): pass
        """
    )
    result = isolated(alone)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["the report's user_properties must be made of plain values*"])


def test_a_test_that_ends_the_session(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import pytest
        def test_one(): pytest.exit("enough", returncode=7)
        def test_two(): pass
        """
    )
    result = isolated(alone)
    assert result.ret == 7
    result.stdout.fnmatch_lines(["*Exit: enough*"])


def test_ctrl_c_in_a_test_ends_the_session(alone: pytest.Pytester) -> None:
    alone.makepyfile("def test_one(): raise KeyboardInterrupt\ndef test_two(): pass\n")
    result = alone.runpytest_inprocess("-p", PLUGIN, "--isolate", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED


# --- other plugins ------------------------------------------------------------------------


MIXED = """
import os, pytest

@pytest.mark.parametrize("i", range(8))
def test(i):
    if i == 3: os.abort()
    assert i != 5
"""


def test_last_failed(alone: pytest.Pytester) -> None:
    alone.makepyfile(MIXED)
    alone.runpytest_inprocess("-p", PLUGIN, "--isolate").assert_outcomes(passed=6, failed=2)
    result = alone.runpytest_inprocess("-p", PLUGIN, "--isolate", "--lf")
    result.assert_outcomes(failed=2)


def test_junit_and_durations(alone: pytest.Pytester) -> None:
    alone.makepyfile(MIXED)
    result = isolated(alone, "--junitxml=out.xml", "--durations=2", "-vv")
    result.stdout.re_match_lines([r"\d+\.\d+s (call|setup|teardown) .*test.*"])
    text = (alone.path / "out.xml").read_text()
    assert 'errors="0" failures="2" skipped="0" tests="8"' in text
    assert 'message="Failed: killed by signal 6 (SIGABRT)"' in text


@pytest.mark.slow
def test_xdist(alone: pytest.Pytester) -> None:
    alone.makepyfile(MIXED)
    result = isolated(alone, "-p", "xdist.plugin", "-n2")
    result.assert_outcomes(passed=6, failed=2)
    result.stdout.fnmatch_lines(["*killed by signal 6 (SIGABRT)*"])
    assert "replacing crashed worker" not in result.stdout.str()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", ["", "branch = true", "parallel = true", "patch = fork, _exit"]
)
def test_coverage(alone: pytest.Pytester, settings: str) -> None:
    alone.makepyfile(
        mine="def used():\n    return 1\n\ndef unused():\n    return 2\n",
        test_it="import mine\ndef test_one(): mine.used()\ndef test_two(): pass\n",
    )
    alone.path.joinpath(".coveragerc").write_text(f"[run]\n{settings}\n")
    measure = (sys.executable, "-m", "coverage")
    command = [*measure, "run", "--include=mine.py", "-m", "pytest", "-p", PLUGIN, "--isolate"]
    alone.run(*command).assert_outcomes(passed=2)
    if "parallel" in settings:
        alone.run(*measure, "combine")
    alone.run(*measure, "json", "-o", "out.json")
    (file,) = json.loads((alone.path / "out.json").read_text())["files"].values()
    assert file["missing_lines"] == [5]


@pytest.mark.slow
def test_isolation_alone_imports_neither_trio_nor_numpy(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        """
        import sys
        def test(): assert not {"trio", "numpy", "outcome", "atomr_accel.device"} & {*sys.modules}
        """
    )
    result = alone.runpytest_subprocess("-p", PLUGIN, "--isolate")
    result.assert_outcomes(passed=1)


def test_another_plugin_with_the_same_options(alone: pytest.Pytester) -> None:
    alone.makepyfile(
        other="def pytest_addoption(parser): parser.addoption('--isolate', action='store_true')"
    )
    alone.syspathinsert()
    with pytest.raises(pytest.UsageError, match="another plugin has options of the same names"):
        alone.parseconfig("-p", "other", "-p", PLUGIN)


# --- the whole ----------------------------------------------------------------------------

BAD = {
    "ctypes.string_at(0)": "killed by signal 11 (SIGSEGV)",
    "os.abort()": "killed by signal 6 (SIGABRT)",
    "os._exit(3)": "exited with status 3 before it was over",
    "time.sleep(1000)": "took longer than 5 s and was killed",
    "conftest.break_down('FAULT')": "this test left a fault on the device: FAULT",
}


@pytest.mark.slow
def test_a_suite_with_bad_tests_fails_by_these_only(alone: pytest.Pytester) -> None:
    count = sized(100, 1000)
    causes = {}
    lines = ["import conftest, ctypes, os, time"]
    for i in range(count):
        statement = "assert conftest.fault is None"
        if i % 20 == 7:
            statement, causes[f"test_{i}"] = [*BAD.items()][i // 20 % len(BAD)]
        lines.append(f"def test_{i}():\n    conftest.use()\n    {statement}")
    alone.makepyfile("\n".join(lines))
    result = isolated(alone, "--isolate-timeout=5", "-q")
    result.assert_outcomes(passed=count - len(causes), failed=len(causes))
    found = dict(re.findall(r"^_+ (test_\d+) _+\n(.+)$", result.stdout.str(), re.MULTILINE))
    assert found == causes
    # Without isolation, the first bad test is the end of all.
    without = alone.runpytest_subprocess("-p", PLUGIN, "-q")
    assert without.ret == -signal.SIGSEGV
    assert "passed" not in without.stdout.str()
