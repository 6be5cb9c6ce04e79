"""Device and command line of the soaks of durable memory."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import trio

from atomr_accel import Device, Standby, open_device

from ..harness import AT_ONCE

Soak = Callable[[argparse.Namespace, "Counter[str]"], Awaitable[list[str]]]
"""A soak: it counts its work, and returns failures."""


def opened(backend: str) -> AbstractAsyncContextManager[Device]:
    """Open a device with hot standbys, which restarts at once."""
    return open_device(0, backend=backend, standby=Standby(hot=2), backoff=AT_ONCE)


def run(soak: Soak, parser: argparse.ArgumentParser) -> None:
    """Run a soak, print its counts, and exit with 1 if something was wrong."""
    parser.add_argument("--backend", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    logging.disable(logging.CRITICAL)  # a line for each restart
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    wrong = trio.run(partial(soak, words, counts))
    print(dict(counts), f"{time.monotonic() - begun:.0f} s, {len(wrong)} wrong", sep="\n")
    sys.exit(bool(wrong))
