"""Random programs with durable buffers, and faults that scribble over memory first.

``python -m tests.soak.durable --programs 10000`` runs that number on the CPU backend. Each ends two
contexts. Every change outside of writes in flight must be found, without a false alarm.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from functools import partial
from typing import Any

import trio

from atomr_accel import Standby, open_device
from atomr_accel.actors import Backoff

from ..durable.programs import Program

_AT_ONCE = Backoff(initial=0.0, base=0.0, maximum=0.0)


async def soak(programs: int, seed: int, counts: Counter[str], **options: Any) -> list[str]:
    """Run programs; return the failures with the seeds of the programs that had them."""
    wrong: list[str] = []
    options = {
        "standby": Standby(hot=2),
        "backoff": Backoff(initial=0.0, base=0.0, maximum=0.0),
        **options,
    }
    async with open_device(0, backend="cpu", **options) as device:
        for number in range(programs):
            name = f"{seed}:{number}"
            program = Program(device, random.Random(name))
            try:
                await program.run()
            except AssertionError as error:
                wrong.append(f"program {name}: {error}")
            counts += program.counts
            counts["programs"] += 1
        counts["faults"] = device.statistics().faults
    return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for each restart
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    wrong = trio.run(partial(soak, words.programs, words.seed, counts))
    print(*wrong, dict(counts), f"{time.monotonic() - begun:.0f} s, {len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
