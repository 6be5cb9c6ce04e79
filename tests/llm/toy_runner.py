"""A small model without layers, whose tokens follow from the whole prefix in its cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import trio

from atomr_accel import ContextPoisoned, GpuRefStale
from atomr_accel.llm import StepLogits, StepWork, TokenRequest
from atomr_accel.llm._sampler import TokenSampler
from atomr_accel.testing import poison

from .simulated import SimulatedDevice, advance

if TYPE_CHECKING:
    from atomr_accel import Device, GpuRef

VOCABULARY = 320


def logits_after(weights: np.ndarray, state: int) -> np.ndarray:
    """Return the logits after a prefix; the last token is never the next one."""
    found: np.ndarray = np.roll(weights[state % len(weights)], (state >> 9) % VOCABULARY)
    found[-1] = -1e4
    return found


def toy_weights() -> np.ndarray:
    """Return the weights of the model, float32 (16, 320)."""
    return (np.random.default_rng(11).standard_normal((16, VOCABULARY)) * 2).astype(np.float32)


def expected_tokens(
    request: TokenRequest, number: int, *, ends: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the tokens that a request gets, computed one after the other."""
    weights = toy_weights()
    sampling = request.sampling
    assert sampling.seed is not None
    sampler = TokenSampler(sampling, request.prompt, sampling.seed)
    state = 7
    for token in request.prompt:
        state = advance(state, token)
    found: list[int] = []
    for position in range(len(request.prompt), len(request.prompt) + number):
        found.append(sampler.choose(logits_after(weights, state), position))
        sampler.add(found[-1])
        if found[-1] in ends:
            break
        state = advance(state, found[-1])
    return tuple(found)


class ToyRunner:
    """A runner with sealed weights on a device, and a cache that is lost by its faults.

    Args:
        device: the device.
        poisoned: a token that faults the device when it is computed.
        before: called before each step, which fails if it raises.
    """

    vocabulary = VOCABULARY

    def __init__(
        self,
        device: Device,
        *,
        pages: int = 64,
        page_size: int = 4,
        context: int = 128,
        poisoned: int | None = None,
        before: Callable[[StepWork], None] = lambda _: None,
    ) -> None:
        self.device = device
        self.pages = pages
        self.page_size = page_size
        self.context = context
        self.poisoned = poisoned
        self.before = before
        self.weights: GpuRef | None = None
        self.cache = SimulatedDevice(pages, page_size)
        self.generation = device.generation
        self.works: list[StepWork] = []

    async def step(self, work: StepWork) -> StepLogits:
        """Do a step."""
        self.works.append(work)
        await trio.lowlevel.checkpoint()
        try:
            self.before(work)
        except ContextPoisoned:
            self.cache.lose()
            raise
        if any(self.poisoned in piece.tokens for piece in work.slices):
            raise await poison(self.device)
        if self.weights is None:
            self.weights = await self.device.put(toy_weights())
            await self.device.seal(self.weights)
        weights = await self.device.get(self.weights)
        if self.generation != self.device.generation:
            self.generation = self.device.generation
            self.cache.lose()
            if any(piece.start for piece in work.slices):
                raise GpuRefStale("the cache is empty")
        states = self.cache.step(work)
        rows = [logits_after(weights, state) for state in states]
        return np.array(rows, np.float32).reshape(len(rows), VOCABULARY)
