"""Random programs with durable buffers and caches, and faults that scribble over memory first.

``python -m tests.soak.durable --backend cuda --seconds 100 --seed 7`` runs as many as it can in
that time, and ``--programs 10000`` that number. Some run side by side, and end two contexts. Every
change outside of writes in flight must be found, without a false alarm. ``--only 12`` repeats the
programs of that number.
"""

from __future__ import annotations

import argparse
import random
import traceback
from collections import Counter

import trio

from ..durable.programs import Program, run_together
from ..durable.scribbling import Scribbler
from .programs import opened, run


async def soak(words: argparse.Namespace, counts: Counter[str]) -> list[str]:
    """Run programs; return the failures with the names of the programs that had them."""
    wrong: list[str] = []
    groups = -(-words.programs // words.together)
    numbers = range(groups) if words.only is None else [words.only]
    end = trio.current_time() + words.seconds
    async with opened(words.backend) as device:
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
    parser.add_argument("--programs", type=int, default=1_000_000)
    parser.add_argument("--only", type=int)
    parser.add_argument(
        "--together",
        type=int,
        default=16,
        help="programs that share a device and its faults, because a host takes longer to start",
    )
    run(soak, parser)


if __name__ == "__main__":
    main()
