"""Normalisations of ``device.dnn``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...._dtypes import DTYPES
from ..._arguments import require_dtype, require_readable
from ..._op import D, op
from ...wire._options import flag, real, whole
from ..graph._builder import Builder
from ..graph._layout import is_last, logical, per_channel, require_float
from ..graph._run import DnnPart, EncodedGraph, GraphCall, Output
from ..wire._nodes import wider
from ._signatures import (
    batch_norm_op,
    group_norm_op,
    instance_norm_op,
    layer_norm_op,
    rms_norm_op,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ....memory import GpuRef
    from ..._request import Request
    from ..graph._builder import Symbol

Given = dict[str, "GpuRef"]
"""The arguments of a call by name, in the order in which its graph reads them."""

_RUNNING: Final = {3: "running_mean", 4: "running_var"}
"""Outputs of batch norm that are written in place of inputs, by position."""

_NOT_IN_PLACE: Final[dict[int, str]] = {}


class _Made(NamedTuple):
    """A graph of a normalisation.

    Attributes:
        graph: the graph.
        inputs: ids of what it reads, by argument.
        outputs: ids and shapes of what it writes, in the order of results.
    """

    graph: EncodedGraph
    inputs: dict[str, int]
    outputs: list[tuple[int, tuple[int, ...]]]


class Normalizations(DnnPart[D]):
    """Normalisations, forward and backward.

    With ``training=True`` the statistics come back too; the gradients want them. They, and
    the gradients of parameters of batch norm, are float32, or float64 for float64.
    Parameters have the dtype of ``x`` or that of statistics; batch norm's have the latter.
    """

    @batch_norm_op
    def batch_norm(
        self,
        x: GpuRef,
        running_mean: GpuRef | None,
        running_var: GpuRef | None,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef, GpuRef]]:
        """Normalise each channel over batch and space, as ``torch.nn.functional.batch_norm``.

        Vendor operations: ``batchnorm`` in training, else ``batchnorm_inference``.

        Args:
            x: (N, C, ...), or with ``layout="NHWC"`` (N, ..., C); (N, C) too.
            running_mean: (C,). In training it moves towards the mean of the batch, in
                place, by ``momentum``; None for none. Else it is what is subtracted.
            running_var: (C,); the same for the variance, unbiased in training.
            weight: (C,), what channels are multiplied by.
            bias: (C,), what is added.
            training: use the statistics of the batch, and return them.
            momentum: how far running statistics move.
            eps: added to the variance.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or their like for other dimensions.
            out: where the result goes.

        Returns:
            The result, of the shape and dtype of ``x``; in training a tuple of it, the
            mean and the inverse standard deviation, both (C,).

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, aliasing; training with
                one value for each channel, which has no variance.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: running statistics that are sealed, in training.
        """
        flag(training, "training")
        running = running_mean is not None or running_var is not None
        if (running or not training) and (running_mean is None or running_var is None):
            raise ValueError(
                "running_mean and running_var come together, and without training both are needed"
            )
        given: Given = {"x": x, "weight": weight, "bias": bias}
        if running_mean is not None and running_var is not None:
            given |= {"running_mean": running_mean, "running_var": running_var}

        def make(last: bool) -> _Made:
            builder, shape = Builder(), _plane(x.shape, last=last)
            channels, ndim = shape[1], len(shape)
            if training and math.prod(shape) == channels:
                raise ValueError(
                    f"x has shape {x.shape}: one value for each channel, which has no variance "
                    "to train with"
                )
            kept = DTYPES[wider(x.dtype.name)]
            parameters = _parameters(given)
            for name, ref in parameters:
                _require(ref, name, (channels,), (kept.name,))
            image_ = builder.tensor(shape, x.dtype, last=last)
            inputs = {"x": image_.id}
            each = {}
            for name, ref in parameters:
                each[name] = per_channel(builder, ref, ndim, last=last)
                inputs[name] = each[name].id
            named = {"input": image_, "scale": each["weight"], "bias": each["bias"]}
            epsilon = builder.scalar(kept, ndim)
            if training:
                if running:
                    named |= {
                        "in_running_mean": each["running_mean"],
                        "in_running_var": each["running_var"],
                        "momentum": builder.scalar(kept, ndim),
                    }
                found = builder.node("batchnorm", epsilon=epsilon, **named)
            else:
                shifted = builder.node("add", a=each["running_var"], b=epsilon)["y"]
                inverse = builder.node("rsqrt", input=shifted)["y"]
                mean = each["running_mean"]
                found = builder.node(
                    "batchnorm_inference", mean=mean, inv_variance=inverse, **named
                )
            shapes = {"y": x.shape}
            return _finish(builder, inputs, found, shapes, (channels,))

        scalars: tuple[float, ...] = (real(eps, "eps", least=0),)
        change = real(momentum, "momentum")
        if training and running:
            scalars = (*scalars, change)
        key = ("batch_norm", training, running, layout)
        if training and running:
            outs = (out, None, None, running_mean, running_var)
            return self._norm(key, given, scalars, make, layout, outs, _RUNNING)
        return self._norm(key, given, scalars, make, layout, (out,))

    @op
    def batch_norm_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        weight: GpuRef,
        mean: GpuRef,
        inv_variance: GpuRef,
        *,
        layout: str | None = None,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of ``batch_norm`` in training.

        Vendor operation: ``batchnorm_backward``.

        Args:
            grad: the gradient by the result.
            x: what was normalised.
            weight: its parameter.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or their like for other dimensions.

        Returns:
            The gradients by ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """

        def shapes(image_: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
            return (image_[1],), (1, image_[1], *(1 for _ in image_[2:]))

        given = _backward_given(grad, x, weight, mean, inv_variance)
        return self._per_channel_grad("batchnorm", given, shapes, layout)

    @instance_norm_op
    def instance_norm(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool = False,
        eps: float = 1e-5,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef, GpuRef]]:
        """Normalise each channel of each image, as ``torch.nn.functional.instance_norm``.

        Vendor operation: ``instancenorm``.

        Args:
            x: (N, C, ...), or with ``layout="NHWC"`` (N, ..., C).
            weight: (C,), what channels are multiplied by.
            bias: (C,), what is added.
            training: return the statistics, too.
            eps: added to the variance.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or their like for other dimensions.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it, the mean and the inverse standard
            deviation, both (N, C).

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """
        return self._per_channel("instancenorm", x, weight, bias, training, eps, layout, out)

    @op
    def instance_norm_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        weight: GpuRef,
        mean: GpuRef,
        inv_variance: GpuRef,
        *,
        layout: str | None = None,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of ``instance_norm``.

        Vendor operation: ``instancenorm_backward``.

        Args:
            grad: the gradient by the result.
            x: what was normalised.
            weight: its parameter.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or their like for other dimensions.

        Returns:
            The gradients by ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """

        def shapes(image_: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
            return image_[:2], (*image_[:2], *(1 for _ in image_[2:]))

        given = _backward_given(grad, x, weight, mean, inv_variance)
        return self._per_channel_grad("instancenorm", given, shapes, layout)

    @group_norm_op
    def group_norm(
        self,
        x: GpuRef,
        num_groups: int,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool = False,
        eps: float = 1e-5,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef, GpuRef]]:
        """Normalise groups of channels of each image, as ``torch.nn.functional.group_norm``.

        cuDNN has no group norm; on CUDA this is a kernel of this package.

        Args:
            x: (N, C, ...), or with ``layout="NHWC"`` (N, ..., C).
            num_groups: how many groups; channels must be a multiple.
            weight: (C,), what channels are multiplied by.
            bias: (C,), what is added.
            training: return the statistics, too.
            eps: added to the variance.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or their like for other dimensions.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it, the mean and the inverse standard
            deviation, both (N, num_groups).

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """
        groups = whole(num_groups, "num_groups", 1)
        return self._per_channel(
            "groupnorm", x, weight, bias, training, eps, layout, out, groups=groups
        )

    @op
    def group_norm_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        num_groups: int,
        weight: GpuRef,
        mean: GpuRef,
        inv_variance: GpuRef,
        *,
        layout: str | None = None,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of ``group_norm``.

        Args:
            grad: the gradient by the result.
            x: what was normalised.
            num_groups: how many groups.
            weight: its parameter.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or their like for other dimensions.

        Returns:
            The gradients by ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """
        groups = whole(num_groups, "num_groups", 1)

        def shapes(image_: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
            kept = (image_[0], groups)
            return kept, (*kept, *(1 for _ in image_[2:]))

        given = _backward_given(grad, x, weight, mean, inv_variance)
        return self._per_channel_grad("groupnorm", given, shapes, layout, groups=groups)

    @layer_norm_op
    def layer_norm(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        training: bool = False,
        eps: float = 1e-5,
        out: GpuRef | None = None,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef, GpuRef]]:
        """Normalise over the last dimensions, as ``torch.nn.functional.layer_norm``.

        Vendor operation: ``layernorm``.

        Args:
            x: ``(..., *weight.shape)``.
            weight: what normalised numbers are multiplied by; its shape says over which
                dimensions they are normalised.
            bias: what is added; of the shape of ``weight``.
            training: return the statistics, too.
            eps: added to the variance.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it, the mean and the inverse standard
            deviation, both of the leading dimensions of ``x``.

        Raises:
            ValueError: shapes or numbers that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """
        given = {"x": x, "weight": weight, "bias": bias}
        return self._rows("layernorm", given, eps, out, training=training)

    @op
    def layer_norm_grad(
        self, grad: GpuRef, x: GpuRef, weight: GpuRef, mean: GpuRef, inv_variance: GpuRef
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of ``layer_norm``.

        Vendor operation: ``layernorm_backward``.

        Args:
            grad: the gradient by the result.
            x: what was normalised.
            weight: its parameter.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.

        Returns:
            The gradients by ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes or numbers that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """
        given = _backward_given(grad, x, weight, mean, inv_variance)
        return self._rows_grad("layernorm", given)

    @rms_norm_op
    def rms_norm(
        self,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef | None = None,
        *,
        training: bool = False,
        eps: float = 1e-6,
        out: GpuRef | None = None,
    ) -> Request[GpuRef | tuple[GpuRef, GpuRef]]:
        """Divide by the root of the mean square, as ``torch.nn.functional.rms_norm``.

        Vendor operation: ``rmsnorm``.

        Args:
            x: ``(..., *weight.shape)``.
            weight: what the quotients are multiplied by; its shape says over which
                dimensions the mean is taken.
            bias: what is added; of the shape of ``weight``.
            training: return the statistics, too.
            eps: added to the mean square.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it and the inverse root mean square, of the
            leading dimensions of ``x``.

        Raises:
            ValueError: shapes or numbers that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """
        given = {"x": x, "weight": weight}
        if bias is not None:
            given["bias"] = bias
        return self._rows("rmsnorm", given, eps, out, training=training)

    @op
    def rms_norm_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        weight: GpuRef,
        inv_variance: GpuRef,
        *,
        has_bias: bool = False,
    ) -> Request[tuple[GpuRef, ...]]:
        """The gradients of ``rms_norm``.

        Vendor operation: ``rmsnorm_backward``.

        Args:
            grad: the gradient by the result.
            x: what was normalised.
            weight: its parameter.
            inv_variance: the statistic that came with the result.
            has_bias: whether the gradient by the bias is wanted.

        Returns:
            The gradients by ``x`` and ``weight``, and with ``has_bias`` by ``bias``.

        Raises:
            ValueError: shapes or numbers that do not fit, aliasing.
            TypeError: dtypes or options that do not fit, an argument that is no GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: of an older generation, or freed.
        """
        given = _backward_given(grad, x, weight, None, inv_variance)
        return self._rows_grad("rmsnorm", given, has_dbias=flag(has_bias, "has_bias"))

    # --- what they have in common -----------------------------------------------------------

    def _per_channel(
        self,
        op: str,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        training: bool,
        eps: float,
        layout: str | None,
        out: GpuRef | None,
        **attributes: int,
    ) -> Request[Any]:
        """A normalisation with parameters for each channel and statistics for each image."""
        flag(training, "training")
        epsilon = real(eps, "eps", least=0)
        given = {"x": x, "weight": weight, "bias": bias}

        def make(last: bool) -> _Made:
            builder, shape = Builder(), _plane(x.shape, last=last)
            kept, ndim = wider(x.dtype.name), len(shape)
            for name, ref in _parameters(given):
                _require(ref, name, shape[1:2], (x.dtype.name, kept))
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
            return _finish(builder, inputs, found, {"y": x.shape}, (shape[0], each))

        key = (op, training, layout, tuple(attributes.items()))
        return self._norm(key, given, (epsilon,), make, layout, (out,))

    def _per_channel_grad(
        self,
        op: str,
        given: Given,
        shapes: Callable[[tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]],
        layout: str | None,
        **attributes: Any,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of one; ``shapes`` gives those of statistics, outside and in graphs."""
        x, weight = given["x"], given["weight"]

        def make(last: bool) -> _Made:
            builder, shape = Builder(), _plane(x.shape, last=last)
            outside, inside = shapes(shape)
            kept = wider(x.dtype.name)
            _require(given["grad"], "grad", x.shape, (x.dtype.name,))
            types = (kept,) if op == "batchnorm" else (x.dtype.name, kept)
            _require(weight, "weight", shape[1:2], types)
            named = {
                "grad": builder.tensor(shape, x.dtype, last=last),
                "input": builder.tensor(shape, x.dtype, last=last),
                "scale": per_channel(builder, weight, len(shape), last=last),
            }
            for name in ("mean", "inv_variance"):
                _require(given[name], name, outside, (kept,))
                named[name] = builder.tensor(inside, kept, last=last)
            found = builder.node(f"{op}_backward", **named, **attributes)
            return _finish_grad(builder, named, found, x.shape, weight.shape)

        key = (op, "backward", layout, tuple(attributes.items()))
        return self._norm(key, given, (), make, layout, ())

    def _rows(
        self, op: str, given: Given, eps: float, out: GpuRef | None, *, training: bool
    ) -> Request[Any]:
        """A normalisation over the last dimensions."""
        flag(training, "training")
        epsilon = real(eps, "eps", least=0)
        x, weight = given["x"], given["weight"]

        def make(last: bool) -> _Made:
            del last
            builder = Builder()
            kept = wider(x.dtype.name)
            rows, columns = _split_rows(x, weight)
            for name, ref in _parameters(given):
                _require(ref, name, weight.shape, (x.dtype.name, kept))
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
            return _finish(builder, inputs, found, {"y": x.shape}, leading)

        key = (op, training, len(given))
        return self._norm(key, given, (epsilon,), make, None, (out,))

    def _rows_grad(self, op: str, given: Given, **attributes: Any) -> Request[Any]:
        """The gradients of one."""
        x, weight = given["x"], given["weight"]

        def make(last: bool) -> _Made:
            del last
            builder = Builder()
            kept = wider(x.dtype.name)
            rows, columns = _split_rows(x, weight)
            _require(given["grad"], "grad", x.shape, (x.dtype.name,))
            _require(weight, "weight", weight.shape, (x.dtype.name, kept))
            named = {
                "grad": _matrix(builder, rows, columns, x.dtype.name),
                "input": _matrix(builder, rows, columns, x.dtype.name),
                "scale": _matrix(builder, 1, columns, weight.dtype.name),
            }
            leading = x.shape[: x.ndim - weight.ndim]
            for name in ("mean", "inv_variance"):
                if name in given:
                    _require(given[name], name, leading, (kept,))
                    named[name] = _matrix(builder, rows, 1, kept)
            found = builder.node(f"{op}_backward", **named, **attributes)
            return _finish_grad(builder, named, found, x.shape, weight.shape)

        key = (op, "backward", tuple(attributes.items()))
        return self._norm(key, given, (), make, None, ())

    def _norm(
        self,
        key: tuple[Any, ...],
        given: Given,
        scalars: tuple[float, ...],
        make: Callable[[bool], _Made],
        layout: str | None,
        outs: Sequence[GpuRef | None],
        in_place: Mapping[int, str] = _NOT_IN_PLACE,
    ) -> Request[Any]:
        """Ask for a normalisation, whose graph is made when such a one was not met before.

        Args:
            key: what it depends on beside shapes and dtypes, its name first; checked, so that
                equal ones mean the same.
            given: the arguments with their names; ``x`` is what is normalised.
            scalars: the graph's numbers.
            make: makes the graph.
            layout: of ``x``.
            outs: buffers of the caller for results, in order; those that are not there are
                made.
            in_place: the names of outputs that are read, too, by position; they are no
                results.
        """
        memory = self._device.memory

        def check() -> GraphCall:
            for name, ref in given.items():
                require_readable(ref, memory, name)
            x = given["x"]
            require_float(x, "x")
            made = make(is_last(layout, x.ndim) if layout else False)
            outputs = [
                Output(id_, shape, in_place.get(at, "out"), at in in_place, at not in in_place)
                for at, (id_, shape) in enumerate(made.outputs)
            ]
            return GraphCall(made.graph, [(made.inputs[name], name) for name in given], outputs)

        refs = tuple(given.values())
        return self._request(f"dnn.{key[0]}", key, refs, outs, check, numbers=scalars)


def _backward_given(
    grad: GpuRef, x: GpuRef, weight: GpuRef, mean: GpuRef | None, inv_variance: GpuRef
) -> Given:
    given: Given = {"grad": grad, "x": x, "weight": weight}
    if mean is not None:
        given["mean"] = mean
    return {**given, "inv_variance": inv_variance}


def _parameters(given: Given) -> list[tuple[str, GpuRef]]:
    return [(name, ref) for name, ref in given.items() if name != "x"]


def _finish(
    builder: Builder,
    inputs: dict[str, int],
    found: dict[str, Symbol],
    shapes: dict[str, tuple[int, ...]],
    statistic: tuple[int, ...],
) -> _Made:
    outputs = []
    for name, symbol in found.items():
        builder.output(symbol)
        outputs.append((symbol.id, shapes.get(name, statistic)))
    return _Made(EncodedGraph(builder.finish()), inputs, outputs)


def _finish_grad(
    builder: Builder,
    named: dict[str, Symbol],
    found: dict[str, Symbol],
    shape: tuple[int, ...],
    parameter: tuple[int, ...],
) -> _Made:
    arguments = {"input": "x", "scale": "weight"}
    inputs = {arguments.get(name, name): symbol.id for name, symbol in named.items()}
    return _finish(builder, inputs, found, {"dx": shape}, parameter)


def _plane(shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
    """The logical shape of images, of at least two dimensions of space.

    Raises:
        ValueError: there are no channels.
    """
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
            f"weight has shape {weight.shape}, which are not the last dimensions of x {x.shape}"
        )
    return math.prod(x.shape[: x.ndim - ndim]), math.prod(weight.shape)


def _require(ref: GpuRef, name: str, shape: Sequence[int], dtypes: tuple[str, ...]) -> None:
    if ref.shape != tuple(shape):
        raise ValueError(f"{name} has shape {ref.shape}, expected {tuple(shape)}")
    if ref.dtype.name not in dtypes:
        raise TypeError(
            f"{name} has dtype {ref.dtype.name}, expected {' or '.join(dict.fromkeys(dtypes))}"
        )
