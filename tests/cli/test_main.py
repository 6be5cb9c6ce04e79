"""The command itself: words, exit codes, and what happens to its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import trio

from atomr_accel import __version__
from atomr_accel.cli import _cache, _stress
from atomr_accel.cli._arguments import COMMANDS
from atomr_accel.cli._documents import DOCUMENTS
from atomr_accel.cli._main import main

from ..harness import ROOT
from .commands import Commands, in_a_process

NAMES = [each.name for each in COMMANDS]


def test_help_loads_neither_numpy_nor_trio() -> None:
    program = (
        "import sys; from atomr_accel.cli._main import main; main(['--help']); "
        "print({'numpy', 'trio', 'msgspec', 'rich'} & {*sys.modules}, file=sys.stderr)"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"
    assert all(f"    {name}" in done.stdout for name in NAMES)


def test_without_words_the_commands_are_listed(command: Commands) -> None:
    done = command()
    assert done.code == 0
    assert done.out == command("--help").out


@pytest.mark.parametrize(
    ("word", "meant"), [*((name[:-1], name) for name in NAMES), ("prob", "probe"), ("xyz", None)]
)
def test_a_command_that_is_nearly_right_is_suggested(
    word: str, meant: str | None, command: Commands
) -> None:
    done = command(word)
    assert done.code == 2
    assert f"there is no command {word!r}; " in done.err
    assert (f"did you mean {meant}?" in done.err) is (meant is not None)
    assert all(name in done.err for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_command_has_help_with_examples_a_module_and_a_document(
    name: str, command: Commands
) -> None:
    done = command(name, "--help")
    assert done.code == 0
    assert f"examples:\n  atomr-accel {name}" in done.out
    assert callable(import_module(f"atomr_accel.cli._{name}").run)
    schema = json.loads(command(name, "--schema").out)
    title = DOCUMENTS[name].__name__
    properties = schema["$defs"][title]["properties"]
    assert properties["document"]["enum"] == [name]
    assert schema["$defs"][title]["required"][0] == "document"


def test_installed_command_runs_the_same_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert resolve_name(project["scripts"]["atomr-accel"]) is main


def test_the_version_is_that_of_the_package(command: Commands) -> None:
    assert command("--version").out == f"atomr-accel {__version__}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-command"],
        ["probe", "--device", "-1"],
        ["probe", "--library", "nothing"],
        ["bench", "nothing"],
        ["bench", "--rivals", "nothing"],
        ["bench", "return", "--isolation", "thread"],
        ["bench", "--plot", "picture.txt"],
        ["stress", "--seconds", "0"],
        ["stress", "--seconds", "inf"],
        ["stress", "--isolation", "thread"],
        ["cache", "list", "--dry-run"],
        ["cache", "clear", "no-such-kind"],
        ["trace"],
    ],
    ids=" ".join,
)
def test_words_that_mean_nothing_are_2(words: list[str], command: Commands) -> None:
    done = command(*words)
    assert done.code == 2
    assert done.out == ""
    assert "atomr-accel" in done.err


@pytest.mark.parametrize(
    "words", [["--no-such-word"], ["cache", "--no-such-word"], ["probe", "--device", "x"]]
)
def test_words_that_mean_nothing_are_an_object_with_json(
    words: list[str], command: Commands
) -> None:
    done = command(*words, "--json")
    assert (done.code, done.err) == (2, "")
    told = json.loads(done.out)
    assert told["document"] == "error"
    assert told["command"] == (words[0] if len(words) > 1 else "")
    assert told["exit_code"] == 2
    assert told["message"]


def test_a_refusal_is_an_object_too(command: Commands) -> None:
    refusal = command.document("cache", "clear", "no-such-kind", code=2)
    assert (refusal.command, refusal.exit_code) == ("cache", 2)
    assert "no-such-kind" in refusal.message


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, command: Commands) -> None:
    """In the middle of tasks, where trio makes a group of it."""

    async def interrupted(*_: object) -> None:
        await trio.lowlevel.checkpoint()
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(_stress, "_tell_time", interrupted)
    words = ("--backend", "cpu", "--isolation", "thread", "--no-faults", "--seconds", "60")
    done = command("stress", *words)
    assert (done.code, done.out, done.err) == (130, "", "")
    told = command.document("stress", *words, code=130)
    assert (told.command, told.exit_code) == ("stress", 130)


def test_main_shows_errors_next_to_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    def run(*_: object) -> int:
        raise BaseExceptionGroup("two at once", [KeyboardInterrupt(), ValueError("a bug")])

    monkeypatch.setattr(_cache, "run", run)
    with pytest.raises(BaseExceptionGroup, match="two at once"):
        command("cache")


def test_a_reader_that_has_gone_is_141_and_quiet() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        done = in_a_process("cache", "--json", stdout=pipe)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123 (no file to be made)
        done = in_a_process("cache", stdout=full)
    assert done.returncode == 1
    assert done.stderr == b"atomr-accel: cannot write the output: No space left on device\n"


@pytest.mark.parametrize("words", [["--version"], ["cache", "--help"], ["probe", "--schema"]])
def test_main_reports_output_that_it_could_not_print(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 (no file to be made)
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 1
    assert "cannot write the output: No space left" in capfd.readouterr().err
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(words) == 141
    monkeypatch.setattr(sys, "stdout", None)
    assert main(words) == 1
    assert "standard output is closed" in capfd.readouterr().err


@pytest.mark.slow
def test_without_standard_streams_a_command_works() -> None:
    """Its files do not take their places. A command that cannot print its output fails."""
    words = "bench ask --quick --repeats 1 --backend cpu --rivals ''"
    for closed, code in (("<&- 2>&-", 0), ("<&- >&- 2>&-", 1)):
        words = words if code == 0 else "cache"
        shell = ["sh", "-c", f"exec {sys.executable} -m atomr_accel {words} {closed}"]
        done = subprocess.run(shell, cwd=ROOT, check=False, stdout=subprocess.PIPE)
        assert (done.returncode, b"ask" in done.stdout) == (code, code == 0)


def test_an_odd_locale_changes_letters_and_no_more(tmp_path: Path) -> None:
    folder = tmp_path / "caché-\udcff"
    folder.mkdir(mode=0o700)
    environ = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "ATOMR_CACHE_DIR": str(folder)}
    done = in_a_process("cache", env=environ)
    assert done.returncode == 0, done.stderr
    assert b"cach\\xe9-\\xff" in done.stdout
    told = json.loads(in_a_process("cache", "--json", env=environ).stdout.decode("utf-8"))
    assert told["folder"] == f"{tmp_path}/caché-\\xff"
