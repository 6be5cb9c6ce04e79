"""Expressions: what refs, operators and NumPy's functions make, and what a device makes of that."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef, GpuRefSealed, GpuRefStale, Unsupported
from atomr_accel.arrays.expressions import Expression, Operand, constant, index

from ...harness import cpu_only, on_shared, same_bits
from ...libraries.array.generated import Leaves

Array = np.ndarray[Any, Any]


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    """Some numbers."""
    rng = np.random.default_rng(sum(shape))
    return (10 * rng.standard_normal(shape)).astype(dtype)


async def both(
    device: Device, function: Callable[..., Any], *arrays: Array
) -> tuple[Array, np.ndarray[Any, Any]]:
    """Return a function's result on the device, and with NumPy."""
    refs = [await device.put(array) for array in arrays]
    found = await device.get(await device.evaluate(function(*refs)))
    with np.errstate(all="ignore"):
        return found, np.asarray(function(*arrays))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "operators": lambda x, y: (x + y) * 2 - x / 3 + x**2 - y % 3 + (-x) // 2 - abs(y),
    "reflected": lambda x, y: 1 - x + 2 / (y + 100) + 2**y * 0.5,
    "comparisons": lambda x, y: (x > y) | (x <= 0) & (y != 1) ^ ~(x == y),
    "ufuncs": lambda x, y: np.maximum(np.exp(-np.abs(x)), np.tanh(y)) + np.hypot(x, y),
    "scipy": lambda x, y: scipy.special.erf(x) * scipy.special.expit(y),
    "where": lambda x, y: np.where(x > 0, x, y),
    "clip": lambda x, y: np.clip(x, -1, 1) + y.clip(0, None),
    "round": lambda x, y: np.round(x, 1) + y.round(),
    "close": lambda x, y: np.isclose(x, y) | np.isclose(x, x, equal_nan=True),
    "dtype": lambda x, y: np.add(x, y, dtype=np.float64) + x.astype(np.int32),
    "divmod": lambda x, y: np.divmod(x, 3)[0] + divmod(y, 2)[1] + np.modf(x)[0] + np.frexp(y)[1],
    "nan_to_num": lambda x, y: np.nan_to_num(x / y, posinf=7.0) + np.sinc(x),
    "softmax": lambda x, y: np.exp(x - x.max(-1, keepdims=True)) + y,
    "moments": lambda x, y: (x - x.mean(0)) / np.sqrt(x.var(0) + 1) + y.std(),
    "axes": lambda x, y: x.T.sum(0) + np.swapaxes(y, 0, 1).max(axis=0) + np.transpose(x).min(0),
    "keepdims": lambda x, y: np.sum(x, axis=(0, 1), keepdims=True) * np.prod(y, axis=1)[:, None],
    "any": lambda x, y: np.any(x > 5, axis=1) & np.all(y < 50, axis=1),
    "arg": lambda x, y: np.argmax(x, axis=1) + y.argmin(axis=1, keepdims=True),
    "norm": lambda x, y: np.linalg.norm(x, axis=1) + np.linalg.norm(y, 1, axis=1),
    "nans": lambda x, y: np.nanmax(x, axis=0) + np.nansum(np.sqrt(y), axis=0),
    "count": lambda x, y: np.count_nonzero(x > 0, axis=0) + np.ptp(y),
    "masked": lambda x, y: np.sum(x, axis=0, where=y > 0) + np.max(y, initial=3, where=x > 0),
    "reduce": lambda x, y: np.add.reduce(x) + np.maximum.reduce(y, axis=0),
    "outer": lambda x, y: np.multiply.outer(x[0], y[0]),
    "new axes": lambda x, y: (x + 1)[:, None, :] * (y + 1)[None],
    "like": lambda x, y: np.zeros_like(x) + np.full_like(y, 3) + np.ones_like(x),
    "squeeze": lambda x, y: np.squeeze(np.expand_dims(x * 2, 0)) + np.broadcast_to(y[0], (4, 6)),
    "moveaxis": lambda x, y: np.moveaxis(x * 1, 0, 1) + np.permute_dims(y, (1, 0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@on_shared
async def test_device_expression_matches_numpy(device: Device, name: str) -> None:
    found, wanted = await both(device, FUNCTIONS[name], numbers(4, 6), numbers(4, 6) + 1)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, -1, np.int64(0)])
