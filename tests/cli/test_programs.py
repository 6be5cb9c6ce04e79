"""Programs that commands run: as `python` would, with something beside each system."""

from __future__ import annotations

import os
import socket
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from atomr_accel import open_system
from atomr_accel._install import install_command
from atomr_accel.actors import ActorSystem
from atomr_accel.actors.system import beside_systems
from atomr_accel.cli import _dashboard
from atomr_accel.cli._errors import Refusal
from atomr_accel.cli._programs import run_beside

from .commands import Commands

SCRIPT = """
import sys
import trio
from atomr_accel import open_device, open_system
from beside import WORD

async def main():
    async with open_device(0, backend="cpu", isolation="thread"):
        print(WORD, *sys.argv[1:], __name__)
    async with open_system("second"):
        pass

trio.run(main)
sys.exit(7)
"""


class Beside:
    """Notes what systems there were."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @asynccontextmanager
    async def __call__(self, system: ActorSystem) -> AsyncIterator[None]:
        self.notes.append(f"{system.name} opens")
        yield
        self.notes.append(f"{system.name} closes")


def run(path: Path | str, *arguments: str, module: bool = False, as_json: bool = False) -> int:
    words = Namespace(program=str(path), module=module, arguments=list(arguments))
    return run_beside(Beside(), words, as_json=as_json)


def script(folder: Path, text: str) -> Path:
    (folder / "beside.py").write_text("WORD = 'beside'\n")
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_a_script_runs_as_it_would_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(tmp_path, SCRIPT)
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    beside = Beside()
    words = Namespace(program=str(path), module=False, arguments=["-x", "--json"])
    assert run_beside(beside, words, as_json=False) == 7
    assert capsys.readouterr().out == "beside -x --json __main__\n"
    assert beside.notes == ["device opens", "device closes", "second opens", "second closes"]
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    sys.modules.pop("beside")


def test_a_module_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a_module_of_tests.py").write_text("import sys\nprint(sys.argv[1:], __name__)\n")
    monkeypatch.chdir(tmp_path)
    assert run("a_module_of_tests", "3", module=True) == 0
    assert capsys.readouterr().out == "['3'] __main__\n"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(True)", 1, ""),
        ("import sys; sys.exit(-1)", 255, ""),
        ("import sys; sys.exit(256)", 0, ""),
        ("import sys; sys.exit('not so')", 1, "not so\n"),
        ("def f(): raise ValueError('a bug')\nf()", 1, "ValueError: a bug\n"),
        ("def", 1, "SyntaxError: "),
    ],
)
def test_how_a_script_may_end(
    text: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(script(tmp_path, text)) == code
    err = capsys.readouterr().err
    assert says in err
    assert "runpy" not in err
    assert "_programs.py" not in err


def test_program_output_stays_out_of_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Output of child processes, hosts and native code is kept out of the JSON too."""
    text = "import os; print('noise', flush=True); os.write(1, b'din\\n'); os.system('echo row')"
    assert run(script(tmp_path, text), as_json=True) == 0
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "noise\ndin\nrow\n")
    os.write(1, b"result\n")
    assert capfd.readouterr() == ("result\n", "")


def test_no_script(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="there is no"):
        run(tmp_path / "nothing.py")


