"""Kernels that move elements, and that resample images: on the host, against the CPU backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel import Unsupported
from atomr_accel.executors.device_code import CudaSource
from atomr_accel.libraries.dnn.graph._builder import Builder
from atomr_accel.libraries.dnn.host._rewrite import cut
from atomr_accel.libraries.dnn.host.fallback import _blocks, _moves, _nodes, _resamples
from atomr_accel.libraries.dnn.host.fallback._fallback import computes, launches
from atomr_accel.libraries.dnn.wire._graph import DnnGraph

from ...compiling import check_compiles
from ...host_kernels import compile_kernels, needs_compiler, on_host
from .graph_memory import addresses_of, compare, filled

MEMBERS = {
    "move": "{1}* y; {2}* x; Walk to; Walk from; i64 count",
    "average": "{1}* y; {2}* x; Images all; i64 count",
    "largest": "{1}* y; {2}* x; Images all; i64 count",
    "spread": "{1}* y; {2}* x; Images all; i64 count",
    "spread_largest": "{1}* y; {2}* x; {3}* z; Images all; i64 count",
    "dequantize": "{1}* y; unsigned char* x; unsigned char* scales; Blocks blocks; i64 count",
    "reduce": "{2}* y; {3}* x; Dims kept; Dims summed",
}
"""The parameters of kernels, with the types of their name expressions."""


def hold(graphs: list[DnnGraph], folder: Any, threads: int = 7) -> None:
    """Compare kernels with the CPU backend; bytes between elements must stay unchanged."""
    rng = np.random.default_rng(12)
    cases = []
    kernels: dict[CudaSource, dict[str, str]] = {}
    for graph in graphs:
        assert computes(graph)
        arrays = filled(graph, rng)
        written = {id_: array.copy() for id_, array in arrays.items()}
        made = launches(graph, addresses_of(written), {})
        for source, name, items, _ in made:
            assert items
            kernel, _, types = name.rstrip(">").partition("<")
            members = MEMBERS[kernel].format(*types.split(", "))
            kernels.setdefault(source, {})[name] = members
        cases.append((graph, arrays, written, made))
    compiled = {
        source: compile_kernels(on_host(source), each, folder(source._name), threads=threads)
        for source, each in kernels.items()
    }
    for graph, arrays, written, made in cases:
        for source, name, _, data in made:
            compiled[source][name](data)
        compare(graph, written, arrays, {})


def built(builder: Builder, op: str, dtype: str | None = None, **given: Any) -> DnnGraph:
    for symbol in builder.node(op, **given).values():
        builder.output(symbol, dtype)
    return builder.finish()


MOVES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("reshape", (2, 6, 3, 5), {"shape": (3, 4, 15)}),
    ("reshape", (12,), {"shape": (1, 3, 1, 2, 2)}),
    ("slice", (2, 6, 3, 5), {"starts": (0, 1, 0, 2), "stops": (2, 6, 3, 5), "steps": (1, 2, 1, 2)}),
    ("slice", (7, 4), {"starts": (3, 0), "stops": (4, 4)}),
    ("transpose", (2, 6, 3, 5), {"permutation": (3, 1, 0, 2)}),
    ("concatenate", (2, 6, 3, 5), {"axis": 1}),
    ("concatenate", (2, 6, 3), {"axis": 2}),
]
TYPES = (
    *(("float16", None), ("float32", "bfloat16"), ("float16", "float64"), ("int32", "float32")),
    *(("bool", None), ("int64", None), ("float8_e4m3fn", None)),
)


def move_graphs() -> list[DnnGraph]:
    graphs = []
    for number, (op, shape, attributes) in enumerate(MOVES):
        for position, (dtype, stored) in enumerate(TYPES):
            builder = Builder()
            names = ("input0", "input1", "input2") if op == "concatenate" else ("input",)
            last = bool((number + position) % 2)
            given: Any = {name: builder.tensor(shape, dtype, last=last) for name in names}
            graphs.append(built(builder, op, stored, **given, **attributes))
    return graphs


@pytest.mark.slow
@needs_compiler
def test_moves(tmp_path_factory: pytest.TempPathFactory) -> None:
    hold(move_graphs(), tmp_path_factory.mktemp)


SPACES: list[tuple[tuple[int, ...], list[tuple[str, dict[str, Any]]]]] = [
    (
        (9,),
        [
            ("resample", {"window": (3,), "stride": (2,), "pre_padding": (1,)}),
            ("resample", {"window": (4,), "stride": (3,), "pre_padding": (2,), "ceil_mode": True}),
            ("adaptive_pool", {"size": (4,)}),
            ("interpolate", {"size": (14,), "mode": "LINEAR"}),
            ("interpolate", {"size": (1,), "mode": "LINEAR", "align_corners": True}),
        ],
    ),
    (
        (7, 5),
        [
            (
                "resample",
                {"window": (3, 2), "stride": (3, 2), "pre_padding": (1, 0), "ceil_mode": True},
            ),
            ("adaptive_pool", {"size": (3, 7)}),
            ("interpolate", {"size": (4, 9), "mode": "NEAREST"}),
            ("interpolate", {"size": (15, 2), "mode": "NEAREST_EXACT"}),
            ("interpolate", {"size": (3, 11), "mode": "LINEAR"}),
            ("interpolate", {"size": (14, 3), "mode": "LINEAR", "align_corners": True}),
            ("interpolate", {"size": (16, 3), "mode": "CUBIC"}),
            ("interpolate", {"size": (2, 10), "mode": "CUBIC", "align_corners": True}),
        ],
    ),
    (
        (4, 3, 5),
        [
            (
                "resample",
                {"window": (2, 3, 2), "stride": (2, 1, 3), "pre_padding": (0, 1, 1)},
            ),
            ("adaptive_pool", {"size": (1, 2, 3)}),
            ("interpolate", {"size": (5, 6, 2), "mode": "LINEAR"}),
        ],
    ),
]
POOLS = {
    "resample": ("MAXPOOL", "AVGPOOL_INCLUDE_PADDING", "AVGPOOL_EXCLUDE_PADDING"),
    "adaptive_pool": ("MAXPOOL", "AVGPOOL"),
}
FLOATS = ("float32", "float16", "float64", "bfloat16")


def resample_graphs() -> list[DnnGraph]:
    graphs = []
    number = 0
    for space, cases in SPACES:
        for op, given in cases:
            attributes = dict(given)
            if op == "resample":
                attributes["post_padding"] = attributes["pre_padding"]
            modes = (attributes.pop("mode"),) if "mode" in attributes else POOLS[op]
            for mode in modes:
                dtype, last = FLOATS[number % 4], bool(number // 4 % 2)
                number += 1
                builder = Builder()
                x = builder.tensor((2, 3, *space), dtype, last=last)
                graph = built(builder, op, input=x, mode=mode, **attributes)
                graphs.append(graph)
                ((_, made),) = graph.nodes[0].outputs
                builder = Builder()
                grad = builder.tensor(graph.tensors[made].shape, dtype, last=last)
                more: Any = {"input": builder.tensor(x.shape, dtype)} if mode == "MAXPOOL" else {}
                back = f"{op}_backward"
                graphs.append(
                    built(builder, back, loss=grad, mode=mode, shape=x.shape, **more, **attributes)
                )
    return graphs


@pytest.mark.slow
@needs_compiler
def test_resampling(tmp_path_factory: pytest.TempPathFactory) -> None:
    hold(resample_graphs(), tmp_path_factory.mktemp)


@pytest.mark.slow
@needs_compiler
def test_statistics_of_channels(tmp_path_factory: pytest.TempPathFactory) -> None:
    graphs = []
    for dtype in FLOATS:
        builder = Builder()
        graphs.append(built(builder, "genstats", input=builder.tensor((2, 3, 4, 5), dtype)))
    hold(graphs, tmp_path_factory.mktemp, threads=64)


@pytest.mark.slow
@needs_compiler
def test_scales_of_blocks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each number of eight bits with each scale, in any order of axes."""
    graphs = []
    for position, dtype in enumerate(("float8_e4m3fn", "float8_e5m2")):
        for axis, block in ((0, 2), (1, 32), (2, 3)):
            builder = Builder()
            shape = (3, 70, 8)
            sizes = [-(-size // block) if at == axis else size for at, size in enumerate(shape)]
            x = builder.tensor(shape, dtype, last=bool(position))
            given = {"input": x, "descale": builder.tensor(sizes, "uint8"), "axis": axis}
            stored = (None, "float32", "float64")[axis]
            graphs.append(
                built(builder, "block_scale_dequantize", stored, **given, block_size=block)
            )
    hold(graphs, tmp_path_factory.mktemp)


def test_statistics_that_nobody_wants_are_not_computed() -> None:
    builder = Builder()
    builder.output(builder.node("genstats", input=builder.tensor((2, 3, 4), "float16"))["sum"])
    ((_, name, *_),) = launches(builder.finish(), {0: 16, 1: 32}, {})
    assert name == "reduce<Add, float, float, h16>"


def test_intermediate_result_is_resampled() -> None:
    """A step's result has the type of the computation, which may be wider than the operand's."""
    builder = Builder()
    shape, window = (1, 2, 4), {"window": (2,), "stride": (2,)}
    loss = builder.node("relu", input=builder.tensor((1, 2, 2), "float16"))["y"]
    node = builder.node(
        "resample_backward",
        loss=loss,
        input=builder.tensor(shape, "float16"),
        mode="MAXPOOL",
        shape=shape,
        pre_padding=(0,),
        post_padding=(0,),
        **window,
    )
    builder.output(node["dx"])
    _, rest = cut(builder.finish(), 1)
    assert computes(rest)
    ((_, name, *_),) = launches(rest, {}, {})
    assert name == "spread_largest<float, h16, float, h16>"


def test_integers_become_no_other_integers() -> None:
    builder = Builder()
    moved = builder.node("reshape", input=builder.tensor((4,), "int32"), shape=(2, 2))["y"]
    with pytest.raises(Unsupported, match="int32 cannot be an output of int64"):
        builder.output(moved, "int64")


@pytest.mark.headers
def test_nvrtc_compiles_them() -> None:
    moves = ("move<u64, u64, u64>", "move<float, b16, h16>")
    resamples = (
        *(f"{kernel}<float, h16, b16>" for kernel in ("average", "largest", "spread")),
        "spread_largest<double, double, double, double>",
    )
    reductions = ("reduce<Squares, float, float, h16>",)
    for source, names in (
        (_moves.SOURCE, moves),
        (_resamples.SOURCE, resamples),
        (_nodes.REDUCTIONS, reductions),
        (_blocks.SOURCE, ("dequantize<4, b16>", "dequantize<5, float>")),
    ):
        check_compiles(source.text, *names)
