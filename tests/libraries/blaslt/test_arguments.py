"""BLASLt with bad input, its kept plans, and its calls inside a batch."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, GpuRefSealed, Unsupported
from atomr_accel.libraries.blaslt._product import MatmulResults
from atomr_accel.libraries.blaslt.wire._layout import Layout

from ... import seeds
from ...harness import on_shared
from ..conformance import MARKS, Array, dtype_of, on_cuda
from ..refusals import Refusal, refuses

pytestmark = MARKS

CALLS: list[Refusal] = [
    ("matmul(f4_3x5, f4_3x4)", ValueError, r"\(3, [45]\).*\(3, [45]\)"),
    ("matmul(f4_3x5, f8_5x4)", TypeError, "float32 and float64"),
    ("matmul(e5_16x16, e5_16x16)", TypeError, "float8_e5m2"),
    ("matmul(b2_3x8, b2_8x4, dtype='float16')", TypeError, "bfloat16, float32, not float16"),
    (
        "matmul(b2_3x8, b2_8x4, out=f4_3x4, dtype='bfloat16')",
        TypeError,
        "dtype bfloat16, not float32|float32.*bfloat16",
    ),
    ("matmul(f4_3x5, f4_5x4, out=f4_3x5)", ValueError, r"\(3, [45]\).*\(3, [45]\)"),
    ("matmul(f4_3x5, f4_5x4, compute_type='64F')", ValueError, "32F_FAST_16BF"),
    (
        "matmul(f4_3x5, f4_5x4, epilogue='swish')",
        ValueError,
        "epilogue must be one of bias, relu, relu_bias, relu_aux,",
    ),
    (
        "matmul(f4_3x5, f4_5x4, alpha=f4_3)",
        ValueError,
        r"alpha must have shape \(\) or \(4,\), not \(3,\)",
    ),
    ("matmul(f2_3x8, f2_8x4, alpha=f2_4)", TypeError, "alpha must have dtype float32, not float16"),
    (
        "matmul(e4_16x32, e4_16x32, trans_b=True, scale_a=u1_16x1, scale_b=u1_16x2)",
        ValueError,
        r"scale_b must have shape \(16, 1\)",
    ),
    (
        "matmul(e4_16x32, e4_16x32, trans_b=True, scale_a=u1_16x1, scale_b=f4_16x1)",
        TypeError,
        "scale_b must have dtype uint8, not float32",
    ),
    (
        "matmul(e4_16x16, e4_16x16, trans_b=True, scale_a=u1_16x1, scale_b=u1_16x1)",
        ValueError,
        "k must be a multiple of 32, because as many elements share a",
    ),
    (
        "matmul(e4_32x32, e4_32x32, scale_a=u1_32x1, scale_b=u1_32x1)",
        Unsupported,
        "mxfp8|fp8 with block scales is multiplied as",
    ),
    (
        "matmul(f4_3x5, f4_5x4, algorithm=1, autotune=True)",
        ValueError,
        "autotune must be False if algorithm is given, because it looks",
    ),
    ("matmul(f4_3x5, f4_5x4, algorithm=1.5)", TypeError, "algorithm"),
    (
        "matmul(f4_3x5, f4_5x4, epilogue='relu_bias')",
        ValueError,
        "bias must be given, because epilogue 'relu_bias' adds one",
    ),
    (
        "matmul(f4_3x5, f4_5x4, epilogue='relu', bias=f4_4)",
        ValueError,
        "bias must be None, because epilogue 'relu' adds none",
    ),
    (
        "matmul(f4_3x5, f4_5x4, bias=f4_3)",
        ValueError,
        r"bias must have shape \(4,\), because the result has 4 columns, not",
    ),
    (
        "matmul(b2_3x8, b2_8x4, bias=f4_4)",
        TypeError,
        "dtype bfloat16, not float32|float32.*bfloat16",
    ),
    ("matmul(f4_3x5, f4_5x4, epilogue='drelu')", ValueError, "relu_aux"),
    (
        "matmul(f4_3x5, f4_5x4, epilogue='drelu', aux=u1_3x4)",
        ValueError,
        r"aux must have shape \(3, 16\), not \(3, 4\)",
    ),
    (
        "matmul(f4_3x5, f4_5x8, epilogue='dgelu', aux=f8_3x8)",
        TypeError,
        "dtype float32, not float64|float64.*float32",
    ),
    (
        "matmul(f4_3x5, f4_5x4, epilogue='relu', aux=u1_3x16)",
        ValueError,
        "aux must be None, because epilogue 'relu' has none",
    ),
    ("matmul(f8_3x5, f8_5x4, epilogue='gelu')", Unsupported, "float64"),
    ("matmul(f4_3x5, f4_5x4, scale_a=f4_)", ValueError, "fp8.*float32"),
    (
        "matmul(e4_16x16, e4_016x16, trans_b=True, scale_a=f8_)",
        TypeError,
        "dtype float32, not float64|float64.*float32",
    ),
    (
        "matmul(e4_16x16, e4_016x16, trans_b=True, scale_a=f4_16, scale_b=f4_)",
        ValueError,
        r"\(16,\).*\(\)",
    ),
    ("matmul(e4_16x16, e4_016x16, trans_b=True, scale_out=f4_)", ValueError, "bfloat16"),
    ("matmul_extra(e4_16x16, e4_016x16, trans_b=True, amax=True)", ValueError, "amax.*bfloat16"),
    ("matmul(e4_3x24, e4_16x24, trans_b=True)", ValueError, "multiple of 16.*24"),
    ("matmul(e4_16x16, e4_016x16, trans_b=True, out=e4_0016x16, beta=1.0)", ValueError, "fp8"),
    ("matmul(q4_16x32, q4_016x32, trans_b=True)", ValueError, r"scale_a.*\(16, 2\)"),
    ("matmul(q4_32x32, q4_032x32)", Unsupported, "trans_b"),
    ("matmul(i1_4x6, i1_6x4)", ValueError, "multiple of 4.*6"),
    ("matmul(i1_4x4, i1_04x4, alpha=3.0)", ValueError, "0 or 1"),
    (
        "matmul(f4_3x5, f4_5x4, beta=1.0)",
        ValueError,
        r"beta must be 0 without c, not 1\.0: no out either",
    ),
    ("matmul(f4_3x5, f4_5x4, c=f4_3x5, beta=1.0)", ValueError, r"\(3, [45]\).*\(3, [45]\)"),
    ("matmul(f4_5x5, f4_05x5, out=f4_5x5)", ValueError, "out shares memory with a"),
    (
        "matmul(f4_4x4, f4_04x4, bias=f4_4, out=f4_4)",
        ValueError,
        r"out must have shape \(4, 4\), not \(4,\)",
    ),
    ("matmul(f4_2x1x3x5, f4_4x5x3)", Unsupported, r"blas\.matmul"),
    (
        "matmul(f4_3x5, f4_5x4, layout_a=Layout(3, 5, ld=4))",
        ValueError,
        "the leading dimension must be at least 5, the number of columns,",
    ),
    ("matmul(f4_3x5, f4_5x4, layout_a=Layout(3, 5, ld=6))", ValueError, "17.*15"),
    (
        "matmul(f4_3x5, f4_5x4, layout_out=Layout(3, 4))",
        ValueError,
        "layout_out says where in out the result goes",
    ),
    (
        (
            "matmul(f4_2x3x5, f4_2x5x4, out=f4_2x3x4, "
            "layout_out=Layout(3, 4, batch=2, batch_stride=6))"
        ),
        ValueError,
        "overlap",
    ),
    (
        "matmul(f4_3x5, f4_5x4, out=f4_3x4, layout_out=Layout(3, 4, order='col'))",
        ValueError,
        "order 'row'",
    ),
    (
        "matmul(e4_32x32, e4_16x16, trans_b=True, layout_a=Layout(4, 16, offset=8))",
        ValueError,
        "from 8 on",
    ),
    ("matmul([[1.0]], f4_3x5)", TypeError, r"device\.put"),
    ("matmul(f4_5x5, f4_5x5, layout_a=3)", TypeError, "layout_a must be a Layout, not int"),
    ("matmul(f4_5x5, f4_5x5, layout_b=[5, 5])", TypeError, "layout_b must be a Layout, not list"),
    (
        "matmul(f4_5x5, f4_5x5, layout_a=Layout(1, 5, ld=2 ** 70))",
        ValueError,
        "ld must be a whole number of at most 9223372036854775807",
    ),
    (
        "matmul(f4_5x5, f4_5x5, alpha=10 ** 400)",
        ValueError,
        "alpha is an integer that is too large",
    ),
]


test_bad_input_is_refused = refuses("blaslt", CALLS, Layout=Layout)


async def test_a_sealed_output_is_refused(device: Device) -> None:
    a = await device.put(np.ones((16, 16), np.float32))
    sealed = await device.put(np.ones((16, 16), np.float32), sealed=True)
    with pytest.raises(GpuRefSealed):
        await device.blaslt.matmul(a, a, out=sealed)
    await device.blaslt.matmul(a, sealed)


async def test_value_beyond_fp8_becomes_its_largest_number(device: Device) -> None:
    e4m3 = dtype_of("float8_e4m3fn")
    host = np.zeros((16, 16), np.float32)
    host[0], host[1], host[2, 0] = 300, -300, np.nan
    a = await device.put(host.astype(e4m3))
    b = await device.put(np.ones((16, 16), e4m3))
    out = await device.blaslt.matmul(a, b, trans_b=True, dtype="float8_e4m3fn")
    got = (await device.get(out)).astype(np.float32)
    assert (got[0] == 448).all()
    assert (got[1] == -448).all()
    assert np.isnan(got[2]).all()
    assert (got[3:] == 0).all()


async def product_of_the_unit(device: Device, row: list[float], epilogue: str) -> Array:
    """An epilogue of a product of unit matrices, the first of which begins like that."""
    host = np.eye(8, dtype=np.float32)
    host[0, : len(row)] = row
    a, b = await device.put(host), await device.put(np.eye(8, dtype=np.float32))
    if "aux" in epilogue:
        return await device.get((await device.blaslt.matmul_extra(a, b, epilogue=epilogue)).out)
    return await device.get(await device.blaslt.matmul(a, b, epilogue=epilogue))


@pytest.mark.parametrize("epilogue", ["relu", "relu_aux", "gelu", "gelu_aux"])
async def test_activations_of_nan_are_nan(device: Device, epilogue: str) -> None:
    """Unless cuBLASLt's kernel makes 0 of it."""
    got = await product_of_the_unit(device, [np.nan], epilogue)
    missing = np.isnan(got[0])
    assert missing.all() or (on_cuda() and (got[0][~missing] == 0).all())
    assert np.isfinite(got[1:]).all()


