"""Models for tests, made by onnx's helper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

Shape = "Sequence[int | str | None] | None"


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
    *,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    domains: Sequence[str] = (),
) -> Any:
    """A model of nodes; inputs and outputs by name with their shapes."""

    def values(shapes: Mapping[str, Any]) -> list[Any]:
        return [
            shape
            if isinstance(shape, type(helper.make_tensor_value_info("", 1, [])))
            else helper.make_tensor_value_info(name, dtype, shape)
            for name, shape in shapes.items()
        ]

    graph = helper.make_graph(
        nodes,
        "graph",
        values(inputs),
        values(outputs),
        [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def linear(rng: np.random.Generator, rows: int | str = "N") -> tuple[Any, np.ndarray[Any, Any]]:
    """``relu(x @ w)`` of rows of 8, and its weights."""
    w = rng.standard_normal((8, 4), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    return model(nodes, {"x": [rows, 8]}, {"y": [rows, 4]}, {"w": w}), w


def nonzero() -> Any:
    """The indices of elements that are not zero: how many depends on values."""
    made = helper.make_tensor_value_info("y", TensorProto.INT64, [1, None])
    return model([helper.make_node("NonZero", ["x"], ["y"])], {"x": ["N"]}, {"y": made})
