"""``device.dnn``: pooling in windows that move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ....ops import D, op, require_int32, require_readable, require_shape
from ....wire.options import flag
from ..graph.layout import Steps, is_last, physical, steps
from ..ops._resample import ResamplingPart
from ..wire._graph import DnnTensor, strides_of
from ..wire._routine_messages import Pool
from ._routine import RoutinePart, image_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....arrays import GpuRef
    from ....ops import Request


_NODES: Final = {
    "max": "MAXPOOL",
    "average": "AVGPOOL_INCLUDE_PADDING",
    "average_valid": "AVGPOOL_EXCLUDE_PADDING",
}
"""The modes of ``Pool``, as the node ``resample`` has them."""


class Pooling(RoutinePart[D], ResamplingPart[D]):
    """Largest elements and averages in windows that move over images.

    Places that are only partly inside (``ceil_mode``) cuDNN's routines do not have, so on CUDA a
    kernel of this package computes these calls. An average there is divided by how much of the
    window is over image and padding.
    """

    @op
    def max_pool(
        self,
        x: GpuRef,
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        ceil_mode: bool = False,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The largest element in each place of a window.

        Vendor function: ``cudnnPoolingForward``.

        Args:
            x: float16, bfloat16, float32 or float64; shape (batch, channels, ...space) with
                one to three dimensions of space.
            window: its size.
            stride: how far it moves; by default its own size.
            padding: how much is added on both sides, at most half of the window.
            ceil_mode: whether a last place counts that is only partly inside.
            layout: ``"NCHW"`` or ``"NHWC"``, or the equivalent in one and three dimensions of
                space; by default channels come first.
            out: where to put the result. Made if absent.

        Returns:
            Shape (batch, channels, ...places), or channels last.
        """
        require_readable(x, self.home.memory, "x")
        pooling = PoolingWindow("max", x, window, stride, padding, layout, ceil_mode)
        return self._pool(pooling, x, layout, out)

    @op
    def max_pool_grad(
        self,
        grad: GpuRef,
        y: GpuRef,
        x: GpuRef,
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        ceil_mode: bool = False,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``max_pool`` with respect to ``x``. The first of equal elements gets it.

        Where the largest is NaN, the first NaN gets it; on CUDA, cuDNN's routine decides, which
        may give it to none.

        Arguments are those of ``max_pool``, whose result is ``y``; ``grad`` is the gradient with
        respect to it. Vendor function: ``cudnnPoolingBackward``.

        Returns:
            Shape and dtype of ``x``.
        """
        require_readable(x, self.home.memory, "x")
        pooling = PoolingWindow("max", x, window, stride, padding, layout, ceil_mode)
        return self._pool_backward(pooling, grad, y, x, layout, out)

    @op
    def avg_pool(
        self,
        x: GpuRef,
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The average of the elements in each place of a window.

        Arguments and result are those of ``max_pool``. ``count_include_pad`` says whether padding
        counts as zeros; otherwise it does not count. Vendor function: ``cudnnPoolingForward``.
        """
        mode = _average(include=count_include_pad)
        require_readable(x, self.home.memory, "x")
        pooling = PoolingWindow(mode, x, window, stride, padding, layout, ceil_mode)
        return self._pool(pooling, x, layout, out)

    @op
    def avg_pool_grad(
        self,
        grad: GpuRef,
        shape: tuple[int, ...],
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``avg_pool`` with respect to ``x``, with its arguments.

        ``grad`` is the gradient with respect to the result, and ``shape`` that of ``x``. Vendor
        function: ``cudnnPoolingBackward``.

        Returns:
            ``shape``, and the dtype of ``grad``.
        """
        require_readable(grad, self.home.memory, "grad")
        like = Absent(tuple(shape), grad.dtype)
        mode = _average(include=count_include_pad)
        pooling = PoolingWindow(mode, like, window, stride, padding, layout, ceil_mode)
        return self._pool_backward(pooling, grad, None, None, layout, out)

    def _pool(
        self, pooling: PoolingWindow, x: GpuRef, layout: str | None, out: GpuRef | None
    ) -> Request[GpuRef]:
        name = f"{pooling.mode}_pool"
        if pooling.partial:
            return self._resample(name, "resample", x, pooling.attributes(), layout, out)

        def message(inputs: list[Any], output: Any) -> Pool:
            return pooling.message(x=inputs[0], y=output)

        require_int32(self.home, "pooling", pooling.counts())
        return self._routine(f"dnn.{name}", {"x": x}, pooling.y_shape, out, message)

    def _pool_backward(
        self,
        pooling: PoolingWindow,
        grad: GpuRef,
        y: GpuRef | None,
        x: GpuRef | None,
        layout: str | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        inputs = {"grad": grad}
        expected = {"grad": pooling.y_shape}
        if y is not None and x is not None:
            inputs |= {"y": y, "x": x}
            expected["y"] = pooling.y_shape
        for name, shape in expected.items():
            require_readable(inputs[name], self.home.memory, name)
            require_shape(inputs[name], shape, name)

        name = f"{pooling.mode}_pool_grad"
        if pooling.partial:
            by = pooling.x_shape if x is None else x
            attributes = pooling.attributes()
            return self._resample_backward(name, "resample", grad, by, attributes, layout, out)

        def message(given: list[Any], output: Any) -> Pool:
            dy_at, y_at, x_at = (*given, 0, 0)[:3]
            return pooling.message(x=x_at, y=y_at, dy=dy_at, dx=output)

        require_int32(self.home, "pooling", pooling.counts())
        return self._routine(f"dnn.{name}", inputs, pooling.x_shape, out, message)


class Absent:
    """Shape and dtype of an absent tensor."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype


class PoolingWindow:
    """The checked movement of a window.

    Attributes:
        mode: as in ``Pool``.
        partial: whether its last places are only partly inside, which the routine cannot do.
        x_shape, y_shape: shapes in the caller's layout.
    """

    def __init__(
        self,
        mode: str,
        x: Any,
        window: Steps,
        stride: Steps | None,
        padding: Steps,
        layout: str | None,
        ceil_mode: bool,
    ) -> None:
        self.mode = mode
        image = image_of(x, layout)
        dims = len(image.shape) - 2
        sizes = steps(window, dims, "window")
        moves = sizes if stride is None else steps(stride, dims, "stride")
        around = steps(padding, dims, "padding", 0)
        places = []
        ceil = flag(ceil_mode, "ceil_mode")
        self.partial = False
        for size, taps, step, extra in zip(image.shape[2:], sizes, moves, around, strict=True):
            _require_half(extra, taps)
            room = size + 2 * extra - taps
            count = room // step + 1
            if ceil and room % step and count * step < size + extra:
                self.partial = True
                count += 1
            if count < 1:
                raise ValueError(
                    f"a window of {taps} in steps of {step} does not fit into {size} elements "
                    f"with padding {extra}"
                )
            places.append(count)
        shape = (*image.shape[:2], *places)
        last = is_last(layout, len(shape))
        result = DnnTensor(image.dtype, shape, strides_of(shape, last=last), last=last)
        self.x_shape = tuple(x.shape)
        self.y_shape = physical(shape, last=last)
        self._numbers = (sizes, around, moves)
        self._tensors = (image, result)

    def counts(self) -> Iterator[int]:
        """The numbers that cuDNN takes as ints."""
        for numbers in self._numbers:
            yield from numbers
        for tensor in self._tensors:
            yield from (*tensor.shape, *tensor.strides)

    def moves(self) -> tuple[Any, ...]:
        """Return images, places, and sizes, strides, padding and dilation of the window."""
        window, padding, stride = self._numbers
        return (*self._tensors, window, stride, padding, (1,) * len(window))

    def attributes(self) -> dict[str, Any]:
        """Return the attributes of the node, which also has places that are only partly inside."""
        window, padding, stride = self._numbers
        return {
            "mode": _NODES[self.mode],
            "window": window,
            "stride": stride,
            "pre_padding": padding,
            "post_padding": padding,
            "ceil_mode": True,
        }

    def message(self, *, x: Any, y: Any, dy: Any = 0, dx: Any = 0) -> Pool:
        """Return the message for the lane, with its addresses."""
        return Pool(self.mode, *self._numbers, *self._tensors, x, y, dy, dx)


def unpooled_size(
    output_size: Steps | None,
    places: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
) -> tuple[int, ...]:
    """Return the space of images from which pooling makes these places.

    Args:
        output_size: that space; by default the least without a last place that is partly inside.
        places: number of places in each dimension.
        window: its size.
        stride: how far it moves.
        padding: how much is added on both sides.

    Raises:
        ValueError: pooling gives another number of places, also with ``ceil_mode``.
    """
    usual, least, most = [], [], []
    for count, taps, step, extra in zip(places, window, stride, padding, strict=True):
        _require_half(extra, taps)
        start = (count - 1) * step - extra  # of the last place, in which some element has to be
        usual.append(start - extra + taps)
        least.append(max(usual[-1] - step, start, 0) + 1)
        most.append(usual[-1] + step - 1)
    if output_size is None:
        if min(usual) < 1:
            raise ValueError(
                f"the windows without padding have size {tuple(usual)}; name the output_size"
            )
        return tuple(usual)
    space = steps(output_size, len(places), "output_size")
    if any(not low <= size <= high for low, size, high in zip(least, space, most, strict=True)):
        raise ValueError(
            f"output_size must be from {tuple(least)} to {tuple(most)}, which pooling takes to "
            f"{places} places, not {space}; give the size of what was pooled, and its window, "
            "stride and padding"
        )
    return space


def _require_half(padding: int, taps: int) -> None:
    if 2 * padding > taps:
        raise ValueError(f"padding {padding} is more than half of a window of {taps}")


def _average(*, include: bool) -> str:
    return "average" if flag(include, "count_include_pad") else "average_valid"