def test_ctrl_c_is_not_the_scripts_to_hide(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(script(tmp_path, "raise KeyboardInterrupt"))


async def test_program_runs_next_to_a_system_inside_it() -> None:
    """The guest can use the system, is closed before it, and sees errors of the block."""
    steps: list[Any] = []

    @asynccontextmanager
    async def companion(system: ActorSystem) -> AsyncIterator[None]:
        try:
            yield
        except ValueError as error:
            steps.append(error.args)
            raise
        finally:
            await trio.lowlevel.checkpoint()
            steps.append(system.tree().path)

    with beside_systems(companion), pytest.raises(ValueError, match=r"^body$"):
        async with open_system("watched"):
            raise ValueError("body")
    assert steps == [("body",), "/"]
    async with open_system("alone"):
        pass
    assert len(steps) == 2


def test_a_page_is_open_while_the_program_runs(tmp_path: Path, command: Commands) -> None:
    pytest.importorskip("hypercorn")
    pytest.importorskip("starlette")
    path = script(tmp_path, SCRIPT)
    document = command.document("dashboard", path, code=7)
    assert document.exit_code == 7
    assert len(document.urls) == 2
    done = command("dashboard", path)
    assert done.out == "beside __main__\n"
    assert done.err.startswith("dashboard of device: http://127.0.0.1:")
    sys.modules.pop("beside")


@pytest.mark.parametrize(
    ("host", "code"), [("127.0.0.1", 3), ("not-an-address", 2), ("0.0.0.0", 2)]
)
def test_a_page_that_has_no_place(host: str, code: int, tmp_path: Path, command: Commands) -> None:
    """The port is taken, or others would reach it."""
    pytest.importorskip("hypercorn")
    pytest.importorskip("starlette")
    path = script(tmp_path, SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = ("--host", host, "--port", taken.getsockname()[1], path)
        refusal = command.document("dashboard", *words, code=code)
    assert host in refusal.message
    assert ("--public" in refusal.message) == (host == "0.0.0.0")
    sys.modules.pop("beside")


@pytest.mark.parametrize("port", ["-1", "65536", "99999", "http"])
def test_a_port_that_is_none_is_refused_before_the_program_runs(
    port: str, command: Commands
) -> None:
    refusal = command.document("dashboard", "--port", port, "not-there.py", code=2)
    assert "argument --port: " in refusal.message


def test_a_page_for_other_machines(tmp_path: Path, command: Commands) -> None:
    pytest.importorskip("hypercorn")
    pytest.importorskip("starlette")
    words = ("--host", "0.0.0.0", "--public", script(tmp_path, SCRIPT))
    assert len(command.document("dashboard", *words, code=7).urls) == 2
    sys.modules.pop("beside")


def test_without_what_serves_pages(
    tmp_path: Path, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_dashboard, "find_spec", lambda _: None)
    refusal = command.document("dashboard", script(tmp_path, SCRIPT), code=3)
    assert install_command("dashboard") in refusal.message


@pytest.mark.slow
def test_a_timeline_of_each_system(tmp_path: Path, command: Commands) -> None:
    path = script(tmp_path, SCRIPT)
    document = command.document("trace", "-o", tmp_path / "run.pftrace", path, code=7)
    files = [str(tmp_path / "run.pftrace"), str(tmp_path / "run-2.pftrace")]
    assert (document.files, document.exit_code) == (files, 7)
    content = (tmp_path / "run.pftrace").read_bytes()
    assert content[:1] == b"\x0a", "the first packet"
    assert b"/device-0" in content or b"cpu:0" in content
    sys.modules.pop("beside")


def test_a_program_without_systems_has_no_timeline(tmp_path: Path, command: Commands) -> None:
    done = command("trace", "-o", tmp_path / "run.pftrace", script(tmp_path, ""))
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("nothing was written")
    assert not (tmp_path / "run.pftrace").exists()


def test_missing_program_is_reported_as_not_run(tmp_path: Path, command: Commands) -> None:
    (tmp_path / "package_of_tests").mkdir()
    for words in (
        [tmp_path / "nothing.py"],
        ["-m", "no_such_module_of_tests"],
        ["-m", "no_such_package_of_tests.module"],
        ["-m", "wsgiref"],
    ):
        done = command("trace", "-o", tmp_path / "run.pftrace", *words)
        assert (done.code, done.out) == (3, "")
        assert done.err.startswith("atomr-accel trace: there is no ")
        assert done.err.count("\n") == 1
    assert not (tmp_path / "run.pftrace").exists()


def test_a_timeline_that_cannot_be_written_is_not_listed(tmp_path: Path, command: Commands) -> None:
    """However the program ends, which ends as it would."""
    text = SCRIPT.partition("    async with open_system")[0] + "\ntrio.run(main)\n"
    document = command.document("trace", "-o", "/dev/full", script(tmp_path, text))
    assert (document.files, document.exit_code) == ([], 0)
    assert document.problem.startswith("/dev/full cannot be written: No space left")
    failing = script(tmp_path, text.replace("print(WORD", "raise LookupError(WORD"))
    done = command("trace", "-o", "/dev/full", failing)
    assert done.code == 1
    assert "LookupError" in done.err
    assert "nothing was written to /dev/full" in done.err
    sys.modules.pop("beside")


def test_a_timeline_that_has_no_place(tmp_path: Path, command: Commands) -> None:
    path = script(tmp_path, "raise SystemExit(9)")
    for place in (tmp_path, tmp_path / "not" / "there", "/proc/no.pftrace"):
        assert "-o" in command.document("trace", "-o", place, path, code=3).message
