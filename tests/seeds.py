"""Random choices of tests follow from a seed: the run's seed and the test's own name.

So a test does the same in every run, whichever others run with it and in whatever order.
``--seed N`` (or ``ATOMR_TEST_SEED``) changes all choices, and ``--hypothesis-profile=explore``
takes a new seed. pytest shows it in its header and where a test fails.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from typing import Final

import numpy as np

VARIABLE: Final = "ATOMR_TEST_SEED"
"""The environment variable with the run's seed. Workers of pytest-xdist inherit it."""

DEFAULT: Final = 0


class Draws:
    """The seeds of one test.

    Attributes:
        name: the test's name.
        drawn: how many it has taken.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.drawn = 0

    def draw(self) -> int:
        """The next one, of 64 bits."""
        text = f"{run_seed()} {self.name} {self.drawn}"
        self.drawn += 1
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


_current = Draws("")


def run_seed() -> int:
    """The seed of this run."""
    return int(os.environ.get(VARIABLE) or DEFAULT)


def choose_run_seed(wanted: int | None, *, explore: bool) -> None:
    """Settle the seed of this run, and of the processes that it starts.

    Args:
        wanted: the requested seed.
        explore: take a new one if none was asked for.
    """
    if wanted is None and not os.environ.get(VARIABLE):
        wanted = secrets.randbits(32) if explore else DEFAULT
    if wanted is not None:
        os.environ[VARIABLE] = str(wanted)


def begin(name: str) -> None:
    """From here on seeds are those of another test."""
    global _current  # noqa: PLW0603 (tests run one after the other)
    _current = Draws(name)


def current() -> Draws:
    """The seeds of the test that is running."""
    return _current


def draw() -> int:
    """A seed for the test that is running, another one at each call."""
    return _current.draw()


def rng() -> np.random.Generator:
    """A generator for the test that is running, another one at each call."""
    return np.random.default_rng(draw())
