"""Replays with ``get=``: they return the content of right after the replay."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import ContextPoisoned, GpuRefStale
from atomr_accel.device.data.transfer import SMALL
from atomr_accel.testing import kill_host, poison

from ..harness import (
    cancelled_at,
    interrupted_at,
    on_shared,
    opened,
    settled,
    used_by,
)
from .programs import ADD, REFUSED, adder, held, launched

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device, GpuRef

    from ..harness import Gate

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

VIEWS: dict[str, Callable[[GpuRef], GpuRef]] = {
    "whole": lambda x: x,
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, ::2],
    "transposed": lambda x: x.T,
    "bytes": lambda x: x.view(np.uint8),
    "nothing": lambda x: x[:0],
}


def staged(device: Device) -> int:
    """Return the bytes of staging memory that are in use."""
    return device.core.staging._pool.in_use


def submitted(device: Device) -> dict[str, int]:
    """Return the number of ops of each lane."""
    return {lane.name: lane.submitted for lane in device.statistics().lanes}


def refused(*_args: object) -> None:
    raise LookupError("it was made to fail")


# --- what is fetched -------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    picked=st.lists(
        st.tuples(st.sampled_from(["result", "large", "input", "other"]), st.sampled_from([*VIEWS]))
    ),
    values=st.lists(st.integers(-9, 9), min_size=1, max_size=3),
    room=st.integers(0, 8),
    kind=st.sampled_from([list, tuple]),
)
@on_shared
async def test_a_replay_fetches_what_get_would(
    device: Device,
    picked: list[tuple[str, str]],
    values: list[int],
    room: int,
    kind: Callable[[Any], Any],
) -> None:
    """Buffers are small or large, contiguous or not, with much staging memory left or none."""
    x = await device.zeros((4, 4), np.float32)
    other = await device.put(np.arange(16, dtype=np.float32).reshape(4, 4))
    wide = await device.put(np.ones((4, SMALL // 8), np.float32))
    async with device.record(x) as recorded:
        result = recorded.evaluate(x * 2 + other)
        large = recorded.blas.gemm(result, wide)
    refs = {"result": result, "large": large, "input": x, "other": other}
    wanted = kind(VIEWS[view](refs[name]) for name, view in picked)
    staging = device.core.staging
    acquire, left = staging.try_acquire, room

    def scarce(nbytes: int) -> Any:
        nonlocal left
        left -= 1
        return acquire(nbytes) if left >= 0 else None

    for value in values:
        await device.fill(x, value)
        left = room
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(staging, "try_acquire", scarce)
            found = await recorded.replay(get=wanted)
        assert isinstance(found, list)
        assert len(found) == len(picked)
        for array, ref in zip(found, wanted, strict=True):
            expected = await device.get(ref)
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
        assert (await recorded.replay(get=result)).tolist() == (await device.get(result)).tolist()
    assert staged(device) == 0


@on_shared
async def test_arrays_belong_to_the_caller(device: Device) -> None:
    kernel, x = await adder(device), await device.zeros(4, np.float32)
    async with device.record(x) as recorded:
        recorded.launch(kernel, 1, 4, x, 1.0)
    arrays = [await recorded.replay(get=x) for _ in range(3)]
    arrays[0] += 10
    assert [array[0] for array in arrays] == [11, 2, 3]
    y = await device.full(4, 5, np.float32)
    first, second = await recorded.replay(y, get=(x, y))  # each ref is what it is
    assert (first[0], second[0]) == (3, 6)


@on_shared
async def test_results_come_with_the_answer_of_the_replay(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    async with device.record(x) as recorded:
        y = recorded.blas.gemm(x, x)
    await recorded.replay()
    before = submitted(device)
    found = await recorded.replay(get=[y, x])
    after = submitted(device)
    assert np.array_equal(found, [np.eye(2)] * 2)
    assert after == {**before, "recordings": before["recordings"] + 1}


@on_shared
async def test_no_op_of_others_comes_in_between(device: Device, gate: Gate) -> None:
    hold, x, recorded = await held(device, gate)
    got: list[list[float]] = []

    async def replay() -> None:
        got.append((await recorded.replay(get=x)).tolist())

    async def overwrite() -> None:
        await device.fill(x, 50.0)

    async with trio.open_nursery() as nursery:
        for call in (lambda: hold(x), replay, overwrite, replay):
            nursery.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
        gate.open()
    assert sorted(values[1:] for values in got) == [[2] * 3, [51] * 3]  # tasks run in any order


async def test_durable_buffers_are_fetched_and_proven() -> None:
    async with opened(isolation="process", max_restarts=10) as device:
        kernel = await adder(device)
        x = await device.zeros(4, np.float32, durable=True)
        async with device.record() as recorded:
            recorded.launch(kernel, 1, 4, x, 1.0)
        for before in range(3):
            assert (await recorded.replay(get=x)).tolist() == [before + 1] * 4
            await kill_host(device)
            assert (await device.get(x)).tolist() == [before + 1] * 4


# --- what is refused -------------------------------------------------------------------------


@on_shared
async def test_wrong_get_is_refused_before_anything_is_sent(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    freed = await device.zeros(4)
    await device.free(freed)
    async with device.record(x) as recorded:
        y = recorded.blas.gemm(x, x)
    async with device.record(x) as another:
        awaited = another.blas.gemm(x, x)
    await recorded.replay()
    async with opened() as elsewhere:
        foreign = await elsewhere.zeros(4)
        await settled(device)
        before = submitted(device)
        wrongs: list[tuple[Any, type[Exception], str]] = [
            (3, TypeError, "^get must be a ref or a sequence of refs, not int"),
            ({y}, TypeError, "^get must be a ref or a sequence of refs, not set"),
            (np.zeros(3), TypeError, "^get must be a ref or a sequence of refs, not ndarray"),
            ([y, 3], TypeError, r"^get\[1\] must be"),
            ("y", TypeError, r"^get\[0\] must be"),
            (foreign, ValueError, "^get must be on"),
            ([y, foreign], ValueError, r"^get\[1\] must be on"),
            (freed, GpuRefStale, "^get was freed"),
            ([y, freed], GpuRefStale, r"^get\[1\] was freed"),
            ([awaited], RuntimeError, r"^get\[0\] has no content yet"),
        ]
        for wrong, error, message in wrongs:
            with pytest.raises(error, match=message):
                await recorded.replay(get=wrong)
        async with device.batch():
            with pytest.raises(RuntimeError, match="must be called outside of a batch's block"):
                await recorded.replay(get=y)
        assert submitted(device) == before
    assert staged(device) == 0
    assert np.array_equal(await recorded.replay(get=y), np.eye(2))


# --- what goes wrong -------------------------------------------------------------------------


@on_shared
async def test_the_error_of_a_replay_wins_and_nothing_leaks(device: Device) -> None:
    good, bad = await adder(device), await device.nvrtc.compile(ADD, "add", cpu=refused)
    x, cells = await device.put(np.eye(2, dtype=np.float32)), await device.zeros(4, np.float32)
    wide = await device.put(np.ones((2, SMALL // 4), np.float32))
    used = used_by(device)
    for kernel in (bad, good):
        async with device.record(x) as recorded:
            y = recorded.blas.gemm(x, x)
            large = recorded.blas.gemm(y, wide)
            blocks, options = launched(fail=kernel is bad)
            recorded.launch(kernel, blocks, 4, cells, 1.0, **options)
        if kernel is bad:
            with pytest.raises(REFUSED):
                await recorded.replay(get=[y, large, y.T])
            with pytest.raises(RuntimeError, match="has no content yet"):
                await device.get(y)
        else:
            found = await recorded.replay(get=[y, large, y.T])
            assert [array.shape for array in found] == [(2, 2), (2, SMALL // 4), (2, 2)]
        await settled(device)
        assert staged(device) == 0
        del recorded, y, large
        assert used_by(device) <= used


@on_shared
async def test_cancelling_a_replay_that_fetches_at_every_checkpoint(device: Device) -> None:
    x = await device.put(np.eye(2, dtype=np.float32))
    wide = await device.put(np.ones((2, SMALL // 4), np.float32))
    used, step, more = used_by(device), 1, True
    while more:
        async with device.record(x) as recorded:
            y = recorded.blas.gemm(x, x)
            large = recorded.blas.gemm(y, wide)
        more = await cancelled_at(step, lambda: recorded.replay(get=[y, large, y.T]))  # noqa: B023
        await settled(device)
        assert staged(device) == 0
        assert np.array_equal(await recorded.replay(get=y), np.eye(2))
        del recorded, y, large
        assert used_by(device) <= used
        step += 1
    assert step > 4


@on_shared
async def test_a_replay_that_is_cancelled_in_flight_gives_its_memory_back(
    device: Device, gate: Gate
) -> None:
    hold, x, recorded = await held(device, gate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, x)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as replaying:
            replaying.start_soon(lambda: recorded.replay(get=x))
            await trio.testing.wait_all_tasks_blocked()
            replaying.cancel_scope.cancel()
        assert staged(device) > 0  # the host may still write to it
        gate.open()
    await settled(device)
    assert staged(device) == 0


async def test_a_fault_ends_a_replay_that_fetches() -> None:
    async with opened(isolation="process", max_restarts=10) as device:
        x = await device.put(np.eye(2, dtype=np.float32), sealed=True)
        wide = await device.put(np.ones((2, SMALL // 4), np.float32), sealed=True)
        async with device.record(x) as recorded:
            y = recorded.blas.gemm(x, x)
            large = recorded.blas.gemm(y, wide)
        wanted = [y, large, y.T]
        await recorded.replay(get=wanted)
        for _ in range(2):
            await poison(device)
            found = await recorded.replay(get=wanted)  # the refs are good again
            assert np.array_equal(found[0], np.eye(2))
            assert np.array_equal(found[1], np.ones((2, SMALL // 4)))
        await settled(device)
        assert staged(device) == 0


@pytest.mark.slow
async def test_the_host_dies_at_every_checkpoint_of_a_replay_that_fetches() -> None:
    async with opened(isolation="process", max_restarts=1000) as device:
        x = await device.put(np.eye(2, dtype=np.float32), sealed=True)
        wide = await device.put(np.ones((2, SMALL // 4), np.float32), sealed=True)
        step, more = 1, True
        while more:
            async with device.record(x) as recorded:
                y = recorded.blas.gemm(x, x)
                large = recorded.blas.gemm(y, wide)

            async def tolerant() -> None:
                try:
                    found = await recorded.replay(get=[y, large, y.T])  # noqa: B023
                except (ContextPoisoned, GpuRefStale):
                    return
                assert np.array_equal(found[2], np.eye(2))
                assert np.array_equal(found[1], np.ones((2, SMALL // 4)))

            more, _ = await interrupted_at(step, tolerant, lambda: kill_host(device))
            await settled(device)
            assert staged(device) == 0
            assert np.array_equal(await recorded.replay(get=y), np.eye(2))
            step += 1
        assert step > 4
