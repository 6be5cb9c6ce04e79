"""Graphs of attention, made from what tells one from another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

from ..graph._run import Program
from ..wire._attention_nodes import (
    CONSTANTS,
    FP8_BACKWARD_SCALES,
    FP8_SCALES,
    TABLES,
    attention_constants,
)
from ..wire._graph import Builder

if TYPE_CHECKING:
    from ..wire._graph import Symbol

_BUCKETS: Final = 8
"""Between one power of two and the next."""


def rounded_up(count: int) -> int:
    """A number not much above, of which there are few: graphs of similar sizes are one."""
    step = 1 << max(0, count.bit_length() - 1 - _BUCKETS.bit_length() + 1)
    return -(-count // step) * step


class Question(NamedTuple):
    """What tells one graph of attention from another.

    Attributes:
        dtype: of q, k and v.
        batch, heads, kv_heads, queries, keys, size, value_size: sizes; of ragged sequences
            the longest.
        layout: order of the dimensions of dense buffers, ``"bshd"`` or ``"bhsd"``.
        page, pages, columns: rows of a page of keys and values, how many pages there are,
            and how many a sequence may have; zeros where there are none.
        ragged_q, ragged_k: whether sequences lie without gaps.
        total_q, total_k: rows of ragged sequences, for the backward pass.
        lengths: whether sequences have lengths.
        scale: of ``q @ k.T``.
        left, right: how many keys before and after its own a query sees; None for all.
        top_left: how queries and keys are aligned.
        dropout: the share that is dropped.
        softcap: whether there is one.
        slopes: shape of slopes; empty for none.
        paper: whether ALiBi's own slopes are meant.
        bias: shape of a bias; empty for none.
        sink: whether there is one.
        stats: whether statistics are wanted.
        backward: whether the gradient is meant.
        dbias: whether that of the bias is.
        deterministic: whether it must be the same each time.
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

    @property
    def fp8(self) -> bool:
        """Whether numbers have scales."""
        return self.dtype.startswith("float8")


@final
class Attention(NamedTuple):
    """A graph of attention.

    Attributes:
        program: the graph, ready to travel.
        ids: of its tensors, by name.
        scalars: values of its numbers that are known already, by id.
    """

    program: Program
    ids: dict[str, int]
    scalars: dict[int, float]


def attention_graph(question: Question) -> Attention:
    """The graph.

    Raises:
        ValueError, TypeError: sizes and options that do not fit.
    """
    return _Maker(question).make()


