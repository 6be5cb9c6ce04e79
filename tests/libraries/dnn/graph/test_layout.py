"""Channels last gives the results of channels first, also if dimensions have size 1.

Strides of a dimension of size 1 fit both layouts, so code that infers a layout from strides
fails here.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef
from atomr_accel._errors import is_awaitable

from ....harness import on_shared
from ...conformance import MARKS, Array, on_cuda
from ..rows.ops import back

pytestmark = MARKS

EXAMPLES = 15 if on_cuda() else 60  # on a GPU each is plans to be made
LAYOUTS = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}


class Convolution(NamedTuple):
    """Sizes of one: (N, C, ...) with (K, C / groups, ...)."""

    batch: int
    per_group: int
    filters: int
    groups: int
    image: tuple[int, ...]
    taps: tuple[int, ...]
    padding: int
    stride: int
    dilation: int

    @property
    def x(self) -> tuple[int, ...]:
        return (self.batch, self.per_group * self.groups, *self.image)

    @property
    def w(self) -> tuple[int, ...]:
        return (self.filters * self.groups, self.per_group, *self.taps)

    @property
    def y(self) -> tuple[int, ...]:
        spans = [self.dilation * (taps - 1) + 1 for taps in self.taps]
        sizes = [
            (size + 2 * self.padding - span) // self.stride + 1
            for size, span in zip(self.image, spans, strict=True)
        ]
        return (self.batch, self.filters * self.groups, *sizes)

    @property
    def window(self) -> dict[str, int]:
        return {"padding": self.padding, "stride": self.stride, "dilation": self.dilation}


@st.composite
def convolutions(draw: st.DrawFn) -> Convolution:
    few, space = st.sampled_from((1, 1, 2, 3)), draw(st.integers(1, 3))
    taps = tuple(draw(few) for _ in range(space))
    dilation, padding = draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((0, 0, 1)))
    least = [max(1, dilation * (each - 1) + 1 - 2 * padding) for each in taps]
    image = tuple(each + draw(st.sampled_from((0, 0, 1, 3))) for each in least)
    batch, channels, filters, groups = (draw(few) for _ in range(4))
    stride = draw(st.sampled_from((1, 2)))
    sizes = batch, channels, filters, groups
    return Convolution(*sizes, image, taps, padding, stride, dilation)


def random(*shape: int) -> Array:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape)


Call = tuple[str, tuple[Array, ...], "tuple[int, ...] | None"]


def calls_of(conv: Convolution) -> list[Call]:
    """Every call, with its arrays and perhaps a shape, channels first."""
    x, w, y = random(*conv.x), random(*conv.w), random(*conv.y)
    return [
        ("conv", (x, w), None),
        ("conv_input_grad", (y, w), conv.x),
        ("conv_weight_grad", (y, x), conv.w),
        ("conv_transpose", (y, w), None),
    ]


async def eager(dnn: Any, conv: Convolution, call: Call, refs: list[Any], *, last: bool) -> Any:
    name, _, shape = call
    more = () if shape is None else (laid(shape, last=last),)
    layout = LAYOUTS[len(conv.x)][last]
    made = getattr(dnn, name)(*refs, *more, groups=conv.groups, layout=layout, **conv.window)
    return await made if is_awaitable(made) else made


def laid(shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if last else shape


async def put(device: Device, arrays: tuple[Array, ...], *, last: bool) -> list[GpuRef]:
    return [await device.put(np.ascontiguousarray(back(each, last=last))) for each in arrays]


async def same_in_both(
    device: Device, arrays: tuple[Array, ...], run: Callable[..., Awaitable[GpuRef]]
) -> None:
    """``run`` gives the same in both layouts."""
    first, last = [
        await device.get(await run(await put(device, arrays, last=last), last=last))
        for last in (False, True)
    ]
    assert last.shape == laid(first.shape, last=True)
    np.testing.assert_allclose(last, back(first, last=True), rtol=1e-9, atol=1e-9)


GREY = Convolution(2, 1, 3, 1, (4, 5), (1, 1), 0, 1, 1)
GREY_FILTER = Convolution(2, 3, 1, 1, (4, 5), (3, 2), 0, 1, 1)
DEPTHWISE = Convolution(1, 1, 1, 3, (2, 3, 4), (1, 2, 1), 1, 1, 1)


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(convolutions())
@example(GREY)
@example(GREY_FILTER)
@example(DEPTHWISE)
@on_shared
async def test_convolutions(device: Device, conv: Convolution) -> None:
    for call in calls_of(conv):

        async def run(refs: list[Any], *, last: bool, call: Call = call) -> GpuRef:
            made: GpuRef = await eager(device.dnn, conv, call, refs, last=last)
            return made

        try:
            await same_in_both(device, call[1], run)
        except ValueError as error:
            # A transposed convolution may have nothing to give, which it refuses.
            if "the result would have shape" not in str(error):
                raise


@pytest.mark.parametrize("how", ["batch", "record"])
async def test_convolutions_that_are_sent_later(device: Device, how: str) -> None:
    for conv in (GREY, GREY_FILTER, DEPTHWISE):
        for call in calls_of(conv):

            async def run(
                refs: list[Any], *, last: bool, call: Call = call, conv: Convolution = conv
            ) -> GpuRef:
                async with getattr(device, how)() as calls:
                    made: GpuRef = await eager(calls.dnn, conv, call, refs, last=last)
                if how == "record":
                    await calls.replay()
                return made

            await same_in_both(device, call[1], run)


def window_of(conv: Convolution) -> dict[str, tuple[int, ...]]:
    """The window as a node has it."""
    space = len(conv.image)
    return {
        "pre_padding": (conv.padding,) * space,
        "post_padding": (conv.padding,) * space,
        "stride": (conv.stride,) * space,
        "dilation": (conv.dilation,) * space,
    }


def nodes_of(graph: Any, conv: Convolution, *, last: bool) -> tuple[Any, tuple[Array, ...]]:
    """Return a graph with every kind of operation and its inputs, channels first."""
    shift = random(1, conv.y[1], *(1 for _ in conv.image))
    arrays = (random(*conv.x), random(*conv.w), random(*conv.y), shift)
    x, w, grad, b = (
        graph.tensor(each.shape, "float64", name=name, channels_last=last)
        for name, each in zip(("x", "w", "grad", "b"), arrays, strict=True)
    )
    window = window_of(conv)
    y = graph.conv_fprop(x, w, **window)
    graph.output(y)
    graph.output(graph.relu(b + y))
    graph.output(graph.conv_dgrad(grad, w, shape=conv.x, **window) * 2)
    graph.output(graph.conv_wgrad(x, grad, shape=conv.w, **window))
    graph.output(graph.reduction(y, mode="ADD", axes=(0, *range(2, len(conv.x)))))
    graph.output(graph.reduction(y * grad, mode="MAX", axes=(1,)))
    return graph, arrays


@pytest.mark.slow
@settings(max_examples=EXAMPLES)
@given(convolutions())
@example(GREY)
@example(GREY_FILTER)
@example(DEPTHWISE)
@on_shared
async def test_graphs(device: Device, conv: Convolution) -> None:
    results = []
    for last in (False, True):
        graph, arrays = nodes_of(device.dnn.graph(), conv, last=last)
        plan = await graph.build()
        refs = await put(device, arrays, last=last)
        made = await plan(**dict(zip(plan.inputs, refs, strict=True)))
        results.append([await device.get(each) for each in made])
    for first, last in zip(*results, strict=True):
        assert last.shape == laid(first.shape, last=True)
        np.testing.assert_allclose(last, back(first, last=True), rtol=1e-9, atol=1e-9)


@settings(max_examples=EXAMPLES)
@given(
    st.integers(3, 5).flatmap(
        lambda ndim: st.tuples(
            *(st.tuples(*[st.sampled_from((1, 1, 2, 3))] * ndim) for _ in range(2))
        )
    ),
    st.sampled_from(("add", "mul", "sub")),
)
@example(((2, 1, 2, 3), (1, 4, 1, 1)), "add")
@on_shared
async def test_broadcasts(
    device: Device, shapes: tuple[tuple[int, ...], tuple[int, ...]], op: str
) -> None:
    """Broadcast two tensors, neither of which needs the shape of the result."""
    one, other = shapes
    pairs = zip(one, other, strict=True)
    one = tuple(a if b in (a, 1) else 1 for a, b in pairs)
    arrays = random(*one), random(*other) + 2

    async def run(refs: list[Any], *, last: bool) -> GpuRef:
        graph: Any = device.dnn.graph()
        a, b = (graph.tensor(each.shape, "float64", channels_last=last) for each in arrays)
        graph.output(graph.node(op, a=a, b=b))
        made: GpuRef = await (await graph.build())(input0=refs[0], input1=refs[1])
        return made

    await same_in_both(device, arrays, run)


class Chain(NamedTuple):
    """A graph of an image and its steps, with the shapes of other inputs."""

    image: tuple[int, ...]
    steps: tuple[tuple[str, tuple[int, ...]], ...]


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    few = st.sampled_from((1, 1, 2, 3))
    ndim = draw(st.integers(3, 5))
    image = shape = tuple(draw(few) for _ in range(ndim))
    steps: list[tuple[str, tuple[int, ...]]] = []
    for op in draw(
        st.lists(st.sampled_from(("abs", "add", "sub", "conv", "MAX")), min_size=1, max_size=4)
    ):
        other: tuple[int, ...] = ()
        if op in ("add", "sub"):
            other = tuple(1 if draw(st.booleans()) else draw(few) for _ in shape)
            pairs = list(zip(shape, other, strict=True))
            other = tuple(b if a in (b, 1) else 1 for a, b in pairs)
            shape = tuple(map(max, shape, other))
        elif op == "conv":
            other = (draw(few), shape[1], *(draw(st.integers(1, size)) for size in shape[2:]))
            space = (size - taps + 1 for size, taps in zip(shape[2:], other[2:], strict=True))
            shape = (shape[0], other[0], *space)
        elif op == "MAX":
            other = tuple(sorted(draw(st.sets(st.integers(0, ndim - 1), min_size=1))))
            shape = tuple(1 if axis in other else size for axis, size in enumerate(shape))
        steps.append((op, other))
    return Chain(image, tuple(steps))


async def built(device: Device, chain: Chain, *, last: bool) -> tuple[Any, dict[str, Any]]:
    """A plan with all of a chain's results, and buffers for it."""
    graph: Any = device.dnn.graph()
    refs: dict[str, Any] = {}

    async def tensor(shape: tuple[int, ...]) -> Any:
        name = f"t{len(refs)}"
        refs[name] = (await put(device, (random(*shape),), last=last))[0]
        return graph.tensor(shape, "float64", name=name, channels_last=last)

    value = await tensor(chain.image)
    for op, other in chain.steps:
        if op == "abs":
            value = graph.abs(value)
        elif op == "MAX":
            value = graph.reduction(value, mode="MAX", axes=other)
        elif op == "conv":
            value = graph.conv(value, await tensor(other))
        else:
            value = graph.node(op, a=await tensor(other), b=value)
        graph.output(value)
    return await graph.build(), refs


