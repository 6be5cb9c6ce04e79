"""BLAS and bad input: refused in the caller, with both sides of the mismatch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, GpuRefSealed, GpuRefStale, Unsupported, open_device
from atomr_accel.ops import CacheStatistics

from ... import seeds
from ..conformance import MARKS, on_cuda
from ..refusals import Refusal, refuses

pytestmark = MARKS


CALLS: list[Refusal] = [
    # products
    ("gemm(f4_3x5, f4_3x4)", ValueError, r"\(3, [45]\).*\(3, [45]\)"),
    ("gemm(f4_3x5, f4_3x4, trans_a=True, trans_b=True)", ValueError, r"\(5, 3\).*\(4, 3\)"),
    ("gemm(f4_3x5, f8_5x4)", TypeError, "dtype float32, not float64|float64.*float32"),
    (
        "gemm(i4_3x5, i4_3x5)",
        TypeError,
        "dtypes of gemm must be one of float16, bfloat16, float32,",
    ),
    ("gemm(f4_5, f4_5x4)", ValueError, r"\(5,\)"),
    ("gemm(f4_2x3x5, f4_3x5x4)", ValueError, r"\(2, 3, 5\).*\(3, 5, 4\)"),
    ("gemm(f4_3x5, f4_5x4, out=f4_3x5)", ValueError, r"\(3, [45]\).*\(3, [45]\)"),
    ("gemm(f4_3x5, f4_5x4, out=f8_3x4)", TypeError, "float32.*float64"),
    ("gemm(f4_3x5, f4_5x4, dtype='float64')", TypeError, "float32.*float64"),
    ("gemm(f4_3x5, f4_5x4, beta=1.0)", ValueError, r"beta must be 0 without out, not 1\.0"),
    ("gemm(f4_5x5, f4_5x5, out=f4_5x5)", ValueError, "shares memory"),
    ("gemm(f4_2x5x5, f4_5x5, out=f4_2x5x5)", ValueError, "shares memory with a"),
    ("gemm(f4_3x5, f4_5x4, alpha=1j)", TypeError, "alpha must be real for dtype float32, not 1j"),
    ("gemm(f4_3x5, f4_5x4, alpha=f4_5)", ValueError, r"alpha must have shape \(\), not \(5,\)"),
    ("gemm(f8_3x4, f8_4x3, compute_type='32F')", ValueError, "64F"),
    (
        "gemm(f4_3x5, f4_5x4, compute_type='32F_FAST_TF32')",
        ValueError,
        "compute_type must not be '32F_FAST_TF32'; pass allow_tf32=True",
    ),
    (
        "gemm(f4_3x5, f4_5x4, compute_type='32F', allow_tf32=True)",
        ValueError,
        "compute_type must be None if allow_tf32 is True, not '32F'",
    ),
    ("gemm(f4_3x5, f4_5x4, trans_a='X')", ValueError, "'X'"),
    ("gemm(i1_4x6, i1_6x4)", ValueError, "multiple of 4.*6"),
    ("gemm(i1_4x4, i1_4x4, alpha=2.0)", ValueError, "0 or 1"),
    ("gemm([[1.0]], f4_3x5)", TypeError, r"device\.put"),
    ("matmul(f4_, f4_5)", ValueError, "no dimensions"),
    ("matmul(f4_5, f4_3x5)", ValueError, r"\(1, 5\)"),
    ("gemm_batched([], [])", ValueError, "0 matrices"),
    ("gemm_batched([f4_3x5], [f4_5x4, f4_5x4])", ValueError, "1 matrices a, 2 matrices b"),
    ("gemm_batched([f4_3x5, f4_5x5], [f4_5x4, f4_5x4])", ValueError, "gemm_grouped_batched"),
    (
        "gemm_batched([f4_3x5] * 2, [f4_5x4] * 2, out=[f4_3x4, f4_3x4])",
        ValueError,
        r"out\[1\] shares memory with out\[0\]",
    ),
    (
        "gemm_grouped_batched([i1_4x4], [i1_4x4])",
        TypeError,
        "dtypes of gemm_grouped_batched must be one of float16, bfloat16,",
    ),
    (
        "gemm_grouped(f4_5x5, f4_2x5x5, [2, 2])",
        ValueError,
        "sizes must be 2 numbers with sum 5, one for each matrix of b and",
    ),
    (
        "gemm_grouped(f4_5x5, f4_2x5x5, [5])",
        ValueError,
        "sizes must be 2 numbers with sum 5, one for each matrix of b and",
    ),
    (
        "gemm_grouped(f4_5x5, f4_2x5x5, [6, -1])",
        ValueError,
        r"sizes must be at least 0, not \(6, -1\)",
    ),
    ("gemm_grouped(f4_5x5, f4_2x5x5, [True, 4])", TypeError, "sizes are whole numbers"),
    ("gemm_grouped(f4_5x5, f4_2x5x5, f4_5)", TypeError, "GpuRef: get them first"),
    ("gemm_grouped(f4_3x5, f4_2x4x5, [1, 2])", ValueError, "inner dimensions"),
    ("gemm_grouped(f4_5x5, f4_5x5, [5])", ValueError, "3 dimensions"),
    # level 1
    (
        "axpy(f4_5, f4_4)",
        ValueError,
        r"y must have 5 elements, because x \(shape \(5,\)\) has 5, not 4, in",
    ),
    ("nrm2(f4_3x5)", ValueError, r"1 dimensions.*\(3, 5\)"),
    (
        "dot(i4_4, i4_4)",
        TypeError,
        "dtypes of dot must be one of float16, bfloat16, float32, float64,",
    ),
    ("axpy(f4_5, f8_5)", TypeError, "float64"),
    ("swap(f4_5, f4_5)", ValueError, "shares memory with"),
    ("axpy(f4_5[:3], f4_5[1:4])", ValueError, "shares memory with"),
    ("swap(f4_5[:3], f4_5[2:])", ValueError, "shares memory with"),
    ("scal(2.0, f4_5[:1].broadcast_to((3,)))", ValueError, "x is read-only"),
    ("rot(c8_4, c8_4, 1, 0)", ValueError, "shares memory with"),
    ("rot(c8_4, c8_04, 1j, 0)", TypeError, "c must be real for dtype float32, not 1j"),
    ("scal(1j, f4_5)", TypeError, "1j"),
    ("amax(f4_0)", ValueError, "empty"),
    ("amax(f4_5, out=i4_)", TypeError, "out must have dtype int64, not int32"),
    ("dot(f4_5, f4_5, out=f4_5)", ValueError, r"out must have shape \(\), not \(5,\)"),
    # level 2
    (
        "gemv(f4_3x5, f4_4)",
        ValueError,
        r"x must have 5 elements, because the number of columns of op\(a\) \(a",
    ),
    (
        "gemv(f4_3x5, f4_5, out=f4_4)",
        ValueError,
        r"out must have 3 elements, because the number of rows of op\(a\) \(a",
    ),
    ("gemv(f4_5x5, f4_5, out=f4_5)", ValueError, "shares memory with x"),
    ("symv(f4_3x5, f4_5)", ValueError, r"square.*\(3, 5\)"),
    (
        "hemv(f4_5x5, f4_5)",
        TypeError,
        "dtypes of hemv must be one of complex64, complex128, not float32",
    ),
    (
        "trsv(f4_5x5, f4_4)",
        ValueError,
        r"x must have 5 elements, because the number of rows of a \(shape",
    ),
    ("trsv(f4_5x5, f4_5, unit_diagonal=2)", TypeError, "diag"),
    (
        "gbmv(5, 5, 1, 2, f4_3x5, f4_5)",
        ValueError,
        r"a must have shape \(4, 5\), because there are 1\+2\+1 diagonals of 5,",
    ),
    (
        "ger(f4_3, f4_4, a=f4_3x5)",
        ValueError,
        r"y must have 5 elements, because the number of columns of a \(shape",
    ),
    # level 3
    ("symm(f4_5x5, f4_3x5)", ValueError, r"\(5, 5\).*\(3, 5\)"),
    ("symm(f4_5x5, f4_3x5, side='U')", ValueError, "'U'"),
    ("syr2k(f4_3x5, f4_3x4)", ValueError, r"\(3, [45]\).*\(3, [45]\)"),
    ("syrk(c8_4x4, trans='C')", ValueError, "trans"),
    ("herk(c8_4x4, alpha=1j)", TypeError, "1j"),
    ("geam(f4_3x5, f4_3x4)", ValueError, r"\(3, [45]\).*\(3, [45]\)"),
    ("geam(f4_5x5, trans_a=1, out=f4_5x5)", ValueError, "transposed"),
    (
        "dgmm(f4_3x5, f4_5)",
        ValueError,
        r"x must have 3 elements, because the number of rows of a \(shape",
    ),
    ("trsm(f4_5x5, f4_5x4, out=f4_5x5)", ValueError, r"out must have shape \(5, 4\), not \(5, 5\)"),
    # factorizations
    ("getrf_batched(f4_2x3x5)", ValueError, r"square.*\(2, 3, 5\)"),
    ("getrf_batched(f2_5x5)", TypeError, "float16"),
    ("getrs_batched(f4_5x5, i8_5, f4_5)", TypeError, "piv must have dtype int32, not int64"),
    (
        "getrs_batched(f4_5x5, i4_5, f4_4)",
        ValueError,
        r"b must have shape \(5,\) or \(5, 'nrhs'\) for matrices of shape \(5,",
    ),
    ("gels_batched(f4_3x5, f4_3)", Unsupported, r"\(3, 5\)"),
    # numbers that no message carries
    ("gemm(f4_5x5, f4_5x5, alpha=10 ** 400)", ValueError, "alpha is an integer that is too large"),
    ("gemm(c8_5x5, c8_5x5, alpha=10 ** 400)", ValueError, "alpha is an integer that is too large"),
    ("gemm_batched(f4_5x5, f4_5x5)", TypeError, "a must be a list of GpuRefs.*not GpuRef"),
    ("gemm_batched(3, 3)", TypeError, "a must be a list"),
    ("gemm_grouped_batched([f4_5x5], [f4_5x5], out=f4_3x4)", TypeError, "out must be a list"),
]


test_bad_input_is_refused = refuses("blas", CALLS)


@pytest.mark.parametrize("lower", ["U", 1, None], ids=repr)
async def test_which_triangle_is_told_by_a_flag(device: Device, lower: Any) -> None:
    a = await device.put(np.eye(3, dtype=np.complex64))
    x = await device.put(np.ones(3, np.complex64))
    before = {lane.name: lane.submitted for lane in device.statistics().lanes}
    both = dict.fromkeys(("symm", "hemm", "syr2k", "her2k", "trmm", "trsm"), (a, a))
    one = dict.fromkeys(("syrk", "herk"), (a,))
    vectors = dict.fromkeys(("symv", "hemv", "trmv", "trsv"), (a, x))
    for name, arguments in (both | one | vectors).items():
        with pytest.raises(TypeError, match="lower must be True or False"):
            await getattr(device.blas, name)(*arguments, lower=lower)
    for lane in device.statistics().lanes:
        assert lane.submitted == before.get(lane.name, 0), "something was sent"


async def test_sizes_beyond_the_library_are_refused(device: Device) -> None:
    """The refs pretend to be large; their content is never read."""
    small = await device.put(np.zeros((1, 1), np.float32))
    pivots = await device.put(np.zeros((1,), np.int32))
    many = GpuRef(small.block, (1, 2**31), small.dtype, 2**33)
    for call in (
        device.blas.getrs_batched(small, pivots, many),
        device.blas.gels_batched(small, many),
    ):
        with pytest.raises(
            ValueError, match=r"b must have at most 2\*\*31 - 1 right-hand sides, not 2147483648,"
        ):
            await call
    long = GpuRef(small.block, (2**31, 1, 1), small.dtype, 2**33)
    with pytest.raises(
        ValueError, match=r"a must have at most 2\*\*31 - 1 rows in all, not 2147483648 times"
    ):
        await device.blas.geqrf_batched(long)
    with pytest.raises(
        ValueError, match=r"a and b must make at most 2\*\*31 - 1 products, not 2147483648, in"
    ):
        await device.blaslt.matmul(long, long)


async def test_sealed_and_freed_buffers_are_refused(device: Device) -> None:
    a = await device.put(np.ones((4, 4), np.float32))
    sealed = await device.put(np.ones((4, 4), np.float32), sealed=True)
    with pytest.raises(GpuRefSealed):
        await device.blas.gemm(a, a, out=sealed)
    vector = await device.put(np.ones(4, np.float32), sealed=True)
    with pytest.raises(GpuRefSealed):
        await device.blas.scal(2.0, vector)
    with pytest.raises(GpuRefSealed):
        await device.blas.trsv(sealed, vector, out=vector)
    assert (await device.get(await device.blas.gemv(sealed, vector))).tolist() == [4] * 4
    await device.free(a)
    with pytest.raises(GpuRefStale):
        await device.blas.matmul(a, sealed)


async def test_nans_count_where_they_should(device: Device) -> None:
    a = await device.put(np.full((4, 4), np.nan, np.float32))
    b = await device.put(np.ones((4, 4), np.float32))
    out = await device.put(np.full((4, 4), np.nan, np.float32))
    await device.blas.gemm(b, b, out=out, beta=0.0)
    assert (await device.get(out) == 4).all()
    assert np.isnan(await device.get(await device.blas.gemm(a, b, alpha=1.0))).all()
    vector = await device.put(np.full(4, np.nan, np.float32))
    await device.blas.scal(0.0, vector)
    assert np.isnan(await device.get(vector)).all()
    total = await device.blas.nrm2(vector)
    assert np.isnan(await device.get(total))


async def test_a_singular_matrix_says_where(device: Device) -> None:
    matrices = np.stack([np.eye(3), np.diag([1.0, 0.0, 2.0]), np.zeros((3, 3))])
    lu, piv, info = await device.blas.getrf_batched(await device.put(matrices))
    assert (await device.get(info)).tolist() == [0, 2, 1]
    right = await device.put(np.ones((3, 3)))
    x = await device.get(await device.blas.getrs_batched(lu, piv, right))
    assert np.isfinite(x[0]).all()
    assert not np.isfinite(x[1]).all()
    zero = await device.put(np.diag([1.0, 0.0]))
    one = await device.put(np.ones(2))
    assert not np.isfinite(await device.get(await device.blas.trsv(zero, one))).all()


async def test_norms_do_not_overflow(device: Device) -> None:
    for dtype, large in ((np.float32, 1e30), (np.float64, 1e300)):
        x = await device.put(np.array([3 * large, 4 * large], dtype))
        np.testing.assert_allclose(await device.get(await device.blas.nrm2(x)), 5 * large, 1e-6)


async def test_the_first_of_equal_elements_is_found(device: Device) -> None:
    x = await device.put(np.array([1, -3, 3, 0, 2, 0], np.float64))
    assert await device.get(await device.blas.amax(x)) == 1
    assert await device.get(await device.blas.amin(x)) == 3


async def test_everything_works_in_a_batch(device: Device) -> None:
    rng = seeds.rng()
    host = rng.random((4, 4))
    a = await device.put(host)
    x = await device.put(host[0].copy())
    async with device.batch() as batch:
        y = batch.blas.gemv(a, x)
        total = batch.blas.dot(x, y)
        index = batch.blas.amax(y)
        square = batch.blas.matmul(a, a)
        lu, piv, info = batch.blas.getrf_batched(square)
        solved = batch.blas.getrs_batched(lu, piv, y)
    product = host @ host[0]
    np.testing.assert_allclose(await device.get(total), host[0] @ product)
    assert await device.get(index) == np.argmax(np.abs(product))
    assert await device.get(info) == 0
    np.testing.assert_allclose(host @ host @ await device.get(solved), product, atol=1e-6)


async def test_a_recording_repeats_everything(device: Device) -> None:
    rng = seeds.rng()
    hosts = [rng.random((4, 4)) for _ in range(2)]
    a, b = [await device.put(host) for host in hosts]
    x = await device.put(hosts[0][0].copy())
    async with device.record(a) as recording:
        (square,) = recording.blas.gemm_batched([a], [a])
        twice = recording.blaslt.matmul(square, a)
        lu, piv, _info = recording.blas.getrf_batched(a)
        solved = recording.blas.getrs_batched(lu, piv, twice)
        index = recording.blas.amax(recording.blas.gemv(a, x))
    for host, ref in zip(hosts, (a, b), strict=True):
        await recording.replay(ref)
        np.testing.assert_allclose(await device.get(solved), host @ host, atol=1e-8)
        assert await device.get(index) == np.argmax(np.abs(host @ hosts[0][0]))


async def test_results_go_where_they_are_told(device: Device) -> None:
    x = await device.put(np.arange(4, dtype=np.float32))
    out = await device.empty((), np.float32)
    assert await device.blas.dot(x, x, out=out) is out
    assert await device.get(out) == 14
    index = await device.empty((), np.int64)
    assert await device.blas.amax(x, out=index) is index
    assert await device.get(index) == 3
    a = await device.put(np.eye(4, dtype=np.float32))
    lu, _piv, _info = await device.blas.getrf_batched(a, out=a)
    assert lu is a


async def test_libraries_live_in_a_process_of_their_own_too(device: Device) -> None:
    rng = seeds.rng()
    host = rng.random((8, 8), dtype=np.float32)
    async with open_device(0, backend=device.backend, isolation="process") as apart:
        a = await apart.put(host)
        x = await apart.put(host[0].copy())
        index = await apart.blas.amax(await apart.blas.gemv(a, x))
        square = await apart.blaslt.matmul(a, a, epilogue="relu")
        assert await apart.get(index) == np.argmax(host @ host[0])
        np.testing.assert_allclose(await apart.get(square), host @ host, 1e-4)


async def test_statistics_count_the_call_templates_of_products(device: Device) -> None:
    def blas() -> CacheStatistics:
        return device.statistics().caches["blas.templates"]

    a = await device.put(np.ones((2, 4, 4), np.float32))
    before = blas()
    for _ in range(3):
        await device.blas.matmul(a, a)
        await device.blas.gemm(a[0], a[0])
        await device.blas.gemm(a[0], a[0], compute_type="32F_PEDANTIC")
    found = blas()
    assert found.entries - before.entries == 3
    assert found.misses - before.misses == 3 * 2  # the first call, and the one that makes it
    assert found.hits - before.hits == 3
    assert found.entries < found.limit


@pytest.mark.skipif(on_cuda(), reason="cuBLAS does not look at them")
@pytest.mark.parametrize("routine", ["getrs_batched", "getri_batched"])
@pytest.mark.parametrize("bad", [4, -1, 2**31 - 1, -(2**31)])
async def test_pivots_that_are_no_rows_are_refused(device: Device, routine: str, bad: int) -> None:
    host = np.random.default_rng(3).standard_normal((3, 4, 4))
    lu, piv, _ = await device.blas.getrf_batched(await device.put(host))
    pivots = (await device.get(piv)).copy()
    pivots[1, 2] = bad
    arguments = [lu, await device.put(pivots)]
    b = await device.put(host[..., 0].copy())
    if routine == "getrs_batched":
        arguments.append(b)
    generation = device.generation
    with pytest.raises(ValueError, match=rf"piv\[1, 2\] must be from 0 to 3, not {bad}; 1 of 12"):
        await getattr(device.blas, routine)(*arguments)
    solved = await device.get(await device.blas.getrs_batched(lu, piv, b))
    np.testing.assert_allclose(host @ solved[..., None], host[..., :1], atol=1e-9)
    assert device.generation == generation
