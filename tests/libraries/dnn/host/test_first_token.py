"""Attention of one query to one key: this package's kernels on the host, and calls of cuDNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_accel.libraries.dnn.attention.graph import AttentionGraph, AttentionSpec, attention_graph
from atomr_accel.libraries.dnn.host._cpu import interpret
from atomr_accel.libraries.dnn.host.fallback import _attention as _own_attention
from atomr_accel.libraries.dnn.host.fallback._fallback import computes, launches
from atomr_accel.libraries.dnn.wire._graph import DnnGraph, decode

from ...compiling import check_all_compile
from ...conformance import Array, dtype_of
from ...host_kernels import compile_kernels, needs_compiler, on_host
from .graph_memory import addresses_of, memory

OUTPUTS = "Single s; Output one"
PARAMETERS = {
    "forward": f"{OUTPUTS}; Output other; i64 count",
    "by_bias": f"{OUTPUTS}; i64 batches; i64 heads; i64 count",
    **dict.fromkeys(("by_q", "by_k", "by_v", "by_sink"), f"{OUTPUTS}; i64 count"),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"lengths": True},
    {"layout": "bhsd", "kv_heads": 4},
    {"kv_heads": 1, "value_size": 24, "dtype": "bfloat16"},
    {"right": 0, "left": 3, "top_left": False},
    {"dropout": 0.5},
    {"dropout": 0.25, "lengths": True, "sink": True, "bias": (1, 4, 1, 1)},
    {"softcap": True, "lengths": True},
    {"slopes": (1, 4, 1, 1), "softcap": True},
    {"paper": True, "right": 0},
    {"sink": True},
    {"sink": True, "lengths": True, "layout": "bhsd"},
    *({"bias": (b, h, 1, 1)} for b in (1, 3) for h in (1, 4)),
]


def attention(**options: Any) -> AttentionGraph:
    given = {"dtype": "float16", "batch": 3, "heads": 4, "kv_heads": 2, "queries": 1, "keys": 1}
    whole: dict[str, Any] = {**given, "size": 16, "value_size": 16, "scale": 0.3, **options}
    whole["dbias"] = whole.get("backward", False) and "bias" in whole
    return attention_graph(AttentionSpec(**whole))


def filled(made: AttentionGraph, graph: DnnGraph, rng: np.random.Generator) -> dict[int, Array]:
    """Buffers; behind the end of a sequence is NaN."""
    names = {id_: name for name, id_ in made.ids.items()}
    arrays = {}
    for id_ in graph.buffers():
        tensor, name = graph.tensors[id_], names[id_]
        array: Array = rng.uniform(-2, 2, tensor.extent).astype(dtype_of(tensor.dtype))
        if name.startswith("seq_len"):
            array = np.array([1, 0, 1] if name == "seq_len_q" else [1, 1, 0], np.int32)
        elif name in ("seed", "offset"):
            array = np.array([2**33 + 5 if name == "seed" else 7], np.int64)
        elif "seq_len_q" in made.ids and tensor.shape[0] == 3:
            rows: Any = array.reshape(3, -1)
            rows[1 if name in ("q", "o", "dO", "stats") else 2] = np.nan
        arrays[id_] = array
    return arrays


@needs_compiler
def test_kernels(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    cases = []
    kernels: dict[str, str] = {}
    for options in OPTIONS:
        for backward in (False, True):
            made = attention(**options, backward=backward)
            graph = decode(made.graph.encoded)
            assert _own_attention.computes(graph)
            arrays = filled(made, graph, rng)
            written = {**arrays, **{id_: np.zeros_like(arrays[id_]) for id_ in graph.written()}}
            scalars = {id_: made.scalars.get(id_, 1.5) for id_ in graph.scalars()}
            found = launches(graph, addresses_of(written), scalars)
            kernels |= {each.name: PARAMETERS[each.name.partition("<")[0]] for each in found}
            cases.append((options, graph, arrays, written, scalars, found))
    compiled = compile_kernels(on_host(_own_attention.SOURCE), kernels, tmp_path)
    for options, graph, arrays, written, scalars, found in cases:
        for launch in found:
            compiled[launch.name](launch.data)
        expected = {id_: array.copy() for id_, array in arrays.items()}
        interpret(graph, addresses_of(expected), scalars, memory)
        for id_ in graph.written():
            one, other = (each[id_].astype(float) for each in (written, expected))
            wide = graph.tensors[id_].dtype == "float32"
            np.testing.assert_allclose(
                *(one, other),
                rtol=2e-6 if wide else 0.01,
                atol=1e-5 if wide else 2e-3,
                err_msg=f"{options} {id_}",
            )


@pytest.mark.headers
def test_nvrtc_compiles_the_kernels() -> None:
    names = [f"{name}<{kind}>" for name in PARAMETERS for kind in ("h16", "b16", "float")]
    check_all_compile(_own_attention.SOURCE, names, warned=True)


def test_longer_ones_are_not_computed_by_them() -> None:
    for options in (
        {"queries": 2},
        {"keys": 2},
        {"queries": 64, "keys": 64, "ragged_q": True, "ragged_k": True, "lengths": True},
        {"page": 1, "pages": 4, "columns": 1, "lengths": True},
    ):
        assert not computes(decode(attention(**options).graph.encoded))


@pytest.mark.headers
@pytest.mark.slow
def test_cudnn_is_asked_for_what_it_has(tmp_path: Path) -> None:
    pytest.importorskip("cudnn")
    from .offers import offer

    expected = {}
    for options in OPTIONS:
        for backward in (False, True):
            graph = attention(**options, backward=backward).graph.encoded
            own = backward or bool(options.keys() & {"dropout", "sink"})
            own |= options.keys() >= {"softcap", "lengths"}
            op = "sdpa_backward" if backward else "sdpa"
            expected[graph] = f"takes own {op}" if own else f"takes {op}"
    assert offer(list(expected), tmp_path) == list(expected.values())
