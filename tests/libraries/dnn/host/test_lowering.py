"""Every graph of the conformance tests, offered to cuDNN for an H200 that is not there."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atomr_accel import Unsupported
from atomr_accel.libraries.dnn.attention.graph import AttentionSpec, attention_graph
from atomr_accel.libraries.dnn.graph._builder import Builder
from atomr_accel.libraries.dnn.host._plan_compiler import PlanCompiler
from atomr_accel.libraries.dnn.wire._graph import DnnGraph, encode
from atomr_accel.libraries.dnn.wire._nodes import NODES

from ....harness import ROOT
from ..rows.ops import OPERATIONS
from .offer import DEVICE
from .offers import OFFER, graphs_of, offer

pytestmark = [pytest.mark.headers, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _what_it_takes() -> None:
    for package in ("cudnn", "cuda.pathfinder"):
        pytest.importorskip(package)
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")


async def test_cudnn_takes_every_graph_of_the_conformance_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken = [
        replace(row, dtypes=tuple(each for each in row.dtypes if each not in row.may_refuse))
        for row in OPERATIONS
    ]
    graphs = await graphs_of(monkeypatch, taken)
    verdicts = offer(list(graphs), tmp_path)
    assert len(verdicts) == len(graphs)
    refused = [
        f"{case}: {verdict[:300]}"
        for case, verdict in zip(graphs.values(), verdicts, strict=True)
        if not verdict.startswith("takes ")
    ]
    assert not refused, "\n".join(refused[:20])
    # A kernel of cuDNN is used if there is one; our own are for graphs that it refuses.
    for case, verdict in zip(graphs.values(), verdicts, strict=True):
        name, dtype, *_ = case.split()
        if dtype != "float64" and name in ("dnn.conv", "dnn.layer_norm", "dnn.relu", "dnn.tanh"):
            rough = (name, dtype) == ("dnn.tanh", "float32")  # cuDNN's has five digits
            assert ("own" in verdict) == rough, f"{case}: {verdict}"
            assert "|" not in verdict, f"{case}: {verdict}"


def an_instance_norm_gradient(dtype: str, *, last: bool) -> DnnGraph:
    builder = Builder()
    shape, kept = (2, 8, 4, 5), (2, 8, 1, 1)
    found = builder.node(
        "instancenorm_backward",
        grad=builder.tensor(shape, dtype, last=last),
        input=builder.tensor(shape, dtype, last=last),
        scale=builder.tensor((1, 8, 1, 1), "float32"),
        mean=builder.tensor(kept, "float32"),
        inv_variance=builder.tensor(kept, "float32"),
    )
    for symbol in found.values():
        builder.output(symbol)
    return builder.finish()


def test_graphs_that_cudnn_computes_wrongly_run_on_own_kernels(tmp_path: Path) -> None:
    """cuDNN takes these graphs, and on an H200 (9.19) it gave a wrong gradient by the scale."""
    dtypes = ("float16", "bfloat16", "float32")
    graphs = [
        an_instance_norm_gradient(dtype, last=last) for last in (False, True) for dtype in dtypes
    ]
    verdicts = offer([encode(graph) for graph in graphs], tmp_path)
    assert verdicts == [
        *["takes instancenorm_backward"] * len(dtypes),
        *["takes own instancenorm_backward"] * len(dtypes),
    ]


def a_chain(*ops: str) -> DnnGraph:
    """Pointwise operations, one after the other, that of two inputs with a second one."""
    builder = Builder()
    y = builder.tensor((4, 64), "float16")
    for op in ops:
        names, other = NODES[op].inputs, builder.tensor((1, 64), "float16")
        beta: Any = {"swish_beta": 1.0} if op.startswith("swish") else {}
        y = builder.node(op, **dict.fromkeys(names, other) | {names[-1]: y}, **beta)["y"]
    builder.output(y)
    return builder.finish()


def test_activations_alone_are_computed_by_own_kernels(tmp_path: Path) -> None:
    """cuDNN's values at infinities and for NaN are not the limits."""
    names = ("gelu", "gelu_approx_tanh", "swish")
    wrong = [*names, *(f"{name}_backward" for name in (*names, "relu"))]
    expected: dict[tuple[str, ...], str] = {(op,): f"takes own {op}" for op in wrong}
    expected |= {("relu",): "takes relu", ("tanh",): "takes tanh"}
    expected |= {("add", op): f"takes add+{op}" for op in (*names, "relu")}
    verdicts = offer([encode(a_chain(*ops)) for ops in expected], tmp_path)
    assert dict(zip(expected, verdicts, strict=True)) == expected


def statistics(dtype: str, *, last: bool) -> DnnGraph:
    """Return the graph of a convolution and the sums of its channels."""
    builder = Builder()
    window = {"pre_padding": (1, 1), "post_padding": (1, 1), "stride": (1, 1), "dilation": (1, 1)}
    x = builder.tensor((4, 64, 8, 8), dtype, last=last)
    w = builder.tensor((32, 64, 3, 3), dtype, last=last)
    y = builder.node("conv_fprop", image=x, weight=w, **window)["y"]
    for symbol in (y, *builder.node("genstats", input=y).values()):
        builder.output(symbol)
    return builder.finish()