@pytest.mark.skipif(on_cuda(), reason="cuBLASLt's kernels decide")
@pytest.mark.parametrize("most", [np.inf, np.finfo(np.float32).max])
async def test_gelu_has_limits(device: Device, most: float) -> None:
    ones = await device.put(np.ones((8, 1), np.float32))
    ends = np.array([[most, -most] * 4], np.float32)
    out, aux, *_ = await device.blaslt.matmul_extra(
        ones, await device.put(ends), epilogue="gelu_aux"
    )
    np.testing.assert_array_equal(await device.get(out), np.tile([most, 0], (8, 4)))
    slope = await device.blaslt.matmul(ones, ones, trans_b=True, epilogue="dgelu", aux=aux)
    np.testing.assert_array_equal(await device.get(slope), np.tile([1, 0], (8, 4)))


async def test_an_algorithm_is_looked_up_once(device: Device) -> None:
    def submitted() -> int:
        lanes = device.statistics().lanes
        return sum(lane.submitted for lane in lanes if lane.name == "blaslt")

    a = await device.put(np.ones((16, 16), np.float32))
    async with device.batch() as batch:  # where the lane has to choose
        batch.blaslt.matmul(a, a)
        batch.blaslt.matmul(a, a, autotune=True)
    assert submitted() == 2
    assert device.statistics().caches["blaslt.algorithms"].entries == 0
    await device.blaslt.matmul(a, a)
    assert submitted() == 4
    for _ in range(3):
        await device.blaslt.matmul(a, a)
    assert submitted() == 7
    await device.blaslt.matmul(a, a, trans_a=True)
    assert submitted() == 9
    await device.blaslt.matmul(a, a, autotune=True)
    assert device.statistics().caches["blaslt.algorithms"].entries == 3
    assert device.blaslt.statistics().tuned == 1


