"""Graphs cut into parts, or with other dimensions, compute the same."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.libraries.dnn.graph._builder import Builder
from atomr_accel.libraries.dnn.host._cpu import interpret
from atomr_accel.libraries.dnn.host._rewrite import cut, flattened
from atomr_accel.libraries.dnn.wire._graph import DnnGraph, decode, encode, strides_of

Array = np.ndarray[Any, Any]

UNARY = ("abs", "exp", "neg", "relu", "sigmoid", "tanh")
BINARY = ("add", "mul", "sub")


def memory(address: int, nbytes: int) -> Array:
    there: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return np.frombuffer(there, np.uint8)


def run(parts: list[DnnGraph], whole: DnnGraph, seed: int) -> dict[int, Array]:
    """Return the contents of a graph's buffers after its parts ran one after the other."""
    rng = np.random.default_rng(seed)
    arrays: dict[int, Array] = {}
    for part in (whole, *parts):
        for id_ in part.buffers():
            tensor = part.tensors[id_]
            if id_ not in arrays:
                arrays[id_] = rng.uniform(-1, 1, tensor.extent).astype(tensor.dtype)
    for part in parts:
        addresses = {id_: arrays[id_].ctypes.data for id_ in part.buffers()}
        interpret(part, addresses, dict.fromkeys(part.scalars(), 0.5), memory)
    return {id_: arrays[id_] for id_ in whole.written()}


@st.composite
def elementwise(draw: st.DrawFn) -> DnnGraph:
    """Chains of pointwise operations with broadcasts, and reductions at their end."""
    ndim = draw(st.integers(1, 5))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    last = draw(st.booleans())
    builder = Builder()

    def tensor() -> Any:
        sizes = tuple(size if draw(st.booleans()) else 1 for size in shape)
        return builder.tensor(sizes, "float32", last=last)

    value = builder.tensor(shape, "float32", last=last)
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            value = builder.node(draw(st.sampled_from(UNARY)), input=value)["y"]
        else:
            other = tensor() if draw(st.booleans()) else builder.scalar(ndim=ndim)
            value = builder.node(draw(st.sampled_from(BINARY)), a=value, b=other)["y"]
    if draw(st.booleans()):
        axes = draw(st.sets(st.integers(0, ndim - 1), min_size=1))
        mode = draw(st.sampled_from(("ADD", "MAX", "AMAX", "NORM2")))
        value = builder.node("reduction", input=value, mode=mode, axes=tuple(sorted(axes)))["y"]
    builder.output(value)
    return builder.finish()


@given(elementwise(), st.integers(0, 99))
def test_flattened_graphs_compute_the_same(graph: DnnGraph, seed: int) -> None:
    rows = flattened(graph)
    assert rows.buffers() == graph.buffers()
    before, after = run([graph], graph, seed), run([rows], graph, seed)
    for id_, array in before.items():
        np.testing.assert_allclose(after[id_], array, rtol=1e-5, atol=1e-5)


@given(elementwise())
def test_flattened_graphs_are_images_with_channels_last(graph: DnnGraph) -> None:
    rows = flattened(graph)
    for id_ in rows.used():
        tensor = rows.tensors[id_]
        if rows is not graph:
            assert len(tensor.shape) == 4
            if tensor.kind != "scalar":
                assert tensor.strides == strides_of(tensor.shape, last=True)


@given(elementwise(), st.data())
def test_cut_graphs_compute_the_same(graph: DnnGraph, data: st.DataObject) -> None:
    head, tail = cut(graph, data.draw(st.integers(1, len(graph.nodes))))
    assert head.nodes + tail.nodes == graph.nodes
    parts = [part for part in (head, tail) if part.nodes]
    whole, pieces = run([graph], graph, 3), run(parts, graph, 3)
    for id_, array in whole.items():
        np.testing.assert_allclose(pieces[id_], array, rtol=1e-5, atol=1e-5)


@given(elementwise())
def test_graphs_travel(graph: DnnGraph) -> None:
    assert decode(encode(graph)) == graph
    assert encode(decode(encode(graph))) == encode(graph)


def test_activations_are_split_into_rows_for_many_processors() -> None:
    builder = Builder()
    builder.output(builder.node("relu", input=builder.tensor((3, 4096, 7), "float16"))["y"])
    rows = flattened(builder.finish())
    assert rows.tensors[0].shape == (84, 1024, 1, 1)


def test_differing_layouts_stay_unchanged() -> None:
    builder = Builder()
    one = builder.tensor((2, 3, 4, 5), "float32")
    other = builder.tensor((2, 3, 4, 5), "float32", last=True)
    builder.output(builder.node("add", a=one, b=other)["y"])
    graph = builder.finish()
    assert flattened(graph) is graph