@on_shared
async def test_a_number_has_an_axis_where_ufuncs_reduce(device: Device, axis: Any) -> None:
    def functions(x: Any) -> Any:
        sums = np.sum(x, axis=axis, keepdims=True) + np.prod(x, axis=axis) + np.ptp(x, axis=axis)
        counts = np.count_nonzero(x, axis=axis) + np.argmax(x, axis=axis) + np.argmin(x, axis=axis)
        ends = np.max(x, axis=axis, initial=9) + np.minimum.reduce(x, axis=axis)
        return sums + counts + ends + np.any(x, axis=axis) + np.all(x, axis=axis)

    found, wanted = await both(device, functions, np.array(3, np.float32))
    assert (found, found.shape, found.dtype) == (wanted, (), wanted.dtype)


@pytest.mark.parametrize("one", [-200, 300, 1 << 40])
@on_shared
async def test_expression_where_accepts_out_of_bounds_integers_as_numpy(
    device: Device, one: int
) -> None:
    host = np.arange(3, dtype=np.uint8)
    raises = np.lib.NumpyVersion(np.__version__) >= "2.5.0"
    with pytest.raises(OverflowError, match=str(one)) if raises else nullcontext():
        np.where(host > 1, host, one)
    with pytest.raises(OverflowError, match=str(one)) if raises else nullcontext():
        found, wanted = await both(device, lambda x: np.where(x > 1, x, one), host)
        assert (found.tolist(), found.dtype) == (wanted.tolist(), wanted.dtype)


@on_shared
async def test_a_square_of_bool_is_int8(device: Device) -> None:
    host = np.array([True, False])
    x = await device.put(host)
    for exponent in (2, 3, 2.0, True):
        found, wanted = await device.get(await device.evaluate(x**exponent)), host**exponent
        assert (found.tolist(), found.dtype) == (wanted.tolist(), wanted.dtype)


@cpu_only
@on_shared
async def test_complex_numbers_become_real_ones_without_a_warning(device: Device) -> None:
    x = await device.put(np.array([1 + 2j, 3j]))
    for dtype, wanted in (("float32", [1, 0]), ("int8", [1, 0]), ("bool", [True, True])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = await device.evaluate(x.astype(dtype))
        assert (await device.get(found)).tolist() == wanted


NARROW = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
DTYPES = (
    *(np.bool_, np.int8, np.uint8, np.int32, np.int64, np.uint64),
    *(np.float16, np.float32, np.float64, np.complex64, *NARROW),
)
UNARY = (np.negative, np.absolute, np.square, np.sign, np.sqrt, np.exp, np.isnan, np.logical_not)
BINARY = (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.less, np.power, np.equal)


LITERALS = ("2", "0.5", "-1", "2j", "True")


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Array], list[tuple[Any, ...]]]:
    """Arrays that broadcast, and steps that make more of them."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        own = [draw(st.sampled_from([extent, 1])) for extent in shape]
        own = own[draw(st.integers(0, len(own))) :]
        values = draw(st.lists(st.integers(-6, 6), min_size=64, max_size=64))
        dtype = draw(st.sampled_from(DTYPES))
        data = np.array(values[: int(np.prod(own))], np.float64).reshape(own)
        if np.dtype(dtype).kind == "u":
            data = np.abs(data)
        arrays.append(data.astype(dtype))
    steps: list[tuple[Any, ...]] = []
    for at in range(len(arrays), len(arrays) + draw(st.integers(1, 5))):
        given_ = st.integers(0, at - 1)
        step = draw(
            st.one_of(
                st.tuples(st.sampled_from(UNARY), given_),
                st.tuples(st.sampled_from(BINARY), given_, given_),
                st.tuples(st.sampled_from(BINARY), given_, st.sampled_from(LITERALS)),
                st.tuples(st.just(np.where), given_, given_, given_),
            )
        )
        steps.append(step)
    return arrays, steps


def followed(values: list[Any], steps: list[tuple[Any, ...]]) -> list[Any]:
    """Return a program's values, in as far as NumPy computes them."""
    values = list(values)
    for function, *args in steps:
        given_ = [ast.literal_eval(arg) if isinstance(arg, str) else values[arg] for arg in args]
        values.append(function(*given_))
    return values


