"""Recurrent networks for the conformance tests.

The reference takes one sequence after the other, in float64, with the equations of
PyTorch's documentation. It takes any number of variants of its inputs at once, so that
central differences of all of them are one call: that is where its gradients come from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...conformance import HALF, REAL, Array, Case, Near, Operation, Sample, on_cuda

DTYPES = (*REAL, *HALF)
STEP = 1e-5

GATES = {"lstm": 4, "gru": 3, "relu": 1, "tanh": 1}


def shape_of(case: Case) -> dict[str, int]:
    return {
        "input_size": 3,
        "hidden_size": 4,
        "num_layers": case.get("num_layers", 1),
        "proj_size": case.get("proj_size", 0),
    }


def lengths_of(case: Case) -> list[int]:
    return list(case.get("lengths") or [case.get("steps", 5)] * case.get("batch", 3))


def steps_of(case: Case) -> int:
    return int(case.get("steps", max(lengths_of(case))))


def parameter_shapes(case: Case) -> list[tuple[int, ...]]:
    """In PyTorch's order."""
    sizes = shape_of(case)
    hidden, proj = sizes["hidden_size"], sizes["proj_size"]
    rows, out = GATES[case["cell"]] * hidden, proj or hidden
    directions = 2 if case.get("bidirectional") else 1
    shapes: list[tuple[int, ...]] = []
    for layer in range(sizes["num_layers"]):
        width = sizes["input_size"] if layer == 0 else out * directions
        for _ in range(directions):
            shapes += [(rows, width), (rows, out)]
            if case.get("bias", True):
                shapes += [(rows,), (rows,)]
            if proj:
                shapes.append((proj, hidden))
    return shapes


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def times(matrix: Array, vector: Array) -> Array:
    """Matrix times vector, for each variant."""
    return np.asarray(np.einsum("vij,vj->vi", matrix, vector))


def run_one(
    cell: str, parameters: list[Array], x: list[Array], h: Array, c: Array, *, bias: bool
) -> tuple[list[Array], Array, Array]:
    """One direction of one layer on one sequence: outputs and last states."""
    w_ih, w_hh, *rest = parameters
    b_ih, b_hh = rest[:2] if bias else (0.0, 0.0)
    projection = rest[-1] if len(rest) % 2 else None
    outputs = []
    for each in x:
        a, b = times(w_ih, each) + b_ih, times(w_hh, h) + b_hh
        n = a.shape[-1] // GATES[cell]
        part = [slice(i * n, i * n + n) for i in range(GATES[cell])]
        if cell == "lstm":
            i, f, o = (sigmoid((a + b)[:, part[gate]]) for gate in (0, 1, 3))
            c = f * c + i * np.tanh((a + b)[:, part[2]])
            h = o * np.tanh(c)
            if projection is not None:
                h = times(projection, h)
        elif cell == "gru":
            r, z = (sigmoid((a + b)[:, part[gate]]) for gate in (0, 1))
            h = (1 - z) * np.tanh(a[:, part[2]] + r * b[:, part[2]]) + z * h
        else:
            h = np.tanh(a + b) if cell == "tanh" else np.maximum(a + b, 0)
        outputs.append(h)
    return outputs, h, c


def run(
    case: Case, x: Array, h0: Array, c0: Array, parameters: list[Array]
) -> tuple[Array, Array, Array]:
    """The network on all sequences; inputs have the variants first.

    Args:
        case: the network.
        x: (variants, steps, batch, size).
        h0: (variants, layers * directions, batch, size).
        c0: likewise.
        parameters: (variants, ...) each.
    """
    directions = 2 if case.get("bidirectional") else 1
    layers = shape_of(case)["num_layers"]
    each = len(parameters) // (layers * directions)
    lengths = lengths_of(case)
    y = np.zeros((*x.shape[:3], h0.shape[-1] * directions))
    hn, cn = np.zeros_like(h0), np.zeros_like(c0)
    for b, length in enumerate(lengths):
        rows = [x[:, t, b] for t in range(length)]
        for layer in range(layers):
            sides = []
            for direction in range(directions):
                at = layer * directions + direction
                own = parameters[at * each : at * each + each]
                given = rows[::-1] if direction else rows
                found, hn[:, at, b], cn[:, at, b] = run_one(
                    case["cell"],
                    own,
                    given,
                    h0[:, at, b],
                    c0[:, at, b],
                    bias=case.get("bias", True),
                )
                sides.append(found[::-1] if direction else found)
            rows = [np.concatenate(pair, axis=-1) for pair in zip(*sides, strict=True)]
        for t, row in enumerate(rows):
            y[:, t, b] = row
    return y, hn, cn


