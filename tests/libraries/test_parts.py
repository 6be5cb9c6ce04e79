"""Libraries on views of one buffer: parts that overlap are refused, others are as good as whole."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.arrays import GpuRef
from atomr_accel.memory import MemoryMap
from atomr_accel.memory.map import Slab
from atomr_accel.ops import overlap, require_no_alias

from .. import seeds
from .conformance import MARKS

Call = Callable[[Device, GpuRef, GpuRef, GpuRef], Awaitable[Any]]

pytestmark = MARKS


def square(ref: GpuRef) -> GpuRef:
    return ref[:16].reshape(4, 4)


def wide(ref: GpuRef) -> GpuRef:
    return ref.view("complex64").reshape(4, 4)


CALLS: dict[str, Call] = {
    "gemm": lambda d, x, y, m: d.blas.gemm(square(x), m, out=square(y)),
    "gemm of one matrix, by batches": lambda d, x, y, m: d.blas.gemm(
        square(x).reshape(1, 4, 4), m.reshape(1, 4, 4), out=square(y).reshape(1, 4, 4)
    ),
    "gemm of batches": lambda d, x, y, m: d.blas.matmul(
        x[:16].reshape(4, 2, 2), m.reshape(4, 2, 2), out=y[:16].reshape(4, 2, 2)
    ),
    "gemm in other types": lambda d, x, y, m: d.blas.gemm(
        square(x), m, out=square(y), compute_type="32F_PEDANTIC"
    ),
    "gemm_batched": lambda d, x, y, m: d.blas.gemm_batched([square(x)], [m], out=[square(y)]),
    "blaslt": lambda d, x, y, m: d.blaslt.matmul(square(x), m, out=square(y)),
    "blaslt, what is added": lambda d, x, y, m: d.blaslt.matmul(
        m, m, c=square(x), beta=1.0, out=square(y)
    ),
    "blaslt, the bias": lambda d, x, y, m: d.blaslt.matmul(m, m, bias=x[12:16], out=square(y)),
    "gemv": lambda d, x, y, m: d.blas.gemv(m, x[12:16], out=y[:4]),
    "symv": lambda d, x, y, m: d.blas.symv(m, x[12:16], out=y[:4]),
    "trmv": lambda d, x, y, m: d.blas.trmv(m, x[12:16], out=y[:4]),
    "ger": lambda d, x, y, m: d.blas.ger(x[12:16], m[0], a=square(y)),
    "axpy": lambda d, x, y, m: d.blas.axpy(x[:16], y[:16]),
    "copy": lambda d, x, y, m: d.blas.copy(x[:16], y[:16]),
    "swap": lambda d, x, y, m: d.blas.swap(x[:16], y[:16]),
    "symm": lambda d, x, y, m: d.blas.symm(m, square(x), out=square(y)),
    "syrk": lambda d, x, y, m: d.blas.syrk(square(x), out=square(y)),
    "trmm": lambda d, x, y, m: d.blas.trmm(m, square(x), out=square(y)),
    "geam": lambda d, x, y, m: d.blas.geam(square(x), out=square(y)),
    "dgmm": lambda d, x, y, m: d.blas.dgmm(square(x), m[0], out=square(y)),
    "fft": lambda d, x, y, m: d.fft.fft(wide(x), out=wide(y)),
    "fft of reals": lambda d, x, y, m: d.fft.fft(square(x), out=wide(y)),
    "ifft of reals": lambda d, x, y, m: d.fft.ifft(square(x), axis=0, out=wide(y)),
    "rfft": lambda d, x, y, m: d.fft.rfft(
        x[:16].reshape(2, 8), out=y[:20].view("c8").reshape(2, 5)
    ),
    "irfft": lambda d, x, y, m: d.fft.irfft(
        x[:16].view("c8").reshape(2, 4), out=y[:12].reshape(2, 6)
    ),
}
"""Calls that read x, 32 numbers, and m, a matrix, and write to y, 32 others."""


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 8), st.booleans()),
        max_size=8,
    )
)
def test_lists_of_parts_are_told_apart_as_one_by_one(
    spans: list[tuple[int, int, int, bool]],
) -> None:
    memory = MemoryMap("test:0")
    memory.bump()
    memory.add_slab(Slab(memory.new_slab_id(), 1 << 20, -1, sealed=False))
    buffers = []
    for _ in range(2):
        block = memory.allocate(40)
        assert block is not None
        buffers.append(GpuRef(block, (40,), np.dtype(np.uint8), 40))
    refs = [buffers[which][start : start + size] for which, start, size, _ in spans]
    written = [(f"w{i}", ref) for i, ref in enumerate(refs) if spans[i][3]]
    read = [(f"r{i}", ref) for i, ref in enumerate(refs) if not spans[i][3]]
    bad = any(
        overlap(one, other) and one.size and other.size
        for (_, one), (_, other) in (
            *itertools.combinations(written, 2),
            *itertools.product(written, read),
        )
    )
    with pytest.raises(ValueError, match="shares memory with") if bad else contextlib.nullcontext():
        require_no_alias("it", written, read)


@pytest.mark.parametrize("name", CALLS)
async def test_parts_that_overlap_are_refused(device: Device, name: str) -> None:
    buffer = await device.zeros(64, np.float32)
    m = await device.put(np.eye(4, dtype=np.float32))
    with pytest.raises(ValueError, match="memory"):
        await CALLS[name](device, buffer[:32], buffer[14:46], m)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shift", [0, 2, 4])
async def test_parts_that_do_not_are_as_good_as_whole_buffers(
    device: Device, name: str, shift: int
) -> None:
    rng = seeds.rng()
    host = rng.standard_normal(80, dtype=np.float32)
    matrix = rng.standard_normal((4, 4), dtype=np.float32)
    m = await device.put(matrix)
    buffer = await device.put(host)
    starts = (shift, 32 + shift)
    parts = [buffer[start : start + 32] for start in starts]
    apart = [await device.put(host[start : start + 32]) for start in starts]
    if name == "blaslt, the bias" and shift % 4:
        with pytest.raises(ValueError, match="bias is a view that begins at a multiple of 8"):
            await CALLS[name](device, parts[0], parts[1], m)
        return
    await CALLS[name](device, parts[0], parts[1], m)
    await CALLS[name](device, apart[0], apart[1], m)
    for part, whole in zip(parts, apart, strict=True):
        np.testing.assert_allclose(
            await device.get(part), await device.get(whole), rtol=1e-5, atol=1e-5
        )
    after = await device.get(buffer)
    np.testing.assert_array_equal(after[:shift], host[:shift])
    np.testing.assert_array_equal(after[64 + shift :], host[64 + shift :])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int64"])
@pytest.mark.parametrize("kind", ["philox4_32_10", "xorwow", "sobol32"])
async def test_numbers_are_drawn_into_any_part(device: Device, dtype: str, kind: str) -> None:
    buffer = await device.zeros(100, dtype)
    whole = await device.empty(50, dtype)
    for start in (0, 1, 3):
        results = []
        for out in (buffer[start : start + 50], whole):
            rng = device.rng.default_rng(None if kind == "sobol32" else 7, kind)
            if dtype.startswith("int"):
                await rng.integers(0, 100, out=out)
            else:
                await rng.normal(out=out)
            results.append(await device.get(out))
        np.testing.assert_array_equal(results[0], results[1])
    assert not (await device.get(buffer))[53:].any()


async def test_choices_come_from_any_part(device: Device) -> None:
    for row in (1, 2, 4, 8, 16, 24):
        host = seeds.rng().integers(0, 200, 400).astype(np.uint8)
        buffer = await device.put(host)
        for start in (0, 1, 2, 4, 8):
            part = buffer[start : start + 10 * row].reshape(10, row)
            chosen = await device.get(await device.rng.default_rng(3).choice(part, 5))
            rows = host[start : start + 10 * row].reshape(10, row)
            index = await device.get(await device.rng.default_rng(3).choice(10, 5))
            np.testing.assert_array_equal(chosen, rows[index])


async def test_int8_rows_begin_at_multiples_of_four(device: Device) -> None:
    buffer = await device.zeros(64, np.int8)
    m = await device.zeros((4, 4), np.int8)
    for start, good in ((1, False), (2, False), (4, True)):
        part = buffer[start : start + 16].reshape(4, 4)
        for multiply in (device.blas.gemm, device.blaslt.matmul):
            if good:
                assert not (await device.get(await multiply(part, m))).any()
            else:
                with pytest.raises(ValueError, match=r"begins? at a multiple of"):
                    await multiply(part, m)


async def test_products_of_views_are_planned_apart_from_those_of_whole_buffers(
    device: Device,
) -> None:
    whole = await device.put(np.eye(4, dtype=np.float32))
    part = (await device.zeros(20, np.float32))[1:17].reshape(4, 4)
    before = device.statistics().caches["blaslt.algorithms"].entries
    await device.blaslt.matmul(whole, whole)
    await device.blaslt.matmul(part, whole)
    assert device.statistics().caches["blaslt.algorithms"].entries == before + 2


async def test_a_view_of_other_elements_begins_where_one_could(device: Device) -> None:
    buffer = await device.zeros(40, np.uint8)
    assert buffer[4:12].view(np.float32).shape == (2,)
    with pytest.raises(ValueError, match="no multiple of the 4 bytes"):
        buffer[2:10].view(np.float32)
