"""Graphs of normalisations, and the requests that run them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ....ops import D, require_dtype, require_readable, require_shape
from ....wire.options import real
from ..graph._builder import Builder
from ..graph._run import DnnPart, EncodedGraph, GraphCall, RunOutput
from ..graph.layout import is_last, logical, per_channel, require_float
from ..wire._nodes import wider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ....arrays import GpuRef
    from ....ops import Request
    from ..graph._builder import Symbol

Given = dict[str, "GpuRef"]
"""The arguments of a call by name, in the order in which its graph reads them."""

_NOT_IN_PLACE: Final[dict[int, str]] = {}


class NormGraph(NamedTuple):
    """A graph of a normalisation.

    Attributes:
        inputs: ids of its inputs, by argument.
        outputs: ids and shapes of its outputs, in the order of results.
    """

    graph: EncodedGraph
    inputs: dict[str, int]
    outputs: list[tuple[int, tuple[int, ...]]]


class NormalizationPart(DnnPart[D]):
    """Requests for normalisations."""

    def _per_channel(
        self,
        called: str,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        eps: float,
        layout: str | None,
        out: GpuRef | None,
        **attributes: int,
    ) -> Request[Any]:
        """A normalisation with parameters for each channel and statistics for each image."""
        op, training = _node_of(called)
        epsilon = real(eps, "eps", least=0)
        given = {"x": x, "weight": weight, "bias": bias}

        def make(last: bool) -> NormGraph:
            builder, shape = Builder(), plane_of(x.shape, last=last)
            kept, ndim = wider(x.dtype.name), len(shape)
            for name, ref in parameters_of(given):
                require_parameter(ref, name, shape[1:2], (x.dtype.name, kept))
            require_dtype(bias, weight.dtype, "bias", "weight")
            image_ = builder.tensor(shape, x.dtype, last=last)
            scale, shift = (per_channel(builder, ref, ndim, last=last) for ref in (weight, bias))
            found = builder.node(
                op,
                input=image_,
                scale=scale,
                bias=shift,
                epsilon=builder.scalar(kept, ndim),
                norm_forward_phase="TRAINING" if training else "INFERENCE",
                **attributes,
            )
            inputs = {"x": image_.id, "weight": scale.id, "bias": shift.id}
            each = attributes.get("groups", shape[1])
            return finished(builder, inputs, found, {"y": x.shape}, (shape[0], each))

        key = (op, training, layout, tuple(attributes.items()))
        return self._norm(key, given, (epsilon,), make, layout, (out,))

    def _per_channel_grad(
        self,
        called: str,
        given: Given,
        layout: str | None,
        **attributes: int,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of one."""
        x, weight = given["x"], given["weight"]
        op, _ = _node_of(called)

        def make(last: bool) -> NormGraph:
            builder, shape = Builder(), plane_of(x.shape, last=last)
            kept = wider(x.dtype.name)
            images, channels, *space = shape
            own = (images, attributes.get("groups", channels))
            outside = (channels,) if op == "batchnorm" else own
            inside = (*(1, *outside)[-2:], *[1] * len(space))
            require_parameter(given["grad"], "grad", x.shape, (x.dtype.name,))
            types = (kept,) if op == "batchnorm" else (x.dtype.name, kept)
            require_parameter(weight, "weight", shape[1:2], types)
            named = {
                "grad": builder.tensor(shape, x.dtype, last=last),
                "input": builder.tensor(shape, x.dtype, last=last),
                "scale": per_channel(builder, weight, len(shape), last=last),
            }
            for name in ("mean", "inv_variance"):
                require_parameter(given[name], name, outside, (kept,))
                named[name] = builder.tensor(inside, kept, last=last)
            found = builder.node(f"{op}_backward", **named, **attributes)
            return finished_grad(builder, named, found, x.shape, weight.shape)

        key = (op, "backward", layout, tuple(attributes.items()))
        return self._norm(key, given, (), make, layout, ())

    def _rows(self, called: str, given: Given, eps: float, out: GpuRef | None) -> Request[Any]:
        """A normalisation over the last dimensions."""
        op, training = _node_of(called)
        epsilon = real(eps, "eps", least=0)
        x, weight = given["x"], given["weight"]

        def make(last: bool) -> NormGraph:
            del last
            builder = Builder()
            kept = wider(x.dtype.name)
            rows, columns = _split_rows(x, weight)
            for name, ref in parameters_of(given):
                require_parameter(ref, name, weight.shape, (x.dtype.name, kept))
                require_dtype(ref, weight.dtype, name, "weight")
            named = {"input": _matrix(builder, rows, columns, x.dtype.name)}
            named["scale"] = _matrix(builder, 1, columns, weight.dtype.name)
            if "bias" in given:
                named["bias"] = _matrix(builder, 1, columns, weight.dtype.name)
            found = builder.node(
                op,
                **named,
                epsilon=builder.scalar(kept),
                norm_forward_phase="TRAINING" if training else "INFERENCE",
            )
            inputs = {"x": named["input"].id, "weight": named["scale"].id}
            if "bias" in given:
                inputs["bias"] = named["bias"].id
            leading = x.shape[: x.ndim - weight.ndim]
            return finished(builder, inputs, found, {"y": x.shape}, leading)

        key = (op, training, len(given))
        return self._norm(key, given, (epsilon,), make, None, (out,))

    def _rows_grad(self, op: str, given: Given, **attributes: Any) -> Request[Any]:
        """The gradients of one."""
        x, weight = given["x"], given["weight"]

        def make(last: bool) -> NormGraph:
            del last
            builder = Builder()
            kept = wider(x.dtype.name)
            rows, columns = _split_rows(x, weight)
            require_parameter(given["grad"], "grad", x.shape, (x.dtype.name,))
            require_parameter(weight, "weight", weight.shape, (x.dtype.name, kept))
            named = {
                "grad": _matrix(builder, rows, columns, x.dtype.name),
                "input": _matrix(builder, rows, columns, x.dtype.name),
                "scale": _matrix(builder, 1, columns, weight.dtype.name),
            }
            leading = x.shape[: x.ndim - weight.ndim]
            for name in ("mean", "inv_variance"):
                if name in given:
                    require_parameter(given[name], name, leading, (kept,))
                    named[name] = _matrix(builder, rows, 1, kept)
            found = builder.node(f"{op}_backward", **named, **attributes)
            return finished_grad(builder, named, found, x.shape, weight.shape)

        key = (op, "backward", tuple(attributes.items()))
        return self._norm(key, given, (), make, None, ())

    def _norm(
        self,
        key: tuple[Any, ...],
        given: Given,
        scalars: tuple[float, ...],
        make: Callable[[bool], NormGraph],
        layout: str | None,
        outs: Sequence[GpuRef | None],
        in_place: Mapping[int, str] = _NOT_IN_PLACE,
    ) -> Request[Any]:
        """Return the request for a normalisation, whose graph is made for each new signature.

        Args:
            key: values on which the graph depends besides shapes and dtypes, its name first;
                checked, so that equal keys mean equal graphs.
            given: the arguments with their names; ``x`` is the array that is normalised.
            scalars: the graph's numbers.
            make: makes the graph.
            layout: layout of ``x``.
            outs: buffers of the caller for results, in order; absent ones are made.
            in_place: the names of outputs that are also read, by position; they are not
                returned.
        """
        memory = self.home.memory

        def check() -> GraphCall:
            for name, ref in given.items():
                require_readable(ref, memory, name)
            x = given["x"]
            require_float(x, "x")
            made = make(is_last(layout, x.ndim) if layout else False)
            outputs = [
                RunOutput(id_, shape, in_place.get(at, "out"), at in in_place, at not in in_place)
                for at, (id_, shape) in enumerate(made.outputs)
            ]
            return GraphCall(made.graph, [(made.inputs[name], name) for name in given], outputs)

        refs = tuple(given.values())
        return self._request(f"dnn.{key[0]}", key, refs, outs, check, numbers=scalars)


