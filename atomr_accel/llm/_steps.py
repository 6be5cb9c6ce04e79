"""Steps of a model: tokens of several sequences at once, and the logits that come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

StepLogits: TypeAlias = npt.NDArray[np.float32]
"""Logits of a step: rows of the vocabulary's length, `StepSlice.rows` for each slice, in order."""


StepChoices: TypeAlias = npt.NDArray[np.float64]
"""Rules for choosing tokens, of shape (rows of logits, 2): a temperature, and a number from 0 to 1.

The token is the first one up to which probabilities add up to more than the number, which is less
than 1. For a temperature of 0 it is that of the largest logit.
"""


class StepTokens(NamedTuple):
    """Tokens that a step has chosen.

    Attributes:
        tokens: int32 of shape (rows of logits,); -1 where a logit is NaN or infinity.
        logits: the logits, if they were asked for.
    """

    tokens: npt.NDArray[np.int32]
    logits: StepLogits | None


class StepSlice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Consecutive tokens of one sequence, whose keys and values a step adds to the cache.

    Attributes:
        sequence: a number that no other sequence has.
        tokens: one token at least, for positions ``start``, ``start + 1`` and so on.
        start: position of the first of them. Those before it are in the cache.
        pages: all pages of the sequence, in order: position ``p`` is in page
            ``pages[p // page_size]``, row ``p % page_size``. Those of earlier positions may belong
            to other sequences as well, and are only read.
        sample: True if logits are needed after the last of the tokens.
        every: True if logits are needed after each of the tokens.
    """

    sequence: int
    tokens: tuple[int, ...]
    start: int
    pages: tuple[int, ...]
    sample: bool
    every: bool = False

    @property
    def rows(self) -> int:
        """The number of rows of logits that the slice gives."""
        return len(self.tokens) if self.every else int(self.sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Slices of different sequences, which one step computes.

    Attributes:
        slices: one at least. No slice writes to a page that another one reads or writes.
    """

    slices: tuple[StepSlice, ...]


class Runner(Protocol):
    """A model with a paged cache on a device, which does steps one at a time.

    A step that was done again with the same pages overwrites what the first attempt wrote. After a
    fault of the device the cache is empty, unless it is durable, and weights are as before.
    """

    @property
    def pages(self) -> int:
        """The number of pages of the cache."""

    @property
    def page_size(self) -> int:
        """The number of positions in a page."""

    @property
    def vocabulary(self) -> int:
        """The number of tokens that there are."""

    @property
    def context(self) -> int:
        """The most positions of a sequence."""

    async def step(self, work: StepWork) -> StepLogits:
        """Do a step, and return float32 logits of shape (rows of all slices, vocabulary)."""


class DurableRunner(Runner, Protocol):
    """A runner whose cache may survive faults; steps raise `GpuRefStale` until `recover` then."""

    @property
    def durable(self) -> bool:
        """``True`` if the cache survives faults."""

    async def recover(self) -> Sequence[int] | npt.NDArray[np.int64]:
        """Find out which positions the cache has kept.

        Returns:
            For each page, the number of its positions before the first one that is lost.
        """


class ChoosingRunner(Runner, Protocol):
    """A runner that chooses tokens on its device, so that logits stay there."""

    async def choose(self, work: StepWork, choices: StepChoices, *, logits: bool) -> StepTokens:
        """Do a step, and choose a token for each row of logits.

        Args:
            work: the step.
            choices: how, for each row of logits.
            logits: whether logits are needed, too.
        """
