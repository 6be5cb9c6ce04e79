"""Kernels of the DNN lane: their results on the host, and their compilation by NVRTC."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.executors.device_code import C_TYPES, CudaSource
from atomr_accel.libraries.dnn.graph._builder import Builder
from atomr_accel.libraries.dnn.host._rewrite import cut
from atomr_accel.libraries.dnn.host.fallback import _convs as _own_convs
from atomr_accel.libraries.dnn.host.fallback import _nodes as _own_nodes
from atomr_accel.libraries.dnn.host.fallback import _norms as _own_norms
from atomr_accel.libraries.dnn.host.fallback import _products as _own_products
from atomr_accel.libraries.dnn.host.fallback._fallback import launches
from atomr_accel.libraries.dnn.host.fallback._launch import THREADS
from atomr_accel.libraries.dnn.host.fallback._nodes import pointwise_name, reduction_name
from atomr_accel.libraries.dnn.wire._element_types import INTEGERS, LOGICAL, OF_INTEGERS
from atomr_accel.libraries.dnn.wire._graph import DnnGraph, packed_strides
from atomr_accel.libraries.dnn.wire._nodes import NODES, REDUCTIONS, wider

from ...compiling import check_all_compile, check_compiles
from ...host_kernels import compile_kernels, needs_compiler, on_host
from .graph_memory import addresses_of, compare, filled

Array = np.ndarray[Any, Any]

DTYPES = ("float16", "bfloat16", "float32", "float64")
CLIPPED = {"negative_slope": 0.25, "lower_clip": 0.5, "upper_clip": 1.5}


def attributes_of(op: str) -> list[dict[str, Any]]:
    plain = dict(NODES[op].attributes)
    if op == "gen_index":
        return [{"axis": 0}]
    if op.startswith("swish"):
        return [{"swish_beta": 1.5}]
    return [plain, {**plain, **CLIPPED}] if "relu" in op else [plain]


# --- single nodes -------------------------------------------------------------------------


def pointwise_graphs() -> list[DnnGraph]:
    """Each operation with its attributes, in a few dtypes, layouts and broadcasts."""
    graphs = []
    shapes = [((2, 3, 4), (2, 3, 4)), ((2, 3, 4, 5), (1, 3, 1, 1)), ((7,), (1,))]
    for number, op in enumerate(sorted(_own_nodes.OPERATIONS)):
        row = NODES[op]
        for attributes in attributes_of(op):
            dtype = DTYPES[number % len(DTYPES)]
            shape, small = shapes[number % len(shapes)]
            builder = Builder()
            symbols = {}
            for position, name in enumerate(row.inputs):
                of_bool = op in LOGICAL or name == "mask"
                each = small if position == 1 and len(row.inputs) > 1 else shape
                if op == "batchnorm_inference":
                    each = shape if not position else (1, shape[1], *(1 for _ in shape[2:]))
                kind = "bool" if of_bool else dtype
                symbols[name] = builder.tensor(each, kind, last=bool(number % 2))
            builder.output(builder.node(op, **symbols, **attributes)["y"])
            graphs.append(builder.finish())
    builder = Builder()
    numbered = builder.node("mul", a=builder.tensor((3, 4), "float32"), b=builder.scalar(ndim=2))
    builder.output(numbered["y"])
    return [*graphs, builder.finish()]


def integer_graphs() -> list[DnnGraph]:
    """Each operation on integers in a few dtypes, with a number, a boolean, and as float32."""
    graphs = []
    for number, op in enumerate(sorted(OF_INTEGERS)):
        names = NODES[op].inputs
        for position, dtype in enumerate(sorted(INTEGERS)[number % 4 :: 4]):
            other = ("same", "bool", "number")[(number + position) % 3]
            builder = Builder()
            given: dict[str, Any] = {names[0]: builder.tensor((3, 4), dtype)}
            for name in names[1:]:
                if other == "number" and name != "mask":
                    given[name] = builder.scalar(dtype, 2)
                else:
                    given[name] = builder.tensor(
                        (3, 4), "bool" if other == "bool" or name == "mask" else dtype
                    )
            y = builder.node(op, **given)["y"]
            builder.output(y, "float32" if position else None)
            graphs.append(builder.finish())
    return graphs


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=5))
def test_dimensions_are_merged_where_all_tensors_allow(axes: list[tuple[int, bool]]) -> None:
    """Merged dimensions give the same positions in another order, with fewer divisions."""
    shape = [size for size, _ in axes]
    plain = list(packed_strides(shape, range(len(shape))))
    lists = [plain, [kept * step for (_, kept), step in zip(axes, plain, strict=True)]]
    sizes, merged = _own_nodes._merged(shape, lists)

    def positions(sizes: Sequence[int], lists: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        return sorted(
            tuple(sum(map(operator.mul, index, steps)) for steps in lists)
            for index in np.ndindex(*sizes)
        )

    assert positions(sizes, merged) == positions(shape, lists)
    assert len(_own_nodes._merged(shape, [plain, plain])[0]) <= 1


def reduction_graphs() -> list[DnnGraph]:
    graphs = []
    for mode in REDUCTIONS:
        for dtype, shape, axes in (
            ("float32", (3, 4, 5), (1,)),
            ("float64", (2, 3, 4, 5), (0, 2, 3)),
            ("bfloat16", (6,), (0,)),
        ):
            builder = Builder()
            source = builder.tensor(shape, dtype)
            made = builder.node("reduction", input=source, mode=mode, axes=axes)
            builder.output(made["y"])
            graphs.append(builder.finish())
    return graphs


@pytest.mark.slow
@needs_compiler
def test_nodes(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(7)
    cases = []
    kernels: dict[CudaSource, dict[str, str]] = {}
    for graph in (*pointwise_graphs(), *integer_graphs(), *reduction_graphs()):
        assert _own_nodes.computes(graph)
        arrays = filled(graph, rng)
        whole = {id_ for id_ in graph.scalars() if graph.tensors[id_].dtype in INTEGERS}
        scalars = {id_: 3.0 if id_ in whole else 1.25 for id_ in graph.scalars()}
        signed = {id_ for id_ in whole if not graph.tensors[id_].dtype.startswith("u")}
        scalars |= dict.fromkeys(signed, -3.0)
        written = {**arrays, **{id_: np.zeros_like(arrays[id_]) for id_ in graph.written()}}
        ((source, name, _, data),) = launches(graph, addresses_of(written), scalars)
        members = "Node node"
        if source is _own_nodes.REDUCTIONS:
            *_, y, x = name.rstrip(">").split(", ")
            members = f"{y}* y; {x}* x; Dims kept; Dims summed"
        kernels.setdefault(source, {})[name] = members
        cases.append((graph, arrays, written, scalars, source, name, data))
    compiled = {
        source: compile_kernels(on_host(source), each, tmp_path_factory.mktemp("nodes"), threads=64)
        for source, each in kernels.items()
    }
    for graph, arrays, written, scalars, source, name, data in cases:
        compiled[source][name](data)
        compare(graph, written, arrays, scalars)


# --- normalisation ------------------------------------------------------------------------


def norm_graphs() -> list[DnnGraph]:
    graphs = []
    for dtype, narrow in (
        ("float32", True),
        ("float64", True),
        ("bfloat16", True),
        ("float16", False),
    ):
        kept = wider(dtype)
        parameter = dtype if narrow else kept
        for op in ("layernorm", "rmsnorm", "instancenorm", "groupnorm", "batchnorm"):
            for last in (False, True):
                shape = (2, 6, 3, 2)
                wide = (1, 6, 3, 2) if op in ("layernorm", "rmsnorm") else (1, 6, 1, 1)
                builder = Builder()

                def tensor(
                    sizes: tuple[int, ...], kind: str, builder: Any = builder, last: bool = last
                ) -> Any:
                    return builder.tensor(sizes, kind, last=last)

                types = kept if op == "batchnorm" else parameter
                x, scale = tensor(shape, dtype), tensor(wide, types)
                more: dict[str, Any] = {"groups": 3} if op == "groupnorm" else {}
                given = dict(more)
                if op != "rmsnorm" or last:
                    given["bias"] = tensor(wide, types)
                if op == "batchnorm":
                    given |= {
                        "in_running_mean": tensor(wide, kept),
                        "in_running_var": tensor(wide, kept),
                        "momentum": builder.scalar(kept),
                    }
                found = builder.node(
                    op, input=x, scale=scale, epsilon=builder.scalar(kept), **given
                )
                for symbol in found.values():
                    builder.output(symbol)
                graphs.append(builder.finish())
                statistic = found["inv_variance"].shape
                builder = Builder()
                x, grad = tensor(shape, dtype, builder), tensor(shape, dtype, builder)
                saved: dict[str, Any] = {"inv_variance": tensor(statistic, kept, builder)}
                if op == "rmsnorm":
                    saved["has_dbias"] = last
                else:
                    saved["mean"] = tensor(statistic, kept, builder)
                scale = tensor(wide, types, builder)
                found = builder.node(
                    f"{op}_backward", grad=grad, input=x, scale=scale, **saved, **more
                )
                for symbol in found.values():
                    builder.output(symbol)
                graphs.append(builder.finish())
    return graphs


PARAMETERS = {
    "forward": "T* y; T* x; P* scale; P* bias; A* means; A* inverses; A* next_mean; "
    "A* next_variance; A* old_mean; A* old_variance; Norm norm; double epsilon; "
    "double momentum; i64 centred",
    "backward_input": "T* dx; T* grad; T* x; P* scale; A* means; A* inverses; Norm norm",
    "backward_parameters": "P* dscale; P* dbias; T* grad; T* x; A* means; A* inverses; Norm norm",
}


def members_of(name: str) -> str:
    """A kernel's parameters, with the types of its name expression."""
    kernel, _, types = name.rstrip(">").partition("<")
    text = PARAMETERS[kernel]
    for letter, kind in zip("TPA", types.split(", "), strict=True):
        text = text.replace(f"{letter}* ", f"{kind}* ")
    return text


