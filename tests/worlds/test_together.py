"""Collectives in batches and in recordings have the same results as those that are awaited."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import GpuRefStale, WorldBroken
from atomr_accel.testing import kill_host, poison
from atomr_accel.worlds import open_world

from ..harness import ON_CUDA, cpu_only, program
from .ranks import devices_of, get, put, world_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atomr_accel import GpuRef
    from atomr_accel.libraries.nvrtc.kernel import Kernel
    from atomr_accel.worlds import World, WorldBatch, WorldRecording

    from ..harness import Gate

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

SIZE = 3
SHAPE = (SIZE, 4)

MIX = """
    extern "C" __global__ void mix(float* z, const float* x, const float* y) {
        z[threadIdx.x] = fmodf(3 * x[threadIdx.x] + y[threadIdx.x], 61);
    }
"""


def mix(z: Any, x: Any, y: Any) -> None:
    z[...] = (3 * x + y) % 61


Array = np.ndarray[Any, Any]


class Step(NamedTuple):
    """A step of a program on variables, each of which has a buffer on each rank."""

    kind: str
    variable: int
    other: int
    rank: int


KINDS = ("mix", "mix", "sum", "max", "in place", "broadcast", "scatter", "gather", "send", "swap")
STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(KINDS),
        st.integers(0, 30),
        st.integers(0, 30),
        st.integers(0, SIZE - 1),
    ),
    max_size=8,
)


def expected(steps: Sequence[Step], inputs: list[Array]) -> list[list[Array]]:
    """Return the variables that a program makes with NumPy; it may change its inputs."""
    variables = [inputs]
    for kind, at, beside, rank in steps:
        x, y = variables[at % len(variables)], variables[beside % len(variables)]
        match kind:
            case "mix":
                made = [(3 * a + b) % 61 for a, b in zip(x, y, strict=True)]
            case "sum":
                made = [np.add.reduce(x) % 61 for _ in x]
            case "max":
                made = [np.maximum.reduce(x) for _ in x]
            case "in place":
                least = np.minimum.reduce(x)
                for each in x:
                    each[...] = least
                made = x
            case "broadcast":
                made = [x[rank].copy() for _ in x]
                made[rank] = x[rank]
            case "scatter":
                made = [np.tile(row, (SIZE, 1)) for row in x[rank]]
            case "gather":
                made = [np.stack([each[0] for each in x]) for _ in x]
            case "send":
                made = [*x]
                made[(rank + 1) % SIZE] = x[rank].copy()
            case _:
                made = [np.stack([giver[taker] for giver in x]) for taker in range(SIZE)]
        variables.append(made)
    return variables


def carried_out(
    steps: Sequence[Step],
    inputs: list[GpuRef],
    block: WorldBatch | WorldRecording,
    kernels: Sequence[Kernel[Any]],
) -> list[list[GpuRef]]:
    """Run a program in a batch or a recording."""

    def mixed(rank: int, x: GpuRef, y: GpuRef) -> GpuRef:
        z = block.devices[rank].empty(SHAPE, np.float32)
        block.devices[rank].launch(kernels[rank], 1, SIZE * 4, z, x, y)
        return z

    variables = [inputs]
    for kind, at, beside, rank in steps:
        x, y = variables[at % len(variables)], variables[beside % len(variables)]
        match kind:
            case "mix":
                made = [mixed(at, *each) for at, each in enumerate(zip(x, y, strict=True))]
            case "sum":
                total = block.all_reduce(x)
                zeros = [each.zeros(SHAPE, np.float32) for each in block.devices]
                made = [mixed(at, zeros[at], total[at]) for at in range(SIZE)]
            case "max":
                made = block.all_reduce(x, "max")
            case "in place":
                made = block.all_reduce(x, "min", out=x)
            case "broadcast":
                made = block.broadcast(x[rank])
            case "scatter":
                rows = block.scatter(x[rank])
                made = []
                for each, row in zip(block.devices, rows, strict=True):
                    z = each.empty(SHAPE, np.float32)
                    for to in range(SIZE):
                        each.copy(row, z[to])
                    made.append(z)
            case "gather":
                made = block.all_gather([each[0] for each in x])
            case "send":
                to = (rank + 1) % SIZE
                block.send(x[rank], to)
                made = [*x]
                made[to] = block.recv(rank, to)
            case _:
                made = block.all_to_all(x)
        variables.append(made)
    return variables


def some(seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 61, SHAPE).astype(np.float32) for _ in range(SIZE)]


async def same(
    world: World, got: Sequence[Sequence[GpuRef]], wanted: Sequence[Sequence[Array]]
) -> None:
    for refs, arrays in zip(got, wanted, strict=True):
        for one, other in zip(await get(world, refs), arrays, strict=True):
            np.testing.assert_array_equal(one, other)


async def mixers(world: World) -> list[Kernel[Any]]:
    return [await each.nvrtc.compile(MIX, "mix", cpu=mix) for each in world.devices]


@settings(max_examples=4 if ON_CUDA else 15)
@given(programs=st.lists(st.tuples(STEPS, st.integers(0, 99)), min_size=1, max_size=6))
@program
async def test_programs_in_batches(programs: list[tuple[list[Step], int]]) -> None:
    async with world_of(SIZE) as world:
        kernels = await mixers(world)
        for steps, seed in programs:
            x = await put(world, some(seed))
            async with world.batch() as batch:
                got = carried_out(steps, x, batch, kernels)
            await same(world, got, expected(steps, some(seed)))


@settings(max_examples=4 if ON_CUDA else 15)
@given(
    programs=st.lists(
        st.tuples(STEPS, st.lists(st.integers(0, 99), max_size=4)), min_size=1, max_size=6
    )
)
@program
async def test_programs_in_recordings(programs: list[tuple[list[Step], list[int]]]) -> None:
    async with world_of(SIZE) as world:
        kernels = await mixers(world)
        for steps, seeds in programs:
            before = some(100)
            x = await put(world, before)
            async with world.record(x) as recording:
                got = carried_out(steps, x, recording, kernels)
            await same(world, [x], [before])  # nothing was executed
            assert [ref is taken for ref, taken in zip(x, got[0], strict=True)] == [True] * SIZE
            await recording.replay()
            await same(world, got, expected(steps, before))
            for seed in seeds:
                y, arrays = await put(world, some(seed)), some(seed)
                await recording.replay(y)
                wanted = expected(steps, arrays)
                await same(world, [y], wanted[:1])
                # What is the input itself is the buffer with which it was recorded.
                made = [at for at, refs in enumerate(got) if not set(refs) & set(x)]
                await same(world, [got[at] for at in made], [wanted[at] for at in made])


async def test_what_a_batch_puts_off_comes_before_its_collectives() -> None:
    large = np.arange(300_000, dtype=np.float64)
    async with world_of(2) as world:
        small = await put(world, [np.ones(3), np.full(3, 2.0)])
        async with world.batch() as batch:
            x = [each.put(large + rank) for rank, each in enumerate(batch.devices)]
            total = batch.all_reduce(x)
            again = batch.all_gather(batch.all_reduce(total, "max"))
            y = [each.copy(ref) for each, ref in zip(batch.devices, total, strict=True)]
            later = batch.devices[1].get(y[1])
            other = await world.all_reduce(small)  # comes before what is put off
            del x, total, y
            last = batch.devices[0].get(again[0])
        np.testing.assert_array_equal(later.value, 2 * large + 1)
        np.testing.assert_array_equal(last.value, [2 * large + 1] * 2)
        await same(world, [other, await world.all_reduce(small)], [[np.full(3, 3.0)] * 2] * 2)


async def test_a_batch_grows_memory_for_what_its_collectives_make() -> None:
    async with world_of(2, hosts={"slab_bytes": 1 << 21}) as world:
        x = await put(world, [np.full(1 << 17, rank + 1.0) for rank in range(2)])
        async with world.batch() as batch:
            totals = [batch.all_reduce(x) for _ in range(6)]
        for total in totals:
            assert [array[-1] for array in await get(world, total)] == [3.0, 3.0]


async def test_failed_batches_free_what_they_have_made() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(3)] * 2)
        made: list[GpuRef] = []
        with pytest.raises(KeyError):
            async with world.batch() as batch:
                made += batch.all_reduce(x)
                made += [batch.devices[0].copy(made[0])]
                raise KeyError
        with pytest.raises(ValueError, match=r"was not received .*; call recv\(0, 1\)"):
            async with world.batch() as batch:
                made += batch.all_gather(x)
                batch.send(x[0], 1)
        assert all(ref.is_stale for ref in made)
        with pytest.raises(RuntimeError, match=r"block was left; open another one with .*batch"):
            batch.all_reduce(x)
        await same(world, [await world.all_reduce(x)], [[np.full(3, 2.0)] * 2])


async def test_wrong_calls_of_recordings_are_refused() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(3)] * 2)
        flag = await world.devices[0].put(np.ones(1, np.bool_))
        wrong: Any
        for wrong, error in (([x[0]], ValueError), (x[0], TypeError), (x[::-1], ValueError)):
            with pytest.raises(error, match="input 0"):
                async with world.record(wrong):
                    pass
        async with world.record(x) as recording:
            one, _ = recording.devices
            with one.when(flag), pytest.raises(RuntimeError, match="must not be in a part"):
                recording.all_reduce(x)
            with pytest.raises(ValueError, match=r"x\[1\] must be on the device of rank 1"):
                recording.all_reduce([x[0], x[0]])
            with pytest.raises(RuntimeError, match="not inside it"):
                await recording.replay()
            total = recording.all_reduce(x)
        with pytest.raises(RuntimeError, match="await the recording's replay"):
            await world.all_reduce(total)
        with pytest.raises(RuntimeError, match="rank's part of a world's"):
            await one.replay()
        async with world.devices[0].record() as other:
            with pytest.raises(RuntimeError, match="not a world's part"):
                other.call(one)
            other.copy(x[0])
        for wrong, error in (([x[0]], ValueError), (x[::-1], ValueError), (None, TypeError)):
            with pytest.raises(error, match="input 0"):
                await recording.replay(wrong)
        short = await put(world, [np.ones(2)] * 2)
        with pytest.raises(ValueError, match="has not the shape"):
            await recording.replay(short)
        with pytest.raises(RuntimeError, match=r"open another one with world.record"):
            recording.all_reduce(x)
        with pytest.raises(ValueError, match="was not received in this recording"):
            async with world.record(x) as unreceived:
                unreceived.send(x[0], 1)
        with pytest.raises(KeyError):
            async with world.record(x) as spoilt:
                raise KeyError
        with pytest.raises(RuntimeError, match="record another"):
            await spoilt.replay()
        await world.devices[1].free(x[1])
        with pytest.raises(GpuRefStale):
            await recording.replay()
        y = await put(world, [np.full(3, 2.0)] * 2)
        await recording.replay(y)
        await same(world, [total], [[np.full(3, 4.0)] * 2])
        said = world.statistics()
        assert (said.breaks, said.completed, said.in_flight) == (0, 1, 0)


async def test_buffers_without_memory_are_refused_and_break_nothing() -> None:
    large = np.zeros(300_000)
    async with world_of(2) as world:
        x = await put(world, [np.ones(3)] * 2)
        async with world.record(x) as recording:
            total = recording.all_reduce(x)
            for call in (world.all_reduce, world.all_gather):
                with pytest.raises(RuntimeError, match=r"no memory yet|replay"):
                    await call(total)
        async with world.batch() as batch:
            late = batch.all_reduce([each.put(large) for each in batch.devices])
            with pytest.raises(RuntimeError, match="no memory yet"):
                await world.all_reduce(late)
            with pytest.raises(RuntimeError, match="no memory yet"):
                async with world.batch() as inner:
                    inner.all_reduce(late)
        await same(world, [late], [[large] * 2])
        assert world.statistics().breaks == 0


async def test_deferred_collectives_of_tasks_are_in_one_order_on_all_ranks() -> None:
    async with world_of(2) as world, trio.open_nursery() as nursery:

        async def batched(number: int) -> None:
            x = await put(world, [np.full(2, number), np.full(2, 10 * number)])
            async with world.batch() as batch:
                batch.devices[number % 2].run(int)
                total = batch.all_reduce(batch.all_reduce(x))
            await same(world, [total], [[np.full(2, 22 * number)] * 2])

        async def awaited() -> None:
            x = await put(world, [np.ones(2)] * 2)
            for _ in range(20):
                await same(world, [await world.all_reduce(x)], [[np.full(2, 2.0)] * 2])

        nursery.start_soon(awaited)
        for number in range(4):
            nursery.start_soon(batched, number)


async def test_recordings_of_a_device_are_called_in_recordings_of_a_world() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(3), np.full(3, 2.0)])
        async with world.devices[0].record(x[0]) as doubled:
            y = doubled.copy(x[0])
        async with world.record(x) as recording:
            recording.devices[0].call(doubled, x[0])
            total = recording.all_reduce([y, x[1]])
        await recording.replay()
        await same(world, [total], [[np.full(3, 3.0)] * 2])


async def test_replays_and_ops_keep_their_order() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(3)] * 2)
        async with world.record(x) as recording:
            recording.all_reduce(x, out=x)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(recording.replay)
                await trio.testing.wait_all_tasks_blocked(0.0)
                nursery.start_soon(world.all_reduce, x, "sum")
        assert (await get(world, x))[1].tolist() == [8.0] * 3


async def test_a_cancelled_replay_is_carried_out() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(3)] * 2)
        async with world.record(x, shared=True) as recording:
            total = recording.all_reduce(x)
        with trio.CancelScope() as scope:
            scope.cancel()
            await recording.replay()
        assert world.statistics().completed == 0  # it had no effect
        await recording.replay()
        await same(world, [total], [[np.full(3, 2.0)] * 2])
        y = await put(world, [np.full(3, 2.0)] * 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recording.replay, y)
            await trio.testing.wait_all_tasks_blocked(0.0)
            nursery.cancel_scope.cancel()
        await world.barrier()
        await same(world, [total], [[np.full(3, 4.0)] * 2])
        assert [each.statistics().in_flight for each in recording.devices] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("end", [kill_host, poison])
async def test_recordings_outlive_the_death_of_a_rank(end: Any) -> None:
    async with world_of(2, [1], hosts={"isolation": "process"}) as world:
        x = await put(world, [np.ones(3), np.full(3, 2.0)], sealed=True)
        async with world.record(x) as recording:
            total = recording.all_reduce(x)
            copies = [each.copy(ref) for each, ref in zip(recording.devices, total, strict=True)]
        await recording.replay()
        for epoch in (2, 3):
            async with world.watch() as epochs:
                await end(world.devices[1])
                assert await anext(epochs) == epoch
            await recording.replay()
            await same(world, [copies], [[np.full(3, 3.0)] * 2])
        await same(world, [await world.all_reduce(x, "max")], [[np.full(3, 2.0)] * 2])


@pytest.mark.slow
async def test_a_death_in_the_block_of_a_batch_is_one_of_the_world() -> None:
    async with world_of(2, [1], hosts={"isolation": "process"}) as world:
        for case in ("again", "in flight", "ended"):
            x = await put(world, [np.ones(3)] * 2)
            ended = trio.Event()

            async def look(x: list[GpuRef], ended: trio.Event) -> None:
                await same(world, [x], [[np.full(3, 2.0)] * 2])
                ended.set()

            async with world.watch() as epochs, trio.open_nursery() as nursery:
                with pytest.raises(WorldBroken, match=r"rank 1.* of 2 failed") as caught:
                    async with world.batch() as batch:
                        batch.all_reduce(x, out=x)
                        if case == "ended":
                            nursery.start_soon(look, x, ended)
                            await ended.wait()
                        await kill_host(world.devices[1])
                        if case == "again":
                            batch.all_reduce(x, out=x)
                await anext(epochs)
            assert caught.value.rank == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["batch", "replay"])
async def test_a_death_breaks_what_is_in_flight(how: str, gate: Gate) -> None:
    async with world_of(2, [1], hosts={"isolation": "process"}) as world:
        hold = await gate.kernel(world.devices[1])
        x = [await each.full(4, 1.0, np.float32) for each in world.devices]
        kept = await world.devices[0].put(np.arange(3))
        async with world.record(x, shared=True) as recording:
            total = recording.all_reduce(x)
        await recording.replay()
        broken: list[WorldBroken] = []

        async def call() -> None:
            with pytest.raises(WorldBroken, match="rank 1 of 2 failed") as caught:
                if how == "replay":
                    await recording.replay()
                else:
                    async with world.batch() as batch:
                        batch.all_reduce(x)
            broken.append(caught.value)

        async def occupy() -> None:
            with pytest.raises(Exception, match="generation 1"):
                await hold(x[1])

        async with world.watch() as epochs, trio.open_nursery() as nursery:
            nursery.start_soon(occupy)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            await kill_host(world.devices[1])
            assert await anext(epochs) == 2
        assert broken[0].epoch == 1
        assert (await world.devices[0].get(kept)).tolist() == [0, 1, 2]
        with pytest.raises(GpuRefStale):  # what it reads is gone
            await recording.replay()
        y = [await each.full(4, 2.0, np.float32) for each in world.devices]
        await recording.replay(y)
        await same(world, [total], [[np.full(4, 4.0, np.float32)] * 2])


@cpu_only  # on CUDA it has begun as soon as the graph is in its queue
@pytest.mark.slow
async def test_a_rank_that_is_late_for_a_replay_is_named(gate: Gate) -> None:
    async with world_of(
        2, [1], hosts={"isolation": "process", "op_deadline": None}, op_deadline=1.0
    ) as world:
        hold = await gate.kernel(world.devices[1])
        x = [await each.full(4, 1.0, np.float32) for each in world.devices]
        async with world.record(x) as recording:
            recording.all_reduce(x)
        await recording.replay()
        await recording.replay()

        async def occupy() -> None:
            with pytest.raises(Exception, match="generation 1"):
                await hold(x[1])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(occupy)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(WorldBroken, match="rank 1 of 2 failed") as caught:
                await recording.replay()
        assert "has not begun it" in str(caught.value)


async def test_a_recording_is_for_the_ranks_that_it_was_made_with() -> None:
    async with devices_of(3) as devices, open_world(devices) as world:
        x = await put(world, [np.ones(3)] * 3)
        async with world.record(x) as recording:
            recording.all_reduce(x, out=x)
        await recording.replay()
        await world.resize(devices[:2])
        with pytest.raises(WorldBroken, match="called for 3 ranks, and now there are 2"):
            await recording.replay()
        await world.resize(devices)
        await recording.replay()
        assert (await get(world, x))[2].tolist() == [9.0] * 3
