"""A context ends by a fault, by the death of its host, by a restart, or with its device.

Whatever a task does meanwhile ends, too: with the right result, or with one error of a documented
type. Each action below meets each end at each of its checkpoints: as it begins to wait, as it goes
on before the next context exists, and as it goes on with that.

These check a generation or an epoch, keep a port, or otherwise outlive a context:

============================  =====================================  ============================
place                         state                                  action
============================  =====================================  ============================
``lanes/_port``               its ops; fails later ones              all
``device/_lifecycle``         successors, waiters at the gate        ``watch``, ``opening a lane``
``device/contexts/context``   lanes that are being started           ``opening a lane``
``device/_growth``            the context of a slab                  ``put sealed``, ``growing``
``device/calls/_retry``       the generation of an attempt           ``retry``
``device/calls/_event``       the op of a point, its number          ``event``
``device/calls/_run``         states, tickets, results in the        ``run``, ``run large``,
                              host                                   ``run with a state``
``device/_actors``            queued requests                        ``ask``
``device/batches/batch``     ports, epoch, deferred ops             ``batch``, ``batch deferred``
``device/batches/record``    blocks of its making, sent messages   ``recording``
``device/data/transfer``     checks of each chunk; slabs that are   ``put``, ``put sealed``,
                              open for writing                       ``get``, ``seal``
``device/data/_bulk``         chunks on their way                    ``put large``, ``get large``
``device/data/_pinned``       hosts that have mapped an arena        ``pinned``
``device/data/_snapshot``     copies on their way                    ``snapshot``
``device/interop/_exports``   slabs that the program has mapped      ``export``
``device/interop/_sharing``   mappings of others' descriptors        ``share``, ``salvage``
``device/interop/_windows``   slabs of other devices                 ``copy between``
``ops/_perform``              buffers and answers of earlier tries   ``question``, ``ask``
``ops/_templates``            prepared calls and their epoch         ``library``
``ops/_workspaces``           workspaces                             ``question``
``libraries/nvrtc``           loaded kernels, variables, arrays      ``kernel``
``libraries/rng`` and others  state that the host keeps              ``generator``
``memory/_host_handles``      messages for each host                 ``event``, ``recording``
``memory/_scope``             blocks to free                         ``scope``
``worlds/_member``            ranks that are there                   ``world``
============================  =====================================  ============================
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    EventStale,
    GpuRef,
    GpuRefStale,
    WorldBroken,
    open_system,
)
from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorStopped,
    Directive,
    Intensity,
    Message,
    Strategy,
    Supervision,
    decide_by_type,
    handler,
)
from atomr_accel.device import System
from atomr_accel.libraries.nvrtc.kernel import Kernel
from atomr_accel.testing._faults import simulate, source_of
from atomr_accel.worlds import open_world

from ..harness import AT_ONCE, BACKEND, SECONDS, Stepped, settled, sized
from ..seeds import rng

Action = Callable[[Device, System], Awaitable[Callable[[], Awaitable[None]]]]

EYE: Final = np.eye(8, dtype=np.float32)
LARGE: Final = np.arange(1 << 18, dtype=np.float32)
"""More than travels in one piece."""

SEALED: Final = np.full((64, 64), 3.0, np.float32)
ACTIONS: Final[dict[str, Action]] = {}


def action(name: str) -> Callable[[Action], Action]:
    """Something that a program does: prepared on a device, then done, and its result checked."""

    def add(function: Action) -> Action:
        ACTIONS[name] = function
        return function

    return add


# --- what programs do --------------------------------------------------------------------


@action("put")
async def putting(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        ref = await device.put(EYE)
        await device.put(2 * EYE, out=ref)
        await device.fill(ref, 3)

    return act


@action("put large")
async def putting_much(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        await device.put(LARGE)

    return act


@action("put sealed")
async def putting_sealed(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        ref = await device.put(LARGE, sealed=True)
        assert np.array_equal(await device.get(ref), LARGE)

    return act


@action("get")
async def getting(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    ref = await device.put(EYE)

    async def act() -> None:
        assert np.array_equal(await device.get(ref), EYE)
        assert np.array_equal(await device.get(ref.T), EYE)

    return act


@action("get large")
async def getting_much(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    ref = await device.put(LARGE)
    sealed = await device.put(LARGE, sealed=True)

    async def act() -> None:
        assert np.array_equal(await device.get(sealed), LARGE)
        assert np.array_equal(await device.get(ref), LARGE)

    return act


@action("pinned")
async def pinned(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(LARGE, sealed=True)

    async def act() -> None:
        async with device.pinned.array(LARGE.shape, np.float32) as own:
            await device.get(sealed, out=own)
            assert np.array_equal(own, LARGE)
            await device.put(own)

    return act


@action("seal")
async def sealing(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    ref = await device.put(EYE)

    async def act() -> None:
        await device.seal(ref)
        assert np.array_equal(await device.get(ref), EYE)
        await device.unseal(ref)

    return act


@action("growing")
async def growing(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        await device.empty(device.statistics().memory.largest_free + 1, np.uint8)
        await device.trim()

    return act


@action("batch")
async def batching(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    a = await device.put(EYE)
    await device.blas.gemm(a, a)

    async def act() -> None:
        async with device.batch() as batch:
            x = batch.blas.gemm(a, batch.put(EYE))
            await trio.lowlevel.checkpoint()
            y = batch.blas.gemm(x, x)
            await trio.lowlevel.checkpoint()
        assert np.array_equal(await device.get(y), EYE)

    return act


@action("batch deferred")
async def batching_late(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)

    async def act() -> None:
        async with device.batch() as batch:
            x = batch.put(LARGE)
            later = batch.run(total, x)
            await trio.lowlevel.checkpoint()
            y = batch.blas.gemm(sealed, sealed)
            await trio.lowlevel.checkpoint()
        assert later.value == LARGE.sum()
        assert np.array_equal(await device.get(y), EYE)

    return act


@action("recording")
async def recording(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)
    async with device.record(sealed) as recording:
        y = recording.blas.gemm(sealed, sealed)

    async def act() -> None:
        await recording.replay()
        await recording.replay()
        assert np.array_equal(await device.get(y), EYE)

    return act


@action("run")
async def running(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)

    async def act() -> None:
        assert await device.run(total, sealed) == 8

    return act


@action("run large")
async def running_much(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        got, text = await device.run(much, LARGE)
        assert np.array_equal(got, LARGE)
        assert text == LARGE.tobytes()

    return act


@action("run with a state")
async def running_with_a_state(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        assert await device.run(seven, init=state, lane="own") == 7
        assert await device.run(seven, init=state, lane="own") == 7
        await device.close_lane("own")

    return act


@action("opening a lane")
async def opening_a_lane(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    name = f"lane {device.generation} {id(trio.lowlevel.current_task())}"

    async def act() -> None:
        assert await device.run(seven, lane=name, init=state) == 7

    return act


@action("library")
async def calling(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)

    async def act() -> None:
        for _ in range(3):
            y = await device.blas.gemm(sealed, sealed)
        assert np.array_equal(await device.get(y), EYE)

    return act


@action("question")
async def asking_the_device(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)

    async def act() -> None:
        (rows, columns) = await device.array.nonzero(sealed)
        assert np.array_equal(await device.get(rows), np.arange(8))
        assert np.array_equal(await device.get(columns), np.arange(8))
        _, found, _ = await device.linalg.svd(sealed)
        assert np.allclose(await device.get(found), 1)

    return act


@action("ask")
async def asking(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)

    async def act() -> None:
        y = await device.blas.ref.ask(device.requests.blas.gemm(sealed, sealed))
        assert np.array_equal(await device.get(y), EYE)

    return act


@action("kernel")
async def calling_a_kernel(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    kernel = await device.nvrtc.compile(SOURCE, "increase", cpu=increase)

    async def act() -> None:
        cells = await device.zeros(1, np.float32)
        await kernel.launch(1, 1, cells)
        assert (await device.get(cells)).item() == 1

    return act


@action("generator")
async def drawing(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    generator = device.rng.default_rng(5)

    async def act() -> None:
        got = await device.get(await generator.uniform(size=1000))
        assert 0.4 < got.mean() < 0.6

    return act


@action("event")
async def recording_an_event(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)
    await device.blas.gemm(sealed, sealed)

    async def act() -> None:
        begin, end = device.event(), device.event()
        await begin.record("memory")
        await end.record("memory")
        await end.wait()
        assert await begin.elapsed(end) >= 0

    return act


@action("snapshot")
async def taking_a_snapshot(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(LARGE, sealed=True)

    async def act() -> None:
        with await device.snapshot([sealed]) as snapshot:
            await snapshot.wait()
            (ref,) = await device.restore(snapshot)
        assert np.array_equal(await device.get(ref), LARGE)

    return act


@action("export")
async def exporting(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)

    async def act() -> None:
        export = await device.export(sealed)
        assert export.ref is sealed
        await device.adopt(EYE.copy())

    return act


@action("share")
async def sharing(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    sealed = await device.put(EYE, sealed=True)

    async def act() -> None:
        with await device.share(sealed) as shared:
            assert np.array_equal(await device.get(await device.adopt(shared)), EYE)
        with await device.share(await device.copy(sealed)) as shared:
            assert np.array_equal(await device.get(await device.adopt(shared)), EYE)

    return act


@action("salvage")
async def salvaging(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    ref = await device.put(EYE)
    await device.get(ref)

    async def act() -> None:
        assert np.array_equal(await device.salvage(ref), EYE)

    return act


@action("copy between")
async def copying_between(device: Device, system: System) -> Callable[[], Awaitable[None]]:
    other = next((one for one in system.devices if one is not device), None)
    if other is None:
        other = await system.spawn_device(0, backend=BACKEND, isolation="thread", name="other")
    large = await device.put(LARGE, sealed=True)
    back = await other.put(LARGE, sealed=True)

    async def act() -> None:
        assert np.array_equal(await other.get(await other.copy(large)), LARGE)
        assert np.array_equal(await device.get(await device.copy(back)), LARGE)

    return act


@action("scope")
async def working_in_a_scope(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        async with device.scope() as scope:
            a = await device.put(EYE)
            y = scope.keep(await device.blas.gemm(a, a))
        assert np.array_equal(await device.get(y), EYE)

    return act


@action("retry")
async def retrying(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def attempt() -> None:
        a = await device.put(EYE)
        assert np.array_equal(await device.get(await device.blas.gemm(a, a)), EYE)

    async def act() -> None:
        await device.retry(attempt)

    return act


@action("watch")
async def watching(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        before = device.generation
        async with device.watch_generation() as changes:
            sealed = await device.put(EYE, sealed=True)
            await device.blas.gemm(sealed, sealed)
            if device.generation != before:
                assert [one async for one in _first(changes)] in ([], [device.generation])

    return act


async def _first(changes: AsyncIterator[int]) -> AsyncIterator[int]:
    async for generation in changes:
        yield generation
        return


@action("world")
async def collecting(device: Device, _: System) -> Callable[[], Awaitable[None]]:
    async def act() -> None:
        x = await device.put(EYE, sealed=True)
        async with open_world([device]) as world:
            (y,) = await world.all_gather([x])
            assert np.array_equal((await device.get(y)).reshape(EYE.shape), EYE)

    return act


SOURCE: Final = 'extern "C" __global__ void increase(float* cells) { cells[0] += 1; }'


def increase(cells: Any) -> None:
    cells[0] += 1


def total(x: Any) -> float:
    return float(x.sum())


def much(x: Any) -> Any:
    return x, x.tobytes()


def state() -> int:
    return 7


def seven(state: int) -> int:
    return state


# --- how contexts end --------------------------------------------------------------------


class Fail(Message[None]):
    pass


class Weak(Actor):
    @handler
    async def fail(self, _: Fail) -> None:
        raise ZeroDivisionError


class Ends:
    """A device whose contexts can be ended in one way, again and again."""

    def __init__(self, system: System, weak: ActorRef, nursery: trio.Nursery, how: str) -> None:
        self.system = system
        self.weak = weak
        self.nursery = nursery
        self.how = how
        self.device: Device
        self.sealed: GpuRef
        self.fault: Kernel[Any]

    async def open(self, isolation: Any) -> None:
        """Have a device that works."""
        self.device = await self.system.spawn_device(
            0, backend=BACKEND, isolation=isolation, backoff=AT_ONCE, max_restarts=10**6
        )
        self.sealed = await self.device.put(SEALED, sealed=True)
        # All that a fault needs is there, also where the call that meets it keeps others waiting.
        await (await calling_a_kernel(self.device, self.system))()
        fault = partial(simulate, "illegal_address")
        self.fault = await self.device.nvrtc.compile(
            source_of("illegal_address"), "fault", cpu=fault
        )

    def begin(self) -> None:
        """Begin to end the context."""
        if self.how == "fault":
            self.nursery.start_soon(self._poison)
        elif self.how == "kill":
            context = self.device.core.serving
            if context is not None and context.host.pid is not None:
                os.kill(context.host.pid, signal.SIGKILL)
        elif self.how == "restart":
            self.weak.tell(Fail())
        else:
            self.nursery.start_soon(self.device.ref.stop)

    async def _poison(self) -> None:
        with suppress(ContextPoisoned, DeviceLost):
            await self.fault.launch(1, 1, 0)

    async def end(self) -> None:
        """End the context; it is gone."""
        context = self.device.core.serving
        # A world leaves before a restart ends the contexts of its devices, and asks their hosts to
        # unmap its memory. A call that stands still in a request of its own would hold that up.
        held_up = context is not None and context.host._lock.locked()
        async with self.device.watch_generation() as changes:
            self.begin()
            if self.how == "restart" and held_up:
                return
            async for _ in changes:
                return

    async def replace(self) -> None:
        """End the context; the next one is there, if there is one."""
        await self.end()
        with suppress(DeviceLost):
            await self.device.core.ready()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Errors that a call may end with."""
        gone = (GpuRefStale, EventStale, WorldBroken)
        if self.how == "close":
            return (*gone, DeviceLost, ActorStopped)
        if self.device.isolation == "thread" and self.how == "fault":  # which is final there
            return (*gone, ContextPoisoned, DeviceLost, ActorStopped)
        return (*gone, ContextPoisoned)