@settings(max_examples=EXAMPLES // 4)
@given(chains())
@on_shared
async def test_random_graphs(device: Device, chain: Chain) -> None:
    """Graphs give the same results in single calls, in a batch and in a recording."""
    results: list[list[Array]] = []
    for last in (False, True):
        plan, refs = await built(device, chain, last=last)
        ways = [await plan(**refs)]
        async with device.batch() as batch:
            ways.append(batch.dnn.run(plan, **refs))
        async with device.record() as recording:
            ways.append(recording.dnn.run(plan, **refs))
        await recording.replay()
        for made in ways:
            each = made if isinstance(made, tuple) else (made,)
            results.append([await device.get(ref) for ref in each])
    for number, made in enumerate(results):
        for first, other in zip(results[0], made, strict=True):
            wanted = back(first, last=number >= len(results) // 2)
            assert other.shape == wanted.shape
            np.testing.assert_allclose(other, wanted, rtol=1e-9, atol=1e-9)


IMAGES = [(1, 1, 1), (2, 1, 3), (2, 1, 2, 3), (1, 3, 1, 1), (2, 3, 1, 2), (1, 1, 2, 1, 3)]


@pytest.mark.parametrize(
    "name", ["max_pool", "avg_pool", "local_response_norm", "instance_norm", "batch_norm"]
)
@pytest.mark.parametrize("shape", IMAGES)
async def test_images(device: Device, name: str, shape: tuple[int, ...]) -> None:
    channels = await device.put(np.full(shape[1], 1.5))

    async def run(refs: list[Any], *, last: bool) -> GpuRef:
        layout = LAYOUTS[len(shape)][last]
        dnn: Any = device.dnn
        if name.endswith("pool"):
            made = await getattr(dnn, name)(refs[0], 1, stride=2, layout=layout)
        elif name == "batch_norm":
            made = await dnn.batch_norm(refs[0], *[channels] * 4, layout=layout)
        elif name == "instance_norm":
            made = await dnn.instance_norm(refs[0], channels, channels, layout=layout)
        else:
            made = await dnn.local_response_norm(refs[0], 3, layout=layout)
        result: GpuRef = made
        return result

    await same_in_both(device, (random(*shape),), run)


async def test_results_of_inputs_with_strides_have_none_of_their_own(device: Device) -> None:
    """Results are in C order and without gaps, as their shape says."""
    graph = device.dnn.graph()
    turned = graph.tensor((2, 3), "float64", name="turned", strides=(1, 2))
    apart = graph.tensor((2, 3), "float64", name="apart", strides=(8, 2))
    graph.output(graph.abs(turned))
    graph.output(graph.abs(apart))
    plan = await graph.build()
    made = await plan(
        turned=await device.put(np.arange(6.0)), apart=await device.put(np.arange(16.0))
    )
    np.testing.assert_array_equal(await device.get(made[0]), np.arange(6.0).reshape(3, 2).T)
    np.testing.assert_array_equal(await device.get(made[1]), np.arange(16.0).reshape(2, 8)[:, :6:2])


async def test_an_image_with_strides_and_its_channels_last(device: Device) -> None:
    """An image is one channel of three, whose strides give its place; results use its layout."""
    image = random(2, 4, 5, 3)
    graph = device.dnn.graph()
    x = graph.tensor((2, 1, 4, 5), "float64", channels_last=True, strides=(60, 1, 15, 3))
    w = graph.tensor((2, 1, 1, 1), "float64", channels_last=True)
    plan = await graph.build(graph.conv(x, w))
    made = await plan(
        input0=await device.put(image),
        input1=await device.put(np.array([1.0, 2]).reshape(2, 1, 1, 1)),
    )
    np.testing.assert_allclose(await device.get(made), image[..., :1] * [1, 2])


async def test_a_tensor_is_an_output_once(device: Device) -> None:
    graph = device.dnn.graph()
    y = graph.relu(graph.tensor((3,), "float32"))
    graph.output(y)
    with pytest.raises(ValueError, match="an output already, called 'output0'"):
        graph.output(y)


async def test_attention_of_rows_that_hold_several_tensors(device: Device) -> None:
    """Queries, keys and values lie side by side; results have no gaps and an order of their own."""
    batch, heads, length, size = 2, 2, 3, 8
    rows = np.random.default_rng(5).standard_normal((batch, length, 3, heads, size)) / 4
    rows = rows.astype(np.float16)
    step = 3 * heads * size
    graph: Any = device.dnn.graph()
    names = ("q", "k", "v")
    q, k, v = (
        graph.tensor(
            (batch, heads, length, size),
            "float16",
            name=name,
            strides=(length * step, size, step, 1),
        )
        for name in names
    )
    graph.output(graph.sdpa(q, k, v, generate_stats=False))
    plan = await graph.build()
    whole = await device.put(np.concatenate([rows.ravel(), np.zeros(2 * heads * size, np.float16)]))
    parts = [
        whole[at * heads * size : at * heads * size + rows.size - 2 * heads * size]
        for at in range(3)
    ]
    made = await device.get(await plan(**dict(zip(names, parts, strict=True))))
    q64, k64, v64 = (rows[:, :, at].swapaxes(1, 2).astype(float) for at in range(3))
    weights = np.exp(q64 @ k64.swapaxes(-1, -2))
    exact = weights / weights.sum(-1, keepdims=True) @ v64
    assert made.shape == (batch, heads, length, size)
    np.testing.assert_allclose(made, exact, atol=2e-3)
