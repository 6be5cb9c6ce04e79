"""Collectives on devices: results equal to NumPy's in every dtype, and refusals."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import DeviceLost, GpuRefSealed, GpuRefStale, WorldBroken
from atomr_accel.worlds import open_world

from ..harness import ON_CUDA, opened
from .ranks import get, put, world_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from atomr_accel import GpuRef

Array = np.ndarray[Any, Any]

REDUCED = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]
NARROW = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
MOVED = [np.bool_, np.int16, np.complex128, ml_dtypes.float4_e2m1fn, *NARROW]


def some(size: int, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[Array]:
    """Small whole numbers, which every dtype holds, and sums of them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 2, shape).astype(dtype) for _ in range(size)]


def same(got: Sequence[Array], expected: Sequence[Array]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one.astype(np.complex128), other.astype(np.complex128))


async def test_reductions_in_every_dtype() -> None:
    async with world_of(3) as world:
        for number, dtype in enumerate([*map(np.dtype, REDUCED), *map(np.dtype, NARROW)]):
            arrays = some(3, (4, 3), dtype, number)
            wide = np.stack([a.astype(np.float64) for a in arrays])
            x = await put(world, arrays)
            for op, reduced in {
                "sum": wide.sum(0),
                "prod": wide.prod(0),
                "min": wide.min(0),
                "max": wide.max(0),
            }.items():
                y = await world.all_reduce(x, op)  # type: ignore[arg-type]
                same(await get(world, y), [reduced.astype(dtype)] * 3)


async def test_averages_scales_and_complex_numbers() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.array([-3, 7, 4]), np.array([0, 0, 4])])
        same(await get(world, await world.all_reduce(x, "avg")), [np.array([-1, 3, 4])] * 2)
        z = await put(world, [np.array([1 + 2j]), np.array([3 - 4j])])
        narrow = await put(world, [np.full(2, 100, np.int8)] * 2)  # whose sum wraps around
        same(
            await get(world, await world.all_reduce(narrow, "avg")), [np.full(2, -28, np.int8)] * 2
        )
        same(await get(world, await world.all_reduce(z, "avg")), [np.array([2 - 1j])] * 2)
        same(await get(world, await world.all_reduce(z, scale=0.5)), [np.array([2 - 1j])] * 2)
        wrong: tuple[dict[str, Any], ...]
        wrong = ({"op": "min"}, {"op": "sum", "scale": True}, {"op": "avg", "scale": 2.0})
        for bad in wrong:
            with pytest.raises((TypeError, ValueError)):
                await world.all_reduce(z, **bad)


async def test_moving_collectives_accept_any_dtype() -> None:
    async with world_of(3) as world:
        for number, dtype in enumerate(map(np.dtype, MOVED)):
            arrays = some(3, (3, 2), dtype, number)
            x = await put(world, arrays)
            everything = np.stack(arrays)
            same(await get(world, await world.broadcast(x[1])), [arrays[1]] * 3)
            same(await get(world, await world.all_gather(x)), [everything] * 3)
            same([await world.devices[2].get(await world.gather(x, 2))], [everything])
            same(await get(world, await world.scatter(x[1])), list(arrays[1]))
            swapped = [everything[:, rank] for rank in range(3)]
            same(await get(world, await world.all_to_all(x)), swapped)


async def test_large_buffers_go_in_rounds() -> None:
    async with world_of(3) as world:
        arrays = some(3, (3, 70_001), np.float32)
        x = await put(world, arrays)
        everything = np.stack(arrays)
        same(await get(world, await world.all_reduce(x)), [everything.sum(0)] * 3)
        same(await get(world, await world.reduce_scatter(x, "max")), list(everything.max(0)))
        counts = [[1, 2, 0], [0, 0, 3], [3, 0, 0]]
        got = await get(world, await world.all_to_all_v(x, counts))
        begins = np.cumsum([[0, 0, 0], *np.transpose(counts)], axis=0)
        for taker in range(3):
            pieces = [
                arrays[s][begins[taker][s] : begins[taker][s] + counts[s][taker]] for s in range(3)
            ]
            same([got[taker]], [np.concatenate(pieces)])


