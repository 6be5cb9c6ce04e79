"""Convolutions of ``device.cutlass``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ...ops import D, op
from ...wire.options import whole
from ._calls import CutlassPart
from ._movement import Movement

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ...arrays import GpuRef
    from ...ops import Request
    from ..dnn.graph.layout import Padding, Steps
    from ._calls import Tuned
    from ._epilogue import Epilogue


class CutlassConvolutions(CutlassPart[D]):
    """Convolutions in one to three dimensions of space, with channels last, and their gradients."""

    @op
    def conv(
        self,
        x: GpuRef,
        w: GpuRef,
        *,
        out: GpuRef | None = None,
        c: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: GpuRef | None = None,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
        groups: int = 1,
        layout: str | None = None,
        dtype: DTypeLike | None = None,
        epilogue: Epilogue | None = None,
        fast_accum: bool = True,
        tile: Sequence[int] | None = None,
        cluster: Sequence[int] | None = None,
        schedule: Literal["auto", "cooperative", "pingpong"] = "auto",
        stages: int | Literal["auto"] = "auto",
        swizzle: int | None = None,
    ) -> Request[GpuRef]:
        """Cross-correlation of images with filters: ``epilogue(alpha * conv + beta * c + bias)``.

        The convolution runs as an implicit product, with one row of image elements for each
        position of the filter. TMA gathers these rows tile by tile (im2col), without storing them
        in memory. Everything else works as in ``matmul``.

        Args:
            x: images, (N, ..., C), with one to three dimensions of space; their channels have to be
                whole multiples of 16 bytes.
            w: filters, (K, ..., C), of the same dtype.
            out: where to put the result: (N, ..., K), not sealed, no memory in common with other
                arguments but ``c``. Made if absent.
            c: an array to add, of the result's shape.
            alpha: scales the convolution.
            beta: scales ``c``; 0 ignores it, NaNs included.
            bias: (K,), added to each channel.
            stride: steps of the filter; a number, or one for each dimension; up to 8.
            padding: zeros around the image: a number; a number or a pair (before, after) for each
                dimension; ``"same"`` (with stride 1) or ``"valid"``.
            dilation: steps between the taps of a filter.
            groups: must be 1.
            layout: ``"NWC"``, ``"NHWC"`` or ``"NDHWC"``, by the number of dimensions; None chooses
                it.
            dtype: the dtype of the result, as for ``matmul``.
            epilogue: a function of the sum, as an expression of ``accumulator``. Its rows are
                channels, (K,), and its columns positions, (N, ..., 1).
            fast_accum: let fp8 accumulate less precisely, and faster.
            tile: positions, filters and channels of one tap that a block of threads computes at a
                time. This and all arguments below are as for ``matmul``.
            cluster: blocks that share loaded tiles.
            schedule: how warps share the work.
            stages: tiles that are loaded ahead.
            swizzle: how many tiles follow each other along the shorter side.

        Raises:
            Unsupported: channels that are not last, groups, a stride over 8, or a device without
                kernels. Also padding or filters that reach further than TMA can count. Its limits
                are 128 elements in two dimensions of space, and 16 in three.
        """
        movement = Movement(stride, padding, dilation, groups, layout)
        return self._multiply("conv", (x, w), {**locals(), "trans_b": True}, movement)

    @op
    def conv_input_grad(
        self,
        grad: GpuRef,
        w: GpuRef,
        shape: Sequence[int],
        *,
        out: GpuRef | None = None,
        c: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
        groups: int = 1,
        layout: str | None = None,
        dtype: DTypeLike | None = None,
        epilogue: Epilogue | None = None,
        tile: Sequence[int] | None = None,
        cluster: Sequence[int] | None = None,
        schedule: Literal["auto", "cooperative", "pingpong"] = "auto",
        stages: int | Literal["auto"] = "auto",
        swizzle: int | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``conv`` by its images, for a stride of 1.

        It runs the kernels of ``conv``, which gather ``grad`` and use the taps in reverse.

        Other arguments are those of ``conv``: ``grad`` is the gradient by its result, float16 or
        bfloat16, and ``shape`` the shape of the images. Rows of an epilogue are the channels of
        images; a tile counts positions, channels of images and filters of one tap.

        Returns:
            The gradient, of ``shape``.

        Raises:
            Unsupported: a stride other than 1, dtypes other than float16 and bfloat16, and anything
                that ``conv`` refuses.
        """
        movement = Movement(stride, padding, dilation, groups, layout, _extents(shape))
        return self._multiply("conv_input_grad", (grad, w), locals(), movement)

    @op
    def conv_weight_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        shape: Sequence[int],
        *,
        out: GpuRef | None = None,
        c: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
        groups: int = 1,
        layout: str | None = None,
        dtype: DTypeLike | None = None,
        epilogue: Epilogue | None = None,
        tile: Sequence[int] | None = None,
        cluster: Sequence[int] | None = None,
        schedule: Literal["auto", "cooperative", "pingpong"] = "auto",
        stages: int | Literal["auto"] = "auto",
        swizzle: int | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``conv`` by its filters.

        It runs a product for each tap, which gathers columns and sums over all positions of all
        images. Blocks do not share a sum, so filters of few taps and channels leave most of a
        device idle.

        Other arguments are those of ``conv``: ``grad`` is the gradient by its result, and ``shape``
        the shape of the filters. ``beta=1`` with ``out=c`` accumulates. Rows of an epilogue are
        channels, (C,), and its columns filters, (K, 1, ...); a tile counts filters, channels and
        positions.

        Returns:
            The gradient, of ``shape``.

        Raises:
            Unsupported: dtypes other than float16 and bfloat16, and anything that ``conv`` refuses.
        """
        movement = Movement(stride, padding, dilation, groups, layout, None, _extents(shape))
        return self._multiply(
            "conv_weight_grad", (grad, x), {**locals(), "trans_a": True}, movement
        )

    @op
    def tune_conv(
        self,
        x: GpuRef,
        w: GpuRef,
        *,
        c: GpuRef | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        bias: GpuRef | None = None,
        stride: Steps = 1,
        padding: Padding = 0,
        dilation: Steps = 1,
        groups: int = 1,
        layout: str | None = None,
        dtype: DTypeLike | None = None,
        epilogue: Epilogue | None = None,
        fast_accum: bool = True,
        tiles: Sequence[Sequence[int]] | None = None,
        clusters: Sequence[Sequence[int]] | None = None,
        schedules: Sequence[str] | None = None,
        swizzles: Sequence[int] = (1, 2, 4),
    ) -> Request[list[Tuned]]:
        """Find the fastest kernel for such a convolution, and keep it on disk, as ``tune``.

        All arguments up to ``fast_accum`` are those of ``conv``, and the others those of ``tune``.

        Returns:
            All kernels that were tried, the fastest first.
        """
        movement = Movement(stride, padding, dilation, groups, layout)
        return self._try("tune_conv", (x, w), {**locals(), "trans_b": True}, movement)


def _extents(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of what a gradient is of."""
    if not isinstance(shape, Sequence):
        raise TypeError(f"shape must be whole numbers, one for each axis, not {shape!r}")
    return tuple(whole(size, f"shape[{at}]", 1) for at, size in enumerate(shape))
