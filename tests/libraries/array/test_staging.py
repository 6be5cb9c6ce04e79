"""Ops on views that are not contiguous: copies come before and after them, and nothing between."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device, GpuRef, GpuRefSealed, GpuRefStale
from atomr_accel.memory import NotContiguous
from atomr_accel.testing import poison
from atomr_accel.wire.copies import CopyStrided

from ...harness import ON_CUDA, cancelled_at, on_shared, opened, same_bits


async def filled(device: Device, *shape: int) -> tuple[Any, GpuRef]:
    host = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return host, await device.put(host)


@on_shared
async def test_written_view_is_copied_back(device: Device) -> None:
    host, x = await filled(device, 6, 8)
    column = x[:, 3]
    assert await device.blas.scal(2.0, column) is column
    host[:, 3] *= 2
    assert same_bits(await device.get(x), host)
    # What it only reads is not.
    assert await device.get(await device.blas.nrm2(x[1, ::-1])) == np.linalg.norm(host[1])
    assert same_bits(await device.get(x), host)
    out = x[::2, ::2]
    assert await device.fft.fftshift(x) is not x
    assert await device.blas.gemm(x[1::2, :4], x[:4, 4:8], out=out) is out
    host[::2, ::2] = host[1::2, :4] @ host[:4, 4:8]
    assert same_bits(await device.get(x), host)


@on_shared
async def test_a_call_in_place_stays_one(device: Device) -> None:
    host = (np.arange(48) * (1 - 2j)).reshape(6, 8)
    x = await device.put(host)
    even = x[:, ::2]
    assert await device.fft.fft(even, out=even) is even
    host[:, ::2] = np.fft.fft(host[:, ::2])
    np.testing.assert_allclose(await device.get(x), host, rtol=1e-12)


@on_shared
async def test_in_batches_recordings_and_requests(device: Device) -> None:
    host, x = await filled(device, 6, 8)
    async with device.batch() as batch:
        batch.blas.scal(3.0, x[:, 1])
        norm = batch.blas.nrm2(x.T[1])
        turned = batch.copy(x.T)
        whole = batch.get(x[::-1])
    host[:, 1] *= 3
    assert same_bits(await device.get(turned), host.T)
    assert same_bits(whole.value, host[::-1])
    assert np.isclose(await device.get(norm), np.linalg.norm(host[:, 1]))
    await device.blas.ref.ask(device.requests.blas.scal(2.0, x[2, ::2]))
    host[2, ::2] *= 2
    assert same_bits(await device.get(x), host)
    async with device.batch() as batch:
        batch.perform(device.requests.blas.scal(0.5, x[2, ::2]))
    host[2, ::2] *= 0.5
    assert same_bits(await device.get(x), host)
    async with device.record(x) as recorded:
        recorded.blas.scal(2.0, x[:, 0])
        recorded.fill(x[1, ::3], -1)
        turned = recorded.copy(x.T)
    other = await device.put(host + 1)
    for ref, array in ((x, host.copy()), (other, host + 1)):
        await recorded.replay(ref)
        array[:, 0] *= 2
        array[1, ::3] = -1
        assert same_bits(await device.get(ref), array)
        assert same_bits(await device.get(turned), array.T)


@on_shared
async def test_a_recording_of_a_view_is_replayed_with_views_like_it(device: Device) -> None:
    host, x = await filled(device, 6, 8)
    column = x[:, 1]
    async with device.record(column) as recorded:
        norm = recorded.blas.nrm2(column)
    for other in (column, x[:, 5]):
        await recorded.replay(other)
        expected = np.linalg.norm(host[:, 1 if other is column else 5])
        assert np.isclose(await device.get(norm), expected)
    with pytest.raises(ValueError, match="has not the strides of"):
        await recorded.replay(x[0, :6])


@on_shared
async def test_tasks_that_update_one_view_lose_nothing(device: Device) -> None:
    x = await device.zeros((4, 8), np.float32)
    ones = await device.full(4, 1, np.float32)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(device.blas.axpy, ones, x[:, 5])
    expected = np.zeros((4, 8), np.float32)
    expected[:, 5] = 20
    assert same_bits(await device.get(x), expected)


@on_shared
async def test_cancelled_op_leaves_a_view_unchanged_or_done(device: Device) -> None:
    for step in range(1, 5):
        x = await device.zeros((64, 64), np.float32)
        await cancelled_at(step, partial(device.blas.ger, x[0], x[0], a=x.T))
        ones = await device.full(64, 1, np.float32)
        await cancelled_at(step, partial(device.blas.axpy, ones, x[:, 3]))
        got = await device.get(x)
        assert not got[:, :3].any()
        assert got[:, 3].sum() in (0, 64)


@on_shared
async def test_staging_refuses_views_that_share_memory(device: Device) -> None:
    x = await device.put(np.arange(12, dtype=np.float32))
    with pytest.raises(ValueError, match="x shares memory with y"):
        await device.blas.swap(x[::2], x[:11:2])
    images = await device.zeros((2, 4, 4, 4), np.float32)
    ones = await device.full(4, 1, np.float32)
    running = await device.put(np.ones(8, np.float32))
    with pytest.raises(ValueError, match="both are written"):
        await device.dnn.batch_norm_train(images, running[::2], running[::2], ones, ones)
    # As with NumPy, all reads happen before the first write.
    await device.dnn.relu(x[0:10:2], out=x[2:12:2])
    expected = np.arange(12, dtype=np.float32)
    expected[2:12:2] = [0, 2, 4, 6, 8]
    assert same_bits(await device.get(x), expected)


@on_shared
async def test_staging_refuses_read_only_views(device: Device) -> None:
    one = await device.full(1, 7, np.float32)
    many = one.broadcast_to(8)
    host = await device.get(many)
    assert same_bits(host, np.full(8, 7, np.float32))
    writers: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: device.blas.scal(2.0, many),
        lambda: device.fill(many, 1),
        lambda: device.put(host, out=many),
        lambda: device.copy(one.broadcast_to((2, 4))[0, 0:1].broadcast_to(8), many),
    )
    for write in writers:
        with pytest.raises(ValueError, match=r"is read-only|shares memory"):
            await write()
    sealed = (await device.put(np.zeros((4, 4), np.float32), sealed=True)).T
    writers = (
        lambda: device.blas.scal(2.0, sealed[0]),
        lambda: device.fill(sealed, 1),
        lambda: device.put(np.zeros((4, 4), np.float32), out=sealed),
    )
    for write in writers:
        with pytest.raises((GpuRefSealed, ValueError), match="sealed"):
            await write()
    assert not (await device.get(sealed)).any()


@on_shared
async def test_views_are_freed_and_sealed_with_their_buffer(device: Device) -> None:
    host, x = await filled(device, 4, 6)
    view = x.T[1]
    assert await device.seal(view) is view
    assert x.sealed
    assert same_bits(await device.get(x.T), host.T)
    plain = await device.unseal(x.T)
    assert plain.contiguous
    assert same_bits(await device.get(plain), host.T)
    await device.free(x[:, ::2])
    for gone in (x, view):
        with pytest.raises(GpuRefStale):
            await device.get(gone)
    with pytest.raises(GpuRefStale):
        await device.blas.nrm2(view)


async def test_a_rebuild_and_what_is_left_after_it() -> None:
    async with opened() as device:
        host, x = await filled(device, 4, 6)
        sealed = (await device.put(host, sealed=True)).T
        await device.get(x.T)
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.blas.nrm2(x[:, 1])
        assert same_bits(await device.get(sealed), host.T)
        assert np.isclose(
            await device.get(await device.blas.nrm2(sealed[1])), np.linalg.norm(host[:, 1])
        )
        assert same_bits(await device.salvage(x[::-2, 1:]), host[::-2, 1:])


@on_shared
async def test_exports_and_functions_get_strided_arrays(device: Device) -> None:
    host, x = await filled(device, 4, 6)
    if not ON_CUDA:  # whose memory NumPy does not see
        exported = await device.export(x[::2, ::-1])
        array = np.asarray(exported)
        assert (array.strides, array.flags.writeable) == ((48, -4), True)
        assert same_bits(array, host[::2, ::-1])
        assert same_bits(np.from_dlpack(await device.export(x.T)), host.T)
        assert not np.asarray(await device.export(x[0].broadcast_to((2, 6)))).flags.writeable
        del array, exported
    assert await device.run(total, x[:, 1], x.T) == (float(host[:, 1].sum()), host.T.strides)
    await device.run(double, x[:, ::3])
    host[:, ::3] *= 2
    assert same_bits(await device.get(x), host)
    with await device.share(x.T) as shared:
        assert same_bits(await device.get(await device.adopt(shared)), host.T)


def array_of(x: Any) -> Any:
    if not hasattr(x, "__cuda_array_interface__"):
        return x
    import cupy

    return cupy.asarray(x)


def total(column: Any, turned: Any) -> Any:
    return float(array_of(column).sum()), turned.strides


def double(x: Any) -> None:
    array = array_of(x)
    array *= 2


@on_shared
async def test_a_kernel_gets_contiguous_copies(device: Device) -> None:
    host, x = await filled(device, 4, 6)
    source = """extern "C" __global__ void twice(float* y, const float* x, int n) {
        if (threadIdx.x < n) y[threadIdx.x] = 2 * x[threadIdx.x];
    }"""

    def twice(y: Any, x: Any, n: int) -> None:
        assert x.flags.c_contiguous
        y[:n] = 2 * x[:n]

    kernel = await device.nvrtc.compile(source, "twice", cpu=twice)
    await kernel.launch(1, 32, x[:, 0], x[:, 1], 4)
    host[:, 0] = 2 * host[:, 1]
    assert same_bits(await device.get(x), host)
    generator = device.rng.default_rng(3)
    await generator.random(out=x[:, ::2])
    got = await device.get(x)
    assert same_bits(got[:, 1::2], host[:, 1::2])
    assert (got[:, ::2] < 1).all()
    assert len(np.unique(got[:, ::2])) == 12


@on_shared
async def test_a_block_of_a_view_tells_no_address(device: Device) -> None:
    _, x = await filled(device, 4, 6)
    with pytest.raises(NotContiguous, match="copy it first"):
        _ = x.T.block.address
    assert x.T.addressable_block.address == x.block.address
    assert x[:, 1].addressable_block.address == x.block.address + 4
    with pytest.raises(ValueError, match="ref is not contiguous, and is needed so here"):
        await device.prefetch(x.T)


@on_shared
async def test_a_view_is_no_trace_of_a_buffer_of_its_shape(device: Device) -> None:
    host, x = await filled(device, 5, 5)
    for _ in range(4):
        assert same_bits(await device.get(await device.blas.gemm(x, x)), host @ host)
    for _ in range(4):
        assert same_bits(await device.get(await device.blas.gemm(x.T, x)), host.T @ host)
        assert same_bits(await device.get(await device.dnn.relu(x.T)), host.T)
    for _ in range(3):
        assert same_bits(await device.get(await device.dnn.relu(x)), host)


@on_shared
async def test_one_copy_is_one_op_of_merged_axes(device: Device) -> None:
    _, x = await filled(device, 4, 6, 8)
    square = await device.full((4, 4), 1, np.float32)
    request = device.requests.blas.gemm(x.reshape(24, 8)[:, ::2], square)
    await device.copy(x.T)
    (copy,) = request.prepare(device.core.first_try).before
    message = copy.prepare(device.core.first_try).message
    assert isinstance(message, CopyStrided)
    assert (message.shape, message.source_strides, message.itemsize) == ((96,), (8,), 4)


@on_shared
async def test_copies_from_another_device(device: Device) -> None:
    async with opened() as other:
        host, x = await filled(other, 4, 6)
        assert same_bits(await device.get(await device.copy(x.T)), host.T)
        target = await device.zeros((6, 8), np.float32)
        await device.copy(x.T, target[:, ::2])
        assert same_bits((await device.get(target))[:, ::2], host.T)
        del x


@on_shared
async def test_objects_of_libraries_accept_views(device: Device) -> None:
    rng = np.random.default_rng(5)
    host = rng.uniform(-1, 1, (8, 6)).astype(np.float32)
    x = await device.put(host)
    graph = device.dnn.graph()
    a, b = graph.tensor((8, 3), "float32", name="a"), graph.tensor((8, 3), "float32", name="b")
    summed: Any = graph.node("add", a=a, b=b)
    plan: Any = await graph.build(summed)
    made = await plan(a=x[:, ::2], b=x[:, 1::2])
    assert same_bits(await device.get(made), host[:, ::2] + host[:, 1::2])
    async with device.batch() as batch:
        made = batch.dnn.run(plan, a=x[:, ::2], b=x[:, :3])
    assert same_bits(await device.get(made), host[:, ::2] + host[:, :3])
    # Heads of one matrix, as models split them.
    cache = await device.dnn.kv_cache(4, 16, 2, 8, dtype="float16")
    both = rng.uniform(-1, 1, (1, 5, 3, 2, 8)).astype(np.float16)
    qkv = await device.put(both)
    sequence = cache.new()
    await cache.append([sequence], qkv[:, :, 1], qkv[:, :, 2])
    got = await cache.attend(qkv[:, -1:, 0], [sequence])
    assert cache.length(sequence) == 5
    apart = await device.dnn.kv_cache(4, 16, 2, 8, dtype="float16")
    other = apart.new()
    await apart.append([other], *[await device.put(both[:, :, each].copy()) for each in (1, 2)])
    expected = await apart.attend(await device.put(both[:, -1:, 0].copy()), [other])
    assert same_bits(await device.get(got), await device.get(expected))
    first, second = (device.rng.default_rng(9) for _ in range(2))
    picked = await first.choice(x[:, 0], 5)
    same = await second.choice(await device.copy(x[:, 0]), 5)
    assert same_bits(await device.get(picked), await device.get(same))


@on_shared
async def test_two_views_of_one_buffer_are_written_separately(device: Device) -> None:
    views: list[Callable[[GpuRef], GpuRef]] = [lambda x: x[0], lambda x: x[0, ::-1]]
    for one, other in itertools.permutations(views):
        x = await device.put(np.arange(12.0).reshape(2, 6))
        with pytest.raises(ValueError, match="shares memory"):
            await device.blas.swap(one(x), other(x))
        with pytest.raises(ValueError, match="shares memory"):
            await device.cub.sort_pairs(x[1], x[1], out=(one(x), other(x)))


@on_shared
async def test_products_of_vectors_go_to_any_view(device: Device) -> None:
    rng = np.random.default_rng(0)
    stack, vector = rng.integers(-3, 4, (2, 4, 3)) * 1.0, rng.integers(-3, 4, 4) * 1.0
    a, x = await device.put(stack), await device.put(vector)
    for left, right, exact in (
        (x, a, vector @ stack),
        (a.mT, x, stack.swapaxes(1, 2) @ vector),
    ):
        for at in (np.s_[:, ::2], np.s_[:, ::-2], np.s_[::-1, 1::2]):
            out = (await device.zeros((2, 6)))[at]
            await device.blas.matmul(left, right, out=out)
            np.testing.assert_array_equal(await device.get(out), exact)