# --- layouts ------------------------------------------------------------------------------


def stored(array: Array, case: Case) -> Array:
    """(steps, batch, size) as the case has it in memory."""
    layout = case.get("layout", "time")
    if layout == "batch":
        return np.ascontiguousarray(array.swapaxes(0, 1))
    if layout == "packed":
        lengths = lengths_of(case)
        return np.concatenate(
            [
                array[t, [b for b, length in enumerate(lengths) if length > t]]
                for t in range(max(lengths))
            ]
        )
    return array


def loaded(array: Array, case: Case) -> Array:
    """The other way round."""
    layout = case.get("layout", "time")
    if layout == "batch":
        return array.swapaxes(0, 1)
    if layout == "packed":
        lengths = lengths_of(case)
        found = np.zeros((steps_of(case), len(lengths), array.shape[-1]))
        at = 0
        for t in range(max(lengths)):
            for b, length in enumerate(lengths):
                if length > t:
                    found[t, b] = array[at]
                    at += 1
        return found
    return array


# --- operations ---------------------------------------------------------------------------


def states(sample: Sample, case: Case) -> tuple[Array, Array]:
    sizes = shape_of(case)
    count = sizes["num_layers"] * (2 if case.get("bidirectional") else 1)
    batch = len(lengths_of(case))
    out = sizes["proj_size"] or sizes["hidden_size"]
    return sample.array(count, batch, out), sample.array(count, batch, sizes["hidden_size"])


def inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    x = sample.array(steps_of(case), len(lengths_of(case)), shape_of(case)["input_size"])
    parameters = [sample.array(*shape) for shape in parameter_shapes(case)]
    return (stored(x, case), *states(sample, case), *parameters)


def network(device: Any, dtype: Any, case: Case) -> Any:
    sizes = shape_of(case)
    return device.dnn.rnn(
        case["cell"],
        sizes["input_size"],
        sizes["hidden_size"],
        num_layers=sizes["num_layers"],
        proj_size=sizes["proj_size"],
        bias=case.get("bias", True),
        bidirectional=case.get("bidirectional", False),
        dtype=dtype,
    )


def call_options(case: Case) -> dict[str, Any]:
    return {"layout": case.get("layout", "time"), "lengths": case.get("lengths")}


def first_states(case: Case, h0: Any, c0: Any) -> tuple[Any, ...]:
    if case.get("zeros"):
        return ()
    return (h0, c0) if case["cell"] == "lstm" else (h0,)


async def call(device: Any, x: Any, h0: Any, c0: Any, *parameters: Any, **case: Any) -> Any:
    net = network(device, x.dtype, case)
    weights = await net.pack(parameters)
    result = await net.forward(x, weights, *first_states(case, h0, c0), **call_options(case))
    assert result.tape is None
    found = (result.y, result.hn)
    return found if result.cn is None else (*found, result.cn)


def evaluated(case: Case, *arrays: Array) -> tuple[Array, Array, Array]:
    """The reference for one variant."""
    x, h0, c0, *parameters = (each[None] for each in arrays)
    if case.get("zeros"):
        h0, c0 = np.zeros_like(h0), np.zeros_like(c0)
    y, hn, cn = run(case, x, h0, c0, parameters)
    return y[0], hn[0], cn[0]


# Gates' functions are the device's approximations, and a network is many of them in turn.
SLACK = {2: 4e-2, 4: 2e-4 if on_cuda() else 2e-5, 8: 1e-9 if on_cuda() else 1e-12}
DIFFERENCES = 1e-8
"""Error of central differences."""


def near(value: Array, dtype: Any, least: float = 0.0) -> Near:
    slack = max(least, SLACK[np.dtype(dtype).itemsize])
    return Near(value, slack=slack * max(1.0, float(abs(value).max())))


def expect(dtype: str) -> Any:
    def reference(x: Array, h0: Array, c0: Array, *parameters: Array, **case: Any) -> Any:
        arrays = [np.asarray(each, np.float64) for each in (x, h0, c0, *parameters)]
        y, hn, cn = evaluated(case, loaded(arrays[0], case), *arrays[1:])
        found = (near(stored(y, case), dtype_name(dtype)), near(hn, dtype_name(dtype)))
        return (*found, near(cn, dtype_name(dtype))) if case["cell"] == "lstm" else found

    return reference


