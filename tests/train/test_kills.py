"""Training under kills of hosts at any moment: no step is lost, and the loss has the same bits.

Kills come at random: of one rank, of several, or of all; before a step, inside of one, while others
come back from an earlier kill, or while a snapshot is taken.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device, train
from atomr_accel.actors import Backoff
from atomr_accel.testing import kill_host

from ..harness import sized
from . import checks, parted
from .pipelined import first, last, middle, stages
from .split import cut_loss, model, split

pytestmark = pytest.mark.slow

ADAMW = train.AdamW(lr=1e-3)
RANKS = 3
KILLS = sized(4, 400)


def data_parallel(devices: list[Device]) -> Any:
    params = checks.model(np.random.default_rng(1))
    step = train.gradient_step(checks.loss)
    return train.open_data_parallel(
        *(devices, step, params, ADAMW),
        shards=4,
        clip=1.0,
        snapshot_every=3,
        digest_every=5,
        attempts=50,
    )


def pipeline_parallel(devices: list[Device]) -> Any:
    every: list[Any] = [first, middle, last]
    return train.open_pipeline_parallel(
        *(devices, every, stages(np.random.default_rng(1)), ADAMW),
        micro_batches=2,
        snapshot_every=2,
        attempts=50,
    )


def tensor_parallel(devices: list[Device]) -> Any:
    return train.open_tensor_parallel(
        *(devices, cut_loss, model(np.random.default_rng(1)), ADAMW),
        split=split,
        parts=4,
        snapshot_every=2,
        attempts=50,
    )


def batch_of(number: int, width: int) -> Any:
    """Points of a function to learn."""
    rng = np.random.default_rng([number, width])
    x = rng.standard_normal((8, width)).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(1, keepdims=True))}


class Killer:
    """A task that kills hosts at random moments, and counts how many at once."""

    def __init__(self, devices: list[Device], rng: np.random.Generator, kills: int) -> None:
        self.devices, self.rng, self.left = devices, rng, kills
        self.kinds: Counter[int] = Counter()
        self.moved = trio.Event()

    def step(self) -> None:
        self.moved.set()
        self.moved = trio.Event()

    async def run(self) -> None:
        while self.left:
            if self.rng.random() < 0.8:  # otherwise while the last one is still repaired
                await self.moved.wait()
            for _ in range(int(self.rng.integers(200))):
                await trio.lowlevel.checkpoint()
            count = min(self.left, int(self.rng.choice([1, 1, 1, 2, RANKS])))
            self.left -= count
            self.kinds[count] += 1
            async with trio.open_nursery() as nursery:
                for at in self.rng.permutation(RANKS)[:count].tolist():
                    nursery.start_soon(kill_host, self.devices[at])


async def hurt(opening: Any, width: int, kills: int) -> tuple[list[float], Any, Any, Counter[int]]:
    """Losses, parameters and statistics of a run through kills."""
    backoff = Backoff(base=0.01, maximum=0.1)
    async with (
        parted.devices_of(RANKS, process=True, backoff=backoff) as devices,
        opening(devices) as trainer,
    ):
        killer = Killer(devices, np.random.default_rng(kills), kills)
        losses: list[float] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(killer.run)
            while killer.left or len(nursery.child_tasks):
                made = await trainer.make_step(batch_of(len(losses), width))
                assert made.number == len(losses)
                losses.append(made.loss)
                killer.step()
        losses += [(await trainer.make_step(batch_of(len(losses), width))).loss]
        return losses, await trainer.params(), trainer.statistics(), killer.kinds


@pytest.mark.parametrize(
    ("opening", "width"), [(data_parallel, 3), (pipeline_parallel, 4), (tensor_parallel, 4)]
)
async def test_kills_change_no_bit(opening: Any, width: int) -> None:
    """Losses and parameters are those of one device without kills."""
    with trio.fail_after(60 + 10 * KILLS):
        losses, params, seen, kinds = await hurt(opening, width, KILLS)
        assert sum(count * times for count, times in kinds.items()) == KILLS
        assert seen.steps == len(losses)
        assert seen.ranks == tuple(range(RANKS))
        async with parted.devices_of(1) as devices, opening(devices) as trainer:
            calm = [
                (await trainer.make_step(batch_of(at, width))).loss for at in range(len(losses))
            ]
            parted.equal((losses, params), (calm, await trainer.params()))
