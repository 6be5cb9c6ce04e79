"""Activations and their gradients where numbers end: infinities, NaN, zeros, subnormals."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.executors.device_code import C_TYPES
from atomr_accel.libraries.dnn.graph._builder import Builder
from atomr_accel.libraries.dnn.host._cpu import FUNCTIONS, interpret
from atomr_accel.libraries.dnn.host.fallback import _nodes as _own_nodes
from atomr_accel.libraries.dnn.host.fallback._fallback import launches
from atomr_accel.libraries.dnn.wire._graph import DnnGraph
from atomr_accel.libraries.dnn.wire._resample_nodes import RESAMPLING

from ....harness import ON_CUDA
from ...conformance import MARKS, dtype_of, eps_of, on_cuda
from ...host_kernels import compile_kernels, needs_compiler, on_host

pytestmark = MARKS

Array = np.ndarray[Any, Any]

INF: Final = math.inf
DTYPES: Final = ("float16", "bfloat16", "float32", "float64")

LIMITS: Final[dict[tuple[str, tuple[tuple[str, float], ...]], tuple[float, ...]]] = {
    ("relu", ()): (0, INF, 0, 1, 0, 0),
    ("relu", (("negative_slope", 0.25),)): (-INF, INF, 0, 1, 0.25, 0.25),
    ("relu", (("negative_slope", -0.25),)): (INF, INF, 0, 1, -0.25, -0.25),
    ("relu", (("upper_clip", 6.0),)): (0, 6, 0, 0, 0, 0),
    ("relu", (("lower_clip", -2.0),)): (-2, INF, 0, 1, 0, 1),
    ("sigmoid", ()): (0, 1, 0.5, 0, 0, 0.25),
    ("tanh", ()): (-1, 1, 0, 0, 0, 1),
    ("gelu", ()): (0, INF, 0, 1, 0, 0.5),
    ("gelu_approx_tanh", ()): (0, INF, 0, 1, 0, 0.5),
    ("swish", (("swish_beta", 1.0),)): (0, INF, 0, 1, 0, 0.5),
    ("swish", (("swish_beta", 1e-3),)): (0, INF, 0, 1, 0, 0.5),
    ("swish", (("swish_beta", 50.0),)): (0, INF, 0, 1, 0, 0.5),
    ("swish", (("swish_beta", 0.0),)): (-INF, INF, 0, 0.5, 0.5, 0.5),
    ("swish", (("swish_beta", -1.0),)): (-INF, 0, 0, 0, 1, 0.5),
    ("elu", ()): (-1, INF, 0, 1, 0, 1),
    ("softplus", ()): (0, INF, math.log(2), 1, 0, 0.5),
}
"""Limits of each activation and its derivative.