@pytest.mark.slow
@given(program=programs())
@settings(max_examples=150)
def test_shapes_and_dtypes_are_those_of_numpy(program: tuple[Any, Any]) -> None:
    arrays, steps = program
    leaves = list(map(Leaves().put, arrays))
    wanted: Any
    try:
        with np.errstate(all="ignore"):
            wanted = followed(arrays, steps)
    except (TypeError, OverflowError) as error:
        with pytest.raises(type(error)):
            followed(leaves, steps)
        return
    except ValueError:  # of integers to negative powers, which is a matter of values
        followed(leaves, steps)
        return
    found = followed(leaves, steps)
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == np.shape(other)
        assert one.dtype == np.asarray(other).dtype


@cpu_only
@given(program=programs())
@settings(max_examples=60)
@on_shared
async def test_elements_are_those_of_numpy_to_the_bit(
    device: Device, program: tuple[Any, Any]
) -> None:
    arrays, steps = program
    try:
        with np.errstate(all="ignore"):
            wanted = [np.asarray(each) for each in followed(arrays, steps)]
    except (TypeError, ValueError, OverflowError):
        return
    refs = [await device.put(array) for array in arrays]
    made = followed(refs, steps)[len(arrays) :]
    found = await device.evaluate(made[0], *made)  # one of them twice: always a tuple
    for one, other in zip(found[1:], wanted[len(arrays) :], strict=True):
        assert same_bits(await device.get(one), np.ascontiguousarray(other).reshape(other.shape))


# --- dtypes ---------------------------------------------------------------------------------


@on_shared
async def test_python_numbers_take_the_dtype_of_what_they_meet(device: Device) -> None:
    x = await device.put(numbers(3))
    assert (x * 2.5).dtype == np.float32
    assert (x * np.float64(2.5)).dtype == np.float64
    small = await device.put(np.arange(3, dtype=np.uint8))
    assert (small + 1).dtype == np.uint8
    assert (small / 1).dtype == np.float64
    with pytest.raises(OverflowError, match="300 out of bounds for uint8"):
        _ = small + 300


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
@pytest.mark.parametrize("bound", [-(2**70), -1, 0, 100, 255, 300, 2**70])
@on_shared
async def test_integers_beyond_a_dtype(device: Device, dtype: Any, bound: int) -> None:
    array = np.array([[0], [1], [100]], dtype)

    def compared(x: Any) -> Any:
        y = x[:, 0]
        tests = (x < bound, x <= bound, x > bound, x >= bound, x == bound, x != bound, bound < y)
        return sum(test * 2**at for at, test in enumerate(tests))

    found, wanted = await both(device, compared, array)
    assert np.array_equal(found, wanted)
    functions: list[Callable[[Any], Any]] = [
        lambda x: np.clip(x, bound, None),
        lambda x: x.clip(-1, bound),
    ]
    for function in functions:
        try:
            expected = function(array)
        except OverflowError:
            with pytest.raises(OverflowError):
                function(await device.put(array))
        else:
            found, _ = await both(device, function, array)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@on_shared
async def test_sinc_and_bounds_of_narrow_floats(device: Device, dtype: Any) -> None:
    array = np.array([0, 0.25, 1.5], dtype)
    for bounds in ((-1, 1), (-1.0, None), (None, 1), (array[1], 1), (np.float32(1), 2)):
        found, wanted = await both(device, lambda x, each=bounds: np.clip(x, *each), array)
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
    found, wanted = await both(device, np.sinc, array)
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=0.01)