async def test_products_work_in_a_batch(device: Device) -> None:
    rng = seeds.rng()
    hosts = [rng.random((16, 16), dtype=np.float32) for _ in range(2)]
    a, b = [await device.put(host) for host in hosts]
    bias = await device.put(hosts[0][0].copy())
    async with device.batch() as batch:
        c = batch.blaslt.matmul(a, b, bias=bias, epilogue="relu_bias")
        d, aux, *_ = batch.blaslt.matmul_extra(c, b, epilogue="gelu_aux")
    expected = np.maximum(hosts[0] @ hosts[1] + hosts[0][0], 0)
    np.testing.assert_allclose(await device.get(c), expected, 1e-4)
    assert aux is not None
    np.testing.assert_allclose(await device.get(aux), expected @ hosts[1], 1e-3)
    assert d.shape == (16, 16)


async def test_a_bias_may_differ_from_product_to_product(device: Device) -> None:
    rng = seeds.rng()
    host_a, host_b = rng.random((3, 4, 8)), rng.random((3, 8, 8))
    host_bias = rng.random((3, 8)).astype(np.float32)
    a = await device.put(host_a.astype(np.float32))
    b = await device.put(host_b.astype(np.float32))
    bias = await device.put(host_bias)
    got = await device.get(await device.blaslt.matmul(a, b, bias=bias))
    np.testing.assert_allclose(got, host_a @ host_b + host_bias[:, None], 1e-4)
    got = await device.get(await device.blaslt.matmul(a, b[0], bias=bias))
    np.testing.assert_allclose(got, host_a @ host_b[0] + host_bias[:, None], 1e-4)
    one = await device.blaslt.matmul(a[:1], b[0], bias=bias[:1])
    np.testing.assert_allclose(
        await device.get(one), host_a[:1] @ host_b[0] + host_bias[:1, None], 1e-4
    )
    with pytest.raises(
        ValueError, match=r"bias must have shape \(8,\) or \(3, 8\), because the result has 8"
    ):
        await device.blaslt.matmul(a, b[0], bias=bias[:2])
    for product, shape in ((b, (3, 8)), (b[0], (8,))):
        made = await device.blaslt.matmul_extra(a, product, epilogue="bgradb")
        assert made.bias_grad is not None
        assert made.bias_grad.shape == shape


