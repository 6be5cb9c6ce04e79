"""Attention as the vendor's frontend has it.

Masks, lengths, pages and dropout are options of the frontend's nodes. Caps and slopes of the
caller's own are not: they are single operations on the scores (the vendor's ``score_mod``),
which then have to do the masking, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from ..wire._attention_nodes import LENGTHS, SCORES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..wire._graph import GraphNode

_FP8_BOUNDS: Final = {"left_bound": "left", "right_bound": "right"}
_BOUNDS: Final = {f"diagonal_band_{name}_bound": name for name in ("left", "right")}
_PLAIN: Final = (
    *("bias", "sink_token", "paged_attention_k_table", "paged_attention_v_table"),
    *("dBias", "dSink_token"),
)


@final
class _ScoreGraph:
    """The operations on scores that a node has no option for."""

    def __init__(self, frontend: Any, inputs: dict[str, Any], attributes: dict[str, Any]) -> None:
        self._types = frontend.data_type
        self._inputs = inputs
        self._attributes = attributes
        self._before: Any = None

    def forward(self, graph: Any, scores: Any) -> Any:
        """Change the scores: cap, slopes, mask."""
        inputs, attributes = self._inputs, self._attributes
        if "softcap" in inputs:
            scores = self._float(graph.div, a=scores, b=inputs["softcap"])
            self._before = scores
            scores = self._float(graph.tanh, input=scores)
            scores = self._float(graph.mul, a=scores, b=inputs["softcap"])
        if not inputs.keys() & {"alibi_slopes", "mask_value"}:
            return scores
        row = self._index(graph, scores, 2)
        column = self._index(graph, scores, 3)
        moved = self._moved(graph, row)
        if "alibi_slopes" in inputs:
            distance = self._float(graph.sub, a=column, b=moved)
            if attributes["diagonal_band_right_bound"] != 0:
                distance = self._float(graph.abs, input=distance)
                distance = self._float(graph.neg, input=distance)
            distance = self._float(graph.mul, a=distance, b=inputs["alibi_slopes"])
            scores = self._float(graph.add, a=scores, b=distance)
        for mask in self._masks(graph, row, column, moved):
            mask.set_data_type(self._types.BOOLEAN)
            scores = graph.binary_select(input0=scores, input1=inputs["mask_value"], mask=mask)
            scores.set_data_type(self._types.FLOAT)
        return scores

    def backward(self, graph: Any, gradient: Any) -> Any:
        """The gradient of the scores before the changes; only a cap changes it."""
        if "softcap" not in self._inputs:
            return gradient
        return self._float(graph.tanh_backward, loss=gradient, input=self._before)

    def _moved(self, graph: Any, row: Any) -> Any:
        """Rows in the frame of the diagonal."""
        if "shift" in self._inputs:
            return self._integer(graph.add, a=row, b=self._inputs["shift"])
        padded = LENGTHS[0] in self._inputs
        if padded and self._attributes["diagonal_alignment"] == "BOTTOM_RIGHT":
            # One after the other: the library does not compute with two lengths alone.
            row = self._integer(graph.sub, a=row, b=self._inputs[LENGTHS[0]])
            row = self._integer(graph.add, a=row, b=self._inputs[LENGTHS[1]])
        return row

    def _masks(self, graph: Any, row: Any, column: Any, moved: Any) -> Any:
        inputs, attributes = self._inputs, self._attributes
        integer = self._types.INT32
        if attributes["diagonal_band_right_bound"] is not None:
            last = moved
            if "right" in inputs:
                last = self._integer(graph.add, a=moved, b=inputs["right"])
            yield graph.cmp_ge(input=last, comparison=column, compute_data_type=integer)
        if "left" in inputs:
            first = self._integer(graph.sub, a=moved, b=inputs["left"])
            yield graph.cmp_lt(input=first, comparison=column, compute_data_type=integer)
        if LENGTHS[0] in inputs:
            for index, name in ((column, LENGTHS[1]), (row, LENGTHS[0])):
                yield graph.cmp_lt(input=index, comparison=inputs[name], compute_data_type=integer)

    def _index(self, graph: Any, scores: Any, axis: int) -> Any:
        return self._integer(graph.gen_index, input=scores, axis=axis)

    def _float(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        return self._typed(operation, self._types.FLOAT, arguments)

    def _integer(self, operation: Callable[..., Any], **arguments: Any) -> Any:
        return self._typed(operation, self._types.INT32, arguments)

    @staticmethod
    def _typed(operation: Callable[..., Any], dtype: Any, arguments: dict[str, Any]) -> Any:
        result = operation(**arguments, compute_data_type=dtype)
        result.set_data_type(dtype)
        return result


def _options(frontend: Any, node: GraphNode, inputs: dict[str, Any]) -> dict[str, Any]:
    """Arguments that forward and backward have in common."""
    attributes = dict(node.attributes)
    options: dict[str, Any] = {name: inputs[name] for name in (*_PLAIN, *LENGTHS) if name in inputs}
    options["attn_scale"] = attributes["attn_scale"]
    if attributes["dropout"]:
        options["dropout"] = (attributes["dropout"], inputs["seed"], inputs["offset"])
    if any(name in inputs for name in SCORES):
        changes = _ScoreGraph(frontend, inputs, attributes)
        options["score_mod"] = changes.forward
        if node.op == "sdpa_backward":
            options["score_mod_bprop"] = changes.backward
        return options
    options["use_padding_mask"] = LENGTHS[0] in inputs
    options["use_alibi_mask"] = attributes["use_alibi_mask"]
    options["diagonal_alignment"] = getattr(
        frontend.diagonal_alignment, str(attributes["diagonal_alignment"])
    )
    for name in _BOUNDS:
        if attributes[name] is not None:
            options[name] = attributes[name]
    return options


def _sdpa(frontend: Any, made: Any, node: GraphNode, inputs: dict[str, Any]) -> Any:
    attributes = dict(node.attributes)
    options = _options(frontend, node, inputs)
    if attributes["max_seq_len_kv"] is not None:
        options["paged_attention_max_seq_len_kv"] = attributes["max_seq_len_kv"]
    return made.sdpa(
        q=inputs["q"],
        k=inputs["k"],
        v=inputs["v"],
        generate_stats=attributes["generate_stats"],
        **options,
    )


def _sdpa_backward(frontend: Any, made: Any, node: GraphNode, inputs: dict[str, Any]) -> Any:
    attributes = dict(node.attributes)
    options = _options(frontend, node, inputs)
    for name in ("max_total_seq_len_q", "max_total_seq_len_kv"):
        if attributes[name] is not None:
            options[name] = attributes[name]
    extra = []
    for name, source in (("dBias", "bias"), ("dSink_token", "sink_token")):
        if any(output == name for output, _ in node.outputs):
            like = inputs[source]
            options[name] = made.tensor(
                dim=like.get_dim(), stride=like.get_stride(), data_type=like.get_data_type()
            )
            extra.append(options[name])
        else:
            extra.append(None)
    gradients = made.sdpa_backward(
        **{name: inputs[name] for name in ("q", "k", "v", "o", "dO", "stats")},
        use_deterministic_algorithm=attributes["use_deterministic_algorithm"],
        **options,
    )
    return [*gradients, *extra]


def _fp8(method: str) -> Callable[[Any, Any, GraphNode, dict[str, Any]], Any]:
    def special(frontend: Any, made: Any, node: GraphNode, inputs: dict[str, Any]) -> Any:
        attributes = dict(node.attributes)
        options: dict[str, Any] = {
            name: value
            for name, value in attributes.items()
            if name in ("attn_scale", "generate_stats", "use_deterministic_algorithm")
        }
        for name, side in _FP8_BOUNDS.items():
            bound = attributes[f"diagonal_band_{side}_bound"]
            if bound is not None:
                options[name] = bound
        return getattr(made, method)(
            **inputs,
            **options,
            use_padding_mask=LENGTHS[0] in inputs,
            diagonal_alignment=getattr(
                frontend.diagonal_alignment, str(attributes["diagonal_alignment"])
            ),
        )

    return special


SPECIAL: Final[dict[str, Callable[[Any, Any, GraphNode, dict[str, Any]], Any]]] = {
    "sdpa": _sdpa,
    "sdpa_backward": _sdpa_backward,
    "sdpa_fp8": _fp8("sdpa_fp8"),
    "sdpa_fp8_backward": _fp8("sdpa_fp8_backward"),
}
"""For ``_lowering.SPECIAL``."""
