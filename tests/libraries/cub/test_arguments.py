"""Refusals of ``device.cub``, and operators in Python: their meaning and their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import Device, GpuRefSealed, GpuRefStale, Unsupported, open_device
from atomr_accel.libraries.cub._python import translate
from atomr_accel.testing._faults import poison

from ...harness import AT_ONCE, ON_CUDA, cpu_only, on_shared
from ..conformance import MARKS, dtype_of
from ..refusals import refuses

pytestmark = MARKS

F: Final = np.arange(6, dtype=np.float32)
I: Final = np.arange(6, dtype=np.int32)  # noqa: E741

test_bad_arguments = refuses(
    "cub",
    [
        (
            'reduce(f4_6, "average")',
            ValueError,
            "op must be one of plus, minus, multiplies, divides, minimum, maximum,",
        ),
        (
            'reduce(f4_6, "minus")',
            ValueError,
            r"op must be associative, one of \('plus', 'multiplies', 'minimum',",
        ),
        ('reduce(f4_6, "bit_and")', TypeError, "'bit_and' takes no float32"),
        ('reduce(c8_6, "minimum")', TypeError, "'minimum' takes no complex64"),
        ("reduce(f4_6, 5)", TypeError, "op must be a name, .*, not int"),
        ("reduce(f4_6, np.add)", TypeError, "op must be a name, .*, not ufunc"),
        ('reduce(f4_6[:0], "minimum")', ValueError, "zero-size array to reduction operation min"),
        ('reduce(f4_6, init="1")', TypeError, "init must be a number"),
        ("reduce(f4_6, init=1j)", TypeError, "init is 1j, which float32 does not hold"),
        ("reduce(i4_6, init=1.5)", TypeError, "init is 1.5, which int32 does not hold"),
        ("reduce(i4_6, init=2**31)", OverflowError, "int32 does not hold"),
        ("reduce(f4_6, init=1e+300)", OverflowError, "1e.300, which float32 does not hold"),
        ('reduce(c8_6, dtype="float32")', TypeError, "not reduced in float32; cast it first"),
        ('reduce(i4_6, dtype="float16")', TypeError, "not reduced in float16"),
        ("reduce(f4_6, out=f4_6)", ValueError, r"out is float32 of shape \(6,\)"),
        ("reduce([1])", TypeError, "x must be a GpuRef"),
        ("argmin(f4_6[:0])", ValueError, "attempt to get argmin of an empty sequence"),
        ("argmax(c8_6)", TypeError, "x is complex64, which has no order"),
        ('exclusive_scan(f4_6, "maximum")', ValueError, "give init="),
        (
            "segmented_reduce(f4_6, i4_6[:2], i4_6[:3])",
            ValueError,
            "begins and ends must have one dimension and one length, not shapes",
        ),
        ("segmented_reduce(f4_6, f4_6, f4_6)", TypeError, "offsets of segments are int32 or int64"),
        ("segmented_reduce(f4_6, i4_6, i4_6, total)", ValueError, "give init="),
        ("sort(c8_6)", TypeError, "keys is complex64, which has no order"),
        ('sort(f4_6, op="less", descending=True)', ValueError, "no meaning"),
        ("sort(f4_6, descending=1)", TypeError, "descending must be True or False"),
        ("sort_pairs(f4_6, i4_6[:3])", ValueError, "6 keys and 3 values"),
        ("sort_pairs(f4_6, i4_6, out=f4_6)", TypeError, "out must be two buffers"),
        ("lower_bound(f4_6, i4_6)", TypeError, "data is float32 and values int32"),
        ("select(c8_6, lambda a: a)", TypeError, "no order"),
        ("select_flagged(f4_6, f4_6)", TypeError, "flags is float32"),
        ("select_flagged(f4_6, b1_6[:2])", ValueError, "6 elements and 2 flags"),
        ("unique_by_key(f4_6, i4_6[:2])", ValueError, "6 keys and 2 values"),
        ("trim(i4_6[:1], f4_6)", TypeError, "count must be an int64"),
        (
            'binary_transform(f4_6, f4_6[:2], "plus")',
            ValueError,
            r"b must have the shape of a, \(6,\), not \(2,\)",
        ),
        ('binary_transform(f4_6, i4_6, "plus")', TypeError, "cast one first"),
        ('binary_transform(i4_6, i4_6, "divides")', TypeError, "'divides' takes no int32"),
        ('unary_transform(c8_6, "identity", dtype="float32")', TypeError, "not cast"),
        ("histogram_even(f4_6, 0, 0, 1)", ValueError, "bins must be a whole number"),
        ("histogram_even(f4_6, 4, 1, 1)", ValueError, "must be in order"),
        ('histogram_even(f4_6, 4, 0, float("inf"))', ValueError, "must be in order"),
        ("histogram_even(i4_6, 4, 0.5, 2)", TypeError, "lower is 0.5, which int64"),
        ('histogram_even(i4_6, 4, 0, 1, dtype="float32")', TypeError, "counts are int32"),
        ("histogram_even(c8_6, 4, 0, 1)", TypeError, "no order"),
    ],
    batches=True,
    np=np,
    total=lambda a, b: a + b,
)


@on_shared
async def test_buffers_that_cannot_be_written(device: Device) -> None:
    x = await device.put(F)
    sealed = await device.put(F)
    await device.seal(sealed)
    with pytest.raises(GpuRefSealed):
        await device.cub.sort(x, out=sealed)
    with pytest.raises(ValueError, match="shares memory with keys"):
        await device.cub.sort(x, out=x)
    await device.cub.inclusive_scan(x, out=x)
    np.testing.assert_array_equal(await device.get(x), np.cumsum(F))
    freed = await device.put(F)
    await device.free(freed)
    with pytest.raises(GpuRefStale):
        await device.cub.sort(freed)
    await device.free(sealed)


async def test_deterministic_devices_refuse_what_depends_on_time() -> None:
    async with open_device(0, backend="cpu", isolation="thread", deterministic=True) as device:
        x, whole = await device.put(F), await device.put(I)
        cub = device.cub
        options: list[dict[str, Any]] = [{"init": 0}, {"init": 1.5}, {"dtype": "float64"}]
        for each in options:
            with pytest.raises(Unsupported, match="call inclusive_scan by plus or multiplies"):
                await cub.inclusive_scan(x, **each)
        with pytest.raises(Unsupported, match="depends on time"):
            await cub.exclusive_scan(x)
        with pytest.raises(Unsupported, match="depends on time"):
            await cub.exclusive_scan(x, lambda a, b: a + b, init=0)
        with pytest.raises(ValueError, match="deterministic=True"):
            await cub.reduce(x, deterministic=False)
        await cub.inclusive_scan(x, "maximum")
        half = await device.put(F.astype(np.float16))
        for given in (x, half):
            for op, accumulate in (("plus", np.cumsum), ("multiplies", np.cumprod)):
                scanned = await device.get(await cub.inclusive_scan(given, op))
                np.testing.assert_array_equal(scanned, accumulate(await device.get(given)))
        await cub.inclusive_scan(whole)
        assert await device.get(await cub.reduce(x)) == 15


# --- operators --------------------------------------------------------------------------------

SOURCE: Final = "__device__ float f(float a, float b) { return a * b + a + b; }"


@cpu_only
@on_shared
async def test_operators_in_cuda_need_a_function_for_the_cpu(device: Device) -> None:
    x = await device.put(F)
    with pytest.raises(Unsupported, match=r"give one: device\.cub\.operator"):
        await device.cub.reduce(x, device.cub.operator(SOURCE, "f"), init=0)
    operator = device.cub.operator(SOURCE, "f", cpu=lambda a, b: a * b + a + b)
    assert await device.get(await device.cub.reduce(x, operator, init=0)) == 719
    scanned = await device.get(await device.cub.inclusive_scan(x, operator))
    np.testing.assert_array_equal(scanned, [0, 1, 5, 23, 119, 719])
    operator = device.cub.operator(SOURCE, "f", cpu=np.hypot)
    assert await device.get(await device.cub.reduce(x, operator, init=3)) == 8


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1, "f"), TypeError, "as str"),
        ((SOURCE, "f g"), ValueError, "name must be that of a function"),
        ((SOURCE, "missing"), ValueError, "no function named 'missing'"),
        ((SOURCE, "f", 3), TypeError, "cpu must be callable, not int"),
        (
            (SOURCE, "f", np.frompyfunc(max, 2, 1)),
            TypeError,
            "cpu must be a function that can be pickled: Can't pickle <ufunc 'max",
        ),
    ],
)
@on_shared
async def test_bad_operators(
    device: Device, arguments: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        device.cub.operator(*arguments)


LIMIT: Final = 3


def clipped(a: Any) -> Any:
    """Clip with one return and a constant of the module."""
    return min(max(a, -LIMIT), LIMIT)


def odd(a: Any) -> Any:
    return a if not (0 <= a < 3 or a == 100) else abs(a) + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int64"])
@on_shared
async def test_operators_in_python(device: Device, dtype: str) -> None:
    host = np.asarray([-100, -3, -1, 0, 2, 3, 100]).astype(dtype_of(dtype))
    x = await device.put(host)
    got = await device.get(await device.cub.unary_transform(x, clipped))
    np.testing.assert_array_equal(got, np.clip(host, host.dtype.type(-3), host.dtype.type(3)))
    shift = 1
    got = await device.get(await device.cub.unary_transform(x, lambda a: -(a - shift) * a))
    np.testing.assert_array_equal(got, -(host - host.dtype.type(1)) * host)
    got = await device.get(await device.cub.unary_transform(x, odd))
    np.testing.assert_array_equal(got, [odd(each) for each in host])


def several(a: Any) -> Any:
    b = a + 1
    return b  # noqa: RET504 - two statements


def bare(a: Any) -> Any:
    del a


REFUSED: Final[list[tuple[Callable[..., Any], str, str]]] = [
    (lambda a: a**2, "float32", "no part of Python that operators can have"),
    (lambda a: a // 2, "int32", "no part of Python"),
    (lambda a: a / 2, "int32", "division of whole numbers"),
    (lambda a: a + 0.5, "int32", "int32 has no such number"),
    (lambda a: a + 300, "int8", "int8 does not hold"),
    (lambda a: a + 1e400, "float32", "not finite"),
    (lambda a: a and 1, "float32", "a number where a truth is wanted"),
    (lambda a: (a > 1) + 1, "float32", "a truth where a number is wanted"),
    (lambda a: a if a > 1 else a > 2, "float32", "a choice between"),
    (lambda a: np.sqrt(a), "float32", "no part of Python"),
    (lambda a: int(a), "float32", "another function than min, max, abs"),
    (lambda a: min(a), "float32", "wrong number of arguments"),
    (lambda a: a in (1, 2), "float32", "compares by something else"),
    (lambda a, b: a, "float32", "must take 1 plain arguments"),
    (lambda *a: a[0], "float32", "must take 1 plain arguments"),
    (lambda a=1: a, "float32", "must take 1 plain arguments"),
    (several, "float32", "must be one return"),
    (bare, "float32", "must be one return"),
    (abs, "float32", "is a name, what device.cub.operator makes"),
    (eval("lambda a: a"), "float32", "no source that could be read"),
]


@pytest.mark.parametrize(("function", "dtype", "message"), REFUSED)
def test_python_that_means_something_else(
    function: Callable[..., Any], dtype: str, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        translate(function, 1, dtype, "T")


def test_lambdas_of_one_line() -> None:
    two = [(lambda a: a > 1), (lambda a: a > 2)]
    assert "T(0x1.0" in translate(two[0], 1, "float32", "float")
    assert "T(0x1.0000000000000p+1)" in translate(two[1], 1, "float32", "float")


# --- batches, recordings, rebuilds ------------------------------------------------------------


@on_shared
async def test_batches_and_recordings(device: Device) -> None:
    x = await device.put(F[::-1].copy())
    async with device.batch() as batch:
        ordered = batch.cub.sort(x)
        kept, count = batch.cub.select(ordered, lambda a: a > 2)
        total = batch.cub.reduce(kept[:3])
        with pytest.raises(Unsupported, match="cannot be in a batch or a recording"):
            batch.cub.trim(count, kept)
    assert await device.get(total) == 12
    assert await device.get(count) == 3
    async with device.record(x) as recording:
        scanned = recording.cub.inclusive_scan(recording.cub.sort(x))
    await recording.replay()
    np.testing.assert_array_equal(await device.get(scanned), np.cumsum(F))
    await device.fill(x, 1)
    await recording.replay()
    np.testing.assert_array_equal(await device.get(scanned), np.arange(1, 7))


@on_shared
async def test_statistics(device: Device) -> None:
    x = await device.put(F)
    operator = device.cub.operator(SOURCE, "f", cpu=lambda a, b: a)
    before, made = device.cub.statistics(), device.statistics().caches["cub.builds"]
    for _ in range(3):
        await device.cub.reduce(x, operator, init=0)
    after, found = device.cub.statistics(), device.statistics().caches["cub.builds"]
    assert found.misses == made.misses + 1
    assert found.hits >= made.hits + 2
    assert after.builds + after.loaded == before.builds + before.loaded + 1


@cpu_only
async def test_builds_are_there_again_after_a_rebuild() -> None:
    async with open_device(0, backend="cpu", isolation="process", backoff=AT_ONCE) as device:
        total = await device.cub.reduce(await device.put(F))
        assert await device.get(total) == 15
        generation = device.generation
        await poison(device)
        total = await device.cub.reduce(await device.put(F))
        assert await device.get(total) == 15
        assert device.generation == generation + 1


@pytest.mark.skipif(ON_CUDA, reason="what was in the memory stays there")
async def test_what_follows_kept_elements_is_no_number(device: Device) -> None:
    x = await device.put(np.arange(6.0))
    flags = await device.put(np.array([1, 0, 0, 1, 0, 0], bool))
    kept, _ = await device.cub.select_flagged(x, flags)
    values = await device.get(kept)
    assert values[:2].tolist() == [0, 3]
    assert np.isnan(values[2:]).all()
    ones = await device.put(np.ones(4))
    kept, _ = await device.cub.unique(ones)
    assert np.isnan((await device.get(kept))[1:]).all()
