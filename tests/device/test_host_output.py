"""Output of kernels in the program's log, and failed asserts in its errors.

On the CPU backend functions stand for kernels: they write to the host's descriptors, as the driver
does.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

from atomr_accel import ContextPoisoned, Device
from atomr_accel.testing import poison
from atomr_accel.wire import StickyFault
from tests.harness import cpu_only, opened

LOGGER: Final = "atomr_accel.kernels"

SOURCE: Final = r"""
extern "C" __global__ void printing(int* x) {
    printf("the first is %d\n", x[0]);
    x[0]++;
}
extern "C" __global__ void asserting(int* x) {
    printf("before the fault\n");
    assert(x[threadIdx.x] > 3);
}
"""


def printing(x: np.ndarray[Any, Any]) -> None:
    os.write(1, b"the first is %d\n" % x[0])
    x[0] += 1


def asserting(x: np.ndarray[Any, Any]) -> None:
    os.write(1, b"before the fault\n" * len(x))
    for thread in range(len(x)):
        where = f"block: [0,0,0], thread: [{thread},0,0]"
        said = f"kernel.cu:8: void asserting(int *): {where} Assertion `x[threadIdx.x] > 3` failed."
        os.write(2, f"{said}\n".encode())
    name = "CUDA_ERROR_ASSERT"
    raise StickyFault(f"cuEventQuery returned {name} (710)", status=710, status_name=name)


async def launched(device: Device, name: str) -> None:
    twins = {"printing": printing, "asserting": asserting}
    kernels = await device.nvrtc.compile_module(SOURCE, cpu=twins)
    x = await device.zeros(2, np.int32)
    await (await kernels.kernel(name)).launch(1, 2 if name == "asserting" else 1, x)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)


def of_kernels(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    found = caplog.record_tuples
    return [text for name, of, text in found if name == LOGGER and of == level]


def write(*texts: tuple[int, bytes]) -> None:
    for fd, text in texts:
        os.write(fd, text)


@cpu_only
async def test_host_output_arrives_before_the_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as device:
        await device.run(write, (1, b"a line\nhalf "), (2, b"a warning\n"))
        assert of_kernels(caplog) == ["a line"]
        assert of_kernels(caplog, logging.WARNING) == ["a warning"]
        told = vars(next(each for each in caplog.records if each.name == LOGGER))
        assert (told["actor"], told["device"]) == ("/device-0", device.name)
        with pytest.raises(ContextPoisoned, match="Assertion `x > 3` failed") as caught:
            await device.run(failing)
        assert of_kernels(caplog) == ["a line", "half a line"]
        (note,) = caught.value.__cause__.__notes__  # type: ignore[union-attr]
        assert note.splitlines()[1:] == ["  a warning", "  kernel.cu:8: Assertion `x > 3` failed."]
        assert {vars(each)["generation"] for each in caplog.records if each.name == LOGGER} == {1}


def failing() -> None:
    write((1, b"a line\n"), (2, b"kernel.cu:8: Assertion `x > 3` failed.\n"))
    raise StickyFault("no", status=710, status_name="CUDA_ERROR_ASSERT")


@pytest.mark.slow
async def test_kernel_output_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as device:
        await launched(device, "printing")
        assert of_kernels(caplog) == ["the first is 0"]
        caplog.clear()
        await launched(device, "printing")
    assert of_kernels(caplog) == ["the first is 0"]


@pytest.mark.slow
async def test_a_fault_says_what_the_assert_says(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as device:
        with pytest.raises(ContextPoisoned) as caught:
            await launched(device, "asserting")
        # Before the fault is told.
        assert of_kernels(caplog) == 2 * ["before the fault"]
        said = of_kernels(caplog, logging.WARNING)
        assert len(said) == 2
        assert all("Assertion `x[threadIdx.x] > 3` failed" in line for line in said)
        assert (caught.value.status, caught.value.status_name) == (710, "CUDA_ERROR_ASSERT")
        assert said[0] in str(caught.value)
        (note,) = caught.value.__cause__.__notes__  # type: ignore[union-attr]
        assert note.splitlines()[1:] == [f"  {line}" for line in said]
        generations = {vars(each)["generation"] for each in caplog.records if each.name == LOGGER}
        assert generations == {1}
        # The next generation's fault has nothing to do with it.
        fault = await poison(device)
        assert "Assertion" not in str(fault)
        assert not hasattr(fault.__cause__, "__notes__")


def abort() -> None:
    os.write(1, b"half a line")
    os.write(2, b"free(): invalid pointer\n")
    os.abort()


@pytest.mark.slow
async def test_the_last_words_of_a_host(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as device:
        with pytest.raises(ContextPoisoned, match="SIGABRT") as caught:
            await device.run(abort)
        (note,) = caught.value.__cause__.__notes__  # type: ignore[union-attr]
        assert "free(): invalid pointer" in note
    assert of_kernels(caplog) == ["half a line"]
    assert of_kernels(caplog, logging.WARNING) == ["free(): invalid pointer"]


def shouting(lines: int) -> None:
    text = b"".join(b"%099d\n" % number for number in range(1000))
    for _ in range(lines // 1000):
        os.write(1, text)


@pytest.mark.slow
async def test_a_full_pipe_is_read(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as device, trio.open_nursery() as nursery:
        nursery.start_soon(device.run, shouting, 10_000)
        await trio.testing.wait_all_tasks_blocked()
        time.sleep(0.05)  # noqa: ASYNC251 (busy; the host goes on as far as there is room)
    assert of_kernels(caplog) == [f"{number:099d}" for number in range(1000)] * 10


def shell(command: str) -> None:
    print("of a function")  # noqa: T201
    subprocess.run(["/bin/sh", "-c", command], check=True)


@pytest.mark.slow
@cpu_only
async def test_function_output_goes_to_the_program(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async with opened() as device:
        await device.run(shell, "echo of a process; echo and its errors >&2")
    assert capfd.readouterr().out == "of a function\n"
    assert of_kernels(caplog) == ["of a process"]
    assert of_kernels(caplog, logging.WARNING) == ["and its errors"]


async def test_thread_isolation_has_the_programs_descriptors(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(isolation="thread") as device:
        await launched(device, "printing")
    assert not of_kernels(caplog)
    assert "the first is 0\n" in capfd.readouterr().out


WITHOUT_STREAMS: Final = """
import os, sys
os.close(1)
os.close(2)
import trio
from atomr_accel import open_device

def say():
    os.write(1, b"raw")
    print("lost")
    print("lost, too", file=sys.stderr)

async def main():
    async with open_device(0, backend="cpu") as device:
        await device.run(say)
        return await device.run(len, "abc")

os._exit(trio.run(main))
"""


@pytest.mark.slow
@cpu_only
def test_a_program_without_descriptors_1_and_2(tmp_path: Path) -> None:
    script = tmp_path / "silent.py"
    script.write_text(WITHOUT_STREAMS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, script], env=environment, check=False, timeout=60)
    assert found.returncode == 3
