"""Which compute-sanitizer hosts run under, and how its report is read."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from atomr_accel import LibraryMissing
from atomr_accel.lanes import _sanitizer, find_sanitizer, first_error

REPORT = """\
========= COMPUTE-SANITIZER
a line of somebody else
========= Invalid __global__ write of size 4 bytes
=========     at spoil(int *)+0xf0 in kernel.cu:4
=========     by thread (1,0,0) in block (2,0,0)
=========     Address 0x10 is out of bounds
=========
========= Invalid __global__ read of size 8 bytes
=========     at other(int *)+0x70 in kernel.cu:9
=========
========= ERROR SUMMARY: 2 errors
"""


def test_the_first_error_in_one_line() -> None:
    told = first_error(REPORT.splitlines())
    assert told == (
        "Invalid __global__ write of size 4 bytes at spoil(int *)+0xf0 in kernel.cu:4 "
        "by thread (1,0,0) in block (2,0,0)"
    )
    assert first_error(REPORT.splitlines()[7:]) == (
        "Invalid __global__ read of size 8 bytes at other(int *)+0x70 in kernel.cu:9"
    )


@pytest.mark.parametrize("lines", [[], ["at last"], ["=========     at the end"], REPORT[:27:]])
def test_a_report_without_errors(lines: list[str]) -> None:
    assert first_error(lines) is None


def test_sanitizer_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = tmp_path / "compute-sanitizer"
    found.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    sanitizer = find_sanitizer("racecheck")
    assert sanitizer.path == str(found)
    assert sanitizer.command(7)[:5] == (
        *(str(found), "--tool", "racecheck"),
        *("--log-file", "/proc/self/fd/7"),
    )


def test_sanitizer_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sanitizer, "find_tool", lambda _name: None)
    with pytest.raises(LibraryMissing, match="sanitizer='memcheck' needs compute-sanitizer"):
        find_sanitizer("memcheck")


ENDING: Final = """
import socket, time
from atomr_accel.host import host as _host

class Context:
    def make_current(self): pass
    def check(self): pass
    def synchronize(self):
        print("waits", flush=True)
        time.sleep({seconds})

_host._ORDERLY_SECONDS = {limit}
host = _host.Host(socket.socket(), spin=False)
host._context = Context()
host.wind_up()
print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("seconds", "limit", "code", "said"),
    [(0, 60, 0, "waits\ndone\n"), (60, 0.05, -signal.SIGALRM, "waits\n")],
)
def test_hanging_host_is_ended_at_close(seconds: int, limit: float, code: int, said: str) -> None:
    words = [sys.executable, "-c", ENDING.format(seconds=seconds, limit=limit)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (code, said)
