"""Graphs that users build: their results and their refusals."""

from __future__ import annotations

import numpy as np
import pytest

from atomr_accel import Device, open_device

from .... import seeds
from ...conformance import MARKS

pytestmark = MARKS


async def test_a_graph(device: Device) -> None:
    rng = seeds.rng()
    x, w, b = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((4, 16, 32), (4, 32, 24), (1, 1, 24))
    )
    graph = device.dnn.graph()
    left = graph.tensor(x.shape, "float32", name="x")
    right = graph.tensor(w.shape, "float32", name="w")
    shift = graph.tensor(b.shape, "float32", name="b")
    scale = graph.scalar("scale", ndim=3)
    result = graph.relu((left @ right) * scale + shift)
    graph.output(result, name="y")
    plan = await graph.build(result)
    assert (plan.inputs, plan.outputs, plan.scalars) == (("x", "w", "b"), ("y",), ("scale",))
    refs = {name: await device.put(array) for name, array in (("x", x), ("w", w), ("b", b))}
    for factor in (0.5, -2.0):  # the plan stays
        y = await device.get(await plan(**refs, scale=factor))
        exact = np.maximum((x.astype(float) @ w) * factor + b, 0)
        np.testing.assert_allclose(y, exact, rtol=1e-4, atol=1e-4)
    out = await device.empty((4, 16, 24), np.float32)
    assert await plan(**refs, scale=1, y=out) is out


async def test_nodes_take_operators(device: Device) -> None:
    x, y = (seeds.rng().uniform(1, 2, (3, 5)).astype(np.float32) for _ in range(2))
    graph = device.dnn.graph()
    a, b = (graph.tensor(x.shape, "float32", name=name) for name in "ab")
    plan = await graph.build(-(2 * a - b) / (b + 1))
    out = await device.get(await plan(a=await device.put(x), b=await device.put(y)))
    np.testing.assert_allclose(out, -(2 * x - y) / (y + 1), rtol=1e-5)


async def test_a_graph_of_images_with_channels_last(device: Device) -> None:
    rng = seeds.rng()
    x = rng.standard_normal((2, 6, 5, 8)).astype(np.float32)
    w = rng.standard_normal((16, 1, 1, 8)).astype(np.float32)
    graph = device.dnn.graph()
    images = graph.tensor((2, 8, 6, 5), "float32", channels_last=True)
    filters = graph.tensor((16, 8, 1, 1), "float32", channels_last=True)
    y = graph.conv(images, filters)
    plan = await graph.build(y, graph.reduction(y, mode="ADD", axes=(0, 2, 3)))
    got, total = await plan(input0=await device.put(x), input1=await device.put(w))
    exact = x.astype(float) @ w[:, 0, 0].T
    assert (got.shape, total.shape) == ((2, 6, 5, 16), (1, 1, 1, 16))
    np.testing.assert_allclose(await device.get(got), exact, rtol=1e-4, atol=1e-4)
    sums = exact.sum((0, 1, 2))
    np.testing.assert_allclose((await device.get(total)).ravel(), sums, rtol=1e-3, atol=1e-3)


async def test_outputs_come_in_the_order_in_which_build_is_given_them(device: Device) -> None:
    graph, elsewhere = device.dnn.graph(), device.dnn.graph()
    x = graph.tensor((2,), "float32", name="x")
    left, right = graph.relu(x), graph.neg(x)
    graph.output(left, name="left", dtype="float16")
    with pytest.raises(ValueError, match="the graph has others, by output: left"):
        await graph.build(right)
    for nodes, error, message in (
        ((left, left), ValueError, "every output can be given once"),
        (
            (right, left, x),
            ValueError,
            "an output must be computed in this graph, which <buffer 0:",
        ),
        ((left, 3.0), TypeError, "must be a tensor of the graph"),
        ((left, elsewhere.tensor((2,), "float32")), ValueError, "belongs to another graph"),
    ):
        with pytest.raises(error, match=message):
            await graph.build(*nodes)
    assert (await graph.build()).outputs == ("left",)  # refused calls have changed nothing
    plan = await graph.build(right, left)
    assert plan.outputs == ("output1", "left")
    with pytest.raises(ValueError, match="build must be given all outputs or none, not 1"):
        await graph.build(left)
    assert (await graph.build(left, right)).outputs == ("left", "output1")
    made = await plan(x=await device.put(np.array([-1, 2], np.float32)))
    found = [await device.get(ref) for ref in made]
    assert [array.tolist() for array in found] == [[1, -2], [0, 2]]
    assert [array.dtype.name for array in found] == ["float32", "float16"]


async def test_user_graph_refuses_unsupported_nodes(device: Device) -> None:
    graph = device.dnn.graph()
    x = graph.tensor((2, 3), "float32", name="x")
    with pytest.raises(ValueError, match="'x' is taken"):
        graph.tensor((2, 3), "float32", name="x")
    with pytest.raises(ValueError, match="at least 1"):
        graph.tensor((2, 0), "float32")
    with pytest.raises(AttributeError, match="no operation 'cosh'"):
        graph.cosh(x)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="reduction needs mode"):
        graph.reduction(x, axes=(0,))
    with pytest.raises(TypeError, match="relu has no slope"):
        graph.relu(x, slope=1)
    with pytest.raises(ValueError, match="do not broadcast"):
        x + graph.tensor((2, 4), "float32")
    with pytest.raises(ValueError, match="belongs to another graph"):
        x + device.dnn.graph().tensor((2, 3), "float32")
    with pytest.raises(
        ValueError, match="an output must be computed in this graph, which <buffer 0:"
    ):
        graph.output(x)
    with pytest.raises(ValueError, match="at least one node"):
        await device.dnn.graph().build()
    graph.relu(x)
    with pytest.raises(ValueError, match="at least one output"):
        await graph.build()
    graph.output(graph.relu(x))
    plan = await graph.build()
    ref = await device.put(np.ones((2, 3), np.float32))
    for given, error, message in (
        ({}, TypeError, "missing: x"),
        ({"x": ref, "z": ref}, TypeError, "unknown: z"),
        ({"x": await device.put(np.ones((3, 2), np.float32))}, ValueError, r"\(3, 2\)"),
        ({"x": await device.put(np.ones((2, 3)))}, TypeError, "float64"),
    ):
        with pytest.raises(error, match=message):
            await plan(**given)
    await plan(x=ref)


async def test_a_plan_of_another_device(device: Device) -> None:
    async with open_device(0, backend=device.backend) as other:
        graph = other.dnn.graph()
        plan = await graph.build(graph.relu(graph.tensor((2,), "float32", name="x")))
        x = await device.put(np.ones(2, np.float32))
        with pytest.raises(TypeError, match="must be made by a library of"):
            await device.dnn.run(plan, x=x)
        with pytest.raises(TypeError, match="must be made by a library of"):
            await device.dnn.run(graph, x=x)  # type: ignore[arg-type]