METHODS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: x.sum(0, initial=3, where=x > 1),
    "prod": lambda x: x.prod(where=x > 1, initial=2),
    "max": lambda x: x.max(axis=1, initial=1, where=x < 2),
    "min": lambda x: x.min(initial=-9),
    "any": lambda x: (x > 2).any(axis=0, where=x < 3),
    "all": lambda x: (x > 2).all(axis=0, where=x < 3),
    "mean": lambda x: x.mean(where=x > 1),
    "var": lambda x: x.var(where=x > 1) + x.std(0, where=x > -99),
    "astype": lambda x: x.astype(np.float64, casting="safe"),
    "clip": lambda x: x.clip(-3, 3).round(1),
}


@pytest.mark.parametrize("name", METHODS)
@on_shared
async def test_methods_take_what_those_of_numpy_take(device: Device, name: str) -> None:
    found, wanted = await both(device, METHODS[name], numbers(4, 6))
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@on_shared
async def test_pythons_round(device: Device) -> None:
    array = numbers(4)
    x = await device.put(array)
    found = await device.evaluate(round(x), round(x, 1))
    assert np.array_equal(await device.get(found[0]), array.round())
    assert np.array_equal(await device.get(found[1]), array.round(1))


@on_shared
async def test_an_expression_where_a_ref_is_taken_is_to_be_evaluated(device: Device) -> None:
    x = await device.put(numbers(3, 3))
    doubled: Any = x * 2
    calls: list[Callable[[], Any]] = [
        *(lambda: device.copy(doubled), lambda: device.seal(doubled)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"evaluate it first: .*await device.evaluate\("):
            await call()


@on_shared
async def test_the_actor_of_arrays_takes_requests_to_evaluate(device: Device) -> None:
    array = numbers(3)
    x = await device.put(array)
    made = await device.array.ref.ask(device.requests.evaluate(x * 2))
    assert np.array_equal(await device.get(made), array * 2)


@on_shared
async def test_sums_of_narrow_floats_are_made_in_float32(device: Device) -> None:
    ones = np.ones(4096, ml_dtypes.bfloat16)
    total = (await device.put(ones)).sum()
    assert total.dtype == ones.dtype
    assert float((await device.get(await device.evaluate(total))).item()) == 4096
    half = np.full(3, 60000, np.float16)
    mean = (await device.put(half)).mean()
    assert (await device.get(await device.evaluate(mean))).item() == half[0]


# --- where results go -------------------------------------------------------------------------


@on_shared
async def test_out_may_be_what_is_read(device: Device) -> None:
    x = numbers(4, 4)
    ref = await device.put(x)
    assert await device.evaluate(ref * 2, out=ref) is ref
    await device.evaluate(ref.T + 1, out=ref)
    assert np.array_equal(await device.get(ref), (x * 2).T + 1)
    await device.evaluate(ref[0] + ref[1], out=ref[2])
    wanted = (x * 2).T + 1
    wanted[2] = wanted[0] + wanted[1]
    assert np.array_equal(await device.get(ref), wanted)


@on_shared
async def test_out_gets_casts_of_the_same_kind(device: Device) -> None:
    x = await device.put(numbers(3))
    out = await device.empty((2, 3), np.float16)
    await device.evaluate(x * 2, out=out)
    with np.errstate(over="ignore"):
        wanted = np.broadcast_to((numbers(3) * 2).astype(np.float16), (2, 3))
    assert np.array_equal(await device.get(out), wanted)
    whole = await device.empty(3, np.int32)
    with pytest.raises(TypeError, match="Cannot cast output from"):
        await device.evaluate(x * 2, out=whole)
    with pytest.raises(ValueError, match="non-broadcastable output operand with shape"):
        await device.evaluate(x * 2, out=await device.empty(4, np.float32))
    sealed = await device.put(numbers(3), sealed=True)
    with pytest.raises(GpuRefSealed):
        await device.evaluate(x * 2, out=sealed)
    with pytest.raises(ValueError, match=r"out\[1\] shares memory with out\[0\]"):
        await device.evaluate(x, x, out=(x, x))


@on_shared
async def test_several_at_once(device: Device) -> None:
    x = await device.put(numbers(4, 6))
    mean, variance = await device.evaluate(x.mean(0), x.var(0))
    np.testing.assert_allclose(await device.get(mean), numbers(4, 6).mean(0), rtol=1e-6)
    np.testing.assert_allclose(await device.get(variance), numbers(4, 6).var(0), rtol=1e-6)


@on_shared
async def test_batches_recordings_and_requests(device: Device) -> None:
    array = numbers(5)
    x = await device.put(array)
    async with device.batch() as batch:
        y = batch.evaluate(x + 1)
        z = batch.evaluate(y * 2)
        w = batch.perform(device.requests.evaluate(z - 1))
    assert np.array_equal(await device.get(w), (array + 1) * 2 - 1)
    async with device.record(x) as recording:
        y = recording.evaluate(np.sqrt(abs(x)))
    for factor in (1, 4):
        await device.evaluate(x * factor, out=x)
        await recording.replay()
        array = (array * factor).astype(np.float32)
        assert np.array_equal(await device.get(y), np.sqrt(abs(array)))


# --- fused functions ----------------------------------------------------------------------------


@on_shared
async def test_a_function_is_called_once_for_arguments_that_are_alike(device: Device) -> None:
    calls = []

    @device.fuse
    def scaled(x: GpuRef, factor: float, *, shift: float = 0) -> tuple[Operand, ...]:
        calls.append(factor)
        return x.T[1:] * factor + shift, x.mean(0)

    for seed in (3, 4):
        array = numbers(seed, 5)[:3]
        ref = await device.put(np.ascontiguousarray(array))
        one, mean = await scaled(ref, 2.0, shift=1.0)
        assert np.array_equal(await device.get(one), array.T[1:] * np.float32(2) + 1)
        np.testing.assert_allclose(await device.get(mean), array.mean(0), rtol=1e-6)
    assert calls == [2.0]
    await scaled(ref, 3.0)
    assert calls == [2.0, 3.0]
    async with device.batch() as batch:
        one, _ = batch.using(scaled)(ref, 3.0)
    assert calls == [2.0, 3.0]
    assert np.array_equal(await device.get(one), array.T[1:] * np.float32(3))


def _three(_x: Any) -> Any:
    return 3


@on_shared
async def test_a_function_that_looks_at_what_refs_hold_is_told(device: Device) -> None:
    fused = device.fuse(lambda x: x if x > 0 else -x)
    with pytest.raises(
        TypeError, match="an Expression cannot be true or false, because its elements are on"
    ):
        await fused(await device.put(numbers(3)))
    with pytest.raises(TypeError, match="has to give an expression"):
        await device.fuse(_three)(await device.put(numbers(3)))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (bool, TypeError, r"np.where\(condition, x, y\)"),
        (float, TypeError, r"float\(await device.get\(ref\)\)"),
        (int, TypeError, r"int\(await device.get\(ref\)\)"),
        (lambda x: range(x), TypeError, "the number is on the device"),
        (lambda x: 1 in x, TypeError, "only the device can tell"),
        (lambda x: list(x + 1), TypeError, "not iterable"),
        (lambda x: x.__iadd__(1), TypeError, r"device.evaluate\(x \+ y, out=x\)"),
        (lambda x: x + np.ones(3), TypeError, r"await device.put\(array\)"),
        (lambda x: np.add(x, [1, 2, 3]), TypeError, r"await device.put\(array\)"),
        (lambda x: x + "a", TypeError, "unsupported operand"),
        (lambda x: np.add(x, 1, out=x), TypeError, "leave out= away"),
        (np.sort, TypeError, "write: await device.array.sort"),
        (np.linalg.inv, TypeError, "write: await device.linalg.inv"),
        (lambda x: np.add.at(x, 0, 1), TypeError, "add.at is no part of expressions"),
        (lambda x: np.subtract(x > 0, x > 0), TypeError, "numpy boolean subtract"),
        (lambda x: np.bitwise_and(x, x), TypeError, "not supported for the input types"),
        (lambda x: x.sum(axis=5), np.exceptions.AxisError, "axis 5 is out of bounds"),
        (lambda x: (x[:0]).max(), ValueError, "zero-size array to reduction operation maximum"),
        (lambda x: np.argmin(x[:0]), ValueError, "attempt to get argmin of an empty sequence"),
        (lambda x: x + x[:2], ValueError, "could not be broadcast together"),
        (lambda x: (x + 1)[0], Unsupported, "evaluate it first"),
        (lambda x: (x + 1).reshape(3, 1), Unsupported, r"evaluate it first: .*\.reshape\("),
        (lambda x: (x + 1).ravel(), Unsupported, "that of the refs that it is made of"),
        (lambda x: (x + 1).view(np.int32), Unsupported, "no view"),
        (lambda x: (x + 1).diagonal(), Unsupported, "no diagonal"),
        (lambda x: (x + 1).flatten(), Unsupported, "no flatten"),
        (lambda x: x.astype(np.int32, casting="safe"), TypeError, "to the rule 'safe'"),
        (lambda x: np.round(x, 400), ValueError, "decimals must be from -308 to 308, not 400"),
        (lambda x: np.round(x > 0, 1), TypeError, "Cannot cast ufunc 'multiply' output"),
        (lambda x: np.maximum(x.astype(np.uint8), -1), OverflowError, "out of bounds for uint8"),
        (lambda x: (x + 1)[:, None, None, :], IndexError, "too many indices"),
        (lambda x: np.where(x > 0), TypeError, r"where\(condition, x, y\)"),
        (lambda x: np.max(x, where=x > 0), ValueError, "specify 'initial'"),
        (lambda x: np.sum(3, where=x > 0), ValueError, "more dimensions than allowed"),
        (lambda x: np.sum(x, where=x), TypeError, "where= takes bools"),
        (lambda x: np.add(x, 1, where=x), TypeError, "where= takes bools"),
        (lambda x: np.mean(x.sum(), axis=0), np.exceptions.AxisError, "axis 0 is out of bounds"),
        (lambda x: np.sum(x.sum(), axis=(0,)), np.exceptions.AxisError, "out of bounds"),
        (lambda x: np.sum(x.sum(), axis=1), np.exceptions.AxisError, "axis 1 is out of bounds"),
        (lambda x: x.argmax(axis=(0,)), TypeError, "cannot be interpreted as an integer"),
        (lambda x: np.broadcast_to(x, (2, 2)), ValueError, "could not be broadcast"),
    ],
)
@on_shared
async def test_expressions_refuse_unsupported_operations(
    device: Device, function: Callable[..., Any], error: type[Exception], match: str
) -> None:
    x = await device.put(numbers(3))
    with pytest.raises(error, match=match):
        function(x)


