"""Devices whose hosts run under compute-sanitizer; a script stands for that here."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Final

import pytest
import trio

from atomr_accel import ContextPoisoned
from atomr_accel.backends import Backend
from atomr_accel.device import _open
from atomr_accel.lanes import Sanitizer, SanitizerTool
from atomr_accel.testing import poison
from tests.harness import cpu_only, opened

pytestmark = cpu_only

TOOL: Final = """#!{python}
import subprocess, sys
words = sys.argv[1:]
at = words.index("{python}")
code = subprocess.call(words[at:], close_fds=False)
with open(words[words.index("--log-file") + 1], "w") as report:
    print("========= COMPUTE-SANITIZER", file=report)
    print("========= Invalid __global__ write of size 4 bytes", file=report)
    print("=========     at fault(int *)+0xf0 in kernel.cu:4", file=report)
    print("=========     by thread (1,0,0) in block (2,0,0)", file=report)
    print("=========", file=report)
    print("========= ERROR SUMMARY: 1 error", file=report)
sys.exit(code)
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    script = tmp_path / "compute-sanitizer"
    script.write_text(TOOL.format(python=sys.executable))
    script.chmod(0o755)

    def found(_backend: Backend, tool: SanitizerTool | None) -> Sanitizer | None:
        return None if tool is None else Sanitizer(str(script), tool)

    monkeypatch.setattr(_open, "_sanitizer_of", found)
    return str(script)


@pytest.mark.slow
@pytest.mark.usefixtures("tool")
async def test_a_fault_names_kernel_and_line(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(sanitizer="memcheck") as device:
        children = device.statistics().host_pid
        assert children is not None
        assert os.getpgid(children) == children != os.getpgid(0)
        fault = await poison(device)
        assert (
            "Invalid __global__ write of size 4 bytes at fault(int *)+0xf0 in kernel.cu:4 by"
            in (str(fault))
        )
        assert fault.status == 700
        (note,) = fault.__cause__.__notes__  # type: ignore[union-attr]
        assert "ERROR SUMMARY: 1 error" in note
        assert await device.run(len, "abc") == 3
        assert device.generation == 2
    said = [text for _, level, text in caplog.record_tuples if level == logging.WARNING]
    assert said.count("========= ERROR SUMMARY: 1 error") == 2  # of the second, as it was closed


@pytest.mark.slow
@pytest.mark.usefixtures("tool")
async def test_sanitizer_leaves_no_process_of_its_group() -> None:
    async with opened(sanitizer="racecheck") as device:
        group = device.statistics().host_pid
        assert group is not None
        own = await device.run(os.getpid)
        assert own != group
        ended = os.pidfd_open(own)
        with trio.move_on_after(0.05):
            await device.run(sleeping)
    await trio.lowlevel.wait_readable(ended)  # the host, which the program has not started itself
    os.close(ended)


def sleeping() -> None:
    import time

    time.sleep(60)


async def test_python_functions_have_none() -> None:
    async with opened(sanitizer="memcheck") as device:
        with pytest.raises(ContextPoisoned, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
            raise await poison(device)
