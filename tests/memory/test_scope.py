"""Scopes of memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import trio

from atomr_accel import Device, GpuRef, GpuRefStale
from atomr_accel.memory._scope import MemoryScope
from atomr_accel.testing import poison

from ..harness import interrupted_at, on_shared, opened


@on_shared
async def test_scope_frees_its_buffers_at_the_end(device: Device) -> None:
    before = await device.zeros(4, np.float32)
    used = device.statistics().memory.used
    async with device.scope() as scope:
        a = await device.put(np.eye(4, dtype=np.float32))
        b = await device.full((4, 4), 2, np.float32)
        c = await device.blas.gemm(a, b)
        d = await device.seal(await device.copy(c))
        async with device.batch() as batch:
            e = batch.blas.gemm(c, a)
        view = c[1:]
        kept = scope.keep(await device.copy(e))
    for ref in (a, b, c, d, e, view):
        assert ref.is_stale
        with pytest.raises(GpuRefStale, match="was freed"):
            await device.get(ref)
    assert not before.is_stale
    assert (await device.get(kept) == 2).all()
    await device.free(kept)
    assert device.statistics().memory.used == used


@on_shared
async def test_scopes_nest_and_keep_hands_outwards(device: Device) -> None:
    async with device.scope():
        async with device.scope() as inner:
            ref = inner.keep(await device.zeros(3))
            lost = await device.zeros(3)
        assert lost.is_stale
        assert not ref.is_stale
    assert ref.is_stale


@pytest.mark.parametrize(
    "view", [lambda ref: ref[1:], lambda ref: ref[::2], lambda ref: ref.reshape(2, 5)]
)
@on_shared
async def test_keep_of_a_view_hands_all_of_its_buffer_outwards(
    device: Device, view: Callable[[GpuRef], GpuRef]
) -> None:
    async with device.scope():
        async with device.scope() as inner:
            ref = await device.put(np.ones(10))
            inner.keep(view(ref))
        assert not ref.is_stale
    assert ref.is_stale


@on_shared
async def test_a_dropped_ref_does_not_wait_for_the_end(device: Device) -> None:
    used = device.statistics().memory.used
    async with device.scope():
        ref = await device.zeros(1000)
        assert device.statistics().memory.used > used
        del ref
        assert device.statistics().memory.used == used


@on_shared
async def test_tasks_started_inside_belong_to_the_scope(device: Device) -> None:
    made: list[GpuRef] = []

    async def make() -> None:
        made.append(await device.zeros(3))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make)
        async with device.scope(), trio.open_nursery() as inner:
            inner.start_soon(make)
    outside, inside = sorted(made, key=lambda ref: ref.is_stale)
    assert inside.is_stale
    assert not outside.is_stale


async def test_a_scope_over_a_rebuild() -> None:
    async with opened() as device:
        with pytest.raises(RuntimeError, match="on purpose"):
            async with device.scope():
                plain = await device.zeros(3)
                sealed = await device.put(np.zeros(3), sealed=True)
                await poison(device)
                raise RuntimeError("on purpose")
        assert plain.is_stale
        assert sealed.is_stale
        assert device.statistics().memory.used == 0


async def test_only_buffers_are_kept() -> None:
    async with opened(isolation="thread") as device, device.scope() as scope:
        with pytest.raises(TypeError, match="keep takes a buffer, a GpuRef, not ndarray"):
            scope.keep(np.ones(3))  # type: ignore[type-var]


@pytest.mark.parametrize("what", ["put", "seal", "share"])
@on_shared
async def test_a_scope_that_ends_while_something_is_sealed_inside_frees_no_sealed_memory(
    device: Device, what: str
) -> None:
    """Ends the scope at each step: the sealed memory is whole, and shared with no other buffer."""
    content, other = np.full(64, 7.0), np.full(64, -1.0)

    async def act() -> GpuRef:
        if what == "put":
            return await device.put(content, sealed=True)
        if what == "seal":
            return await device.seal(outside)
        with await device.share(outside) as shared:
            return await device.adopt(shared)

    async def end() -> None:
        scope.close()

    step, more = 1, True
    while more:
        outside = await device.put(content)
        scope = MemoryScope(device.core.memory)
        scope.open()
        more, ref = await interrupted_at(step, act, end)
        if not more:
            scope.close()
        next_one = await device.put(other, sealed=True)
        assert not (what == "seal" and ref.is_stale)  # what was made outside
        if not ref.is_stale:
            assert np.array_equal(await device.get(ref), content)
            assert ref.block.address != next_one.block.address
        del outside, ref, next_one
        step += 1
    assert step > 2