async def test_in_place_and_into_buffers_of_the_callers() -> None:
    async with world_of(2) as world:
        arrays = some(2, (2, 5), np.float32)
        total = arrays[0] + arrays[1]
        x = await put(world, arrays)
        assert await world.all_reduce(x, out=x) == x
        same(await get(world, x), [total] * 2)
        x = await put(world, arrays)
        rows = [ref[rank] for rank, ref in enumerate(x)]
        assert await world.all_gather(rows, out=x) == x
        same(await get(world, x), [np.stack([arrays[0][0], arrays[1][1]])] * 2)
        x = await put(world, arrays)
        rows = [ref[rank] for rank, ref in enumerate(x)]
        await world.reduce_scatter(x, out=rows)
        same(await get(world, rows), list(total))
        out = [await device.full((2, 5), np.nan, np.float32) for device in world.devices]
        y = await put(world, arrays)
        assert await world.broadcast(y[0], out=[y[0], out[1]]) == [y[0], out[1]]
        same(await get(world, [y[0], out[1]]), [arrays[0]] * 2)
        sealed = await world.devices[0].put(arrays[0], sealed=True)
        same(await get(world, await world.broadcast(sealed)), [arrays[0]] * 2)


async def test_invalid_collective_sends_nothing() -> None:
    async with world_of(2) as world:
        one, other = world.devices
        a, b = await put(world, some(2, (2, 3), np.float32))
        freed = await other.put(np.zeros((2, 3), np.float32))
        await other.free(freed)
        sealed = await other.put(np.zeros((2, 3), np.float32), sealed=True)
        wide = await other.put(np.zeros((2, 3)))
        for wrong, error in (
            ([a], ValueError),
            ([a, a], ValueError),
            ([b, a], ValueError),
            (a, TypeError),
            ([a, wide], TypeError),
            ([a, b[0]], ValueError),
            ([a, b.T], ValueError),
            ([a, freed], GpuRefStale),
        ):
            with pytest.raises(error):
                await world.all_reduce(wrong)  # type: ignore[arg-type]
        for out, error in (([a, sealed], GpuRefSealed), ([a, wide], TypeError), ([a], ValueError)):
            with pytest.raises(error):
                await world.all_reduce([a, b], out=out)
        with pytest.raises(ValueError, match=r"x\[1\] must be on the device of rank 1.* rank 0"):
            await world.all_reduce([a, a])
        with pytest.raises(ValueError, match=r"^scale (must be|is too large)"):
            await world.all_reduce([a, b], scale=10**400)
        with pytest.raises(TypeError, match="colors must be a list"):
            async with world.split(None):  # type: ignore[arg-type]
                """The world has no colors."""
        with pytest.raises(ValueError, match="op must be one of"):
            await world.all_reduce([a, b], "mean")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="reductions take"):
            await world.all_reduce(await put(world, some(2, (2,), np.int16)))
        with pytest.raises(
            ValueError, match="x must have a first dimension of 2, a row for each rank, not shape"
        ):
            await world.scatter(a[0])
        with pytest.raises(ValueError, match="counts"):
            await world.all_to_all_v([a, b], [[1, 0], [1, 1]])
        with pytest.raises(ValueError, match="root must be a whole number from 0 to 1"):
            await world.gather([a, b], 2)
        assert world.statistics().completed == 0
        for device in (one, other):
            lanes = {lane.name: lane for lane in device.statistics().lanes}
            # It has joined; on CUDA one rank makes the id by which they meet.
            assert lanes["nccl"].submitted == 1 + (ON_CUDA and device is one)


async def test_an_op_comes_after_what_writes_its_buffers() -> None:
    async with world_of(2) as world:
        one, other = world.devices
        x = await put(world, [np.full((64, 64), 1.0, np.float32)] * 2)
        for number in range(5):
            products = [
                await device.blas.gemm(ref, ref)
                for device, ref in zip((one, other), x, strict=True)
            ]
            total = await world.all_reduce(products, out=products)
            for device, ref in zip((one, other), total, strict=True):
                await device.blas.scal(0.5**7, ref.reshape((4096,)))
            same(await get(world, total), [np.full((64, 64), 1, np.float32)] * 2)
            x = total
            assert world.statistics().completed == number + 1


