"""Graphs of integers and booleans: exact, or refused where they are made; on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, Unsupported
from atomr_accel.libraries.dnn.wire._element_types import INTEGERS

from ....harness import on_shared
from ...conformance import MARKS, Array, on_cuda

pytestmark = MARKS

COUNT = 6
BINARY: dict[str, Callable[[Array, Any], Array]] = {
    "add": np.add,
    "add_square": lambda a, b: a + b * b,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "sub": np.subtract,
}
COMPARED: dict[str, Callable[[Array, Any], Array]] = {
    "cmp_eq": np.equal,
    "cmp_ge": np.greater_equal,
    "cmp_gt": np.greater,
    "cmp_le": np.less_equal,
    "cmp_lt": np.less,
    "cmp_neq": np.not_equal,
}
UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "identity": np.asarray,
    "neg": np.negative,
}


def numbers(dtype: str) -> st.SearchStrategy[int]:
    limits = np.iinfo(dtype)
    ends = (limits.min, limits.min + 1, 0, 1, 2**24 + 1, limits.max - 1, limits.max)
    inside = [each for each in ends if limits.min <= each <= limits.max]
    return st.sampled_from(inside) | st.integers(limits.min, limits.max)


@st.composite
def expressions(draw: st.DrawFn) -> tuple[str, list[Array], list[tuple[str, Any]]]:
    """A dtype, two arrays of it, and operations: with an array, a number or no other operand."""
    dtype = draw(st.sampled_from(sorted(INTEGERS)))
    values = st.lists(numbers(dtype), min_size=COUNT, max_size=COUNT)
    arrays = [np.array(draw(values), dtype) for _ in range(2)]
    small = numbers(dtype).filter(lambda number: abs(number) <= 2**53)
    step = st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), st.none()),
        st.tuples(st.sampled_from(sorted(BINARY)), st.just("other") | small),
    )
    steps = draw(st.lists(step, min_size=1, max_size=4))
    last = draw(st.none() | st.tuples(st.sampled_from(sorted(COMPARED)), st.just("other") | small))
    return dtype, arrays, [*steps, *([] if last is None else [last])]


@pytest.mark.slow
@settings(max_examples=20 if on_cuda() else 100)
@given(expressions())
@on_shared
async def test_arithmetic_is_exact(
    device: Device, case: tuple[str, list[Array], list[tuple[str, Any]]]
) -> None:
    dtype, (array, other), steps = case
    graph = device.dnn.graph()
    value: Any = graph.tensor((COUNT,), dtype, name="a")
    beside = graph.tensor((COUNT,), dtype, name="b")
    expected = array
    with np.errstate(all="ignore"):
        for op, operand in steps:
            names = ("input0", "input1") if op in ("max", "min") else ("a", "b")
            if op in COMPARED:
                names = ("input", "comparison")
            if operand is None:
                value, expected = graph.node(op, input=value), UNARY[op](expected)
                continue
            right = beside if operand == "other" else operand
            value = graph.node(op, **dict(zip(names, (value, right), strict=True)))
            function = BINARY.get(op) or COMPARED[op]
            expected = function(
                expected, other if operand == "other" else expected.dtype.type(operand)
            )
    plan = await graph.build(value)
    refs = {"a": await device.put(array), "b": await device.put(other)}
    got = await device.get(await plan(**{name: refs[name] for name in plan.inputs}))
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


async def run(device: Device, make: Callable[..., Any], *arrays: Any, dtype: Any = None) -> Array:
    graph = device.dnn.graph()
    tensors = [graph.tensor(each.shape, each.dtype) for each in arrays]
    result = make(graph, *tensors)
    graph.output(result, dtype=dtype)
    plan = await graph.build(result)
    given = zip(plan.inputs, arrays, strict=True)
    made = await plan(**{name: await device.put(array) for name, array in given})
    return await device.get(made)


async def test_integers_beyond_single_precision_are_exact(device: Device) -> None:
    x = np.array([2**24 + 1, 2**24], np.int32)
    np.testing.assert_array_equal(await run(device, lambda _, a: a * a, x), x * x)
    neighbour = x - 1
    equal = await run(device, lambda g, a, b: g.cmp_eq(a, b), x, neighbour)
    assert not equal.any()
    wrapped = await run(device, lambda _, a: a * 200, np.array([200], np.uint8))
    assert (wrapped.dtype, wrapped[0]) == (np.uint8, 200 * 200 % 256)


async def test_integers_go_on_in_floating_point(device: Device) -> None:
    x = np.array([1, -7, 2**24 + 1], np.int32)
    half = await run(device, lambda _, a: a * 0.5, x)
    assert half.dtype == np.float32
    np.testing.assert_array_equal(half, x.astype(np.float32) * np.float32(0.5))
    np.testing.assert_array_equal(
        await run(device, lambda g, a: g.identity(a), x, dtype="float64"), x.astype(float)
    )
    mean = await run(device, lambda g, a: g.reduction(a * 1.0, mode="AVG", axes=(0,)), x[:2])
    np.testing.assert_array_equal(mean, [-3])
    # Both are float32 where they are compared, whatever computes it.
    same = await run(device, lambda g, a, b: g.cmp_eq(a, b), x[2:], np.array([2**24], np.float32))
    assert same.all()


async def test_masks_of_positions(device: Device) -> None:
    scores = np.random.default_rng(3).standard_normal((2, 3, 4, 5)).astype(np.float32)
    lengths = np.array([3, 5], np.int32).reshape(2, 1, 1, 1)

    def causal(graph: Any, x: Any, length: Any) -> Any:
        row, column = graph.gen_index(x, axis=2), graph.gen_index(x, axis=3)
        inside = graph.cmp_ge(row + 1, column)
        inside = graph.logical_and(inside, graph.cmp_lt(column, length))
        return graph.binary_select(x, -1.0, inside)

    got = await run(device, causal, scores, lengths)
    rows, columns = np.arange(4)[:, None], np.arange(5)
    inside = (rows + 1 >= columns) & (columns < lengths)
    np.testing.assert_array_equal(got, np.where(inside, scores, np.float32(-1)))
    index = await run(device, lambda g, x: g.gen_index(x, axis=1), scores)
    np.testing.assert_array_equal(index, np.broadcast_to(np.arange(3)[:, None, None], scores.shape))


async def test_booleans(device: Device) -> None:
    a, b = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    x = np.array([5, 6, 7, 8], np.int32)
    np.testing.assert_array_equal(
        await run(device, lambda g, p, q: g.logical_or(p, q), a, b), a | b
    )
    np.testing.assert_array_equal(await run(device, lambda _, p, q: p * q, x, b), x * b)
    np.testing.assert_array_equal(
        await run(device, lambda g, p, q: g.binary_select(p, q, p), a, b), np.where(a, a, b)
    )
    count = await run(device, lambda g, p: g.reduction(p * 1.0, mode="ADD", axes=(0,)), a)
    np.testing.assert_array_equal(count, [2])


REFUSED: list[tuple[str, Callable[[Any, Any], Any], str]] = [
    ("complex", lambda g, _: g.tensor((2,), "complex64"), "real and imaginary parts"),
    ("fp4", lambda g, _: g.tensor((2,), "float4_e2m1fn"), "no tensors of float4"),
    ("complex number", lambda g, _: g.scalar("s", "complex128"), "no tensors of complex128"),
    ("function", lambda g, t: g.exp(t.i), "exp of int32.*multiply it by 1.0"),
    ("division", lambda _, t: t.i / t.i, "div of int32"),
    ("two kinds", lambda _, t: t.i + t.l, "int32 and int64"),
    ("sum", lambda g, t: g.reduction(t.i, mode="ADD", axes=(0,)), "reduction: input .*int32"),
    ("sum of booleans", lambda g, t: g.reduction(t.b, mode="ADD", axes=(0,)), "by 1.0"),
    ("product", lambda _, t: t.i @ t.i, "matmul: A has dtype int32"),
    ("convolution", lambda g, t: g.conv(t.image, t.image), "conv_fprop: image .*int8"),
    ("of booleans", lambda _, t: t.b * t.b, "mul of booleans; use logical"),
    ("minus", lambda _, t: -t.b, "neg of booleans"),
    (
        "stored",
        lambda g, t: g.output(t.x * 2.0, dtype="int32"),
        "float32 cannot be an output of int32",
    ),
    ("narrow", lambda g, t: g.output(t.i * 2, dtype="int8"), "int32 cannot be an output of int8"),
    ("truth", lambda g, t: g.output(t.x * 2.0, dtype="bool"), "cannot be an output of bool"),
]


class Tensors:
    """Tensors of several dtypes."""

    def __init__(self, graph: Any) -> None:
        self.i = graph.tensor((2, 2), "int32")
        self.l = graph.tensor((2, 2), "int64")
        self.b = graph.tensor((2, 2), "bool")
        self.x = graph.tensor((2, 2), "float32")
        self.image = graph.tensor((1, 1, 1, 1), "int8")


@pytest.mark.parametrize(
    ("make", "message"), [row[1:] for row in REFUSED], ids=[r[0] for r in REFUSED]
)
async def test_refused_graph_is_refused_when_it_is_made(
    device: Device, make: Callable[[Any, Any], Any], message: str
) -> None:
    graph = device.dnn.graph()
    with pytest.raises(Unsupported, match=message):
        make(graph, Tensors(graph))
    assert device.statistics().caches["dnn.plans"].misses == 0


async def test_numbers_fit(device: Device) -> None:
    graph = device.dnn.graph()
    x = graph.tensor((2,), "int8", name="x")
    with pytest.raises(ValueError, match="300, which does not fit int8"):
        x * 300
    wide = graph.tensor((2,), "int64", name="wide")
    with pytest.raises(ValueError, match=r"up to 2\*\*53"):
        wide + (2**53 + 1)
    plan = await graph.build(x + graph.scalar("s", "int8", ndim=1))
    ref = await device.put(np.array([100, -100], np.int8))
    np.testing.assert_array_equal(await device.get(await plan(x=ref, s=100)), [-56, 0])
    with pytest.raises(ValueError, match="s is 128, which does not fit int8"):
        await plan(x=ref, s=128)
    with pytest.raises(TypeError, match=r"s must be an integer, because it is int8, not 0\.5"):
        await plan(x=ref, s=0.5)
