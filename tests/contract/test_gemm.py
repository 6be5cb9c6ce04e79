"""``device.blas.gemm`` against NumPy in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRefSealed
from atomr_accel._dtypes import DTYPES

from ..array_samples import Array
from ..harness import on_shared, same_bits

# Name, and the epsilons of what is stored and of what is summed up in.
PRECISION: Final = {
    "float16": (2.0**-11, 2.0**-24),
    "bfloat16": (2.0**-8, 2.0**-24),
    "float32": (2.0**-24, 2.0**-24),
    "float64": (2.0**-53, 2.0**-53),
}

sides: Final = st.integers(0, 40)
scalars: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [0.0, 1.0, -1.0, 2, 0.5, -3.25, np.float32(1.5), np.int64(2)]
)


@dataclass
class Case:
    """One call: the stored operands, and their use."""

    a: Array
    b: Array
    c: Array
    trans_a: bool
    trans_b: bool
    alpha: float
    beta: float

    def expected(self) -> tuple[Array, Array]:
        """The result in float64, and how far from it the result may be."""
        a, b, c = (x.astype(np.float64) for x in (self.a, self.b, self.c))
        a = a.T if self.trans_a else a
        b = b.T if self.trans_b else b
        kept = np.zeros_like(c) if self.beta == 0 else float(self.beta) * c
        result = float(self.alpha) * (a @ b) + kept
        # The textbook's bound for sums in any order, with some room for scaling.
        stored, summed = PRECISION[self.a.dtype.name]
        terms = abs(float(self.alpha)) * (abs(a) @ abs(b)) + abs(kept)
        error = (a.shape[1] + 8) * summed * terms + 2 * stored * abs(result)
        return result, error + np.finfo(np.float32).tiny

    def check(self, got: Array) -> None:
        """``got`` is the result."""
        result, error = self.expected()
        assert got.dtype == self.c.dtype
        assert got.shape == result.shape
        assert (abs(got.astype(np.float64) - result) <= error).all()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    m, n, k = draw(sides), draw(sides), draw(sides)
    dtype = DTYPES[draw(st.sampled_from(list(PRECISION)))]
    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def random(shape: tuple[int, int]) -> Array:
        return rng.standard_normal(shape).astype(dtype)

    return Case(
        random((k, m) if trans_a else (m, k)),
        random((n, k) if trans_b else (k, n)),
        random((m, n)),
        trans_a,
        trans_b,
        *draw(st.tuples(scalars, scalars)),
    )


@pytest.mark.slow
@settings(max_examples=200)
@given(case=cases(), sealed=st.booleans())
@on_shared
async def test_gemm_is_what_numpy_computes(device: Device, case: Case, sealed: bool) -> None:
    a, b = await device.put(case.a, sealed=sealed), await device.put(case.b)
    out = await device.put(case.c)
    result = await device.blas.gemm(
        a,
        b,
        out=out,
        alpha=case.alpha,
        beta=case.beta,
        trans_a=case.trans_a,
        trans_b=case.trans_b,
    )
    assert result is out
    case.check(await device.get(out))
    assert same_bits(await device.get(a), case.a)
    assert same_bits(await device.get(b), case.b)


@given(case=cases())
@on_shared
async def test_without_out_gemm_makes_its_result(device: Device, case: Case) -> None:
    case.beta = 0.0
    a, b = await device.put(case.a), await device.put(case.b)
    # What lay there before must not show.
    await device.free(await device.put(np.full(case.c.nbytes, 0xFF, np.uint8)))
    result = await device.blas.gemm(
        a, b, alpha=case.alpha, trans_a=case.trans_a, trans_b=case.trans_b
    )
    case.check(await device.get(result))


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf])
@on_shared
async def test_beta_zero_ignores_what_out_holds(device: Device, dtype: str, junk: float) -> None:
    one = await device.put(np.eye(3).astype(DTYPES[dtype]))
    out = await device.full((3, 3), junk, dtype)
    await device.blas.gemm(one, one, out=out, beta=0.0)
    assert np.array_equal((await device.get(out)).astype(float), np.eye(3))


@pytest.mark.parametrize("dtype", PRECISION)
@on_shared
async def test_gemm_keeps_infinities_and_nans_without_a_warning(device: Device, dtype: str) -> None:
    values = np.array([[np.nan, 1], [np.inf, 1]]).astype(DTYPES[dtype])
    ones = await device.put(np.ones((2, 2), DTYPES[dtype]))
    got = await device.get(await device.blas.gemm(await device.put(values), ones))
    assert np.isnan(got[0].astype(float)).all()
    assert np.isposinf(got[1].astype(float)).all()
    huge = await device.full((2, 2), np.finfo(np.float16).max, "float16")
    got = await device.get(await device.blas.gemm(huge, huge))
    assert np.isposinf(got).all()


@pytest.mark.parametrize("alpha", [np.nan, np.inf, -np.inf, 1e300])
@on_shared
async def test_alpha_may_be_any_float(device: Device, alpha: float) -> None:
    a = await device.put(np.eye(2))
    got = await device.get(await device.blas.gemm(a, a, alpha=alpha))
    assert np.array_equal(np.diag(got), [alpha, alpha], equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@on_shared
async def test_products_of_16_bits_are_summed_in_32(device: Device, dtype: str) -> None:
    ones = await device.put(np.ones((1, 8192), DTYPES[dtype]))
    total = await device.get(await device.blas.gemm(ones, ones, trans_b=True))
    assert total.astype(float) == 8192  # a sum in the type itself would stop at 2048 or 256


@on_shared
async def test_float32_is_not_computed_as_tf32(device: Device) -> None:
    fine = np.full((64, 64), 1 + 2.0**-20, np.float32)
    one = await device.put(np.eye(64, dtype=np.float32))
    got = await device.get(await device.blas.gemm(await device.put(fine), one))
    assert np.array_equal(got, fine)


@on_shared
async def test_both_operands_may_be_the_same_buffer(device: Device) -> None:
    values = np.arange(9.0).reshape(3, 3)
    a = await device.put(values)
    assert np.array_equal(await device.get(await device.blas.gemm(a, a)), values @ values)
    got = await device.get(await device.blas.gemm(a, a, trans_b=True))
    assert np.array_equal(got, values @ values.T)


@pytest.mark.parametrize("true", [True, 1, np.bool_(True)], ids=repr)
@on_shared
async def test_trans_is_whatever_is_true(device: Device, true: Any) -> None:
    values = np.arange(6.0).reshape(2, 3)
    a = await device.put(values)
    result = await device.blas.gemm(a, a, trans_a=true)
    assert np.array_equal(await device.get(result), values.T @ values)


@on_shared
async def test_results_feed_the_next_call_without_a_copy_to_the_host(device: Device) -> None:
    values = np.array([[1.0, 1.0], [1.0, 0.0]])
    step = power = await device.put(values)
    for _ in range(30):
        power = await device.blas.gemm(power, step)
    assert (await device.get(power))[0, 0] == 2178309  # Fibonacci


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["x", None, 1j, [1.0], np.zeros(2)], ids=repr)
@on_shared
async def test_scalars_must_be_real_numbers(device: Device, bad: Any) -> None:
    a, out = await device.put(np.eye(2)), await device.put(np.eye(2))
    with pytest.raises(TypeError, match=r"alpha must be (a number|real)"):
        await device.blas.gemm(a, a, alpha=bad)
    with pytest.raises(TypeError, match=r"beta must be (a number|real)"):
        await device.blas.gemm(a, a, out=out, beta=bad)
    # The lane has not heard of it.
    assert np.array_equal(await device.get(await device.blas.gemm(a, a)), np.eye(2))


@on_shared
async def test_gemm_refuses_mismatched_operands_in_the_caller(device: Device) -> None:
    gemm = device.blas.gemm
    a = await device.put(np.zeros((2, 3)))
    b = await device.put(np.zeros((3, 4)))
    submitted = {lane.name: lane.submitted for lane in device.statistics().lanes}
    with pytest.raises(ValueError, match=r"op\(a\) is \(2, 3\).*op\(b\) is \(2, 3\)"):
        await gemm(a, a)
    with pytest.raises(ValueError, match=r"op\(a\) is \(3, 2\).*trans_a=.*\(3, 4\)"):
        await gemm(a, b, trans_a=True)
    with pytest.raises(
        ValueError, match=r"beta must be 0 without out, not 1\.0; pass the out that it scales"
    ):
        await gemm(a, b, beta=1.0)
    with pytest.raises(TypeError, match=r"a must be a GpuRef, not ndarray; .*device\.put"):
        await gemm(np.eye(2), b)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"b must be a GpuRef, not NoneType"):
        await gemm(a, None)  # type: ignore[arg-type]
    assert {lane.name: lane.submitted for lane in device.statistics().lanes} == submitted


@on_shared
async def test_operands_of_other_kinds_are_refused(device: Device) -> None:
    gemm = device.blas.gemm
    vector = await device.put(np.zeros(3))
    matrix = await device.put(np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"a must have at least 2 dimensions, not shape \(3,\)"):
        await gemm(vector, matrix)
    with pytest.raises(ValueError, match=r"b must have at least 2 dimensions, not shape \(3,\)"):
        await gemm(matrix, vector)
    single = await device.put(np.zeros((3, 3), np.float32))
    with pytest.raises(TypeError, match="b must have the dtype of a, float64, not float32"):
        await gemm(matrix, single)
    for dtype in ("int32", "bool", "float8_e4m3fn"):
        other = await device.zeros((3, 3), dtype)
        with pytest.raises(TypeError, match=f"gemm.* {dtype}"):
            await gemm(other, other)


@on_shared
async def test_out_is_checked(device: Device) -> None:
    gemm = device.blas.gemm
    a, b = await device.put(np.zeros((2, 3))), await device.put(np.zeros((3, 4)))
    square = await device.put(np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"out must have shape \(2, 4\), not \(2, 2\)"):
        await gemm(a, b, out=square)
    single = await device.zeros((2, 4), np.float32)
    with pytest.raises(TypeError, match=r"float64.* float32"):
        await gemm(a, b, out=single)
    with pytest.raises(ValueError, match="shares memory with"):
        await gemm(square, square, out=square)
    sealed = await device.put(np.zeros((2, 4)), sealed=True)
    with pytest.raises(GpuRefSealed, match="out is sealed"):
        await gemm(a, b, out=sealed)
    with pytest.raises(TypeError, match="out must be a GpuRef, not ndarray"):
        await gemm(a, b, out=np.zeros((2, 4)))  # type: ignore[arg-type]
