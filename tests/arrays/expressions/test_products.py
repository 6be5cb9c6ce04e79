"""Matrix products in expressions are NumPy's, computed by ``device.blas``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.arrays.expressions import sum_of_products
from atomr_accel.ops import CallTemplate

from ...harness import on_shared, opened

Array = np.ndarray[Any, Any]

DTYPES = ("float32", "float64", "complex64", "int8", "int64", "bool", "float16")
SIZES = st.sampled_from((0, 1, 2, 3, 5))


def numbers(shape: tuple[int, ...], dtype: Any) -> Array:
    """Small whole numbers, so that products are exact in every dtype."""
    rng = np.random.default_rng(len(shape) + sum(shape))
    values = rng.integers(0, 3, shape)
    return (values * (1 + 2j) if np.dtype(dtype).kind == "c" else values).astype(dtype)


@st.composite
def factors(draw: st.DrawFn) -> tuple[Array, Array]:
    """Draw operands of ``numpy.matmul``: vectors, matrices, and stacks that broadcast."""
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    leading = draw(st.lists(st.sampled_from((1, 2, 3)), max_size=2))
    shapes = []
    for matrix, vector in (((m, k), (k,)), ((k, n), (k,))):
        stack = tuple(draw(st.sampled_from((1, size))) for size in leading)
        stack = stack[draw(st.integers(0, len(stack))) :]
        shapes.append(draw(st.sampled_from((vector, matrix, (*stack, *matrix)))))
    one, other = (draw(st.sampled_from(DTYPES)) for _ in range(2))
    return numbers(shapes[0], one), numbers(shapes[1], other)


async def check(device: Device, function: Callable[..., Any], *arrays: Array) -> None:
    """Compare a function's result on the device with NumPy's."""
    refs = [await device.put(array) for array in arrays]
    found = await device.get(await device.evaluate(function(*refs)))
    wanted = np.asarray(function(*arrays))
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@settings(max_examples=40)
@given(pair=factors())
@example(pair=(numbers((2, 3), np.int8), numbers((3,), np.bool_)))
@on_shared
async def test_product_matches_numpy(device: Device, pair: tuple[Array, Array]) -> None:
    await check(device, np.matmul, *pair)
    x, y = [await device.put(array) for array in pair]
    if np.result_type(x.dtype, y.dtype).kind in "biu":
        found = await device.get(await device.evaluate(sum_of_products(x * 1, y * 1)))
        np.testing.assert_array_equal(found, np.matmul(pair[0] * 1, pair[1] * 1))


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "operator": lambda x, y: x @ y.T,
    "chain": lambda x, y: x @ y.T @ x @ y.T,
    "between kernels": lambda x, y: np.tanh((x + 1) @ (y * 2).T - 1).sum(axis=0),
    "shared": lambda x, y: (x @ y.T) * (x @ y.T) + (x @ y.T).max(),
    "transposed product": lambda x, y: (x @ y.T).T @ (x + y),
    "views": lambda x, y: x[:, ::2] @ y[::-1, 1::2].T,
    "swapped": lambda x, y: np.swapaxes(x, 0, 1) @ y,
    "new axes": lambda x, y: x[:, None, :] @ np.expand_dims(y, -1),
    "broadcast": lambda x, y: np.broadcast_to(x, (2, 4, 6)) @ y.T,
    "dtype": lambda x, y: np.matmul(x, y.T, dtype=np.float64),
    "mixed dtypes": lambda x, y: x @ y.T.astype(np.float64) + (x > 0) @ (y.T > 0),
    "integers": lambda x, y: x.astype(np.int32) @ y.T.astype(np.int16) + x @ y.T,
    "vectors": lambda x, y: (x[0] @ y[0]) * (x @ y[1]) + y[1] @ x.T,
    "dot": lambda x, y: np.dot(x, y.T) + np.dot(x[0], y[0]) * np.dot(x, y[1]) + np.dot(2, x[0, 0]),
    "dot of stacks": lambda x, y: np.dot(x[None], y.T[None, None]),
    "inner": lambda x, y: np.inner(x, y) + np.inner(x[0], y[0]) + np.inner(x, 2).sum(),
    "vdot": lambda x, y: np.vdot(x, y) + np.vdot(x[0] * 1j, y[0] * 2j),
    "vecdot": lambda x, y: np.vecdot(x, y) + np.vecdot(x > 0, y > 0),
    "linalg": lambda x, y: np.linalg.matmul(x, y.T),
}
if hasattr(np, "matvec"):
    FUNCTIONS["matvec"] = lambda x, y: np.matvec(x, y[0]) + np.vecmat(x[:, 0] * 1j, y).sum()


@pytest.mark.parametrize("name", FUNCTIONS)
@on_shared
async def test_products_combine_with_other_functions(device: Device, name: str) -> None:
    await check(device, FUNCTIONS[name], numbers((4, 6), np.float32), numbers((4, 6), "f4") + 1)


@on_shared
async def test_product_of_bfloat16_keeps_its_dtype(device: Device) -> None:
    x = await device.put(numbers((3, 4), ml_dtypes.bfloat16))
    made = await device.evaluate(x @ x.T)
    assert made.dtype == x.dtype
    assert (x @ x.T.astype(np.float32)).dtype == np.float32
    host = (await device.get(x)).astype(np.float32)
    np.testing.assert_array_equal((await device.get(made)).astype(np.float32), host @ host.T)


@pytest.mark.parametrize("part", [np.s_[:], np.s_[::2], np.s_[:, ::-1]], ids=str)
@on_shared
async def test_product_goes_where_it_is_told(device: Device, part: Any) -> None:
    a, b = numbers((4, 4), np.float32), numbers((4, 4), np.float32) + 1
    x, y = await device.put(a), await device.put(b)
    host = np.zeros((4, 4), np.float32)
    into = await device.put(host)
    out, wanted = into[part], host[part]
    rows = slice(len(wanted))
    assert await device.evaluate(x[rows] @ y, out=out) is out
    wanted[:] = a[rows] @ b
    np.testing.assert_array_equal(await device.get(into), host)
    # Into an operand, and in the dtype and shape of what was given.
    await device.evaluate(x @ y, out=x)
    np.testing.assert_array_equal(await device.get(x), a @ b)
    wide = await device.put(np.zeros((2, 4, 4), np.float64))
    await device.evaluate(y @ y, out=wide)
    np.testing.assert_array_equal(await device.get(wide), np.broadcast_to(b @ b, (2, 4, 4)))


@on_shared
async def test_several_results_may_be_products(device: Device) -> None:
    a, b = numbers((3, 4), np.float32), numbers((3, 4), np.float32) + 1
    x, y = await device.put(a), await device.put(b)
    product = x @ y.T
    made = await device.evaluate(product, product + 1, product, y @ x.T, x)
    for ref, wanted in zip(made, (a @ b.T, a @ b.T + 1, a @ b.T, b @ a.T, a), strict=True):
        np.testing.assert_array_equal(await device.get(ref), wanted)
    assert len({ref.block for ref in made}) == 5
    one, other = await device.evaluate(product, y @ x.T)
    await device.evaluate(product * 0, product * 2, out=(other, one))
    assert not (await device.get(other)).any()
    np.testing.assert_array_equal(await device.get(one), 2 * (a @ b.T))


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_products_are_part_of_batches_recordings_and_calls(isolation: str) -> None:
    async with opened(isolation=isolation) as device:
        a, b = numbers((3, 4), np.float32), numbers((4, 3), np.float32) + 1
        x, y = await device.put(a), await device.put(b)
        async with device.batch() as batch:
            made = batch.evaluate(batch.evaluate(x @ y) @ x + 1)
            sums = batch.cub.reduce(x @ (y + 1))  # type: ignore[arg-type]
        np.testing.assert_array_equal(await device.get(made), a @ b @ a + 1)
        assert await device.get(sums) == (a @ (b + 1)).sum()
        assert await device.get(await device.linalg.norm(x @ y)) == np.float32(
            np.linalg.norm(a @ b)
        )
        fused = device.fuse(lambda x, y: (np.exp(x @ y * 0), x[:, :2] @ y[:2]))
        for _ in range(3):
            one, product = await fused(x, y)
            np.testing.assert_array_equal(await device.get(product), a[:, :2] @ b[:2])
            assert (await device.get(one) == 1).all()
        out = await device.put(np.zeros((3, 3), np.float32))
        async with device.record(x) as recording:
            recording.evaluate((x * 2) @ y, out=out)
        await recording.replay()
        np.testing.assert_array_equal(await device.get(out), 2 * a @ b)
        await recording.replay(await device.put(a + 1))
        np.testing.assert_array_equal(await device.get(out), 2 * (a + 1) @ b)


async def test_product_alone_is_one_op_and_leaves_a_template() -> None:
    async with opened() as device:
        x = await device.put(numbers((4, 4), np.float32))
        for _ in range(4):
            await device.evaluate(x @ x)
        (trace,) = [
            each for each in device.call_templates.known.values() if isinstance(each, CallTemplate)
        ]
        assert [(each.lane, each.name) for each in trace.ops] == [("blas", "array.evaluate")]
        for _ in range(4):
            await device.evaluate((x + 1) @ x - 1)
        traces = [
            each for each in device.call_templates.known.values() if isinstance(each, CallTemplate)
        ]
        assert [each.lane for each in traces[1].ops] == ["array", "blas", "array"]


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (lambda x: x @ x, ValueError, r"x2 must have 3 rows, .* not 2"),
        (lambda x: x[0] @ x[:, 0], ValueError, r"x2 must have 3 rows, .* not 2"),
        (lambda x: x @ 3, ValueError, r"x2 of matmul must have at least one dimension, not none"),
        (lambda x: 3 @ x, ValueError, r"x1 of matmul must .* multiply by a number with \*"),
        (lambda x: np.zeros((2, 3, 2)) @ x, TypeError, r"await device.put\(array\)"),
        (lambda x: x @ np.zeros(3), TypeError, r"await device.put\(array\)"),
        (lambda x: x @ "a", TypeError, "unsupported operand"),
        (lambda x: x.__imatmul__(x), TypeError, r"device.evaluate\(x \+ y, out=x\)"),
        (
            lambda x: x[None].broadcast_to((2, 2, 3)) @ x.T[None].broadcast_to((3, 3, 2)),
            ValueError,
            "could not be broadcast together",
        ),
        (
            lambda x: x.astype(ml_dtypes.float8_e4m3fn) @ x.T.astype(ml_dtypes.float8_e4m3fn),
            TypeError,
            "use device.blaslt.matmul",
        ),
        (
            lambda x: np.vdot(x, x.T),
            ValueError,
            r"must have the shape of a, \(2, 3\), not \(3, 2\)",
        ),
        (lambda x: np.vecdot(x, x.T), ValueError, "vectors of 3 elements, as x1 has, not 2"),
        (lambda x: np.matmul(x, x.T, out=x), TypeError, "leave out= away"),
        (
            lambda x: np.matmul(x, x.T, axes=[(0, 1), (1, 0), (0, 1)]),
            TypeError,
            "matmul of refs takes no axes",
        ),
    ],
)
@on_shared
async def test_products_refuse_unsupported_operands(
    device: Device, function: Callable[..., Any], error: type[Exception], match: str
) -> None:
    x = await device.put(numbers((2, 3), np.float32))
    with pytest.raises(error, match=match):
        function(x)