async def test_worlds_that_share_devices_do_not_wait_for_each_other() -> None:
    """Concurrent collectives begin in the same order on every rank."""
    async with world_of(3) as world, open_world(world.devices[::-1]) as turned:
        arrays = some(3, (7,), np.int32)
        x = await put(world, arrays)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(world.all_reduce, x)
                nursery.start_soon(turned.all_reduce, x[::-1])
        async with world.split("aba") as parts:
            assert parts["a"].devices == (world.devices[0], world.devices[2])
            y = await parts["a"].all_reduce([x[0], x[2]])
            same([await world.devices[2].get(y[1])], [arrays[0] + arrays[2]])
            (alone,) = await parts["b"].all_reduce([x[1]])
            same([await world.devices[1].get(alone)], [arrays[1]])


async def test_buffers_are_sent_and_received_in_their_order() -> None:
    async with world_of(2) as world:
        one, other = world.devices
        refs = [await one.put(np.array([float(number)])) for number in (1, 2)]
        async with trio.open_nursery() as nursery:
            for ref in refs:
                nursery.start_soon(world.send, ref, 1)
                await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0):
                await world.recv(0, 1)  # cancelled before anything has happened
            for expected in (1.0, 2.0):
                got = await world.recv(0, 1)
                assert await other.get(got) == expected
        with trio.move_on_after(0) as scope:
            await world.send(refs[0], 1)
        assert scope.cancelled_caught
        with trio.move_on_after(0.01):
            await world.recv(0, 1)
            raise AssertionError("what was withdrawn has come")
        with pytest.raises(ValueError, match="to must be a whole number from 0 to 1"):
            await world.send(refs[0], 2)


async def test_pending_sends_and_receives_end_with_the_world() -> None:
    told: list[str] = []

    async def wait(name: str, function: Callable[..., Awaitable[object]], *args: object) -> None:
        with pytest.raises(WorldBroken, match="the world was left"):
            await function(*args)
        told.append(name)

    async with trio.open_nursery() as nursery, world_of(2) as world:
        x = await world.devices[0].put(np.ones(3))
        nursery.start_soon(wait, "send", world.send, x, 1)
        nursery.start_soon(wait, "recv", world.recv, 1, 0)
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(told) == ["recv", "send"]
    with pytest.raises(WorldBroken, match="the world was left"):
        async with world.split("ab"):
            """The world cannot be split."""


async def test_a_group_whose_block_was_left_is_of_no_use() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(3)] * 2)
        async with world.group() as group:
            kept = await group.all_reduce(x)
        for call in (partial(group.all_reduce, x), partial(group.recv, 0, 1)):
            with pytest.raises(RuntimeError, match="was left"):
                await call()
        with pytest.raises(RuntimeError, match="was left"):
            await group.send(x[0], 1)
        same(await get(world, kept), [np.full(3, 2.0)] * 2)


async def test_failed_group_frees_its_buffers() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(3)] * 2)
        made: list[GpuRef] = []
        with pytest.raises(KeyError):
            async with world.group() as group:
                made += await group.all_reduce(x)
                made.append((await group.all_gather(x))[0])
                raise KeyError
        with pytest.raises(ValueError, match="not received in this group"):
            async with world.group() as group:
                made += await group.all_gather(x)
                await group.send(x[0], 1)
        assert all(ref.is_stale for ref in made)
        with pytest.raises(GpuRefStale):
            await world.devices[0].get(made[0])
        same(await get(world, x), [np.ones(3)] * 2)


async def test_ranks_and_counts_are_whole_numbers() -> None:
    async with world_of(2) as world:
        x = await put(world, [np.ones(2)] * 2)
        for wrong in (1.7, "1", True, None):
            bad: Any = wrong
            for call in (
                partial(world.reduce, x, bad),
                partial(world.gather, x, bad),
                partial(world.send, x[0], bad),
                partial(world.recv, bad, 0),
                partial(world.recv, 0, bad),
                partial(world.all_to_all_v, x, [[1, bad], [1, 1]]),
            ):
                with pytest.raises(TypeError, match="must be a whole number"):
                    await call()
        counts: Any
        for counts in (None, 3, [1, 1]):
            with pytest.raises(TypeError, match="counts must be rows"):
                await world.all_to_all_v(x, counts)
        with pytest.raises(TypeError, match="whole number"):
            await world.all_to_all_v(x, ["11", "11"])  # type: ignore[list-item]
        got = await world.all_to_all_v(x, np.ones((2, 2), np.int32).tolist())
        assert [ref.shape for ref in got] == [(2,), (2,)]
        same([await world.devices[1].get(await world.reduce(x, np.int64(1)))], [np.full(2, 2.0)])  # type: ignore[arg-type]
        assert world.statistics().completed == 2


