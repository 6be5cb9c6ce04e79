"""Simulated clusters under faults, seed after seed.

    python -m tests.soak.clusters                     # --seeds 10000 --first 0 --nodes 5
    python -m tests.soak.clusters --seeds 1 --first 4711   # the seed that a failure names

Nodes crash and come back, links and the store are slow or cut, frames are lost and reordered, and
clocks go wrong. It prints the seeds whose histories are not linearizable, or have an entity with
two effective holders. The exit status says whether there are any.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor

from tests.cluster.histories import simulate


def run(seed: int, nodes: int) -> tuple[int, int, int, float, str]:
    """Return a seed, its calls, those that were answered, its recovery and its fault."""
    logging.disable(logging.CRITICAL)
    try:
        history = simulate(seed, nodes=nodes)
        history.check()
    except Exception:  # noqa: BLE001 (reported with its seed)
        return seed, 0, 0, 0.0, traceback.format_exc()
    answered = sum(event.result is not None for event in history.events)
    return seed, len(history.events), answered, history.recovered, ""


def main() -> int:
    """Run all seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more after")
    args = parser.parse_args()
    done = calls = answered = 0
    worst = 0.0
    bad: list[int] = []
    end = time.monotonic() + args.seconds
    with ProcessPoolExecutor(args.jobs) as pool:
        for first in range(args.first, args.first + args.seeds, 200):
            if time.monotonic() > end:
                break
            seeds = range(first, min(first + 200, args.first + args.seeds))
            for seed, made, back, recovered, fault in pool.map(
                run, seeds, [args.nodes] * len(seeds), chunksize=10
            ):
                done, calls, answered = done + 1, calls + made, answered + back
                worst = max(worst, recovered)
                if fault:
                    bad.append(seed)
                    print(f"seed {seed}:\n{fault}", flush=True)
    print(
        f"{done} seeds of {args.nodes} nodes: {calls} calls, {answered} answered, longest recovery "
        f"{worst:.1f} s, {len(bad)} bad: {bad}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
