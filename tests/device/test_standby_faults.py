"""Faults and ends at any point of a standby's life, while the program goes on as ever."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np
import pytest
import trio

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale, Standby
from atomr_accel.device.batches.record import Recording
from atomr_accel.device.contexts import context as _context
from atomr_accel.device.standby import _keeper, _spare
from atomr_accel.lanes import HostHandle, Isolation, start_host
from atomr_accel.testing import kill_host, poison
from tests.harness import AT_ONCE, cpu_only, descriptors, opened, settled, used_by

from .. import seeds
from .in_host import add, take
from .standbys import standby_of

pytestmark = [cpu_only, pytest.mark.slow]

STATES: Final = (*_spare.STEPS, "waiting", "any")
ROUNDS: Final = 2
OFTEN: Final = 10**6


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[HostHandle]:
    """Every host that is started."""
    started: list[HostHandle] = []

    async def start(isolation: Isolation, *_: object) -> HostHandle:
        host = await start_host(isolation)
        started.append(host)
        return host

    monkeypatch.setattr(_spare, "start_host", start)
    monkeypatch.setattr(_context, "start_host", start)
    monkeypatch.setattr(_keeper, "_RETRY", AT_ONCE)
    monkeypatch.setattr(_keeper, "_BREATH_SECONDS", 0.0)
    return started


class _Program:
    """A program that uses a device: its answers are right after any fault."""

    def __init__(self, device: Device, rng: np.random.Generator) -> None:
        self.device = device
        self.rng = rng
        self.sealed: list[tuple[int, GpuRef]] = []
        self.models: dict[str, tuple[int, GpuRef]] = {}
        self.recordings: list[tuple[int, Recording, GpuRef]] = []
        self.answers = 0
        self.over = False

    async def run(self) -> None:
        often = [self.read, self.multiply, self.ask]
        actions = [*often, self.seal, self.unseal, self.load, self.close]
        actions += [self.record, self.replay, self.replay]
        while not self.over:
            action = actions[self.rng.integers(len(actions))]
            await self.device.retry(action, attempts=100)
            self.answers += 1

    async def seal(self) -> None:
        if len(self.sealed) < 8:
            number = int(self.rng.integers(1000))
            size = int(self.rng.choice([3, 1 << 20]))
            if self.rng.integers(2):
                ref = await self.device.put(np.full(size, number), sealed=True)
            else:
                ref = await self.device.seal(await self.device.put(np.full(size, number)))
            self.sealed.append((number, ref))

    async def unseal(self) -> None:
        if self.sealed:
            _, ref = self.sealed.pop(self.rng.integers(len(self.sealed)))
            await self.device.free(ref)
            if self.rng.integers(2):
                await self.device.trim()

    async def read(self) -> None:
        for number, ref in list(self.sealed):
            if not ref.is_stale:
                assert (await self.device.get(ref[:3])).tolist() == [number] * 3

    async def multiply(self) -> None:
        a = await self.device.put(2 * np.eye(3))
        product = await self.device.get(await self.device.blas.gemm(a, a))
        assert np.array_equal(product, 4 * np.eye(3))

    async def load(self) -> None:
        number = int(self.rng.integers(1000))
        weights = await self.device.put(np.full(3, number), sealed=True)
        self.models[str(self.rng.choice(["one", "other"]))] = number, weights
        await self.ask()

    async def ask(self) -> None:
        for lane, (number, weights) in list(self.models.items()):
            init = functools.partial(take, weights)
            given = await self.device.run(add, np.arange(3), lane=lane, init=init)
            assert given.tolist() == [number, number + 1, number + 2]

    async def record(self) -> None:
        if len(self.recordings) > 2:
            self.recordings.pop(self.rng.integers(len(self.recordings)))
        number = int(self.rng.integers(1000))
        weights = await self.device.put(number * np.eye(3), sealed=True)
        x = await self.device.put(np.eye(3))
        async with self.device.record(x, shared=True) as recording:
            product = recording.blas.gemm(x, weights)
        self.recordings.append((number, recording, product))
        await self.replay()

    async def replay(self) -> None:
        for number, recording, product in list(self.recordings):
            await recording.replay(await self.device.put(2 * np.eye(3)))
            assert np.array_equal(await self.device.get(product), 2 * number * np.eye(3))

    async def close(self) -> None:
        for lane in ("one", "other"):
            if not self.rng.integers(4):
                await self.device.close_lane(lane)


async def _kill_standby(device: Device) -> None:
    standby = standby_of(device)
    await trio.lowlevel.checkpoint()
    for host in standby.hosts:
        host.kill()


@pytest.mark.parametrize(("number", "kept"), [(0, 1), (1, 1), (1, 2)])
async def test_faults_lose_and_change_no_results(
    hosts: list[HostHandle], number: int, kept: int
) -> None:
    before = descriptors()
    rng = seeds.rng()
    warmed = 0

    async def warm_up(rehearsal: Device) -> None:
        nonlocal warmed
        a = await rehearsal.put(np.eye(3))
        await rehearsal.get(await rehearsal.blas.gemm(a, a))
        if doomed.pop() if doomed else False:
            await poison(rehearsal)
        warmed += 1

    doomed = rng.integers(4, size=100) == 0
    doomed = doomed.tolist()
    wanted = Standby(hot=kept, warm_up=warm_up if number % 2 else None)
    async with opened(standby=wanted, max_restarts=OFTEN) as device:
        standby = standby_of(device)
        ours = _Program(device, rng)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.run)
            for _ in range(ROUNDS):
                state = str(rng.choice(STATES))
                with trio.move_on_after(0.5):  # some do not come, as nothing is warmed up, say
                    while state != "any" and standby.statistics().state != state:
                        await trio.lowlevel.checkpoint()
                ends: list[Callable[[Device], Awaitable[object]]]
                ends = [poison, kill_host, _kill_standby, kill_host]
                at_once = int(rng.integers(1, 3))
                async with trio.open_nursery() as faults:
                    for end in rng.choice(len(ends), at_once):
                        faults.start_soon(_end, device, ends[end])
            ours.over = True
        doomed.clear()
        assert ours.answers
        await ours.read()
        await standby.wait_ready()
        statistics = standby.statistics()
        assert (statistics.mode, statistics.state, statistics.ready) == ("hot", "ready", kept)
        await kill_host(device)  # and those are good
        await ours.read()
        await ours.ask()
        await ours.multiply()
        await settled(device)
        await ours.replay()
        ours.models.clear()
        ours.recordings.clear()
        for _, ref in ours.sealed:
            await device.free(ref)
        ours.sealed.clear()
        for lane in ("one", "other"):
            await device.close_lane(lane)
        await standby.wait_ready()  # it has closed them, too
        assert not used_by(device)
    assert descriptors() == before
    for host in hosts:
        assert host.ended
        assert host.pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(host.pid, 0)


async def _end(device: Device, end: Callable[[Device], Awaitable[object]]) -> None:
    with contextlib.suppress(ContextPoisoned, GpuRefStale):  # another came first
        await end(device)
