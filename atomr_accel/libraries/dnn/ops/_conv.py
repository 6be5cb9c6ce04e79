"""Convolutions of ``device.dnn``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ....ops import D, op, require_dtype, require_readable
from ....wire.options import flag
from ....wire.options import whole as whole_number
from ..graph._builder import Builder
from ..graph._run import DnnPart, EncodedGraph, GraphCall, RunOutput
from ..graph.layout import (
    activation,
    exact,
    image,
    is_last,
    logical,
    paddings,
    per_channel,
    physical,
    require_float,
    steps,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ....arrays import GpuRef
    from ....ops import Request
    from ..graph._builder import Symbol
    from ..graph.layout import Padding, Steps


class _ConvolutionGraph(NamedTuple):
    """A graph of a convolution.

    Attributes:
        inputs: ids of its inputs, in the order of the arguments.
        output: id of its output.
        shape: the result's shape as the caller sees it.
    """

    graph: EncodedGraph
    inputs: tuple[int, ...]
    output: int
    shape: tuple[int, ...]


class DnnConvolutions(DnnPart[D]):
    """Convolutions, in one to three dimensions of space.

    ``allow_tf32`` lets convolutions of float32 round their factors to ten bits, to run faster.
    With ``autotune`` the first run of each graph tries all of its plans and keeps the fastest, as
    ``torch.backends.cudnn.benchmark`` does; otherwise the vendor's heuristics choose. Gradients
    take ``grad``, the gradient with respect to the result of ``conv``, first.

    All methods raise ``ValueError`` for ``autotune`` on a device that was opened with
    ``deterministic=True``, too.
    """

    @op
    def conv(
        self,
        x: GpuRef,
        w: GpuRef,
        *,
        bias: GpuRef | None = None,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
        groups: int = 1,
        activation: str | None = None,
        layout: str | None = None,
        allow_tf32: bool = False,
        autotune: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Cross-correlation of images with filters, as ``torch.nn.functional.conv2d``.

        Vendor operation: ``conv_fprop``, fused with bias and activation if cuDNN can.

        Args:
            x: images, (N, C, ...) or with ``layout="NHWC"`` (N, ..., C), with one to three
                dimensions of space. Their dtype is float16, bfloat16, float32 or float64. cuDNN's
                frontend has no float64, so slower kernels of this package compute it.
            w: filters, (K, C / groups, ...) or (K, ..., C / groups), of the same dtype.
            bias: (K,), of the same dtype, added to each channel.
            stride: steps of the filter; a number, or one for each dimension.
            padding: zeros around the image: a number; a number or a pair (before, after)
                for each dimension; ``"same"`` (with stride 1) or ``"valid"``.
            dilation: steps between the taps of a filter.
            groups: number of groups that channels are split into.
            activation: ``"relu"``, ``"sigmoid"``, ``"tanh"``, ``"gelu"``, ``"gelu_tanh"``,
                ``"silu"`` or ``"swish"``, ``"elu"``, ``"softplus"``.
            layout: ``"NCHW"`` (the default) or ``"NHWC"``, which is the faster one on
                tensor cores; for other dimensions ``"NCW"``, ``"NWC"``, ``"NCDHW"``,
                ``"NDHWC"``.
            allow_tf32: see the class.
            autotune: see the class.
            out: where the result goes.

        Returns:
            (N, K, ...) or (N, ..., K), of the dtype of ``x``.
        """
        node = _activation(activation)

        def make(last: bool) -> _ConvolutionGraph:
            builder = Builder()
            image_, weight = image(builder, x, last=last), image(builder, w, last=last)
            window = _window(w, last, stride, padding, dilation)
            _check_groups(groups, image_.shape[1], weight.shape[1])
            y = builder.node("conv_fprop", image=image_, weight=weight, **window)["y"]
            ids = [image_.id, weight.id]
            y = _shifted(builder, y, bias, x, ids, last=last)
            if node is not None:
                y = builder.node(node, input=y)["y"]
            return self._made(builder, ids, y, x, last, allow_tf32)

        given = {"x": x, "w": w, "bias": bias}
        options = (stride, padding, dilation, groups, node)
        choices = (allow_tf32, autotune)
        return self._conv("conv", given, options, layout, out, make, *choices)

    @op
    def conv_transpose(
        self,
        x: GpuRef,
        w: GpuRef,
        *,
        bias: GpuRef | None = None,
        stride: Steps = 1,
        padding: Padding = 0,
        output_padding: Steps = 0,
        dilation: Steps = 1,
        groups: int = 1,
        layout: str | None = None,
        allow_tf32: bool = False,
        autotune: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Transposed convolution, as ``torch.nn.functional.conv_transpose2d``.

        Vendor operation: ``conv_dgrad``. Filters ``w`` have shape (C, K / groups, ...), or
        (C, ..., K / groups). ``stride`` is the steps between the images of neighbouring inputs, and
        ``padding`` counts the elements that are cut off around the result; ``"valid"`` is for none.
        ``output_padding`` is additional elements behind the result, fewer than ``stride``. Other
        arguments are those of ``conv``.

        Returns:
            (N, K, ...) or (N, ..., K). The size of a dimension is
            ``(s - 1) * stride - before - after + dilation * (taps - 1) + output_padding + 1``,
            where ``s`` is that of ``x``.
        """

        def make(last: bool) -> _ConvolutionGraph:
            builder = Builder()
            loss, weight = image(builder, x, last=last), image(builder, w, last=last)
            window = _window(w, last, stride, padding, dilation)
            space = len(x.shape) - 2
            more = steps(output_padding, space, "output_padding", 0)
            if any(extra >= step for extra, step in zip(more, window["stride"], strict=True)):
                raise ValueError(
                    f"output_padding must be less than stride, not {more} with stride "
                    f"{window['stride']}: otherwise conv would not give the size of x back"
                )
            sizes = tuple(
                (size - 1) * step - before - after + gap * (taps - 1) + extra + 1
                for size, step, before, after, gap, taps, extra in zip(
                    loss.shape[2:],
                    window["stride"],
                    window["pre_padding"],
                    window["post_padding"],
                    window["dilation"],
                    weight.shape[2:],
                    more,
                    strict=True,
                )
            )
            shape = (loss.shape[0], weight.shape[1] * whole_number(groups, "groups", 1), *sizes)
            if min(shape[1:]) < 1:
                raise ValueError(f"conv_transpose: the result would have shape {shape}")
            y = builder.node("conv_dgrad", loss=loss, filter=weight, shape=shape, **window)["dx"]
            ids = [loss.id, weight.id]
            y = _shifted(builder, y, bias, x, ids, last=last)
            return self._made(builder, ids, y, x, last, allow_tf32)

        given = {"x": x, "w": w, "bias": bias}
        options = (stride, padding, output_padding, dilation, groups)
        choices = (allow_tf32, autotune)
        return self._conv("conv_transpose", given, options, layout, out, make, *choices)

    @op
    def conv_input_grad(
        self,
        grad: GpuRef,
        w: GpuRef,
        shape: Sequence[int],
        *,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
        groups: int = 1,
        layout: str | None = None,
        allow_tf32: bool = False,
        autotune: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``conv`` with respect to its images, as ``torch.nn.grad.conv2d_input``.

        Other arguments are those of ``conv``: ``grad`` is the gradient with respect to its result,
        and ``shape`` that of the images. Vendor operation: ``conv_dgrad``.

        Returns:
            The gradient, of ``shape``.
        """
        sizes = tuple(shape)

        def make(last: bool) -> _ConvolutionGraph:
            builder = Builder()
            loss, weight = image(builder, grad, last=last), image(builder, w, last=last)
            window = _window(w, last, stride, padding, dilation)
            whole = logical(sizes, last=last)
            _check_groups(groups, whole[1], weight.shape[1])
            dx = builder.node("conv_dgrad", loss=loss, filter=weight, shape=whole, **window)
            return self._made(builder, [loss.id, weight.id], dx["dx"], grad, last, allow_tf32)

        given = {"grad": grad, "w": w}
        options = (sizes, stride, padding, dilation, groups)
        choices = (allow_tf32, autotune)
        return self._conv("conv_input_grad", given, options, layout, out, make, *choices)

    @op
    def conv_weight_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        shape: Sequence[int],
        *,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
        groups: int = 1,
        layout: str | None = None,
        allow_tf32: bool = False,
        autotune: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``conv`` with respect to its filters, as ``torch.nn.grad.conv2d_weight``.

        Other arguments are those of ``conv``: ``grad`` is the gradient with respect to its result,
        and ``shape`` that of the filters. Vendor operation: ``conv_wgrad``.

        Returns:
            The gradient, of ``shape``.
        """
        sizes = tuple(shape)

        def make(last: bool) -> _ConvolutionGraph:
            builder = Builder()
            image_, loss = image(builder, x, last=last), image(builder, grad, last=last)
            window = _window(sizes, last, stride, padding, dilation)
            whole = logical(sizes, last=last)
            _check_groups(groups, image_.shape[1], whole[1])
            dw = builder.node("conv_wgrad", image=image_, loss=loss, shape=whole, **window)
            return self._made(builder, [loss.id, image_.id], dw["dw"], x, last, allow_tf32)

        given = {"grad": grad, "x": x}
        options = (sizes, stride, padding, dilation, groups)
        choices = (allow_tf32, autotune)
        return self._conv("conv_weight_grad", given, options, layout, out, make, *choices)

    @op
    def conv_bias_grad(
        self, grad: GpuRef, *, layout: str | None = None, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """Gradient of ``conv`` with respect to its bias: the sum over images and space.

        Arguments are those of ``conv``, and ``grad`` is the gradient with respect to its result.
        Vendor operation: ``reduction``.

        Returns:
            (K,), float32, or float64 for float64.
        """

        def make(last: bool) -> _ConvolutionGraph:
            builder = Builder()
            loss = image(builder, grad, last=last)
            axes = (0, *range(2, len(grad.shape)))
            total = builder.node("reduction", input=loss, mode="ADD", axes=axes)["y"]
            builder.output(total, "float64" if loss.dtype == "float64" else "float32")
            graph = EncodedGraph(builder.finish())
            return _ConvolutionGraph(graph, (loss.id,), total.id, (loss.shape[1],))

        return self._conv("conv_bias_grad", {"grad": grad}, (), layout, out, make)

    def _conv(
        self,
        name: str,
        arguments: Mapping[str, GpuRef | None],
        options: tuple[Any, ...],
        layout: str | None,
        out: GpuRef | None,
        make: Callable[[bool], _ConvolutionGraph],
        allow_tf32: bool = False,
        autotune: bool = False,
    ) -> Request[GpuRef]:
        """Return the request for a convolution, whose graph is made for each new signature."""
        memory, tf32 = self.home.memory, flag(allow_tf32, "allow_tf32")
        given = {called: ref for called, ref in arguments.items() if ref is not None}

        def check() -> GraphCall:
            first = next(iter(given))
            x = given[first]
            for called, ref in given.items():
                require_readable(ref, memory, called)
            for called, ref in given.items():
                require_float(ref, called)
                require_dtype(ref, x.dtype, called, first)
            made = make(is_last(layout, len(x.shape)))
            reads = zip(made.inputs, given, strict=True)
            return GraphCall(made.graph, reads, (RunOutput(made.output, made.shape),))

        key = (name, exact(options), layout, tf32)
        return self._request(f"dnn.{name}", key, [*given.values()], (out,), check, tune=autotune)

    def _made(
        self,
        builder: Builder,
        ids: list[int],
        y: Symbol,
        x: GpuRef,
        last: bool,
        allow_tf32: bool,
    ) -> _ConvolutionGraph:
        builder.output(y, x.dtype)
        graph = EncodedGraph(builder.finish(tf32=allow_tf32))
        return _ConvolutionGraph(graph, tuple(ids), y.id, physical(y.shape, last=last))


_activation = activation


def _window(
    w: GpuRef | tuple[int, ...],
    last: bool,
    stride: Steps,
    padding: Padding,
    dilation: Steps,
) -> dict[str, tuple[int, ...]]:
    """The attributes of a convolution node."""
    shape = w if isinstance(w, tuple) else w.shape
    if not 3 <= len(shape) <= 5:
        raise ValueError(f"filters have 3 to 5 dimensions, not shape {shape}")
    taps = logical(shape, last=last)[2:]
    strides = steps(stride, len(taps), "stride")
    dilations = steps(dilation, len(taps), "dilation")
    before, after = paddings(padding, taps, strides, dilations)
    return {
        "pre_padding": before,
        "post_padding": after,
        "stride": strides,
        "dilation": dilations,
    }


def _check_groups(groups: int, channels: int, per_group: int) -> None:
    if whole_number(groups, "groups", 1) * per_group != channels:
        raise ValueError(
            f"with groups={groups} and {channels} channels a filter has {channels}/{groups} "
            f"channels, not {per_group}"
        )


def _shifted(
    builder: Builder, y: Symbol, bias: GpuRef | None, x: GpuRef, ids: list[int], *, last: bool
) -> Symbol:
    """Add a bias to each channel, if there is one, and its id to those of the inputs."""
    if bias is None:
        return y
    channels = y.shape[1]
    if bias.shape != (channels,):
        raise ValueError(
            f"bias must have {channels} elements, one for each channel, not shape {bias.shape}"
        )
    require_dtype(bias, x.dtype, "bias", "x")
    shift = per_channel(builder, bias, len(x.shape), last=last)
    ids.append(shift.id)
    return builder.node("add", a=y, b=shift)["y"]
