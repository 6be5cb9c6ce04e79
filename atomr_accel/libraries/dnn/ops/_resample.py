"""Images of another size: pooling that fits, and interpolation, with their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ....arrays import GpuRef
from ....ops import D, op, op_family, require_dtype, require_readable
from ....wire.options import LARGEST, flag, real, whole
from ..graph._builder import Builder
from ..graph._run import DnnPart, EncodedGraph, GraphCall, RunOutput
from ..graph.layout import Steps, exact, image, is_last_of, logical, physical, require_float, steps

if TYPE_CHECKING:
    from ....ops import Request

Attributes = dict[str, Any]

_SPACES: Final = range(1, 4)
_MODES: Final = {
    "nearest": ("NEAREST", _SPACES),
    "nearest-exact": ("NEAREST_EXACT", _SPACES),
    "linear": ("LINEAR", (1,)),
    "bilinear": ("LINEAR", (2,)),
    "trilinear": ("LINEAR", (3,)),
    "bicubic": ("CUBIC", (2,)),
    "area": ("AVGPOOL", _SPACES),
}
"""Modes of ``interpolate``, each with the node's mode and its numbers of dimensions of space."""


class ResamplingPart(DnnPart[D]):
    """Requests for the operations of ``_resample_nodes``."""

    def _resample(
        self,
        name: str,
        op: str,
        x: GpuRef,
        attributes: Attributes,
        layout: str | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        """Ask for images of another size."""
        memory = self.home.memory

        def make() -> GraphCall:
            require_readable(x, memory, "x")
            require_float(x, "x")
            last = is_last_of(x.shape, layout)
            builder = Builder()
            source = image(builder, x, last=last)
            y = builder.output(builder.node(op, input=source, **attributes)["y"])
            outputs = (RunOutput(y.id, physical(y.shape, last=last)),)
            return GraphCall(EncodedGraph(builder.finish()), ((source.id, "x"),), outputs)

        return self._request(f"dnn.{name}", _key(op, attributes, layout), (x,), (out,), make)

    def _resample_backward(
        self,
        name: str,
        op: str,
        grad: GpuRef,
        x: GpuRef | tuple[int, ...],
        attributes: Attributes,
        layout: str | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        """Ask for a gradient by images, of which some need no more than the shape."""
        memory = self.home.memory
        given = x if isinstance(x, GpuRef) else None
        shape = x.shape if isinstance(x, GpuRef) else tuple(whole(each, "shape", 0) for each in x)

        def make() -> GraphCall:
            require_readable(grad, memory, "grad")
            require_float(grad, "grad")
            last = is_last_of(shape, layout)
            if grad.ndim != len(shape):
                raise ValueError(
                    f"grad must have the shape of the result for images {shape}, not {grad.shape}"
                )
            builder = Builder()
            loss = image(builder, grad, last=last)
            reads = [(loss.id, "grad")]
            more = {}
            if given is not None:
                require_readable(given, memory, "x")
                require_dtype(given, grad.dtype, "x", "grad")
                more = {"input": image(builder, given, last=last)}
                reads.append((more["input"].id, "x"))
            images = logical(shape, last=last)
            node = builder.node(f"{op}_backward", loss=loss, shape=images, **more, **attributes)
            dx = builder.output(node["dx"])
            return GraphCall(EncodedGraph(builder.finish()), reads, (RunOutput(dx.id, shape),))

        key = (*_key(op, attributes, layout), shape)
        refs = (grad,) if given is None else (grad, given)
        return self._request(f"dnn.{name}", key, refs, (out,), make)


class Resampling(ResamplingPart[D]):
    """Images of another size.

    In all methods ``x`` is float16, bfloat16, float32 or float64 of shape (batch, channels,
    ...space) with one to three dimensions of space. A ``layout`` such as ``"NHWC"`` means that
    channels are last; by default they are first. ``out`` is a buffer for the result, made if
    absent. Gradients take ``grad``, the gradient with respect to the result, whose shape says how
    large that was, and return the shape of ``x``. Sums are float32, or float64 for float64, and the
    same each time.

    cuDNN's frontend has no such operations, so on CUDA kernels of this package compute them.
    """

    @op_family
    def adaptive_avg_pool(
        self,
        _name: str,
        x: GpuRef,
        output_size: Steps,
        *,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Averages over as many windows as are wanted, as even as they can be.

        Window ``i`` of ``n`` goes from ``floor(i * size / n)`` to before
        ``ceil((i + 1) * size / n)``. ``output_size`` is the number of windows, one number or one
        for each dimension of space. As ``torch.nn.functional.adaptive_avg_pool2d``; see the class.

        Returns:
            Shape (batch, channels, ...output_size), or channels last.
        """
        dims = max(1, len(getattr(x, "shape", ())) - 2)  # what is no image is told of later
        mode = "AVGPOOL" if _name == "adaptive_avg_pool" else "MAXPOOL"
        attributes = {"mode": mode, "size": steps(output_size, dims, "output_size")}
        return self._resample(_name, "adaptive_pool", x, attributes, layout, out)

    @op
    def adaptive_avg_pool_grad(
        self,
        grad: GpuRef,
        shape: tuple[int, ...],
        *,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``adaptive_avg_pool``, for the ``shape`` of ``x``; see the class."""
        attributes = {"mode": "AVGPOOL", "size": _space(grad, layout)}
        name, images = "adaptive_avg_pool_grad", tuple(shape)
        return self._resample_backward(name, "adaptive_pool", grad, images, attributes, layout, out)

    adaptive_max_pool: Final = adaptive_avg_pool.like(
        """Largest elements of the windows of ``adaptive_avg_pool``; NaN for windows with NaN.

        As ``torch.nn.functional.adaptive_max_pool2d``, and as ``adaptive_avg_pool``.
        """
    )

    @op
    def adaptive_max_pool_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        *,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``adaptive_max_pool``; of equal elements the first one gets it.

        See the class.
        """
        require_readable(x, self.home.memory, "x")
        attributes = {"mode": "MAXPOOL", "size": _space(grad, layout)}
        name = "adaptive_max_pool_grad"
        return self._resample_backward(name, "adaptive_pool", grad, x, attributes, layout, out)

    @op
    def interpolate(
        self,
        x: GpuRef,
        size: Steps | None = None,
        *,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Resize images by interpolation between their elements.

        As ``torch.nn.functional.interpolate`` with ``recompute_scale_factor=True``: only the two
        sizes determine positions. ``nearest`` takes element ``floor(i * size / n)`` exactly, and
        ``nearest-exact`` the element at the centre of place ``i``. ``bicubic`` is Keys' kernel
        with -3/4. Elements of weight 0 do not count, even infinities. See the class.

        Args:
            x: images.
            size: size of the result, one number or one for each dimension of space.
            scale_factor: factors of the sizes, instead of ``size``. Resulting sizes are rounded
                down.
            mode: ``"nearest"``, ``"nearest-exact"``, ``"area"``, which is ``adaptive_avg_pool``;
                ``"linear"``, ``"bilinear"`` or ``"trilinear"`` by the dimensions of space; or
                ``"bicubic"``.
            align_corners: whether the centres of the first and the last elements keep their
                positions, instead of their outer edges; for the linear modes and ``"bicubic"``.
            layout: where channels are; by default first.
            out: where to put the result. Made if absent.

        Returns:
            Shape (batch, channels, ...size), or channels last.
        """
        require_readable(x, self.home.memory, "x")
        space = _space(x, layout)
        if (size is None) == (scale_factor is None):
            raise ValueError("interpolate takes either a size or a scale_factor")
        if scale_factor is not None:
            sizes = _scaled(space, scale_factor)
        else:
            assert size is not None
            sizes = steps(size, len(space), "size")
        op, attributes = _interpolation(mode, sizes, align_corners)
        return self._resample("interpolate", op, x, attributes, layout, out)

    @op
    def interpolate_grad(
        self,
        grad: GpuRef,
        shape: tuple[int, ...],
        *,
        mode: str = "nearest",
        align_corners: bool = False,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``interpolate``, for the ``shape`` of ``x``; see the class.

        ``mode`` and ``align_corners`` are as ``interpolate`` had them.
        """
        require_readable(grad, self.home.memory, "grad")
        op, attributes = _interpolation(mode, _space(grad, layout), align_corners)
        name = "interpolate_grad"
        return self._resample_backward(name, op, grad, tuple(shape), attributes, layout, out)


def _interpolation(
    mode: str, sizes: tuple[int, ...], align_corners: bool
) -> tuple[str, Attributes]:
    """The node of a mode, and its attributes."""
    known = _MODES.get(mode)
    if known is None:
        raise ValueError(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
    name, dims = known
    if len(sizes) not in dims:
        fitting = [each for each, (_, spaces) in _MODES.items() if len(sizes) in spaces]
        raise ValueError(
            f"mode {mode!r} is not for {len(sizes)} dimensions of space; "
            f"use one of {', '.join(fitting)}"
        )
    if flag(align_corners, "align_corners") and name not in ("LINEAR", "CUBIC"):
        raise ValueError(f"align_corners is for linear and cubic modes, not for {mode!r}")
    if mode == "area":
        return "adaptive_pool", {"mode": name, "size": sizes}
    return "interpolate", {"mode": name, "size": sizes, "align_corners": bool(align_corners)}


def _scaled(space: tuple[int, ...], scale_factor: float | Sequence[float]) -> tuple[int, ...]:
    several = isinstance(scale_factor, Sequence)
    given = list(scale_factor) if several else [scale_factor] * len(space)  # type: ignore[arg-type]
    if len(given) != len(space):
        raise ValueError(
            f"scale_factor must be a number or {len(space)} of them, not {scale_factor!r}"
        )
    factors = [real(each, "scale_factor", least=0) for each in given]
    sizes = tuple(math.floor(size * factor) for size, factor in zip(space, factors, strict=True))
    if not min(sizes) >= 1 or max(sizes) > LARGEST:
        raise ValueError(f"scale_factor {scale_factor!r} makes {sizes} of {space}")
    return sizes


def _key(op: str, attributes: Attributes, layout: str | None) -> tuple[Any, ...]:
    return op, exact(tuple(attributes.values())), layout


def _space(ref: GpuRef, layout: str | None) -> tuple[int, ...]:
    """The dimensions of space."""
    shape = tuple(getattr(ref, "shape", (1, 1, 1)))
    return logical(shape, last=is_last_of(shape, layout))[2:]
