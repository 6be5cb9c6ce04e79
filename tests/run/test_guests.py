"""Guests: kernels of other compilers, which functions in the host define and launch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from atomr_accel.testing import poison
from tests.harness import ON_CUDA, cpu_only, opened

from . import guests

pytestmark = pytest.mark.slow

TRITON: Final = all(importlib.util.find_spec(name) for name in ("triton", "torch"))


@cpu_only
async def test_a_kernel_is_made_again_after_a_fault() -> None:
    async with opened() as device:
        for generation in (1, 2):
            x, y = await device.put(np.arange(10.0)), await device.zeros(10)
            await device.run(guests.launch, y, x, lane="guest", init=guests.load)
            assert (await device.get(y)).tolist() == [*range(0, 20, 2)]
            assert device.generation == generation
            if generation == 1:
                await poison(device)


SCRIPT: Final = """
import inspect, trio
from atomr_accel import open_device

def load():
    def double(y, x):
        y[:] = 2 * x  # of a script
    return double, inspect.getsource(double)

def source(state):
    return state[1]

async def main():
    async with open_device(0, backend="cpu") as device:
        print(await device.run(source, lane="guest", init=load))

trio.run(main)
"""


@cpu_only
def test_a_kernel_in_the_init_of_a_script_has_a_source(tmp_path: Path) -> None:
    """Triton and others compile the source of a function, wherever it was pickled."""
    script = tmp_path / "guest.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip().startswith("def double(y, x):")
    assert "# of a script" in found.stdout


@pytest.mark.skipif(not TRITON, reason="Triton, with PyTorch, is not installed")
async def test_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # of the host, which inherits it
    async with opened() as device:
        x, y = await device.put(np.arange(100, dtype=np.float32)), await device.zeros(100, "f4")
        await device.run(guests.launch_triton, y, x, lane="triton", init=guests.load_triton)
        assert (await device.get(y)).tolist() == [*range(0, 200, 2)]
