"""``top``: what a dashboard tells, in tables, once or until its program ends."""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial, reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atomr_accel import LibraryMissing
from atomr_accel.cli import _top
from atomr_accel.cli._documents import HardwarePart, TopDocument
from atomr_accel.dashboard import RunningDashboard
from atomr_accel.telemetry.nvml_library import NvmlLibrary

from ..fakes.nvml import FakeGpu, FakeNvml
from ..harness import ROOT
from .commands import Commands

STATE = {
    "at": 1.0,
    "program": {"pid": 7, "command": "serve.py\x1b[2J"},
    "system": {"name": "ward", "actors": 2},
    "actors": {
        "/device-0": {"kind": "DeviceActor", "state": "running", "restarts": 0, "depth": 3},
        "/[red]a": {"kind": "A", "state": "failed", "restarts": 2, "depth": 0},
    },
    "devices": {
        "/device-0": {
            "name": "cuda:0",
            "state": "rebuilding",
            "generation": 4,
            "faults": 3,
            "in_flight": 12,
            "last_fault": "CUDA_ERROR_ASSERT",
            "memory": {"used": 3 << 20},
            "lanes": {"blas": {"in_flight": 12, "queued": 1, "completed": 99, "failed": 2}},
        }
    },
    "patterns": {
        "/[red]a": {"kind": "A", "asked": 3, "last_wait": 0.5, "parts": {"b": {"asked": 3}}},
        "alone": {"kind": "Pool", "asked": 1},
    },
    "curves": {"/device-0": {"1": [1.0, 250.0, 0.0, 0.25, 1.0, 12, 3 << 20]}},
    "events": {"1": {"at": 0.0, "kind": "fault", "path": "/device-0", "text": "an assert"}},
}