@pytest.mark.slow
@needs_compiler
def test_norms(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(8)
    cases = []
    kernels: dict[str, str] = {}
    for graph in norm_graphs():
        assert _own_norms.computes(graph)
        arrays = filled(graph, rng)
        scalars = dict.fromkeys(graph.scalars(), 0.3)
        written = {**arrays, **{id_: np.zeros_like(arrays[id_]) for id_ in graph.written()}}
        made = launches(graph, addresses_of(written), scalars)
        kernels |= {name: members_of(name) for _, name, _, _ in made}
        cases.append((graph, arrays, written, scalars, made))
    folder = tmp_path_factory.mktemp("norms")
    compiled = compile_kernels(on_host(_own_norms.SOURCE), kernels, folder, threads=64)
    for graph, arrays, written, scalars, made in cases:
        for _, name, items, data in made:
            assert items
            compiled[name](data)
        compare(graph, written, arrays, scalars)


def test_norms_whose_parameters_lie_differently_are_not_computed() -> None:
    for step, computes in ((1, True), (3, False)):
        builder = Builder()
        x, scale = (builder.tensor((size, 6, 1, 1), "float32") for size in (2, 1))
        bias = builder.tensor((1, 6, 1, 1), "float32", (18, step, 1, 1))
        made = builder.node("layernorm", input=x, scale=scale, bias=bias, epsilon=builder.scalar())
        builder.output(made["y"])
        for name in ("mean", "inv_variance"):
            builder.output(made[name])
        assert _own_norms.computes(builder.finish()) is computes


# --- convolution --------------------------------------------------------------------------


def conv_graphs(dtype: str) -> list[DnnGraph]:
    graphs = []
    for image, weight, window in (
        ((2, 4, 7), (6, 2, 3), ((1,), (2,), (2,), (1,))),
        ((2, 4, 6, 5), (6, 4, 3, 2), ((1, 0), (0, 2), (1, 2), (2, 1))),
        ((1, 6, 4, 5, 3), (3, 2, 2, 3, 1), ((1, 1, 0), (0, 1, 0), (2, 1, 1), (1, 2, 1))),
    ):
        names = ("pre_padding", "post_padding", "stride", "dilation")
        given: dict[str, Any] = dict(zip(names, window, strict=True))
        for last in (False, True):
            builders = [Builder() for _ in range(3)]

            def tensor(builder: Builder, shape: tuple[int, ...], last: bool = last) -> Any:
                return builder.tensor(shape, dtype, last=last)

            x, w = tensor(builders[0], image), tensor(builders[0], weight)
            y = builders[0].node("conv_fprop", image=x, weight=w, **given)["y"]
            builders[0].output(y)
            loss, w = tensor(builders[1], y.shape), tensor(builders[1], weight)
            found = builders[1].node("conv_dgrad", loss=loss, filter=w, shape=image, **given)
            builders[1].output(found["dx"])
            x, loss = tensor(builders[2], image), tensor(builders[2], y.shape)
            found = builders[2].node("conv_wgrad", image=x, loss=loss, shape=weight, **given)
            builders[2].output(found["dw"])
            graphs += [builder.finish() for builder in builders]
    return graphs


@needs_compiler
def test_convolutions(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(9)
    kernels: dict[str, str] = {}
    for dtype in DTYPES:
        t, a = C_TYPES[dtype], "double" if dtype == "float64" else "float"
        members = f"{t}* a; {t}* b; {t}* c; Conv conv; i64 count"
        kernels |= {f"{name}<{a}, {t}>": members for name in ("forward", "images", "filters")}
    folder = tmp_path_factory.mktemp("convs")
    compiled = compile_kernels(on_host(_own_convs.SOURCE), kernels, folder)
    for graph in [graph for dtype in DTYPES for graph in conv_graphs(dtype)]:
        assert _own_convs.computes(graph)
        arrays = filled(graph, rng)
        written = {**arrays, **{id_: np.zeros_like(arrays[id_]) for id_ in graph.written()}}
        ((_, name, _, data),) = launches(graph, addresses_of(written), {})
        compiled[name](data)
        compare(graph, written, arrays, {})


# --- products -----------------------------------------------------------------------------

PRODUCTS = [
    ((5, 7), (7, 3)),
    ((70, 33), (33, 90)),
    ((3, 1, 18), (3, 18, 65)),
    ((2, 1, 9, 40), (1, 3, 40, 5)),
    ((4, 6, 17), (1, 17, 6)),
    ((1, 2, 1, 2, 3, 1, 4, 5), (2, 1, 2, 1, 3, 2, 5, 4)),
]
MANY = ((256, 70, 3), (1, 3, 66))
"""Shapes so large that each thread takes several elements."""


def transposed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of matrices whose columns are contiguous, with gaps between them."""
    rows, columns = shape[-2:]
    *batch, _, _ = packed_strides((*shape[:-2], columns, rows + 2))
    return (*batch, 1, rows + 2)


def product_graphs() -> list[DnnGraph]:
    graphs = []
    for number, (left, right) in enumerate(PRODUCTS):
        for dtype in DTYPES:
            for way in range(3):  # how the factors and the result lie
                builder = Builder()
                strides = [transposed(each) if way == 1 else None for each in (left, right)]
                if way == 2:
                    strides = [packed_strides(left), transposed(right)]
                a = builder.tensor(left, dtype, strides[0])
                b = builder.tensor(right, dtype, strides[1])
                c = builder.node("matmul", A=a, B=b)["c"]
                narrow = (None, "float32", "bfloat16")[(number + way) % 3]
                builder.output(c, narrow, transposed(c.shape) if way else None)
                graphs.append(builder.finish())
    builder = Builder()
    a, b = (builder.tensor(shape, "float32") for shape in MANY)
    builder.output(builder.node("matmul", A=a, B=b)["c"])
    graphs.append(builder.finish())
    builder = Builder()
    a = builder.node("relu", input=builder.tensor((20, 30), "float16"))["y"]
    b = builder.tensor((30, 10), "float16")
    builder.output(builder.node("matmul", A=a, B=b)["c"])
    _, product = cut(builder.finish(), 1)
    factors = [product.tensors[id_].dtype for _, id_ in product.nodes[0].inputs]
    assert factors == ["float32", "float16"]
    return [*graphs, product]


@pytest.mark.slow
@needs_compiler
def test_products(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(10)
    cases = []
    kernels: dict[str, str] = {}
    for graph in product_graphs():
        assert _own_products.computes(graph)
        arrays = filled(graph, rng)
        # Bytes between rows of a result stay unchanged.
        written = {**arrays, **{id_: arrays[id_].copy() for id_ in graph.written()}}
        ((_, name, items, data),) = launches(graph, addresses_of(written), {})
        assert items % THREADS == 0
        left, right, result = name.split("<")[1].split(", ")[1:4]
        kernels[name] = f"{result}* c; {left}* a; {right}* b; Product product; i64 squares"
        cases.append((graph, arrays, written, name, data))
    assert {name[-2] for name in kernels} == {"4", "8"}
    folder = tmp_path_factory.mktemp("products")
    compiled = compile_kernels(on_host(_own_products.SOURCE), kernels, folder, threads=THREADS)
    for graph, arrays, written, name, data in cases:
        compiled[name](data)
        compare(graph, written, arrays, {})


# --- NVRTC --------------------------------------------------------------------------------


@pytest.mark.headers
def test_nvrtc_compiles_the_norms() -> None:
    names = (
        "forward<h16, float, float>",
        "backward_input<b16, b16, float>",
        "backward_parameters<double, double, double>",
    )
    check_compiles(_own_norms.SOURCE.text, *names, warned=True)


@pytest.mark.headers
@pytest.mark.parametrize("name", ["forward", "images", "filters"])
def test_nvrtc_compiles_the_convolutions(name: str) -> None:
    names = [f"{name}<{types}>" for types in ("double, double", "float, h16")]
    check_compiles(_own_convs.SOURCE.text, *names, warned=True)


@pytest.mark.headers
@pytest.mark.parametrize(
    "types",
    [
        "float, float, float, float, 4",
        "float, h16, float, h16, 8",
        "double, double, double, b16, 4",
    ],
)
def test_nvrtc_compiles_the_products(types: str) -> None:
    check_compiles(_own_products.SOURCE.text, f"multiply<{types}>", warned=True)


@pytest.mark.headers
def test_nvrtc_compiles_every_node() -> None:
    nodes = []
    for op in _own_nodes.OPERATIONS:
        types = ["float16"] * (1 + len(NODES[op].inputs))
        nodes.append(pointwise_name(op, "float32", "float32", types))
    for op in OF_INTEGERS:
        types = ["float16", *["int32"] * len(NODES[op].inputs)]
        nodes.append(pointwise_name(op, "uint64", "int32", types))
    modes = [reduction_name(mode, "float32", ["float32", "bfloat16"]) for mode in REDUCTIONS]
    check_all_compile(_own_nodes.POINTWISE, nodes)
    check_all_compile(_own_nodes.REDUCTIONS, modes)
    assert set(C_TYPES) >= set(DTYPES)


def test_a_graph_that_runs_again_has_other_pointers_and_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is left of the run before."""
    from atomr_accel.executors import cuda_kernels as _cuda_kernels
    from atomr_accel.libraries.dnn.host.fallback._fallback import Own

    launched: list[tuple[str, bytes]] = []

    class Kernels:
        def __init__(self, *_: Any) -> None:
            pass

        def function(self, name: str) -> str:
            return name

        def prepare(self, name: str, items: int, arguments: Any) -> Any:
            assert items
            return lambda: launched.append((name, bytes(arguments._data)))

    monkeypatch.setattr(_cuda_kernels, "Kernels", Kernels)
    nothing: Any = None
    own = Own(nothing, nothing)
    rng = np.random.default_rng(11)
    for graph in (
        *pointwise_graphs(),
        *reduction_graphs(),
        *norm_graphs(),
        *conv_graphs("float64"),
        *product_graphs(),
    ):
        buffers, numbers = graph.buffers(), graph.scalars()
        run = own.prepare(
            graph,
            {id_: at for at, id_ in enumerate(buffers)},
            {id_: at for at, id_ in enumerate(numbers)},
        )
        for _ in range(2):
            launched.clear()
            pointers = rng.integers(1, 2**62, len(buffers)).tolist()
            scalars = rng.normal(size=len(numbers)).tolist()
            run(pointers, scalars, 0)
            addresses = dict(zip(buffers, pointers, strict=True))
            expected = launches(graph, addresses, dict(zip(numbers, scalars, strict=True)))
            assert launched == [(name, data) for _, name, _, data in expected]
