"""Managed memory: a view of it on the CPU backend, and what a GPU promises."""

from __future__ import annotations

import errno
import os
from typing import Any, get_args

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device, GpuRefStale, OutOfMemory, Unsupported
from atomr_accel.device.data._managed import Advice, Attachment, Place
from atomr_accel.testing import poison
from atomr_accel.wire import CreateManaged, UnmapSlabs

from ..harness import cpu_only, on_shared, opened, same_bits

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
DTYPES = st.sampled_from([np.dtype(name) for name in ("u1", "i2", "f4", "f8", "c16")])
WORDS = st.tuples(*(st.sampled_from(get_args(kind)) for kind in (Place, Advice, Attachment)))


@cpu_only
@given(shape=SHAPES, dtype=DTYPES, words=WORDS)
@on_shared
async def test_program_and_device_write_the_same_memory(
    device: Device,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    words: tuple[Place, Advice, Attachment],
) -> None:
    ref = await device.managed(shape, dtype)
    view = (await device.export(ref)).numpy()
    assert (view.shape, view.dtype, view.flags.writeable) == (shape, dtype, True)
    view[...] = np.arange(view.size).reshape(shape)
    place, advice, attachment = words
    await device.prefetch(ref, place)
    await device.advise(ref, advice)
    await device.attach(ref, attachment)
    assert same_bits(await device.get(ref), view)
    await device.fill(ref, 7)
    assert (view == 7).all()
    await device.free(ref)
    assert (view == 7).all(), "an array keeps its memory"
    del view
    await device.trim()


@cpu_only
@on_shared
async def test_a_view_needs_a_ref_that_is_valid(device: Device) -> None:
    ref = await device.managed(3)
    export = await device.export(ref)
    await device.free(ref)
    with pytest.raises(GpuRefStale):
        export.numpy()
    with pytest.raises(GpuRefStale):
        await device.prefetch(ref)
    del export
    await device.trim()


@cpu_only
async def test_a_fault_ends_managed_buffers_but_not_their_views() -> None:
    async with opened(max_restarts=9) as device:
        ref = await device.managed(3)
        view = (await device.export(ref)).numpy()
        view[:] = 5
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.get(ref)
        assert (view == 5).all()
        again = await device.managed(3)
        await device.fill(again, 6)
        assert ((await device.export(again)).numpy() == 6).all()


@cpu_only
async def test_only_managed_buffers_take_advice() -> None:
    async with opened(isolation="thread") as device:
        adopted = await device.adopt(np.zeros(64, np.uint8))
        for ref in (await device.zeros(3), adopted):
            with pytest.raises(ValueError, match=r"made by device\.managed"):
                await device.advise(ref, "read_mostly")


@cpu_only
async def test_a_lost_descriptor_is_a_shortage() -> None:
    async with opened(isolation="thread") as device:
        context = device.core.context
        assert context is not None
        request = context.host.request
        unmapped: list[int] = []

        async def loses(message: Any, *args: Any, **more: Any) -> Any:
            """Answer as if no descriptor had had room here."""
            if isinstance(message, UnmapSlabs):
                unmapped.extend(message.ids)
            reply, fd = await request(message, *args, **more)
            if isinstance(message, CreateManaged):
                os.close(fd)
                raise OSError(errno.EMFILE, "too many open files")
            return reply, fd

        context.host.request = loses  # type: ignore[assignment, method-assign]
        with pytest.raises(OutOfMemory, match="no room for 4096 bytes"):
            await device.managed(3)
        assert unmapped, "the host keeps nothing that the program does not know"


@on_shared
async def test_wrong_words_are_refused_in_the_caller(device: Device) -> None:
    ref = await device.zeros(3)
    wrong: Any = "elsewhere"
    with pytest.raises(ValueError, match="to must be one of device, host, not 'elsewhere'"):
        await device.prefetch(ref, wrong)
    with pytest.raises(ValueError, match="advice must be one of read_mostly"):
        await device.advise(ref, wrong)
    with pytest.raises(ValueError, match="to must be one of global, host, single"):
        await device.attach(ref, wrong)
    with pytest.raises(TypeError, match="cannot live in device memory"):
        await device.managed((3,), dtype=object)
    await device.free(ref)


@pytest.mark.gpu
async def test_managed_buffers_are_buffers() -> None:
    async with opened(max_restarts=9) as device:
        array = np.random.default_rng(0).random((300, 400)).astype(np.float32)
        ref = await device.managed(array.shape, np.float32)
        await device.put(array, out=ref)
        for to in ("host", "device"):
            await device.prefetch(ref, to)
            assert same_bits(await device.get(ref), array)
        for advice in get_args(Advice):
            await device.advise(ref, advice)
        for attachment in get_args(Attachment):
            await device.attach(ref, attachment)
        await device.attach(ref, "global")
        product = await device.blas.gemm(ref, ref, trans_b=True)
        assert np.allclose(await device.get(product), array @ array.T, rtol=1e-3)
        for refused in (device.export, device.share):
            with pytest.raises(Unsupported, match="must have a descriptor"):
                await refused(ref)
        with pytest.raises(OutOfMemory, match="are free on the device"):
            await device.managed(1 << 45, np.uint8)
        plain = await device.zeros(3)
        with pytest.raises(ValueError, match=r"made by device\.managed"):
            await device.prefetch(plain)
        used = device.statistics().memory.used
        await device.free(ref)
        assert device.statistics().memory.used < used
        ref = await device.managed(1000, np.uint8)
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.get(ref)
        again = await device.managed(1000, np.uint8)
        await device.fill(again, 3)
        assert (await device.get(again) == 3).all()


@pytest.mark.gpu
async def test_managed_buffers_never_take_more_than_the_card_has() -> None:
    gib = 1 << 30
    async with opened() as device:
        ballast = []
        for nbytes in (8 * gib, gib):
            with pytest.raises(OutOfMemory):
                while True:
                    ballast.append(await device.empty(nbytes, np.uint8))
        await device.free(ballast.pop(0))  # so 8 GiB are free, and less than one more
        await device.trim()
        one = await device.managed(5 * gib, np.uint8)
        with pytest.raises(OutOfMemory, match="are free on the device"):
            await device.managed(5 * gib, np.uint8)
        with pytest.raises(OutOfMemory):
            await device.empty(5 * gib, np.uint8)
        await device.prefetch(one, "host")  # its place stays its own
        for make in (device.managed, device.empty):
            with pytest.raises(OutOfMemory):
                await make(5 * gib, np.uint8)
        await device.prefetch(one, "device")
        del one
        again = await device.managed(5 * gib, np.uint8)  # what was dropped makes room
        await device.fill(again, 7)
        assert (await device.get(again[-1000:]) == 7).all()


@cpu_only
async def test_managed_buffers_never_take_more_than_the_limit() -> None:
    mib = 1 << 20
    async with opened(memory_limit=64 * mib, isolation="thread") as device:
        refs: list[Any] = []
        errors: list[OutOfMemory] = []

        async def make() -> None:
            try:
                refs.append(await device.managed(40 * mib, np.uint8))
            except OutOfMemory as error:
                errors.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(make)
        assert (len(refs), len(errors)) == (1, 2)
        assert "its memory_limit is" in str(errors[0])
        device.core.memory.reserved = 30 * mib  # as by a hot standby
        refs.clear()
        with pytest.raises(OutOfMemory, match="its memory_limit is"):
            await device.managed(40 * mib, np.uint8)
        device.core.memory.reserved = 0
        await device.managed(40 * mib, np.uint8)
