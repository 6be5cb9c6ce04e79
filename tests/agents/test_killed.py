"""Programs that are killed while they write: everything acknowledged is there afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ..harness import BACKEND, ROOT, opened, sized
from .vectors import index_at

HERE = Path(__file__).parent

INSERTING = """
import sys, warnings, numpy as np, trio
from pathlib import Path
from atomr_accel import open_device
from atomr_accel.agents import open_vector_index
warnings.simplefilter("ignore")

async def main():
    async with (
        open_device(0, backend=sys.argv[2]) as device,
        open_vector_index(device, sys.argv[1], dimension=8, seal_at=16) as index,
        trio.open_nursery() as nursery,
    ):
        async def insert(first):
            for key in range(first, 10**9, 4):
                await index.insert(key, np.full(8, key + 1), {"of": key})
                print(key, flush=True)
        for first in range(4):
            nursery.start_soon(insert, first)

trio.run(main)
"""


@pytest.mark.slow
def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    arguments = [str(HERE / "killed_writers.py"), str(tmp_path), str(sized(12, 200)), "7"]
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert " killed, " in done.stdout


@pytest.mark.slow
async def test_a_killed_program_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for kill in range(sized(1, 5)):
        folder = tmp_path / str(kill)
        told = insert_until_killed(folder, 5 + 30 * kill)
        async with opened() as device, index_at(device, folder) as index:
            for entry in await index.get(told):
                np.testing.assert_array_equal(entry.vector, np.full(8, entry.id + 1))
                assert entry.payload == {"of": entry.id}
            assert len(told) <= len(index) <= len(told) + 4


def insert_until_killed(folder: Path, after: int) -> list[int]:
    """Run a program that inserts, and kill it; return the ids that it was acknowledged."""
    with subprocess.Popen(
        [sys.executable, "-c", INSERTING, str(folder), BACKEND],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(after)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
    return [int(line) for line in told if line.endswith("\n")]