def moved(op: str, dtype: str, **attributes: Any) -> DnnGraph:
    """Return the graph of a moved tensor that is then multiplied."""
    builder = Builder()
    a = builder.node(op, input=builder.tensor((4, 64, 32), dtype), **attributes)["y"]
    product = builder.node("matmul", A=a, B=builder.tensor((4, a.shape[-1], 16), dtype))["c"]
    builder.output(product)
    return builder.finish()


def test_moves_are_our_own_and_statistics_are_part_of_a_convolution(tmp_path: Path) -> None:
    expected = [
        (statistics("float16", last=True), "takes conv_fprop+genstats"),
        (statistics("float16", last=False), "takes conv_fprop | own genstats"),
        (statistics("float32", last=True), "takes conv_fprop | own genstats"),
        (
            moved("slice", "float16", starts=(0, 8, 0), stops=(4, 40, 32)),
            "takes own slice | matmul",
        ),
        (moved("reshape", "bfloat16", shape=(4, 128, 16)), "takes own reshape | matmul"),
        (moved("transpose", "float16", permutation=(0, 2, 1)), "takes own transpose | matmul"),
    ]
    verdicts = offer([encode(graph) for graph, _ in expected], tmp_path)
    assert verdicts == [verdict for _, verdict in expected]


def attention(**given: Any) -> bytes:
    """A graph of attention with two short sequences, unless something else is said."""
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 8, "keys": 8}
    whole: dict[str, Any] = {"dtype": "float16", **sizes, "size": 16, "value_size": 16, **given}
    return attention_graph(AttentionSpec(**whole)).graph.encoded


def test_graphs_that_crash_the_planner_are_not_planned(tmp_path: Path) -> None:
    graphs = [
        attention(softcap=True, lengths=True, backward=True, right=right) for right in (None, 0)
    ]
    (first, second) = offer(graphs, tmp_path)
    assert first == second
    assert first.startswith("Unsupported: cuDNN does not do this right: the gradient of a cap")


def a_product(dtype: str, *, tf32: bool) -> DnnGraph:
    """``relu(a @ b * scale + row)``."""
    builder = Builder()
    a, b = builder.tensor((4, 64, 128), dtype), builder.tensor((1, 128, 32), dtype)
    y = builder.node("matmul", A=a, B=b)["c"]
    y = builder.node("mul", a=y, b=builder.scalar(ndim=3))["y"]
    y = builder.node("add", a=y, b=builder.tensor((1, 1, 32), dtype))["y"]
    builder.output(builder.node("relu", input=y)["y"])
    return builder.finish(tf32=tf32)


def test_products_that_cudnn_would_round_are_computed_by_own_kernels(tmp_path: Path) -> None:
    whole = "takes matmul+mul+add+relu"
    expected = {
        ("float16", False): whole,
        ("bfloat16", False): whole,
        ("float32", True): whole,
        ("float32", False): "takes own matmul | mul+add+relu",
    }
    graphs = [a_product(dtype, tf32=tf32) for dtype, tf32 in expected]
    verdicts = offer([encode(graph) for graph in graphs], tmp_path)
    assert dict(zip(expected, verdicts, strict=True)) == expected


def a_convolution(dtype: str) -> DnnGraph:
    builder = Builder()
    x = builder.tensor((8, 64, 28, 28), dtype, last=True)
    w = builder.tensor((64, 64, 3, 3), dtype, last=True)
    names = ("pre_padding", "post_padding", "stride", "dilation")
    window: dict[str, Any] = dict.fromkeys(names, (1, 1))
    builder.output(builder.node("conv_fprop", image=x, weight=w, **window)["y"])
    return builder.finish()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PlanCompiler]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made = PlanCompiler(
        json.dumps(DEVICE), (9, 0), (sys.executable, str(OFFER), str(tmp_path), "--workshop")
    )
    yield made
    made.close()


def test_another_process_makes_plans(compiler: PlanCompiler) -> None:
    for dtype in ("float16", "bfloat16"):
        graph = a_convolution(dtype)
        steps = compiler.make(encode(graph))
        assert steps is not None
        assert [step.graph for step in steps] == [graph]
        assert b"cudnn_backend_data" in steps[0].made
    # One that is computed by a kernel of our own needs no more than its graph.
    steps = compiler.make(encode(a_convolution("float64")))
    assert steps is not None
    assert steps[0].made == b""


def test_another_process_tells_what_is_refused(compiler: PlanCompiler) -> None:
    builder = Builder()
    x = builder.tensor((4, 4), "float8_e4m3fn")
    builder.output(builder.node("matmul", A=x, B=x)["c"], "float64")
    with pytest.raises(Unsupported, match="cuDNN does not do this"):
        compiler.make(encode(builder.finish()))


def test_plans_are_made_in_the_host_without_a_helper_process() -> None:
    for command in (("/nowhere/python",), (sys.executable, "-c", "pass")):
        broken = PlanCompiler("{}", (9, 0), command)
        assert broken.make(b"") is None
        assert broken.make(b"") is None
