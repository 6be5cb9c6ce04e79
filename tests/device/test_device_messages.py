"""The device as an actor: it answers what ``device.requests`` makes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from atomr_accel import ContextPoisoned, Device, GpuRefStale, open_system
from atomr_accel.actors import ActorRef, ActorStopped, Instrument, Message, UnhandledMessage
from atomr_accel.testing import poison
from tests.harness import BACKEND, SECOND, on_shared, opened, sized


@on_shared
async def test_a_device_is_told_a_product_and_asked_for_it(device: Device) -> None:
    requests = device.requests
    a = await device.ref.ask(requests.put(np.eye(3, dtype=np.float32) * 2))
    c = await device.ref.ask(requests.zeros((3, 3), np.float32))
    device.ref.tell(requests.blas.gemm(a, a, out=c))
    assert (await device.ref.ask(requests.get(c))).tolist() == (np.eye(3) * 4).tolist()


@on_shared
async def test_each_method_has_a_message(device: Device) -> None:
    ask, requests = device.ref.ask, device.requests
    empty = await ask(requests.empty(2, np.float32))
    full = await ask(requests.full(2, 7, np.float32))
    await ask(requests.fill(empty, 5))
    copied = await ask(requests.copy(full))
    assert (await ask(requests.copy(empty, full))) is full
    assert (await ask(requests.get(full))).tolist() == [5, 5]
    assert (await ask(requests.get(copied))).tolist() == [7, 7]
    assert (await ask(requests.get(full + copied))).tolist() == [12, 12]
    assert (await ask(requests.put(np.full(2, 1, np.float32), out=full))) is full
    assert (await ask(requests.run(_length, full))) == 2
    snapshot = await ask(requests.snapshot([full]))
    (restored,) = await ask(requests.restore(snapshot))
    assert (await ask(requests.get(restored))).tolist() == [1, 1]
    sealed = await ask(requests.seal(copied))
    assert sealed.sealed
    assert not (await ask(requests.unseal(sealed))).sealed
    await ask(requests.free(empty))
    with pytest.raises(GpuRefStale):
        await ask(requests.get(empty))
    assert (await ask(requests.statistics())).generation == device.generation


def _length(x: Any) -> int:
    return int(x.shape[0])


@on_shared
async def test_a_recording_is_replayed_by_message(device: Device) -> None:
    x = await device.put(np.ones(3, np.float32))
    async with device.record(x, shared=True) as recording:
        recording.blas.scal(2.0, x)
    other = await device.put(np.full(3, 4, np.float32))
    await device.ref.ask(device.requests.replay(recording, other))
    assert (await device.get(other)).tolist() == [8, 8, 8]
    assert (await device.get(x)).tolist() == [1, 1, 1]


@on_shared
async def test_messages_keep_their_order(device: Device) -> None:
    """Each message sees the effects of those before it, whatever library it is for."""
    requests = device.requests
    x = await device.put(np.ones(4, np.float32))
    y = await device.empty(4, np.float32)
    got: list[list[float]] = []

    async def read() -> None:
        got.append((await device.ref.ask(requests.get(y))).tolist())

    async with trio.open_nursery() as nursery:
        device.ref.tell(requests.blas.scal(3.0, x))
        device.ref.tell(requests.copy(x, y))
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        device.ref.tell(requests.put(np.zeros(4, np.float32), out=y))
    assert got == [[3, 3, 3, 3]]
    assert (await device.ref.ask(requests.get(y))).tolist() == [0, 0, 0, 0]


class _Letters(Instrument):
    def __init__(self) -> None:
        self.letters: list[tuple[str, Message[Any], str]] = []

    def dead_letter(self, ref: ActorRef, message: Message[Any], reason: str) -> None:
        self.letters.append((ref.path, message, reason))


async def test_a_told_message_that_fails_is_a_dead_letter() -> None:
    letters = _Letters()
    async with opened(instruments=[letters]) as device:
        x = await device.put(np.ones(3, np.float32))
        await device.free(x)
        request = device.requests.get(x)
        device.ref.tell(request)
        assert (await device.ref.ask(device.requests.statistics())).faults == 0
        await wait_all_tasks_blocked()
        device.system.tell_instruments()
        ((path, message, reason),) = letters.letters
        assert (path, message) == (device.ref.path, request)
        assert reason.startswith("it failed: atomr_accel._errors.GpuRefStale: ")
        assert device.system.statistics().dead_letters == 1


class _Other(Message[None]):
    pass


async def test_what_a_device_cannot_answer_is_refused_before_it_is_sent() -> None:
    async with open_system("app") as system:
        one = await system.spawn_device(0, backend=BACKEND, name="one")
        two = await system.spawn_device(SECOND, backend=BACKEND, name="two")
        for message in (two.requests.zeros(3), two.requests.put(1.0), two.requests.statistics()):
            with pytest.raises(ValueError, match="made by the requests of"):
                one.ref.tell(message)
            with pytest.raises(ValueError, match="made by the requests of"):
                await one.ref.ask(message)
        for ref in (one.ref, one.blas.ref):
            with pytest.raises(UnhandledMessage, match="not a _Other"):
                ref.tell(_Other())
        assert system.statistics().dead_letters == 0
        await two.ref.stop()
        with pytest.raises(ActorStopped):
            two.ref.tell(two.requests.statistics())


@on_shared
async def test_a_message_is_not_awaited(device: Device) -> None:
    message: Any = device.requests.get(await device.zeros(3))
    with pytest.raises(TypeError, match=r"await device\.ref\.ask"):
        await message


async def test_messages_wait_during_a_rebuild() -> None:
    async with opened() as device:
        weights = await device.put(np.eye(2, dtype=np.float32), sealed=True)
        await poison(device)
        y = await device.ref.ask(device.requests.blas.gemm(weights, weights))
        assert (await device.ref.ask(device.requests.get(y))).tolist() == [[1, 0], [0, 1]]


@pytest.mark.slow
async def test_every_message_has_one_answer_under_faults() -> None:
    messages, clients = sized(1200, 10_000), 20
    chance = random.Random(7)
    counts = {"answered": 0, "poisoned": 0, "stale": 0}
    async with opened(max_restarts=10_000) as device:
        ask, requests = device.ref.ask, device.requests
        weights = await device.put(np.eye(4, dtype=np.float32), sealed=True)

        async def one() -> None:
            x = await ask(requests.put(np.full((4, 4), 3, np.float32)))
            counts["answered"] += 1
            y = await ask(requests.blas.gemm(x, weights))
            counts["answered"] += 1
            assert (await ask(requests.get(y)))[1].tolist() == [3, 3, 3, 3]
            counts["answered"] += 1

        async def client(rounds: int) -> None:
            for _ in range(rounds):
                try:
                    await one()
                except ContextPoisoned:
                    counts["poisoned"] += 1
                except GpuRefStale:
                    counts["stale"] += 1

        async def disturb(rounds: int) -> None:
            for _ in range(rounds):
                for _ in range(chance.randrange(200)):
                    await trio.lowlevel.checkpoint()
                await poison(device)

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(client, messages // clients // 3)
            nursery.start_soon(disturb, sized(5, 20))
        assert device.statistics().in_flight == 0
        assert device.system.statistics().dead_letters == 0
    asked = messages // clients // 3 * clients
    assert counts["poisoned"] + counts["stale"] <= asked
    assert counts["answered"] >= 3 * (asked - counts["poisoned"] - counts["stale"])