For the activation: the limits at minus and plus infinity, and the value at 0. For the derivative:
the limits at plus and at minus infinity, and the value at 0.
"""

PARAMETERS: Final = [
    pytest.param(op, dict(attributes), dtype, id=f"{op}-{'-'.join(map(str, attributes))}-{dtype}")
    for op, attributes in LIMITS
    for dtype in DTYPES
]


def inputs_of(dtype: str) -> Array:
    """Return infinities, NaN, both zeros, subnormals, and the smallest and largest numbers."""
    kind = dtype_of(dtype)
    info = np.finfo(kind) if kind.kind == "f" else __import__("ml_dtypes").finfo(kind)
    sizes = [float(info.smallest_subnormal), float(info.tiny), float(info.max), INF, 0.0]
    sizes += [0.5, 1.0, 3.0, 8.0, 30.0, 65.0, 100.0, 800.0, 2100.0, math.sqrt(float(info.max))]
    return np.array([*sizes, *(-size for size in sizes), math.nan]).astype(kind)


def graph_of(op: str, attributes: dict[str, float], dtype: str, count: int) -> DnnGraph:
    builder = Builder()
    names = ("loss", "input") if op.endswith("_backward") else ("input",)
    symbols = {name: builder.tensor((count,), dtype) for name in names}
    builder.output(builder.node(op, **symbols, **attributes)["y"])
    return builder.finish()


def computed(graph: DnnGraph, *arrays: Array) -> Array:
    """By the CPU backend."""
    out = np.full_like(arrays[-1], 7)
    addresses = dict(zip(graph.buffers(), [a.ctypes.data for a in (*arrays, out)], strict=True))

    def memory(address: int, nbytes: int) -> Array:
        there: Any = (ctypes.c_uint8 * nbytes).from_address(address)
        return np.frombuffer(there, np.uint8)

    interpret(graph, addresses, {}, memory)
    return out.astype(np.float64)


def expect_limits(
    op: str, attributes: dict[str, float], x: Array, y: Array, slack: float = 8.0
) -> None:
    """Check results against the table, and against properties of all activations."""
    low, high, zero, steep_high, steep_low, steep_zero = LIMITS[
        op.removesuffix("_backward"), tuple(attributes.items())
    ]
    if op.endswith("_backward"):
        low, high, zero = steep_low, steep_high, steep_zero
    tolerance = slack * eps_of(x.dtype)
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(wide))
    np.testing.assert_allclose(y[wide == -INF], low, rtol=tolerance, atol=0)
    np.testing.assert_allclose(y[wide == INF], high, rtol=tolerance, atol=0)
    # Subnormals and the smallest are 0 but for themselves. Where the derivative jumps at 0
    # they are on either side of it.
    tiny = np.abs(wide) < 1e-4
    smallest = float(np.max(np.abs(wide[tiny])))
    if op != "relu_backward" or attributes.get("lower_clip"):
        np.testing.assert_allclose(y[tiny], zero, rtol=tolerance, atol=2 * smallest)
    np.testing.assert_allclose(y[wide == 0], zero, rtol=tolerance, atol=0)


@pytest.mark.parametrize(("op", "attributes", "dtype"), PARAMETERS)
def test_the_interpreter(op: str, attributes: dict[str, float], dtype: str) -> None:
    x = inputs_of(dtype)
    expect_limits(op, attributes, x, computed(graph_of(op, attributes, dtype, len(x)), x))
    back = f"{op}_backward"
    graph = graph_of(back, attributes, dtype, len(x))
    expect_limits(back, attributes, x, computed(graph, np.ones_like(x), x))
    # The gradient by the result may be anything, too.
    for loss in (0.0, -1.0, float(np.nanmax(x[np.isfinite(x.astype(float))].astype(float)))):
        gradient = computed(graph, np.full_like(x, loss), x)
        np.testing.assert_array_equal(np.isnan(gradient), np.isnan(x.astype(float)))
    assert np.isnan(computed(graph, np.full_like(x, math.nan), x)).all()


def test_an_infinite_gradient_does_not_pass_what_is_flat() -> None:
    x = np.array([-INF, -1, 0, 1, INF])
    graph = graph_of("relu_backward", {}, "float64", len(x))
    np.testing.assert_array_equal(computed(graph, np.full(5, INF), x), [0, 0, 0, INF, INF])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@needs_compiler
def test_the_kernels(dtype: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels give the interpreter's results, which the tests above check against limits."""
    x = inputs_of(dtype)
    losses = [np.full_like(x, loss) for loss in (1, 0, -1, math.nan)]
    infinite = np.full_like(x, INF)  # times a number near 0 it depends on the last digit
    kernels: dict[str, str] = {}
    cases = []
    for op, pairs in LIMITS:
        attributes = dict(pairs)
        for name, given in ((op, [[x]]), (f"{op}_backward", [[loss, x] for loss in losses])):
            graph = graph_of(name, attributes, dtype, len(x))
            if name == "relu_backward":
                given.append([infinite, x])
            for arrays in given:
                out = np.full_like(x, 7)
                places = [array.ctypes.data for array in (*arrays, out)]
                addresses = dict(zip(graph.buffers(), places, strict=True))
                ((source, kernel, _, data),) = launches(graph, addresses, {})
                assert source is _own_nodes.POINTWISE
                kernels[kernel] = "Node node"
                cases.append((name, attributes, graph, arrays, out, kernel, data))
    folder = tmp_path_factory.mktemp("extremes")
    compiled = compile_kernels(on_host(_own_nodes.POINTWISE), kernels, folder)
    assert _own_nodes.computes(cases[0][2])
    for name, attributes, graph, arrays, out, kernel, data in cases:
        compiled[kernel](data)
        expected = computed(graph, *arrays)
        wide = out.astype(np.float64)
        message = f"{name} {attributes} of {arrays[0][0]}"
        near = 64 * eps_of(x.dtype)
        np.testing.assert_allclose(wide, expected, rtol=near, atol=near, err_msg=message)
        if len(arrays) == 1 or arrays[0][0] == 1:
            expect_limits(name, attributes, x, wide)


GELU: Final[dict[str, Callable[[float], float]]] = {
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_backward": lambda x: (
        math.erfc(-x / math.sqrt(2)) / 2 + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    ),
}