async def test_groups_go_together_or_not_at_all() -> None:
    async with world_of(2) as world:
        arrays = some(2, (4,), np.int32)
        x = await put(world, arrays)
        async with world.group() as group:
            total = await group.all_reduce(x)
            both = await group.all_gather(x)
            await group.send(x[0], 1)
            copy = await group.recv(0, 1)
        same(await get(world, total), [arrays[0] + arrays[1]] * 2)
        same(await get(world, both), [np.stack(arrays)] * 2)
        same([await world.devices[1].get(copy)], [arrays[0]])
        assert world.statistics().completed == 1
        with pytest.raises(ValueError, match="share memory"):
            async with world.group() as group:
                await group.all_reduce(x, out=x)
                await group.all_gather(x)
        with pytest.raises(ValueError, match="not received in this group"):
            async with world.group() as group:
                await group.send(x[0], 1)
        with pytest.raises(ValueError, match="nothing was sent"):
            async with world.group() as group:
                await group.recv(0, 1)
        assert world.statistics().completed == 1
        await world.barrier()


async def test_invalid_world_is_refused() -> None:
    async with opened(0, isolation="thread") as device:
        for devices, error in (([], ValueError), ([device, device], ValueError), ([1], TypeError)):
            with pytest.raises(error):
                async with open_world(devices):  # type: ignore[arg-type]
                    pass
        with pytest.raises(ValueError, match="on_break"):
            async with open_world([device], on_break="stop"):  # type: ignore[arg-type]
                pass
        for deadline in ("1", True):
            with pytest.raises(TypeError, match="op_deadline must be a real number"):
                async with open_world([device], op_deadline=deadline):  # type: ignore[arg-type]
                    pass
        async with open_world([device]) as world:
            x = await device.put(np.arange(0))
            (y,) = await world.all_reduce([x])
            assert y.shape == (0,)
            assert "World of 1" in repr(world)


async def test_a_world_grows_and_shrinks_when_it_is_told_to() -> None:
    async with world_of(3) as world:
        one, two, three = devices = world.devices
        kept = await three.put(np.arange(3))
        letters: list[str] = []

        async def write() -> None:
            with pytest.raises(WorldBroken, match="was not received: the world was resized"):
                await world.send(x[0], to=2)
            letters.append("sent")

        async def read() -> None:
            with pytest.raises(WorldBroken, match="called for 3 ranks"):
                await world.recv(source=1, to=0)
            letters.append("received")

        x = await put(world, [np.ones(4)] * 3)
        async with world.watch() as epochs, trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await world.resize([two, one])
            assert await anext(epochs) == 2
        assert sorted(letters) == ["received", "sent"]
        assert (world.size, world.devices) == (2, (two, one))
        total = await world.all_reduce([x[1], x[0]])
        assert (await one.get(total[1])).tolist() == [2.0] * 4
        with pytest.raises(ValueError, match="no device of"):
            world.rank_of(three)
        assert (await three.get(kept)).tolist() == [0, 1, 2]

        async with opened(0, isolation="thread") as fourth:
            await world.resize([*devices, fourth])  # one of them was in it before
            y = [await device.full(4, 1.0) for device in world.devices]
            assert (await fourth.get((await world.all_reduce(y))[3])).tolist() == [4.0] * 4
            await world.resize(devices)
        assert (await world.all_reduce(x))[0].device == one.name
        said = world.statistics()
        assert (said.epoch, said.breaks, said.phase) == (4, 0, "whole")
        with pytest.raises(DeviceLost):  # the block of that one was left
            await world.resize([one, fourth])
        assert (world.devices, world.epoch) == (devices, 4)
        assert (await world.all_reduce(x))[0].device == one.name
        for wrong in ([], [one, one]):
            with pytest.raises(ValueError, match=r"at least|twice"):
                await world.resize(wrong)