@on_shared
async def test_refs_of_another_device_and_what_is_no_expression(device: Device) -> None:
    x = await device.put(numbers(3))
    with pytest.raises(TypeError, match="evaluate takes expressions"):
        await device.evaluate(3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="at least one expression"):
        await device.evaluate()  # type: ignore[call-overload]
    expression = x + 1
    await device.free(x)
    with pytest.raises(Exception, match="an operand was freed"):
        await device.evaluate(expression)


# --- the values themselves --------------------------------------------------------------------


@on_shared
async def test_an_expression_is_written_as_a_program_has_it(device: Device) -> None:
    x, y = await device.put(numbers(3)), await device.put(numbers(3))
    text = repr((x * 2 + y).sum(axis=0))
    assert text == "<Expression (a * 2.0 + b).sum(axis=0): float32[]>"
    assert repr(-((x + y) ** 2)) == "<Expression -square(a + b): float32[3]>"
    assert "where(a > 0.0" in repr(np.where(x > 0, x, y))
    deep = x + 0
    for _ in range(300):
        deep = deep + x
    assert "..." in repr(deep)


@on_shared
async def test_shared_subexpression_prints_in_bounded_space(device: Device) -> None:
    x: Any = await device.put(numbers(3))
    shared = x
    for _ in range(200):
        shared = np.where(shared > 0, shared, shared * 2) + shared
    assert len(repr(shared)) < 600


