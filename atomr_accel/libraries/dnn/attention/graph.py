"""Graphs of attention, made from the properties in which they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ..graph._builder import Builder
from ..graph._run import EncodedGraph
from ..wire._attention_nodes import (
    CONSTANTS,
    FP8_BACKWARD_SCALES,
    FP8_SCALES,
    TABLES,
    attention_constants,
)

if TYPE_CHECKING:
    from ..graph._builder import Symbol

_BUCKETS: Final = 8
"""Between one power of two and the next."""


def rounded_up(count: int) -> int:
    """A number not much above, of which there are few: graphs of similar sizes are one."""
    step = 1 << max(0, count.bit_length() - 1 - _BUCKETS.bit_length() + 1)
    return -(-count // step) * step


class AttentionSpec(NamedTuple):
    """The properties in which graphs of attention differ.

    Attributes:
        dtype: dtype of q, k and v.
        batch, heads, kv_heads, queries, keys, size, value_size: sizes; of ragged sequences
            the longest.
        layout: order of the dimensions of dense buffers, ``"bshd"`` or ``"bhsd"``.
        page, pages, columns: rows of a page of keys and values, number of pages, and number
            of pages that a sequence may have; zeros without pages.
        ragged_q, ragged_k: whether sequences lie without gaps.
        total_q, total_k: rows of ragged sequences, for the backward pass.
        lengths: whether sequences have lengths.
        scale: factor of ``q @ k.T``.
        left, right: number of keys before and after its own that a query sees; None for all.
        top_left: whether queries and keys are aligned at the top left.
        dropout: the share that is dropped.
        softcap: whether scores have a softcap.
        slopes: shape of slopes; empty for none.
        paper: whether ALiBi's own slopes are used.
        bias: shape of a bias; empty for none.
        sink: whether heads have a sink.
        stats: whether statistics are an output.
        backward: whether the graph computes gradients.
        dbias: whether these include the gradient with respect to the bias.
        deterministic: whether results must be the same each time.
        strides: strides in elements along batch, heads, rows and sizes, by name, for each of q,
            k and v that is a view with gaps.
    """

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int
    layout: str = "bshd"
    page: int = 0
    pages: int = 0
    columns: int = 0
    ragged_q: bool = False
    ragged_k: bool = False
    total_q: int = 0
    total_k: int = 0
    lengths: bool = False
    scale: float = 1.0
    left: int | None = None
    right: int | None = None
    top_left: bool = True
    dropout: float = 0.0
    softcap: bool = False
    slopes: tuple[int, ...] = ()
    paper: bool = False
    bias: tuple[int, ...] = ()
    sink: bool = False
    stats: bool = True
    backward: bool = False
    dbias: bool = False
    deterministic: bool = False
    strides: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def fp8(self) -> bool:
        """``True`` if q, k and v are in fp8, and have scales."""
        return self.dtype.startswith("float8")


@final
class AttentionGraph(NamedTuple):
    """A graph of attention.

    Attributes:
        graph: the graph, ready to travel.
        ids: ids of its tensors, by name.
        scalars: values of its numbers that are known already, by id.
    """

    graph: EncodedGraph
    ids: dict[str, int]
    scalars: dict[int, float]


def attention_graph(spec: AttentionSpec) -> AttentionGraph:
    """The graph.

    Raises:
        ValueError, TypeError: sizes and options that do not fit.
    """
    return _Maker(spec).make()


@final
class _Maker:
    def __init__(self, spec: AttentionSpec) -> None:
        self._spec = spec
        self._builder = Builder()
        self._named: dict[str, Symbol] = {}

    def make(self) -> AttentionGraph:
        spec, named = self._spec, self._named
        given = self._given()
        attributes: dict[str, Any] = {
            "attn_scale": spec.scale,
            "diagonal_alignment": "TOP_LEFT" if spec.top_left else "BOTTOM_RIGHT",
            "diagonal_band_left_bound": None if spec.left is None else spec.left + 1,
            "diagonal_band_right_bound": spec.right,
        }
        if not spec.fp8:
            attributes["dropout"] = spec.dropout
            attributes["use_alibi_mask"] = spec.paper
        values = attention_constants(given, attributes)
        for name in values:
            given[name] = self._builder.scalar("float32" if name == CONSTANTS[0] else "int32")
            named[name] = given[name]
        outputs = (
            self._backward(given, attributes)
            if spec.backward
            else (self._forward(given, attributes))
        )
        named.update(outputs)
        ids = {name: symbol.id for name, symbol in named.items()}
        scalars = {ids[name]: value for name, value in values.items()}
        return AttentionGraph(EncodedGraph(self._builder.finish()), ids, scalars)

    def _given(self) -> dict[str, Any]:
        """The inputs that forward and backward share."""
        spec = self._spec
        given: dict[str, Any] = {}
        if spec.ragged_q:
            self._ones("offsets_q", spec.batch + 1)
            self._ones("offsets_o", spec.batch + 1)
            if spec.stats or spec.backward:
                self._ones("offsets_stats", spec.batch + 1)
        if spec.ragged_k:
            self._ones("offsets_k", spec.batch + 1)
            self._ones("offsets_v", spec.batch + 1)
        given["q"] = self._queries("q", spec.size, "offsets_q")
        for name, size in (("k", spec.size), ("v", spec.value_size)):
            given[name] = self._keys(name, size)
        if spec.page:
            table = self._add("table", (spec.batch, 1, spec.columns, 1), "int32")
            given |= dict.fromkeys(TABLES, table)
        if spec.lengths:
            for name in ("seq_len_q", "seq_len_kv"):
                given[name] = self._add(name, (spec.batch, 1, 1, 1), "int32")
        if spec.dropout:
            for name in ("seed", "offset"):
                given[name] = self._add(name, (1, 1, 1, 1), "int64")
        if spec.bias:
            given["bias"] = self._add("bias", spec.bias, spec.dtype)
        if spec.sink:
            given["sink_token"] = self._add("sink", (1, spec.heads, 1, 1), "float32")
        if spec.slopes:
            given["alibi_slopes"] = self._add("alibi_slopes", spec.slopes, "float32")
        if spec.softcap:
            given["softcap"] = self._named["softcap"] = self._builder.scalar()
        if spec.fp8:
            for name in FP8_BACKWARD_SCALES if spec.backward else FP8_SCALES:
                given[name] = self._add(name, (1, 1, 1, 1), "float32")
        return given

    def _forward(self, given: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Symbol]:
        spec, builder = self._spec, self._builder
        op = "sdpa_fp8" if spec.fp8 else "sdpa"
        if not spec.fp8:
            attributes["max_seq_len_kv"] = spec.keys if spec.page else None
        outputs = builder.node(op, **given, **attributes, generate_stats=spec.stats)
        _, strides = self._lying(spec.queries, spec.heads, spec.value_size)
        ragged = self._named.get("offsets_o")
        builder.output(outputs["o"], spec.dtype, strides, ragged=ragged)
        if spec.stats:
            packed = (spec.queries * spec.heads, 1, spec.heads, 1)
            builder.output(
                outputs["stats"],
                "float32",
                packed if spec.ragged_q else None,
                ragged=self._named.get("offsets_stats"),
            )
        for name in ("amax_s", "amax_o"):
            if name in outputs:
                builder.output(outputs[name], "float32")
        return outputs

    def _backward(self, given: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Symbol]:
        spec, builder = self._spec, self._builder
        given["o"] = self._queries("o", spec.value_size, "offsets_o")
        given["dO"] = self._queries("dO", spec.value_size, "offsets_o")
        shape = (spec.batch, spec.heads, spec.queries, 1)
        packed = (spec.queries * spec.heads, 1, spec.heads, 1)
        given["stats"] = self._add(
            "stats", shape, "float32", packed if spec.ragged_q else None, "offsets_stats"
        )
        if not spec.fp8:
            attributes["has_dbias"] = spec.dbias
            attributes["max_total_seq_len_q"] = spec.total_q or None
            attributes["max_total_seq_len_kv"] = spec.total_k or None
        outputs = builder.node(
            "sdpa_fp8_backward" if spec.fp8 else "sdpa_backward",
            **given,
            **attributes,
            use_deterministic_algorithm=spec.deterministic,
        )
        offsets = {"dQ": "offsets_q", "dK": "offsets_k", "dV": "offsets_v"}
        for name, symbol in outputs.items():
            builder.output(symbol, ragged=self._named.get(offsets.get(name, "")))
        return outputs

    def _queries(self, name: str, size: int, offsets: str) -> Symbol:
        spec = self._spec
        shape, strides = self._lying(spec.queries, spec.heads, size)
        return self._add(name, shape, spec.dtype, dict(spec.strides).get(name, strides), offsets)

    def _keys(self, name: str, size: int) -> Symbol:
        spec = self._spec
        heads = spec.kv_heads
        if spec.page:
            pages = (spec.pages, heads, spec.page, size)
            rows = (spec.page * heads * size, size, heads * size, 1)
            return self._add(name, pages, spec.dtype, rows)
        shape, strides = self._lying(spec.keys, heads, size)
        strides = dict(spec.strides).get(name, strides)
        return self._add(name, shape, spec.dtype, strides, f"offsets_{name}")

    def _lying(self, length: int, heads: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of sequences as the caller has them."""
        shape = (self._spec.batch, heads, length, size)
        if self._spec.layout == "bhsd":
            return shape, (heads * length * size, length * size, size, 1)
        return shape, (heads * length * size, size, heads * size, 1)

    def _ones(self, name: str, count: int) -> None:
        self._add(name, (count, 1, 1, 1), "int64")

    def _add(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        strides: tuple[int, ...] | None = None,
        offsets: str = "",
    ) -> Symbol:
        ragged = self._named.get(offsets)
        symbol = self._builder.tensor(shape, dtype, strides, ragged=ragged)
        self._named[name] = symbol
        return symbol