def _node_of(name: str) -> tuple[str, bool]:
    """Return the node of an op, and whether it also gives the statistics."""
    node, _, form = name.partition("_norm")
    return f"{node}norm", form == "_train"


def parameters_of(given: Given) -> list[tuple[str, GpuRef]]:
    """All but ``x``, by name."""
    return [(name, ref) for name, ref in given.items() if name != "x"]


def finished(
    builder: Builder,
    inputs: dict[str, int],
    found: dict[str, Symbol],
    shapes: dict[str, tuple[int, ...]],
    statistic: tuple[int, ...],
) -> NormGraph:
    """A graph whose outputs are all that a node gave; ``statistic`` is the shape of most."""
    outputs = []
    for name, symbol in found.items():
        builder.output(symbol)
        outputs.append((symbol.id, shapes.get(name, statistic)))
    return NormGraph(EncodedGraph(builder.finish()), inputs, outputs)


def finished_grad(
    builder: Builder,
    named: dict[str, Symbol],
    found: dict[str, Symbol],
    shape: tuple[int, ...],
    parameter: tuple[int, ...],
) -> NormGraph:
    """Finish the graph of a gradient. ``parameter`` is the shape of all outputs but ``dx``."""
    arguments = {"input": "x", "scale": "weight"}
    inputs = {arguments.get(name, name): symbol.id for name, symbol in named.items()}
    return finished(builder, inputs, found, {"dx": shape}, parameter)


def plane_of(shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
    """The logical shape of images, of at least two dimensions of space."""
    if not 2 <= len(shape) <= 5:
        raise ValueError(f"x must have 2 to 5 dimensions, not shape {shape}")
    n, channels, *space = logical(shape, last=last)
    return (n, channels, *[1] * (2 - len(space)), *space)


def _matrix(builder: Builder, rows: int, columns: int, dtype: str) -> Symbol:
    """A matrix as the vendor's layer norm wants it: images of one pixel, channels last."""
    return builder.tensor((rows, columns, 1, 1), dtype, last=True)


def _split_rows(x: GpuRef, weight: GpuRef) -> tuple[int, int]:
    ndim = weight.ndim
    if not ndim or x.shape[x.ndim - ndim :] != weight.shape:
        raise ValueError(
            f"weight must have the last dimensions of x, {x.shape}, not {weight.shape}"
        )
    return math.prod(x.shape[: x.ndim - ndim]), math.prod(weight.shape)


def require_parameter(
    ref: GpuRef, name: str, shape: Sequence[int], dtypes: tuple[str, ...]
) -> None:
    """A parameter has that shape, and one of these dtypes."""
    require_shape(ref, tuple(shape), name)
    if ref.dtype.name not in dtypes:
        raise TypeError(
            f"{name} must have dtype {' or '.join(dict.fromkeys(dtypes))}, not {ref.dtype.name}"
        )