@on_shared
async def test_refs_are_told_apart_as_before(device: Device) -> None:
    x, y = await device.put(numbers(3)), await device.put(numbers(3))
    assert isinstance(x == y, Expression)
    assert len({x, y, x}) == 2
    assert {x: 1}[x] == 1


@on_shared
async def test_expressions_do_not_change(device: Device) -> None:
    expression = await device.put(numbers(3)) + 1
    with pytest.raises(AttributeError, match="make another expression"):
        expression.shape = (4,)
    with pytest.raises(AttributeError):
        del expression.shape
    assert expression.ndim == 1
    assert expression.size == len(expression) == 3


@on_shared
async def test_deep_expressions(device: Device) -> None:
    x = await device.put(np.zeros(4, np.int64))
    deep: Any = x
    for _ in range(3000):
        deep = deep + 1
    assert (await device.get(await device.evaluate(deep))).tolist() == [3000] * 4


@on_shared
async def test_indices_and_constants(device: Device) -> None:
    x = await device.put(numbers(3, 4))
    lower = np.where(index((3, 4), 0) >= index((3, 4), 1), x, constant(0, x.dtype))
    assert np.array_equal(await device.get(await device.evaluate(lower)), np.tril(numbers(3, 4)))


@on_shared
async def test_replaced_ref_is_replaced_in_expressions(device: Device) -> None:
    """Replaced refs may be views, a fused function's closure, or parts."""
    one, other = np.array([1.0, 2, 3]), np.array([10.0, 20, 30])
    x, x2 = await device.put(one), await device.put(other)
    weight, weight2 = await device.put(one + 1), await device.put(other + 1)
    total = await device.zeros(3)

    def scaled(y: GpuRef) -> Expression:
        return y * weight

    fused = device.fuse(scaled)
    async with device.record(x) as recording:
        double = recording.evaluate(x * 2)
        mixed = recording.evaluate(recording.blas.copy(x) + x[::-1] * weight)
        around = recording.using(fused)(x)
        recording.evaluate(total + x, out=total)
    async with device.record(x) as caller:
        caller.call(recording, x)
    for taken, expected in ((x2, other), (x, one)):
        for replaced, factor in ((weight, one + 1), (weight2, other + 1)):
            await device.fill(total, 0)
            await recording.replay(taken, replace={weight: replaced})
            np.testing.assert_array_equal(await device.get(double), expected * 2)
            np.testing.assert_array_equal(
                await device.get(mixed), expected + expected[::-1] * factor
            )
            np.testing.assert_array_equal(await device.get(around), expected * factor)
            np.testing.assert_array_equal(await device.get(total), expected)
        await device.fill(total, 0)
        await caller.replay(taken)
        np.testing.assert_array_equal(await device.get(double), expected * 2)
        np.testing.assert_array_equal(await device.get(total), expected)
    await device.free(x)
    await recording.replay(x2)
    np.testing.assert_array_equal(await device.get(double), other * 2)
    with pytest.raises(GpuRefStale, match="was freed"):
        await recording.replay()


NO_AXES = (0.0, False, np.False_, np.float64(0), "0", (0.0,), (False,))


@pytest.mark.parametrize("axis", NO_AXES, ids=repr)
@on_shared
async def test_an_axis_is_a_whole_number_whatever_was_asked_before(
    device: Device, axis: Any
) -> None:
    for shape in ((), (3,), (2, 3)):
        x = await device.zeros(shape)
        np.sum(x, axis=0)  # whose axis is equal
        for function in (np.sum, np.max, np.argmin, np.mean, np.var, np.nansum, np.any):
            with pytest.raises(TypeError):
                function(x, axis=axis)
    assert np.sum(await device.zeros((2, 3)), axis=np.int8(-1)).shape == (2,)