class Page(BaseHTTPRequestHandler):
    """Answers as a dashboard does."""

    def __init__(self, answer: bytes, *args: Any) -> None:
        self._answer = answer
        super().__init__(*args)

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == "Bearer secret" and self.path == "/state"
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(self._answer) if known else 0))
        self.end_headers()
        self.wfile.write(self._answer if known else b"")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Programs:
    """Programs that run, as `running` tells of them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.running: list[RunningDashboard] = []

    def start(self, pid: int = 7, answer: bytes | None = None, token: str = "secret") -> None:
        """One more."""
        said = json.dumps(STATE).encode() if answer is None else answer
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Page, said))
        self._stack.callback(server.server_close)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(server.shutdown)
        url = f"http://127.0.0.1:{server.server_port}/"
        dashboard = RunningDashboard(pid, 1, "ward", "serve.py", url, token)
        self.running.append(dashboard)


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Programs]:
    """Return programs of which none runs yet, without NVML."""
    with ExitStack() as stack:
        made = Programs(stack)
        monkeypatch.setattr(_top, "running", lambda: made.running)
        monkeypatch.setattr(_top, "_hardware", lambda _: list)
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        yield made


def test_one_look(programs: Programs, command: Commands) -> None:
    programs.start()
    document = command.document("top", "--once")
    (program,) = document.programs
    assert (program.pid, program.state) == (7, STATE)
    assert "secret" not in repr(document)
    done = command("top", "--once")
    assert "\x1b" not in done.out
    assert "/[red]a" in done.out
    lines = [line.split() for line in done.out.splitlines()]
    device = next(line for line in lines if line[:2] == ["cuda:0", "rebuilding"])
    assert device[2:] == ["4", "3", "12", "250", "0.25", "ms", "3.0", "MiB"]
    assert ["cuda:0", "blas", "12", "1", "99", "2"] in lines
    assert "[red]a A failed 2 0 asked 3 last wait 0.5" in " ".join(reduce(operator.iadd, lines, []))
    assert "alone Pool 0 0 asked 1" in " ".join(reduce(operator.iadd, lines, []))


def test_one_of_several(programs: Programs, command: Commands) -> None:
    programs.start(7)
    programs.start(8)
    assert [p.pid for p in command.document("top", "--once").programs] == [7, 8]
    assert [p.pid for p in command.document("top", "--once", "8").programs] == [8]
    assert "no program 9" in command.document("top", "--once", "9", code=3).message


@pytest.mark.parametrize("answer", [b"", b"[1]", b"{", b"\xff"])
def test_nonsense_is_passed_over(answer: bytes, programs: Programs, command: Commands) -> None:
    programs.start(7, answer)
    assert command("top", "--once").code == 3
    programs.start(8, b"{}")
    assert [p.pid for p in command.document("top", "--once").programs] == [8]
    assert command("top", "--once").code == 0


def test_a_program_that_has_gone_or_is_of_another_token(
    programs: Programs, command: Commands
) -> None:
    programs.start(7, token="of before")
    programs.running.append(RunningDashboard(9, 1, "s", "c", "http://127.0.0.1:1/", "secret"))
    refusal = command.document("top", "--once", code=3)
    assert "atomr-accel dashboard" in refusal.message


def test_a_folder_that_is_not_safe(command: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> list[RunningDashboard]:
        raise PermissionError("writable by others")

    monkeypatch.setattr(_top, "running", refused)
    assert "writable by others" in command.document("top", "--once", code=3).message


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_until_the_program_ends(
    how: tuple[str, ...], programs: Programs, command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.start()
    looks = 0

    def sleep(seconds: float) -> None:
        nonlocal looks
        assert seconds == 0.25
        looks += 1
        if looks == 2:
            programs.running.clear()

    monkeypatch.setattr(time, "sleep", sleep)
    done = command("top", *how, "--interval", "0.25")
    assert done.code == 0
    if how:
        told = [msgspec.json.decode(line, type=TopDocument) for line in done.out.splitlines()]
        assert [look.programs[0].pid for look in told] == [7, 7]
    else:
        assert done.out.count("an assert") == 2


def test_top_shows_readings_of_gpus() -> None:
    known = HardwarePart(
        index=0,
        name="A GPU",
        utilisation=73,
        memory_used=1 << 30,
        memory_total=2 << 30,
        watts=312.4,
        celsius=61,
        throttled=["SwPowerCap"],
    )
    silent = HardwarePart(
        index=1,
        name="Another",
        utilisation=None,
        memory_used=None,
        memory_total=None,
        watts=None,
        celsius=None,
    )
    (block,) = _top.blocks(TopDocument(time=0.0, programs=[], hardware=[known, silent]))
    assert block[2] == [
        [0, "A GPU", "73 %", "1.0 GiB of 2.0 GiB", "312 W", "61 C", "SwPowerCap"],
        [1, "Another", None, None, None, None, ""],
    ]


def test_gpus_are_read_by_nvml_and_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(FakeGpu(), FakeGpu(uuid="GPU-2", lacks={"nvmlDeviceGetUtilizationRates"}))
    monkeypatch.setattr(_top, "NvmlLibrary", lambda: NvmlLibrary(fake))
    with ExitStack() as stack:
        read = _top._hardware(stack)
        one, other = read()
        assert (one.name, one.utilisation, one.celsius) == ("Fake H200", 75, 61)
        assert (one.memory_used, one.watts) == (600, 350.5)
        assert (other.index, other.utilisation) == (1, None)
        fake.error = fake.NVML_ERROR_GPU_IS_LOST
        assert read() == []


def test_without_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> NvmlLibrary:
        raise LibraryMissing("no nvidia-ml-py", library="nvml")

    monkeypatch.setattr(_top, "NvmlLibrary", missing)
    with ExitStack() as stack:
        assert _top._hardware(stack)() == []


PROGRAM = """
import numpy as np, sys, trio
from atomr_accel import open_device

async def main():
    async with open_device(0, backend="cpu", isolation="thread") as device:
        a = await device.put(np.ones((64, 64), np.float32))
        await device.blas.gemm(a, a)
        print("ready", flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)

trio.run(main)
"""


@pytest.mark.slow
def test_in_a_terminal_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TERM": "xterm-256color",
        "HOME": str(tmp_path),
    }
    environ["XDG_RUNTIME_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "atomr_accel"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    seen = b""
    with subprocess.Popen(
        [*command, "dashboard", "program.py"], cwd=tmp_path, env=environ, **pipes
    ) as program:
        screen, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, 110))
        with open(screen, "r+b", buffering=0) as terminal:  # noqa: PTH123 (a descriptor)
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            with subprocess.Popen(
                [*_ON_A_TERMINAL, *command, "top", str(program.pid), "--interval", "0.1"],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=environ,
                start_new_session=True,
            ) as top:
                os.close(theirs)
                while seen.count(b"/device-0/blas") < 3:  # it is drawn again and again
                    seen += terminal.read(1 << 16)
                terminal.write(b"\x03")
                with suppress(OSError):  # EIO: nobody has the terminal any more
                    while more := terminal.read(1 << 16):
                        seen += more
            assert top.returncode in (0, 130)
        program.communicate()
    assert program.returncode == 0
    assert b"\x1b[" in seen
    assert b"cpu:0" in seen
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")  # its cursor is back
    assert b"Traceback" not in seen


_ON_A_TERMINAL = (
    sys.executable,
    "-c",
    """if True:
    import fcntl, os, sys, termios
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.execv(sys.argv[1], sys.argv[1:])
    """,
)
"""Makes standard input the terminal of a session, which sends its signals."""