WAYS: Final = [
    *itertools.product(["process"], ["fault", "kill", "restart", "close"]),
    *itertools.product(["thread"], ["fault", "restart", "close"]),
]
MOMENTS: Final = ("waiting", "gone", "back")
QUICK: Final = {"process": 0.02, "thread": 0.3}
"""Share of all waits that meet the end of their context; a process costs more, so fewer do."""


@pytest.mark.slow
@pytest.mark.parametrize(("isolation", "how"), WAYS)
def test_every_call_ends_when_its_context_does(isolation: Any, how: str) -> None:
    trio.run(_meet_all, isolation, how)


async def _meet_all(isolation: Any, how: str) -> None:
    chance = rng()
    supervision = Supervision(
        strategy=Strategy.ONE_FOR_ALL,
        decider=decide_by_type({DeviceLost: Directive.STOP}),
        intensity=Intensity(restarts=10**6),
        backoff=AT_ONCE,
    )
    async with (
        trio.open_nursery() as nursery,
        open_system("app", supervision=supervision) as system,
    ):
        ends = Ends(system, await system.spawn(Weak), nursery, how)
        await ends.open(isolation)
        share = sized(QUICK[isolation], 1.0)
        for name, prepare in ACTIONS.items():
            counted = Stepped((await prepare(ends.device, system))(), 0)
            await counted
            for step in range(1, counted.waits + 1):
                if chance.random() >= share:
                    continue
                moment = MOMENTS[chance.integers(3)]
                try:
                    with trio.fail_after(SECONDS):
                        await _meet(ends, prepare, step, moment)
                except BaseException as error:
                    error.add_note(f"{name}, at its wait {step}, {moment}")
                    raise
                if ends.device.closed:
                    await ends.open(isolation)


async def _meet(ends: Ends, prepare: Action, step: int, moment: str) -> None:
    """Do something, and have the context end as it waits for the ``step``-th time."""
    act, device = await prepare(ends.device, ends.system), ends.device
    async with device.watch_generation() as changes:
        if moment == "waiting":
            stepped = Stepped(act(), step, before=ends.begin)
        else:
            stepped = Stepped(act(), step, after=ends.end if moment == "gone" else ends.replace)
        with suppress(*ends.errors):
            await stepped
        if stepped.waits >= step:
            async for _ in changes:
                break
    with suppress(DeviceLost):
        await device.core.ready()
        assert np.array_equal(await device.get(ends.sealed), SEALED)
        await settled(device)
