"""Random programs with durable buffers and caches, and faults that scribble over memory first.

``python -m tests.soak.durable --backend cuda --seconds 100 --seed 7`` runs as many as it can in
that time, and ``--programs 10000`` that number. Some run side by side, and end two contexts. Every
change outside of writes in flight must be found, without a false alarm. ``--only 12`` repeats the
programs of that number.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import traceback
from collections import Counter
from functools import partial
from typing import Any

import trio

from atomr_accel import Standby, open_device
from atomr_accel.actors import Backoff

from ..durable.programs import Program, run_together
from ..durable.scribbling import Scribbler


async def soak(words: argparse.Namespace, counts: Counter[str]) -> list[str]:
    """Run programs; return the failures with the names of the programs that had them."""
    wrong: list[str] = []
    options: dict[str, Any] = {
        "standby": Standby(hot=2),
        "backoff": Backoff(initial=0.0, base=0.0, maximum=0.0),
    }
    groups = -(-words.programs // words.together)
    numbers = range(groups) if words.only is None else [words.only]
    end = trio.current_time() + words.seconds
    async with open_device(0, backend=words.backend, **options) as device:
        scribbler = Scribbler(device)
        for number in numbers:
            if trio.current_time() > end:
                break
            name = f"{words.seed}:{number}"
            draw = random.Random(name)
            programs = [
                Program(device, random.Random(draw.getrandbits(64)), scribbler)
                for _ in range(words.together)
            ]
            try:
                await run_together(device, draw, programs)
            except Exception:  # noqa: BLE001 - whatever it is, the other programs run, too
                wrong.append(f"programs {name}: {traceback.format_exc()}")
                print(wrong[-1], flush=True)
            for each in programs:
                counts += each.counts
            counts["programs"] += len(programs)
        counts["faults"] = device.statistics().faults
    return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--programs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    parser.add_argument(
        "--together",
        type=int,
        default=16,
        help="programs that share a device and its faults, because a host takes longer to start",
    )
    words = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for each restart
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    wrong = trio.run(partial(soak, words, counts))
    print(dict(counts), f"{time.monotonic() - begun:.0f} s, {len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
