"""Graphs with matrix products as rows for the conformance tests.

In float32 they are held to the tolerance of float32, unless ``allow_tf32`` says otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...conformance import HALF, REAL, Array, Case, Near, Operation, Sample, product


def inputs(sample: Sample, left: Any, right: Any, turned: str, fused: bool) -> tuple[Array, ...]:
    """Two stacks of matrices, of which those ``turned`` lie transposed in memory, and a row."""
    factors = tuple(
        sample.array(*shape[:-2], *(shape[:-3:-1] if name in turned else shape[-2:]))
        for name, shape in (("left", left), ("right", right))
    )
    row = sample.array(*(1 for _ in right[:-1]), right[-1])
    return (*factors, row) if fused else factors


def strides_of(shape: tuple[int, ...], *, turned: bool) -> tuple[int, ...]:
    """Return the strides of matrices in C order, or transposed in memory."""
    rows, columns = shape[-2:]
    steps = [rows * columns]
    for size in shape[-3:0:-1]:
        steps.insert(0, steps[0] * size)
    return (*steps[: len(shape) - 2], *((1, rows) if turned else (columns, 1)))


async def call(
    device: Any, a: Any, b: Any, row: Any = None, *, left: Any, right: Any, turned: str, fused: bool
) -> Any:
    graph = device.dnn.graph()
    factors = [
        graph.tensor(shape, a.dtype, name=name, strides=strides_of(shape, turned=name in turned))
        for name, shape in (("left", left), ("right", right))
    ]
    y = factors[0] @ factors[1]
    given = {"left": a, "right": b}
    if fused:
        scale = graph.scalar("scale", ndim=len(left))
        y = graph.relu(y * scale + graph.tensor(row.shape, a.dtype, name="row"))
        given |= {"row": row, "scale": 0.5}
    graph.output(y)
    plan = await graph.build()
    return await plan(**given)


def expect(a: Array, b: Array, row: Array | None = None, *, turned: str, **_: Any) -> Near:
    a = a.swapaxes(-1, -2) if "left" in turned else a
    b = b.swapaxes(-1, -2) if "right" in turned else b
    y, size = a @ b, abs(a) @ abs(b)
    if row is None:
        return Near(y, size)
    return Near(np.maximum(0.5 * y + row, 0), 0.5 * size + abs(row))


SHAPES = [
    ((16, 32), (32, 24)),
    ((70, 33), (33, 90)),
    ((3, 16, 64), (3, 64, 40)),
    ((3, 16, 64), (1, 64, 40)),
    ((2, 1, 8, 16), (1, 3, 16, 8)),
]
CASES: list[Case] = [
    *(
        {"left": left, "right": right, **how}
        for left, right in SHAPES
        for how in product(turned=["", "left", "right", "left right"], fused=[False, True])
    ),
    # So many that our own kernel takes large squares.
    {"left": (256, 70, 9), "right": (1, 9, 66), "turned": "right", "fused": True},
]

OPERATIONS = [Operation("dnn.graph", (*HALF, *REAL), CASES, inputs, call, expect)]
