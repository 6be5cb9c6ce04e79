"""``device.dnn``: elements of images at positions that are computed, and windows of images."""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...._dtypes import DTYPES
from ....ops import (
    D,
    Request,
    Submission,
    op,
    require_dtype,
    require_no_alias,
    require_readable,
    require_shape,
    require_writable,
)
from ....wire.options import count, flag
from ..graph._run import LANE, DnnPart
from ..graph.layout import Steps, is_last, physical, require_float, steps
from ..wire._graph import DnnTensor, strides_of
from ..wire._nodes import wider
from ..wire._sampling_messages import (
    SAMPLE_MODES,
    SAMPLE_PADDINGS,
    AffineGrid,
    MoveWindows,
    SampleGrid,
)
from ._pooling import Absent, PoolingWindow, unpooled_size
from ._routine import image_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from ....arrays import GpuRef
    from ....ops import Preparer

    _Dtype = np.dtype[Any]
    _Inputs = Mapping[str, tuple[str, GpuRef]]

T = TypeVar("T")


class GridSampling(DnnPart[D]):
    """Elements of images at positions that are computed, windows as columns, and places of maxima.

    Images are float16, bfloat16, float32 or float64 of shape (batch, channels, ...space), or
    channels last with a ``layout`` such as ``"NHWC"``. ``out`` is a buffer for the result, made if
    absent. Gradients take ``grad``, the gradient with respect to the result, of its shape. Sums are
    float32, or float64 for float64.

    cuDNN's frontend has no such operations, so on CUDA kernels of this package compute them.
    """

    # --- positions ------------------------------------------------------------------------

    @op
    def affine_grid(
        self,
        theta: GpuRef,
        size: Sequence[int],
        *,
        align_corners: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Positions for ``grid_sample`` made of affine matrices.

        As ``torch.nn.functional.affine_grid``; see the class.

        ``theta`` are matrices, shape (batch, 2, 3) or (batch, 3, 4). ``size`` is the shape of the
        samples, (batch, channels, ...space), channels first. ``align_corners`` is as for
        ``grid_sample``.

        Returns:
            Shape (batch, ...space, dimensions of space); the last dimension comes first.
        """
        require_readable(theta, self.home.memory, "theta")
        places = _sizes(size, "size")
        dims = len(places) - 2
        require_shape(theta, (places[0], dims, dims + 1), "theta")
        shape = (places[0], *places[2:], dims)
        aligned = flag(align_corners, "align_corners")
        message = partial(AffineGrid, places[0], places[2:], theta.dtype.name, aligned, False)
        inputs = {"theta": ("theta", theta)}
        return self._sampled("affine_grid", inputs, shape, out, message, "grid")

    @op
    def affine_grid_grad(
        self,
        grad: GpuRef,
        *,
        align_corners: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``affine_grid`` with respect to ``theta``, of its shape; see the class.

        ``align_corners`` is as ``affine_grid`` had it.
        """
        require_readable(grad, self.home.memory, "grad")
        dims = grad.ndim - 2
        if dims not in (2, 3) or grad.shape[-1] != dims or 0 in grad.shape[1:]:
            raise ValueError(
                f"grad must have shape (batch, ...space, dimensions of space), not {grad.shape}"
            )
        aligned = flag(align_corners, "align_corners")
        batch, places = grad.shape[0], grad.shape[1:-1]
        message = partial(AffineGrid, batch, places, grad.dtype.name, aligned, True)
        inputs, shape = {"grid": ("grad", grad)}, (batch, dims, dims + 1)
        return self._sampled("affine_grid_grad", inputs, shape, out, message, "theta")

    @op
    def grid_sample(
        self,
        x: GpuRef,
        grid: GpuRef,
        *,
        mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Elements of images at positions, by interpolation between the elements around them.

        As ``torch.nn.functional.grid_sample``, except that elements of weight 0 do not count, even
        infinities. NaN as a position gives 0 with ``"zeros"``, otherwise it is element 0. See the
        class.

        Args:
            x: images, with two or three dimensions of space.
            grid: positions from -1 to 1, shape (batch, ...places, dimensions of space), dtype of
                ``x``; the last dimension of space comes first.
            mode: ``"bilinear"``, which is trilinear in three dimensions, or ``"nearest"``, which
                takes the even one of two that are equally near.
            padding_mode: elements outside: ``"zeros"``, ``"border"`` for the nearest element, or
                ``"reflection"``.
            align_corners: whether -1 and 1 are the centres of the outermost elements, instead of
                their outer edges.
            layout: where channels are; by default first.
            out: where to put the result. Made if absent.

        Returns:
            Shape (batch, channels, ...places), or channels last.
        """
        require_readable(x, self.home.memory, "x")
        options = mode, padding_mode, align_corners, layout
        how = _Samples("the shape of x", x, x.shape, grid, self, *options)
        inputs = {"x": ("x", x), "grid": ("grid", grid)}
        return self._sampled("grid_sample", inputs, how.shape, out, how.message("sample"), "y")

    @op
    def grid_sample_input_grad(
        self,
        grad: GpuRef,
        grid: GpuRef,
        shape: tuple[int, ...],
        *,
        mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
        deterministic: bool | None = None,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``grid_sample`` with respect to ``x``; see the class.

        ``shape`` is that of ``x``; other arguments are those of ``grid_sample``. With
        ``deterministic`` sums are made in the order of the positions, each channel by one thread,
        which takes longer. Otherwise they may be rounded differently each time on CUDA. The default
        is the device's own setting.
        """
        require_readable(grad, self.home.memory, "grad")
        like = _sizes(shape, "shape")
        how = _Samples("shape", grad, like, grid, self, mode, padding_mode, align_corners, layout)
        require_shape(grad, how.shape, "grad")
        given = self.home.deterministic if deterministic is None else deterministic
        message = how.message("image", ordered=flag(given, "deterministic"))
        narrow = wider(grad.dtype.name) != grad.dtype.name
        scratch = math.prod(like) * DTYPES["float32"].itemsize if narrow else 0
        inputs = {"y": ("grad", grad), "grid": ("grid", grid)}
        return self._sampled(
            "grid_sample_input_grad", inputs, like, out, message, "x", scratch=scratch
        )

    @op
    def grid_sample_grid_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        grid: GpuRef,
        *,
        mode: str = "bilinear",
        padding_mode: str = "zeros",
        align_corners: bool = False,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``grid_sample`` with respect to ``grid``; see the class.

        It has the shape of ``grid``, and is 0 for ``"nearest"``, and beyond the ends with
        ``"border"``. Other arguments are those of ``grid_sample``.
        """
        require_readable(grad, self.home.memory, "grad")
        require_readable(x, self.home.memory, "x")
        options = mode, padding_mode, align_corners, layout
        how = _Samples("the shape of x", x, x.shape, grid, self, *options)
        require_shape(grad, how.shape, "grad")
        inputs = {"y": ("grad", grad), "x": ("x", x), "grid": ("grid", grid)}
        message = how.message("grid")
        return self._sampled("grid_sample_grid_grad", inputs, grid.shape, out, message, "dgrid")

    # --- windows --------------------------------------------------------------------------

    @op
    def unfold(
        self,
        x: GpuRef,
        window: Steps,
        *,
        stride: Steps = 1,
        padding: Steps = 0,
        dilation: Steps = 1,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Windows of images as columns. ``fold`` is its gradient, with the same arguments.

        As ``torch.nn.functional.unfold``, for one to three dimensions of space; see the class.

        Args:
            x: images.
            window: its size, one number or one for each dimension of space.
            stride: how far it moves.
            padding: how many zeros are added on both sides.
            dilation: distance of the elements of a window.
            layout: where channels are; by default first.
            out: where to put the result. Made if absent.

        Returns:
            Shape (batch, channels * elements of a window, places), whatever the layout.
        """
        require_readable(x, self.home.memory, "x")
        how = _Columns(x, x.shape, window, stride, padding, dilation, layout)
        return self._sampled("unfold", {"x": ("x", x)}, how.shape, out, how.message("unfold"), "y")

    @op
    def fold(
        self,
        x: GpuRef,
        output_size: Steps,
        window: Steps,
        *,
        stride: Steps = 1,
        padding: Steps = 0,
        dilation: Steps = 1,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Sums of columns at the places of their windows. ``unfold`` is its gradient.

        As ``torch.nn.functional.fold``, for one to three dimensions of space; see the class. ``x``
        has shape (batch, channels * elements of a window, places), and ``output_size`` is the space
        of the images. Its length, or that of ``window``, is the number of dimensions; two, if all
        are single numbers. ``padding`` is how many elements on both sides are left out of the
        images, and ``layout`` is that of the result. Other arguments are those of ``unfold``.

        Returns:
            Shape (batch, channels, ...output_size), or channels last.
        """
        require_readable(x, self.home.memory, "x")
        if x.ndim != 3:
            raise ValueError(
                f"x must have shape (batch, channels of windows, places), not {x.shape}"
            )
        given = (output_size, window, stride, padding, dilation)
        dims = next((len(each) for each in given if isinstance(each, tuple | list)), 2)
        space = steps(output_size, dims, "output_size")
        taps = math.prod(steps(window, dims, "window"))
        if not x.shape[1] or x.shape[1] % taps:
            raise ValueError(
                f"x must have a multiple of {taps} channels, the elements of a window, not "
                f"{x.shape[1]}"
            )
        last = is_last(layout, dims + 2)
        shape = physical((x.shape[0], x.shape[1] // taps, *space), last=last)
        how = _Columns(x, shape, window, stride, padding, dilation, layout)
        require_shape(x, how.shape, "x")
        return self._sampled("fold", {"y": ("x", x)}, shape, out, how.message("fold"), "x")

    @op
    def max_pool_with_indices(
        self,
        x: GpuRef,
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        ceil_mode: bool = False,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[tuple[GpuRef, GpuRef]]:
        """The largest element in each place of a window, and its index.

        As ``torch.nn.functional.max_pool2d`` with ``return_indices=True``. Arguments are those of
        ``max_pool``, whose gradient is this one's. Of equal elements the first one counts, and the
        first NaN if there is one.

        Returns:
            The elements, as ``max_pool`` returns them, and int64 of the same shape: their indices
            in the space of their image and channel, by C order.
        """
        require_readable(x, self.home.memory, "x")
        pooling = PoolingWindow("max", x, window, stride, padding, layout, ceil_mode)
        message = _WindowMoves(*pooling.moves()).message("pool")
        outputs = {"y": (pooling.y_shape, x.dtype), "indices": (pooling.y_shape, DTYPES["int64"])}
        inputs = {"x": ("x", x)}
        return self._computed("max_pool_with_indices", inputs, outputs, (out, None), message, _both)

    @op
    def max_unpool(
        self,
        x: GpuRef,
        indices: GpuRef,
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        output_size: Steps | None = None,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Images with elements where ``max_pool_with_indices`` found them, and zeros elsewhere.

        As ``torch.nn.functional.max_unpool2d``. If windows overlap, an index may come several
        times. Then one of the elements is there: the last one on the CPU, any of them on CUDA.

        ``indices`` are int64 of the shape of ``x``. One that is out of range is a ``ValueError`` on
        the CPU; on CUDA its element goes nowhere. ``output_size`` is the space of the result, one
        that pooling takes to that of ``x``, perhaps with ``ceil_mode``; by default the least that
        has all these windows. Other arguments are those of ``max_pool_with_indices``.

        Returns:
            Shape (batch, channels, ...output_size), or channels last.

        Raises:
            ValueError: pooling takes ``output_size`` to another number of places.
        """
        require_readable(x, self.home.memory, "x")
        small = image_of(x, layout)
        dims = len(small.shape) - 2
        sizes = steps(window, dims, "window")
        apart = sizes if stride is None else steps(stride, dims, "stride")
        around = steps(padding, dims, "padding", 0)
        space = unpooled_size(output_size, small.shape[2:], sizes, apart, around)
        shape = physical((*small.shape[:2], *space), last=small.last)
        message = self._indexed(x, indices, shape, layout, "unpool")
        inputs = {"y": ("x", x), "indices": ("indices", indices)}
        return self._sampled("max_unpool", inputs, shape, out, message, "x")

    @op
    def max_unpool_grad(
        self,
        grad: GpuRef,
        indices: GpuRef,
        *,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``max_unpool`` with respect to ``x``: the elements of ``grad`` at indices.

        An index that comes several times gets the same element each time. ``indices`` are as
        ``max_unpool`` had them.

        Returns:
            Shape of ``indices``, dtype of ``grad``.
        """
        require_readable(grad, self.home.memory, "grad")
        message = self._indexed(grad, indices, grad.shape, layout, "pick")
        inputs = {"x": ("grad", grad), "indices": ("indices", indices)}
        return self._sampled("max_unpool_grad", inputs, indices.shape, out, message, "y")

    # --- requests -------------------------------------------------------------------------

    def _indexed(
        self, x: GpuRef, indices: GpuRef, shape: tuple[int, ...], layout: str | None, kind: str
    ) -> Callable[..., MoveWindows]:
        """Return a function that makes a message for elements at indices, one for each place."""
        require_readable(indices, self.home.memory, "indices")
        if indices.dtype is not DTYPES["int64"]:
            raise TypeError(f"indices must be int64, not {indices.dtype.name}")
        if kind == "unpool":
            require_shape(indices, x.shape, "indices")
        image = image_of(Absent(shape, x.dtype), layout)
        result = image_of(Absent(indices.shape, x.dtype), layout)
        expected = (*image.shape[:2], *result.shape[2:])
        if len(image.shape) != len(result.shape) or result.shape != expected:
            raise ValueError(f"indices {indices.shape} do not belong to images {shape}")
        ones = (1,) * (len(shape) - 2)
        return _WindowMoves(image, result, ones, ones, tuple(0 for _ in ones), ones).message(kind)

    def _sampled(
        self,
        name: str,
        inputs: _Inputs,
        shape: tuple[int, ...],
        out: GpuRef | None,
        message: Callable[..., Any],
        result: str,
        *,
        scratch: int = 0,
    ) -> Request[GpuRef]:
        """Return a request with one result, which has the dtype of the first input."""
        _, first = next(iter(inputs.values()))
        outputs = {result: (shape, first.dtype)}
        return self._computed(name, inputs, outputs, (out,), message, itemgetter(0), scratch)

    def _computed(
        self,
        name: str,
        inputs: _Inputs,
        outputs: Mapping[str, tuple[tuple[int, ...], _Dtype]],
        outs: tuple[GpuRef | None, ...],
        message: Callable[..., Any],
        finish: Callable[[list[GpuRef]], T],
        scratch: int = 0,
    ) -> Request[T]:
        """Return a request.

        Args:
            name: its name.
            inputs: its inputs, by the message's names: names of arguments, and refs.
            outputs: shapes and dtypes of the results, by the message's names.
            outs: the caller's buffers for them.
            message: makes the message from addresses.
            finish: makes the caller's result from the results.
            scratch: bytes of scratch memory.
        """
        memory, named = self.home.memory, [*inputs.values()]
        first, given = named[0]
        require_float(given, first)
        for what, ref in named[1:]:
            if what != "indices":
                require_dtype(ref, given.dtype, what, first)

        def prepare(preparer: Preparer) -> Submission[T]:
            blocks = [require_readable(ref, memory, what) for what, ref in named]
            made: list[GpuRef] = []
            for (shape, dtype), ref in zip(outputs.values(), outs, strict=True):
                if ref is not None:
                    require_writable(ref, memory, "out")
                    require_shape(ref, shape, "out")
                    require_dtype(ref, dtype, "out", first)
                    require_no_alias(f"dnn.{name}", [("out", ref)], named)
                made.append(preparer.output(shape, dtype) if ref is None else ref)
            places: dict[str, Any] = {
                what: block.address for what, block in zip(inputs, blocks, strict=True)
            }
            places |= {what: ref.block.address for what, ref in zip(outputs, made, strict=True)}
            writes = [ref.block for ref in made]
            if scratch:
                block = self.plans.workspaces.obtain(preparer, scratch)
                places["scratch"] = block.address
                writes.append(block)
            return Submission(message(**places), blocks, writes, finish(made))

        return Request(LANE, f"dnn.{name}", prepare)


class _Samples:
    """Checked samples of images.

    Attributes:
        shape: their shape, in the caller's layout.
    """

    def __init__(
        self,
        of: str,
        x: GpuRef,
        shape: tuple[int, ...],
        grid: GpuRef,
        part: DnnPart[Any],
        mode: str,
        padding_mode: str,
        align_corners: bool,
        layout: str | None,
    ) -> None:
        require_readable(grid, part.home.memory, "grid")
        image = image_of(Absent(_sizes(shape, of), x.dtype), layout)
        dims = len(image.shape) - 2
        if grid.ndim != dims + 2 or grid.shape[:: dims + 1] != (image.shape[0], dims):
            raise ValueError(
                f"grid must have shape ({image.shape[0]}, ...places, {dims}) for images {shape}, "
                f"not {grid.shape}"
            )
        if 0 in grid.shape[1:]:
            raise ValueError(f"grid must have one position or more, not shape {grid.shape}")
        for name, value, choices in (
            ("mode", mode, SAMPLE_MODES),
            ("padding_mode", padding_mode, SAMPLE_PADDINGS),
        ):
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
        result = _tensor(image, (*image.shape[:2], *grid.shape[1:-1]), last=image.last)
        self.shape = physical(result.shape, last=image.last)
        aligned = flag(align_corners, "align_corners")
        self._options = (image, result, mode, padding_mode, aligned)

    def message(self, kind: Any, *, ordered: bool = False) -> Callable[..., SampleGrid]:
        """Return a function that makes the message for the lane from its addresses."""
        return partial(SampleGrid, kind, *self._options, ordered)


class _WindowMoves(NamedTuple):
    """Windows and their movement."""

    image: DnnTensor
    result: DnnTensor
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def message(self, kind: Any) -> Callable[..., MoveWindows]:
        """Return a function that makes the message for the lane from its addresses."""
        return partial(MoveWindows, kind, *self)


class _Columns:
    """Checked windows of images as columns.

    Attributes:
        shape: their shape.
    """

    def __init__(
        self,
        x: GpuRef,
        shape: tuple[int, ...],
        window: Steps,
        stride: Steps,
        padding: Steps,
        dilation: Steps,
        layout: str | None,
    ) -> None:
        image = image_of(Absent(shape, x.dtype), layout)
        dims = len(image.shape) - 2
        taps, moves = steps(window, dims, "window"), steps(stride, dims, "stride")
        around, apart = steps(padding, dims, "padding", 0), steps(dilation, dims, "dilation")
        places = []
        for size, tap, step, pad, far in zip(
            image.shape[2:], taps, moves, around, apart, strict=True
        ):
            room = size + 2 * pad - (tap - 1) * far - 1
            if room < 0:
                raise ValueError(
                    f"a window of {tap} elements at distances of {far} does not fit into {size} "
                    f"elements with padding {pad}"
                )
            places.append(room // step + 1)
        batch, rows = image.shape[0], image.shape[1] * math.prod(taps)
        result = _tensor(image, (batch, rows, *places), last=False)
        self.shape = (batch, rows, math.prod(places))
        self.message = _WindowMoves(image, result, taps, moves, around, apart).message


def _both(made: list[GpuRef]) -> tuple[GpuRef, GpuRef]:
    first, second = made
    return first, second


def _tensor(image: DnnTensor, shape: tuple[int, ...], *, last: bool) -> DnnTensor:
    return DnnTensor(image.dtype, shape, strides_of(shape, last=last), last=last)


def _sizes(given: Sequence[int], name: str) -> tuple[int, ...]:
    """Return a shape of images with two or three dimensions of space."""
    wanted = (
        f"{name} must be that of images with two or three dimensions of space, of which only the "
        f"batch may be 0, not {given}"
    )
    try:
        sizes = tuple(count(each, name, 0) for each in given)
    except TypeError:
        raise TypeError(wanted) from None
    if len(sizes) not in (4, 5) or 0 in sizes[1:]:
        raise ValueError(wanted)
    return sizes