def dtype_name(dtype: str) -> Any:
    """A NumPy dtype of the same width."""
    return np.float16 if dtype == "bfloat16" else np.dtype(dtype)


def backward_inputs(sample: Sample, **case: Any) -> tuple[Array, ...]:
    x, h0, c0, *parameters = inputs(sample, **case)
    directions = 2 if case.get("bidirectional") else 1
    dy = sample.array(steps_of(case), len(lengths_of(case)), h0.shape[-1] * directions)
    return (stored(dy, case), *states(sample, case), x, h0, c0, *parameters)


async def call_backward(
    device: Any,
    dy: Any,
    dhn: Any,
    dcn: Any,
    x: Any,
    h0: Any,
    c0: Any,
    *parameters: Any,
    **case: Any,
) -> Any:
    net = network(device, x.dtype, case)
    weights = await net.pack(parameters)
    result = await net.forward(
        x, weights, *first_states(case, h0, c0), training=True, **call_options(case)
    )
    last = () if case.get("zeros") else (dhn, dcn) if case["cell"] == "lstm" else (dhn,)
    found = await net.forward_grad(dy, result.tape, *last)
    by_states = (found.dh0,) if found.dc0 is None else (found.dh0, found.dc0)
    return (found.dx, *by_states, *await net.unpack(found.dweights))


def expect_backward(dtype: str) -> Any:
    def reference(dy: Array, dhn: Array, dcn: Array, *arrays: Array, **case: Any) -> Any:
        wide = [np.asarray(each, np.float64) for each in (dy, dhn, dcn, *arrays)]
        dy, dhn, dcn, x, *rest = wide
        given = [loaded(x, case), *rest]
        if case.get("zeros"):
            given[1:3] = (np.zeros_like(each) for each in given[1:3])
            dhn, dcn = np.zeros_like(dhn), np.zeros_like(dcn)
        if case["cell"] != "lstm":
            dcn = np.zeros_like(dcn)
        slopes = differences(case, given, (loaded(dy, case), dhn, dcn))
        slopes[0] = stored(slopes[0], case)
        if case["cell"] != "lstm":
            del slopes[2]
        return tuple(near(each, dtype_name(dtype), DIFFERENCES) for each in slopes)

    return reference


def differences(case: Case, given: list[Array], weights: tuple[Array, ...]) -> list[Array]:
    """Central differences of the weighted sum of all results, by every input."""
    found = []
    for position, array in enumerate(given):
        moves = np.eye(array.size).reshape(array.size, *array.shape) * STEP
        values = []
        for sign in (1, -1):
            varied = [np.broadcast_to(each, (array.size, *each.shape)) for each in given]
            varied[position] = array + sign * moves
            x, h0, c0, *parameters = varied
            results = run(case, x, h0, c0, parameters)
            values.append(
                sum(
                    (weight * result).reshape(array.size, -1).sum(1)
                    for weight, result in zip(weights, results, strict=True)
                )
            )
        found.append(((values[0] - values[1]) / (2 * STEP)).reshape(array.shape))
    return found


CASES: list[Case] = [
    *({"cell": cell} for cell in GATES),
    {"cell": "lstm", "num_layers": 2, "bidirectional": True},
    {"cell": "gru", "num_layers": 2, "bidirectional": True, "layout": "batch"},
    {"cell": "lstm", "proj_size": 2, "zeros": True},
    {"cell": "lstm", "proj_size": 3, "bidirectional": True, "num_layers": 2},
    {"cell": "tanh", "bias": False, "zeros": True},
    {"cell": "lstm", "lengths": (2, 5, 1), "steps": 6, "bidirectional": True},
    {"cell": "gru", "lengths": (4, 1, 3), "layout": "batch"},
    {"cell": "lstm", "lengths": (5, 3, 3, 1), "layout": "packed", "bidirectional": True},
    {"cell": "gru", "lengths": (4, 2), "layout": "packed"},
]

BACKWARD_CASES = [case for case in CASES if case["cell"] != "relu"]
"""A kink in between spoils differences; ``relu`` has a test of its own."""

OPERATIONS = [
    Operation(
        f"dnn.rnn.{dtype}", (dtype,), CASES, inputs, call, expect(dtype), may_refuse=("bfloat16",)
    )
    for dtype in DTYPES
] + [
    Operation(
        f"dnn.rnn_backward.{dtype}",
        (dtype,),
        BACKWARD_CASES,
        backward_inputs,
        call_backward,
        expect_backward(dtype),
        may_refuse=("bfloat16",),
    )
    for dtype in DTYPES
]