def expect_digits(op: str, x: Array, y: Array) -> None:
    """Check GELU far below zero, where its value is nearly 0, to a relative error."""
    expected = [GELU[op](float(each)) for each in x]
    np.testing.assert_allclose(y, expected, rtol=256 * eps_of(x.dtype), atol=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", GELU)
def test_gelu_keeps_its_digits_below_zero(op: str, dtype: str) -> None:
    x = np.linspace(-8, -2, 61).astype(dtype)
    graph = graph_of(op, {}, dtype, len(x))
    expect_digits(op, x, computed(graph, *([np.ones_like(x)] * (op != "gelu")), x))


@needs_compiler
def test_the_kernels_of_gelu_keep_its_digits_below_zero(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    x = np.linspace(-8, -2, 61).astype(np.float32)
    ones = np.ones_like(x)
    for op in GELU:
        graph, out = graph_of(op, {}, "float32", len(x)), np.full_like(x, 7)
        arrays = (x, out) if op == "gelu" else (ones, x, out)
        places = [array.ctypes.data for array in arrays]
        addresses = dict(zip(graph.buffers(), places, strict=True))
        ((source, kernel, _, data),) = launches(graph, addresses, {})
        folder = tmp_path_factory.mktemp(op)
        compile_kernels(on_host(source), {kernel: "Node node"}, folder)[kernel](data)
        expect_digits(op, x, out)


def test_the_table_has_every_activation() -> None:
    backward = {op.removesuffix("_backward") for op in FUNCTIONS if op.endswith("_backward")}
    activations = {op for op in backward if f"{op}" in FUNCTIONS and "norm" not in op}
    assert activations - {"sdpa", "sdpa_fp8"} - RESAMPLING.keys() == {op for op, _ in LIMITS}
    assert set(C_TYPES) >= set(DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
async def test_activations_of_a_device(device: Device, dtype: str) -> None:
    x = inputs_of(dtype)
    ref, ones = await device.put(x), await device.put(np.ones_like(x))
    dnn, slack = device.dnn, 64.0 if on_cuda() else 8.0  # cuDNN's functions are rough
    for name, options, op, attributes in (
        ("relu", {}, "relu", {}),
        ("leaky_relu", {"negative_slope": 0.25}, "relu", {"negative_slope": 0.25}),
        ("leaky_relu", {"negative_slope": 0.0}, "relu", {}),
        ("sigmoid", {}, "sigmoid", {}),
        ("tanh", {}, "tanh", {}),
        ("gelu", {}, "gelu", {}),
        ("gelu", {"approximate": "tanh"}, "gelu_approx_tanh", {}),
        ("silu", {}, "swish", {"swish_beta": 1.0}),
        ("silu", {"beta": 0.0}, "swish", {"swish_beta": 0.0}),
        ("elu", {}, "elu", {}),
        ("softplus", {}, "softplus", {}),
    ):
        options_: dict[str, Any] = options
        y = await getattr(dnn, name)(ref, **options_)
        expect_limits(op, attributes, x, (await device.get(y)).astype(np.float64), slack)
        dx = await getattr(dnn, f"{name}_grad")(ones, ref, **options_)
        made = (await device.get(dx)).astype(np.float64)
        expect_limits(f"{op}_backward", attributes, x, made, slack)


async def test_routines_say_nothing_of_infinities(device: Device) -> None:
    """Values out of range become infinite or NaN without a warning."""
    x = await device.put(np.array([[INF, 1, -INF, 3e38], [-INF, 0, 1, 2]], np.float32))
    dnn = device.dnn
    y, logs = await dnn.softmax(x), await dnn.log_softmax(x)
    np.testing.assert_allclose((await device.get(y))[1], [0, 0.0900306, 0.2447285, 0.6652409], 1e-5)
    assert (await device.get(logs))[1, 0] == -INF
    assert np.isnan((await device.get(y))[0]).all()
    assert np.isnan((await device.get(logs))[0]).all()  # also next to the infinity
    await dnn.softmax_grad(x, y)
    await dnn.log_softmax_grad(x, logs)
    image = await device.put(np.array([3e38, INF, -INF, 1], np.float32).reshape(1, 1, 2, 2))
    z = await dnn.local_response_norm(image, 1)
    await dnn.local_response_norm_grad(image, z, image, 1)
    w = await dnn.max_pool(image, 2)
    assert (await device.get(w)).ravel().tolist() == [INF]
    await dnn.max_pool_grad(w, w, image, 2)
    assert np.isnan(await device.get(await dnn.avg_pool(image, 2))).all()
    half = await device.put(np.full((1, 1, 2, 2), 65504, np.float16))
    assert (await device.get(await dnn.dropout(half, 0.5, seed=1))).max() in (0, INF)


@pytest.mark.skipif(ON_CUDA, reason="cuDNN squares in the dtype of statistics")
@pytest.mark.parametrize(
    ("dtype", "power"), [("float32", 66), ("float32", 126), ("bfloat16", 120), ("float64", 1000)]
)
async def test_norms_of_numbers_whose_squares_overflow(
    device: Device, dtype: str, power: int
) -> None:
    kind = dtype_of(dtype)
    signs = np.array([[1, -1, 1, -1], [1, 1, 1, 1]])
    x = await device.put((signs * [[2.0**power], [1.0]]).astype(kind))
    w, b = await device.put(np.ones(4, kind)), await device.put(np.zeros(4, kind))
    normal, mean, inverse = await device.dnn.layer_norm_train(x, w, b)
    got = (await device.get(normal)).astype("f8")
    np.testing.assert_array_equal(got, [[1, -1, 1, -1], [0, 0, 0, 0]])
    np.testing.assert_array_equal(await device.get(mean), [0, 1])
    assert (await device.get(inverse))[0] == 2.0**-power
    got = (await device.get(await device.dnn.rms_norm(x, w))).astype("f8")
    np.testing.assert_allclose(got, signs, rtol=1e-2 if dtype == "bfloat16" else 1e-4)
