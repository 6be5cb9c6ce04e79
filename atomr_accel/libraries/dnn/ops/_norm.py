"""Normalisations of ``device.dnn``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ...._dtypes import DTYPES
from ....arrays import GpuRef
from ....ops import D, op, op_family
from ....wire.options import real, whole
from ..graph._builder import Builder
from ..graph.layout import per_channel
from ..wire._nodes import wider
from ._norm_graphs import (
    Given,
    NormalizationPart,
    NormGraph,
    finished,
    parameters_of,
    plane_of,
    require_parameter,
)

if TYPE_CHECKING:
    from ....ops import Request

_RUNNING: Final = {3: "running_mean", 4: "running_var"}
"""Outputs of batch norm that are written in place of inputs, by position."""


class Normalizations(NormalizationPart[D]):
    """Normalisations, forward and backward.

    Methods ``..._train`` also return the statistics, which the gradients take. These, and the
    gradients of parameters of batch norm, are float32, or float64 for float64. Parameters have
    the dtype of ``x`` or that of statistics; batch norm's have the latter. ``layout`` is
    ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions. ``eps`` is
    added to the variance. Gradients take ``grad``, the gradient with respect to the result, and
    return those with respect to ``x``, ``weight`` and ``bias``.

    CUDA squares in the dtype of statistics: results are zeros where squares of ``x`` overflow, from
    about 1e19 in float32 and bfloat16 on. The CPU backend scales such numbers first.
    """

    @op
    def batch_norm(
        self,
        x: GpuRef,
        running_mean: GpuRef,
        running_var: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        eps: float = 1e-5,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Normalise each channel by running statistics.

        As ``torch.nn.functional.batch_norm`` without ``training``. Vendor operation:
        ``batchnorm_inference``.

        Args:
            x: (N, C, ...), or with ``layout="NHWC"`` (N, ..., C); (N, C) too.
            running_mean: (C,), which is subtracted.
            running_var: (C,), the variance.
            weight: (C,), the factor of each channel.
            bias: (C,), the term added to each channel.
            eps: added to the variance.
            layout: see the class.
            out: where the result goes.

        Returns:
            The result, of the shape and dtype of ``x``.
        """
        running = (running_mean, running_var)
        return self._batch_norm(x, *running, weight, bias, False, 0.0, eps, layout, out)

    @op
    def batch_norm_train(
        self,
        x: GpuRef,
        running_mean: GpuRef | None,
        running_var: GpuRef | None,
        weight: GpuRef,
        bias: GpuRef,
        *,
        momentum: float = 0.1,
        eps: float = 1e-5,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """Normalise each channel over batch and space, by its own statistics.

        As ``torch.nn.functional.batch_norm`` with ``training=True``. Other arguments are those of
        ``batch_norm``. Vendor operation: ``batchnorm``.

        ``x`` has at least two values for each channel. ``running_mean`` moves towards the mean of
        the batch, in place, by ``momentum``, and ``running_var`` towards the unbiased variance;
        None for both is for none.

        Returns:
            The result, the mean and the inverse standard deviation, both (C,).
        """
        running = (running_mean, running_var)
        return self._batch_norm(x, *running, weight, bias, True, momentum, eps, layout, out)

    def _batch_norm(
        self,
        x: GpuRef,
        running_mean: GpuRef | None,
        running_var: GpuRef | None,
        weight: GpuRef,
        bias: GpuRef,
        training: bool,
        momentum: float,
        eps: float,
        layout: str | None,
        out: GpuRef | None,
    ) -> Request[Any]:
        running = running_mean is not None or running_var is not None
        if (running or not training) and (running_mean is None or running_var is None):
            raise ValueError(
                "running_mean and running_var come together, and batch_norm needs both; "
                "batch_norm_train takes None for both"
            )
        given: Given = {"x": x, "weight": weight, "bias": bias}
        if running_mean is not None and running_var is not None:
            given |= {"running_mean": running_mean, "running_var": running_var}

        def make(last: bool) -> NormGraph:
            builder, shape = Builder(), plane_of(x.shape, last=last)
            channels, ndim = shape[1], len(shape)
            if training and math.prod(shape) <= channels:
                raise ValueError(
                    "x must have several values for each channel to train with, not "
                    f"shape {x.shape}"
                )
            kept = DTYPES[wider(x.dtype.name)]
            parameters = parameters_of(given)
            for name, ref in parameters:
                require_parameter(ref, name, (channels,), (kept.name,))
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
            return finished(builder, inputs, found, shapes, (channels,))

        scalars: tuple[float, ...] = (real(eps, "eps", least=0),)
        change = real(momentum, "momentum")
        if training and running:
            scalars = (*scalars, change)
        key = ("batch_norm", training, running, layout)
        if training and running:
            outs = (out, None, None, running_mean, running_var)
            return self._norm(key, given, scalars, make, layout, outs, _RUNNING)
        return self._norm(key, given, scalars, make, layout, (out,))

    @op_family
    def batch_norm_grad(
        self,
        _name: str,
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
            grad: the gradient with respect to the result.
            x: the array that was normalised.
            weight: the parameter of the forward pass.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions.

        Returns:
            The gradients with respect to ``x``, ``weight`` and ``bias``.
        """
        given = _backward_given(grad, x, weight, mean, inv_variance)
        return self._per_channel_grad(_name, given, layout)

    @op_family
    def instance_norm(
        self,
        _name: str,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        eps: float = 1e-5,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Normalise each channel of each image, as ``torch.nn.functional.instance_norm``.

        Arguments and result are those of ``batch_norm``. Vendor operation: ``instancenorm``.
        """
        return self._per_channel(_name, x, weight, bias, eps, layout, out)

    instance_norm_train: Final = instance_norm.like(
        """``instance_norm`` with the statistics that its gradient takes.

        Returns:
            The result, the mean and the inverse standard deviation, both (N, C).
        """,
        returns=tuple[GpuRef, GpuRef, GpuRef],
    )

    instance_norm_grad: Final = batch_norm_grad.like(
        """The gradients of ``instance_norm``; arguments and results as ``batch_norm_grad``.

        Vendor operation: ``instancenorm_backward``.
        """
    )

    @op_family
    def group_norm(
        self,
        _name: str,
        x: GpuRef,
        num_groups: int,
        weight: GpuRef,
        bias: GpuRef,
        *,
        eps: float = 1e-5,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Normalise groups of channels of each image, as ``torch.nn.functional.group_norm``.

        Arguments and result are those of ``batch_norm``, and ``num_groups`` must divide the
        channels. cuDNN has no group norm; on CUDA this is a kernel of this package.
        """
        groups = whole(num_groups, "num_groups", 1)
        return self._per_channel(_name, x, weight, bias, eps, layout, out, groups=groups)

    group_norm_train: Final = group_norm.like(
        """``group_norm`` with the statistics that its gradient takes.

        Returns:
            The result, the mean and the inverse standard deviation, both (N, num_groups).
        """,
        returns=tuple[GpuRef, GpuRef, GpuRef],
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
        """The gradients of ``group_norm``; arguments and results as ``batch_norm_grad``."""
        groups = whole(num_groups, "num_groups", 1)
        given = _backward_given(grad, x, weight, mean, inv_variance)
        return self._per_channel_grad("group_norm_grad", given, layout, groups=groups)

    @op_family
    def layer_norm(
        self,
        _name: str,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef,
        *,
        eps: float = 1e-5,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Normalise over the last dimensions, as ``torch.nn.functional.layer_norm``.

        Vendor operation: ``layernorm``.

        Args:
            x: ``(..., *weight.shape)``.
            weight: the factor of normalised numbers. Its shape determines the dimensions over
                which they are normalised.
            bias: the term that is added; of the shape of ``weight``.
            eps: added to the variance.
            out: where the result goes.

        Returns:
            The result, of the shape and dtype of ``x``.
        """
        given = {"x": x, "weight": weight, "bias": bias}
        return self._rows(_name, given, eps, out)

    layer_norm_train: Final = layer_norm.like(
        """``layer_norm`` with the statistics that its gradient takes.

        Returns:
            The result, the mean and the inverse standard deviation, both of the leading
            dimensions of ``x``.
        """,
        returns=tuple[GpuRef, GpuRef, GpuRef],
    )

    @op
    def layer_norm_grad(
        self, grad: GpuRef, x: GpuRef, weight: GpuRef, mean: GpuRef, inv_variance: GpuRef
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of ``layer_norm``; arguments and results as ``batch_norm_grad``.

        Vendor operation: ``layernorm_backward``.
        """
        given = _backward_given(grad, x, weight, mean, inv_variance)
        return self._rows_grad("layernorm", given)

    @op_family
    def rms_norm(
        self,
        _name: str,
        x: GpuRef,
        weight: GpuRef,
        bias: GpuRef | None = None,
        *,
        eps: float = 1e-6,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Divide by the root of the mean square, as ``torch.nn.functional.rms_norm``.

        ``eps`` is added to the mean square. Other arguments and the result are those of
        ``layer_norm``. Vendor operation: ``rmsnorm``.
        """
        given = {"x": x, "weight": weight, **({} if bias is None else {"bias": bias})}
        return self._rows(_name, given, eps, out)

    rms_norm_train: Final = rms_norm.like(
        """``rms_norm`` with the statistics that its gradient takes.

        Returns:
            The result and the inverse root mean square, of the leading dimensions of ``x``.
        """,
        returns=tuple[GpuRef, GpuRef],
    )

    @op
    def rms_norm_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        weight: GpuRef,
        inv_variance: GpuRef,
    ) -> Request[tuple[GpuRef, GpuRef, GpuRef]]:
        """The gradients of ``rms_norm``, by the statistic that came with its result.

        Arguments and results are those of ``batch_norm_grad``. Vendor operation:
        ``rmsnorm_backward``.
        """
        given = _backward_given(grad, x, weight, None, inv_variance)
        return self._rows_grad("rmsnorm", given, has_dbias=True)


def _backward_given(
    grad: GpuRef, x: GpuRef, weight: GpuRef, mean: GpuRef | None, inv_variance: GpuRef
) -> Given:
    given: Given = {"grad": grad, "x": x, "weight": weight}
    if mean is not None:
        given["mean"] = mean
    return {**given, "inv_variance": inv_variance}