@final
class _Maker:
    def __init__(self, question: Question) -> None:
        self._question = question
        self._builder = Builder()
        self._named: dict[str, Symbol] = {}

    def make(self) -> Attention:
        question, named = self._question, self._named
        given = self._given()
        attributes: dict[str, Any] = {
            "attn_scale": question.scale,
            "diagonal_alignment": "TOP_LEFT" if question.top_left else "BOTTOM_RIGHT",
            "diagonal_band_left_bound": None if question.left is None else question.left + 1,
            "diagonal_band_right_bound": question.right,
        }
        if not question.fp8:
            attributes["dropout"] = question.dropout
            attributes["use_alibi_mask"] = question.paper
        values = attention_constants(given, attributes)
        for name in values:
            given[name] = self._builder.scalar("float32" if name == CONSTANTS[0] else "int32")
            named[name] = given[name]
        outputs = (
            self._backward(given, attributes)
            if question.backward
            else (self._forward(given, attributes))
        )
        named.update(outputs)
        ids = {name: symbol.id for name, symbol in named.items()}
        scalars = {ids[name]: value for name, value in values.items()}
        return Attention(Program(self._builder.finish()), ids, scalars)

    def _given(self) -> dict[str, Any]:
        """The inputs that forward and backward share."""
        question = self._question
        given: dict[str, Any] = {}
        if question.ragged_q:
            self._ones("offsets_q", question.batch + 1)
            self._ones("offsets_o", question.batch + 1)
            if question.stats or question.backward:
                self._ones("offsets_stats", question.batch + 1)
        if question.ragged_k:
            self._ones("offsets_k", question.batch + 1)
            self._ones("offsets_v", question.batch + 1)
        given["q"] = self._queries("q", question.size, "offsets_q")
        for name, size in (("k", question.size), ("v", question.value_size)):
            given[name] = self._keys(name, size)
        if question.page:
            table = self._add("table", (question.batch, 1, question.columns, 1), "int32")
            given |= dict.fromkeys(TABLES, table)
        if question.lengths:
            for name in ("seq_len_q", "seq_len_kv"):
                given[name] = self._add(name, (question.batch, 1, 1, 1), "int32")
        if question.dropout:
            for name in ("seed", "offset"):
                given[name] = self._add(name, (1, 1, 1, 1), "int64")
        if question.bias:
            given["bias"] = self._add("bias", question.bias, question.dtype)
        if question.sink:
            given["sink_token"] = self._add("sink", (1, question.heads, 1, 1), "float32")
        if question.slopes:
            given["alibi_slopes"] = self._add("alibi_slopes", question.slopes, "float32")
        if question.softcap:
            given["softcap"] = self._named["softcap"] = self._builder.scalar()
        if question.fp8:
            for name in FP8_BACKWARD_SCALES if question.backward else FP8_SCALES:
                given[name] = self._add(name, (1, 1, 1, 1), "float32")
        return given

    def _forward(self, given: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Symbol]:
        question, builder = self._question, self._builder
        op = "sdpa_fp8" if question.fp8 else "sdpa"
        if not question.fp8:
            attributes["max_seq_len_kv"] = question.keys if question.page else None
        outputs = builder.node(op, **given, **attributes, generate_stats=question.stats)
        _, strides = self._lying(question.queries, question.heads, question.value_size)
        ragged = self._named.get("offsets_o")
        builder.output(outputs["o"], question.dtype, strides, ragged=ragged)
        if question.stats:
            packed = (question.queries * question.heads, 1, question.heads, 1)
            builder.output(
                outputs["stats"],
                "float32",
                packed if question.ragged_q else None,
                ragged=self._named.get("offsets_stats"),
            )
        for name in ("amax_s", "amax_o"):
            if name in outputs:
                builder.output(outputs[name], "float32")
        return outputs

    def _backward(self, given: dict[str, Any], attributes: dict[str, Any]) -> dict[str, Symbol]:
        question, builder = self._question, self._builder
        given["o"] = self._queries("o", question.value_size, "offsets_o")
        given["dO"] = self._queries("dO", question.value_size, "offsets_o")
        shape = (question.batch, question.heads, question.queries, 1)
        packed = (question.queries * question.heads, 1, question.heads, 1)
        given["stats"] = self._add(
            "stats", shape, "float32", packed if question.ragged_q else None, "offsets_stats"
        )
        if not question.fp8:
            attributes["has_dbias"] = question.dbias
            attributes["max_total_seq_len_q"] = question.total_q or None
            attributes["max_total_seq_len_kv"] = question.total_k or None
        outputs = builder.node(
            "sdpa_fp8_backward" if question.fp8 else "sdpa_backward",
            **given,
            **attributes,
            use_deterministic_algorithm=question.deterministic,
        )
        offsets = {"dQ": "offsets_q", "dK": "offsets_k", "dV": "offsets_v"}
        for name, symbol in outputs.items():
            builder.output(symbol, ragged=self._named.get(offsets.get(name, "")))
        return outputs

    def _queries(self, name: str, size: int, offsets: str) -> Symbol:
        question = self._question
        shape, strides = self._lying(question.queries, question.heads, size)
        return self._add(name, shape, question.dtype, strides, offsets)

    def _keys(self, name: str, size: int) -> Symbol:
        question = self._question
        heads = question.kv_heads
        if question.page:
            pages = (question.pages, heads, question.page, size)
            rows = (question.page * heads * size, size, heads * size, 1)
            return self._add(name, pages, question.dtype, rows)
        shape, strides = self._lying(question.keys, heads, size)
        return self._add(name, shape, question.dtype, strides, f"offsets_{name}")

    def _lying(self, length: int, heads: int, size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of sequences as the caller has them."""
        shape = (self._question.batch, heads, length, size)
        if self._question.layout == "bhsd":
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
