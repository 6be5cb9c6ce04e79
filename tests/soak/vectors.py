"""Faults while a vector index takes inserts and answers searches, on a GPU if one is present.

``python -m tests.soak.vectors --faults 50`` ends as many contexts, two by an illegal address for
each host that is killed. Every answer is checked, and in the end the files against all that was
acknowledged. It stops between two faults when ``--seconds`` are over, checks, and says how many
there were.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import trio

from atomr_accel import Standby, open_device

from ..agents.vectors import check_reopened, inserted_under_faults
from ..harness import AT_ONCE


async def soak(faults: int, seconds: float, backend: str) -> bool:
    """Run it; return whether there were as many faults as asked for."""
    begun = time.monotonic()
    made = 0

    def go_on(before: int) -> bool:
        nonlocal made
        made = before
        took = time.monotonic() - begun
        if before and before % 10 == 0:
            print(f"{before} faults, {took:.1f} s", flush=True)
        return took < seconds

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        async with open_device(
            0,
            backend=backend,
            backoff=AT_ONCE,
            max_restarts=10 * faults,
            standby=Standby(hot=2),
        ) as device:
            print(f"{device.info.name}, backend {device.backend}", flush=True)
            held, answered = await inserted_under_faults(device, path, faults, go_on)
            made = len(held) // 40
            assert device.statistics().faults >= made
            await check_reopened(device, path, held)
    print(
        f"{made} faults in {time.monotonic() - begun:.1f} s: {len(held)} vectors acknowledged and "
        f"found again, {answered} searches answered, none wrong",
        flush=True,
    )
    return made == faults


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--backend", default=os.environ.get("ATOMR_TEST_BACKEND", "auto"))
    words = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for each restart
    whole = trio.run(partial(soak, words.faults, words.seconds, words.backend))
    sys.exit(not whole)


if __name__ == "__main__":
    main()
