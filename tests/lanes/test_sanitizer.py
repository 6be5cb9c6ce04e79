"""Which compute-sanitizer hosts run under, and what is read of its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from atomr_accel import LibraryMissing
from atomr_accel.lanes import find_sanitizer, first_error

if TYPE_CHECKING:
    from pathlib import Path

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


def put(folder: Path) -> Path:
    folder.mkdir(parents=True)
    found = folder / "compute-sanitizer"
    found.touch(0o755)
    return found


@pytest.mark.parametrize("place", ["bin", "compute-sanitizer"])
@pytest.mark.parametrize("of", ["PATH", "CUDA_HOME", "package"])
def test_where_it_is_looked_for(
    of: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    if of == "package":
        found = put(tmp_path / "nvidia" / "cu13" / place)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setattr("atomr_accel.lanes._sanitizer._ROOTS", ())
    else:
        found = put(tmp_path / place)
        monkeypatch.setenv(of, str(tmp_path if of == "CUDA_HOME" else found.parent))
    sanitizer = find_sanitizer("racecheck")
    assert sanitizer.path == str(found)
    assert sanitizer.command(7)[:5] == (
        *(str(found), "--tool", "racecheck"),
        *("--log-file", "/proc/self/fd/7"),
    )


def test_where_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATH", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setattr("atomr_accel.lanes._sanitizer._ROOTS", ())
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    with pytest.raises(LibraryMissing, match="sanitizer='memcheck' needs compute-sanitizer"):
        find_sanitizer("memcheck")