@on_shared
async def test_matmul_extra_returns_a_place_for_each_result(device: Device) -> None:
    x = await device.put(np.ones((8, 8), np.float32))
    e4 = await device.put(np.ones((16, 16), dtype_of("float8_e4m3fn")))
    for _ in range(3):  # the third one is traced
        made = await device.blaslt.matmul_extra(x, x, epilogue="relu_aux")
        assert_type(made, MatmulResults)
        assert [each is None for each in made] == [False, False, True, True]
    narrow = await device.blaslt.matmul_extra(
        e4, e4, trans_b=True, dtype="float8_e4m3fn", amax=True
    )
    assert [each is None for each in narrow] == [False, True, True, False]
    async with device.batch() as batch:
        assert_type(batch.blaslt.matmul(x, x, epilogue="relu_bias", bias=x[0]), GpuRef)
        both = batch.blaslt.matmul_extra(x, x, epilogue="drelu_bgrad", aux=made.aux)
        assert_type(both, MatmulResults)
    assert both.bias_grad is not None
    assert both.bias_grad.shape == (8,)


async def test_matmul_refuses_epilogues_with_more_results(device: Device) -> None:
    x = await device.put(np.ones((8, 8), np.float32))
    lt: Any = device.blaslt
    with pytest.raises(ValueError, match=r"'gelu_aux'.* more; call device\.blaslt\.matmul_extra"):
        await lt.matmul(x, x, epilogue="gelu_aux")
    with pytest.raises(ValueError, match=r"one result; call device\.blaslt\.matmul"):
        await lt.matmul_extra(x, x, epilogue="gelu")
    with pytest.raises(TypeError, match="matmul_extra takes no 'bias_grad'"):
        await lt.matmul_extra(x, x, bias_grad=x)


async def test_algorithms_are_those_of_a_product(device: Device) -> None:
    a = await device.put(np.ones((16, 16), np.float32))
    assert await device.blaslt.algorithms(a, a, alpha=2, beta=1, c=a, amax=False, bias=None)
    asked: Any = device.blaslt.algorithms
    for name, value in (("foo", 1), ("algorithm", 99), ("autotune", True)):
        with pytest.raises(TypeError, match=f"algorithms takes no '{name}'"):
            await asked(a, a, **{name: value})


async def test_a_batch_takes_an_algorithm_that_is_known(device: Device) -> None:
    a = await device.put(np.ones((16, 16), np.float32))
    number = (await device.blaslt.algorithms(a, a, epilogue="relu"))[-1]
    async with device.batch() as batch:
        with pytest.raises(Unsupported, match="call it once before"):
            batch.blaslt.matmul(a, a, algorithm=number)
        with pytest.raises(Unsupported):
            batch.blaslt.algorithms(a, a)
    await device.blaslt.matmul(a, a, algorithm=number)
    async with device.batch() as batch:
        product = batch.blaslt.matmul(a, a, algorithm=number)
    assert (await device.get(product) == 16).all()


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("step", [1, -1])
async def test_tuning_writes_nothing_beside_its_scratch_memory(
    device: Device, lead: tuple[int, ...], step: int
) -> None:
    rng = seeds.rng()
    a, b, c = (
        rng.integers(-3, 4, (*lead, *shape)).astype(np.float32)
        for shape in ((8, 16), (16, 24), (8, 24))
    )
    around = np.full((*lead, 8, 72), 7, np.float32)
    around[..., 24:48] = c
    x, y, whole = [await device.put(array) for array in (a, b, around)]
    # Scratch memory is where something of its size was before, with something else behind it.
    freed = [await device.zeros(c.shape, np.float32) for _ in range(2)]
    beside = [await device.full(around.shape, 7, np.float32) for _ in range(4)]
    for ref in freed:
        await device.free(ref)
    out = whole[..., ::step, 24:48]
    await device.blaslt.matmul(x, y, out=out, beta=2.0, autotune=True)
    around[..., ::step, 24:48] = a @ b + 2 * around[..., ::step, 24:48]
    assert np.array_equal(await device.get(whole), around)
    for ref in beside:
        assert (await device.get(ref) == 7).all()
