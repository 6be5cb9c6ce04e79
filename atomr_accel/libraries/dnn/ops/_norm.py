"""Normalisations of ``device.dnn``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from ...._dtypes import DTYPES
from ....ops import D, op
from ....wire.options import flag, real, whole
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
from ._signatures import (
    batch_norm_op,
    group_norm_op,
    instance_norm_op,
    layer_norm_op,
    rms_norm_op,
)

if TYPE_CHECKING:
    from ....memory import GpuRef
    from ....ops import Request

_RUNNING: Final = {3: "running_mean", 4: "running_var"}
"""Outputs of batch norm that are written in place of inputs, by position."""


class Normalizations(NormalizationPart[D]):
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
                place, by ``momentum``; None for none. Otherwise it is subtracted.
            running_var: (C,); the same for the variance, unbiased in training.
            weight: (C,), the factor of each channel.
            bias: (C,), the term added to each channel.
            training: use the statistics of the batch, and return them.
            momentum: how far running statistics move.
            eps: added to the variance.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions.
            out: where the result goes.

        Returns:
            The result, of the shape and dtype of ``x``; in training a tuple of it, the
            mean and the inverse standard deviation, both (C,).

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, aliasing; training with
                one value for each channel, which has no variance.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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

        def make(last: bool) -> NormGraph:
            builder, shape = Builder(), plane_of(x.shape, last=last)
            channels, ndim = shape[1], len(shape)
            if training and math.prod(shape) == channels:
                raise ValueError(
                    f"x has shape {x.shape}: one value for each channel, which has no variance "
                    "to train with"
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
            grad: the gradient with respect to the result.
            x: the array that was normalised.
            weight: the parameter of the forward pass.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions.

        Returns:
            The gradients with respect to ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            weight: (C,), the factor of each channel.
            bias: (C,), the term added to each channel.
            training: return the statistics, too.
            eps: added to the variance.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it, the mean and the inverse standard
            deviation, both (N, C).

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            grad: the gradient with respect to the result.
            x: the array that was normalised.
            weight: the parameter of the forward pass.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions.

        Returns:
            The gradients with respect to ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            num_groups: number of groups, which must divide the channels.
            weight: (C,), the factor of each channel.
            bias: (C,), the term added to each channel.
            training: return the statistics, too.
            eps: added to the variance.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it, the mean and the inverse standard
            deviation, both (N, num_groups).

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            grad: the gradient with respect to the result.
            x: the array that was normalised.
            num_groups: number of groups.
            weight: the parameter of the forward pass.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, or the equivalent for other dimensions.

        Returns:
            The gradients with respect to ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes, numbers or a layout that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            weight: the factor of normalised numbers. Its shape determines the dimensions over
                which they are normalised.
            bias: the term that is added; of the shape of ``weight``.
            training: return the statistics, too.
            eps: added to the variance.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it, the mean and the inverse standard
            deviation, both of the leading dimensions of ``x``.

        Raises:
            ValueError: shapes or numbers that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            grad: the gradient with respect to the result.
            x: the array that was normalised.
            weight: the parameter of the forward pass.
            mean: the mean that came with the result.
            inv_variance: the inverse standard deviation that came with it.

        Returns:
            The gradients with respect to ``x``, ``weight`` and ``bias``.

        Raises:
            ValueError: shapes or numbers that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            weight: the factor of the quotients. Its shape determines the dimensions over which
                the mean is taken.
            bias: the term that is added; of the shape of ``weight``.
            training: return the statistics, too.
            eps: added to the mean square.
            out: where the result goes.

        Returns:
            The result; in training a tuple of it and the inverse root mean square, of the
            leading dimensions of ``x``.

        Raises:
            ValueError: shapes or numbers that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
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
            grad: the gradient with respect to the result.
            x: the array that was normalised.
            weight: the parameter of the forward pass.
            inv_variance: the statistic that came with the result.
            has_bias: whether to return the gradient with respect to the bias.

        Returns:
            The gradients with respect to ``x`` and ``weight``, and with ``has_bias`` to ``bias``.

        Raises:
            ValueError: shapes or numbers that do not fit, or aliasing.
            TypeError: dtypes or options that do not fit, or an argument that is not a GpuRef.
            Unsupported: the device does not have this combination.
            GpuRefStale: a ref is of an older generation, or was freed.
        """
        given = _backward_given(grad, x, weight, None, inv_variance)
        return self._rows_grad("rmsnorm", given, has_dbias=flag(has_bias, "has_bias"))


def _backward_given(
    grad: GpuRef, x: GpuRef, weight: GpuRef, mean: GpuRef | None, inv_variance: GpuRef
) -> Given:
    given: Given = {"grad": grad, "x": x, "weight": weight}
    if mean is not None:
        given["mean"] = mean
    return {**given, "inv_variance": inv_variance}
