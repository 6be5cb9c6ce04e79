"""``device.dnn``: pooling, softmax, dropout, local response normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ..._arguments import require_int32, require_no_alias, require_readable, require_writable
from ..._op import D, op
from ..._request import Request, Submission
from ...wire._options import LARGEST, flag, real, whole
from ..graph._layout import Steps, is_last, logical, physical, steps
from ..graph._run import LANE, DnnPart
from ..wire._graph import Tensor, strides_of
from ..wire._routine_messages import Dropout, Normalize, Pool, Softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ....memory import Block, GpuRef
    from ..._request import Driver

DTYPES_OF_ROUTINES: Final = ("float16", "bfloat16", "float32", "float64")
_RANKS: Final = range(3, 6)
_MOST_LRN: Final = 16
_LEAST_BETA: Final = 0.01
_LEAST_K: Final = 1e-5


class Routines(DnnPart[D]):
    """What cuDNN has routines for, and no graphs."""

    # --- pooling --------------------------------------------------------------------------

    @op
    def max_pool(
        self,
        x: GpuRef,
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
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
            layout: ``"NCHW"`` or ``"NHWC"``, or their like in one and three dimensions of
                space; by default channels come first.
            out: where to put the result. Made if absent.

        Returns:
            Shape (batch, channels, ...places), or channels last.

        Raises:
            ValueError: shapes and sizes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        return self._pool("max", x, window, stride, padding, layout, out)

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
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``max_pool`` by ``x``; of equal elements the first one gets it.

        Vendor function: ``cudnnPoolingBackward``.

        Args:
            grad: gradient by the result.
            y: what ``max_pool`` gave.
            x: what ``max_pool`` was called with, shape (batch, channels, ...space).
            window: its size.
            stride: how far it moves; by default its own size.
            padding: how much is added on both sides, at most half of the window.
            layout: ``"NCHW"`` or ``"NHWC"``, or their like in one and three dimensions of
                space; by default channels come first.
            out: where to put the gradient. Made if absent.

        Returns:
            Shape and dtype of ``x``.

        Raises:
            ValueError: shapes and sizes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        pooling = _Pooling("max", x, window, stride, padding, layout)
        return self._pool_backward(pooling, grad, y, x, out)

    @op
    def avg_pool(
        self,
        x: GpuRef,
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        count_include_pad: bool = True,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The average of the elements in each place of a window.

        Vendor function: ``cudnnPoolingForward``.

        Args:
            x: float16, bfloat16, float32 or float64; shape (batch, channels, ...space) with
                one to three dimensions of space.
            window: its size.
            stride: how far it moves; by default its own size.
            padding: how much is added on both sides, at most half of the window.
            count_include_pad: whether padding counts as zeros; otherwise it does not count.
            layout: ``"NCHW"`` or ``"NHWC"``, or their like in one and three dimensions of
                space; by default channels come first.
            out: where to put the result. Made if absent.

        Returns:
            Shape (batch, channels, ...places), or channels last.

        Raises:
            ValueError: shapes and sizes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        mode = _average(include=count_include_pad)
        return self._pool(mode, x, window, stride, padding, layout, out)

    @op
    def avg_pool_grad(
        self,
        grad: GpuRef,
        shape: tuple[int, ...],
        window: Steps,
        *,
        stride: Steps | None = None,
        padding: Steps = 0,
        count_include_pad: bool = True,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``avg_pool`` by ``x``.

        Vendor function: ``cudnnPoolingBackward``.

        Args:
            grad: gradient by the result.
            shape: of ``x``.
            window: its size.
            stride: how far it moves; by default its own size.
            padding: how much is added on both sides, at most half of the window.
            count_include_pad: whether padding counts as zeros; otherwise it does not count.
            layout: ``"NCHW"`` or ``"NHWC"``, or their like in one and three dimensions of
                space; by default channels come first.
            out: where to put the gradient. Made if absent.

        Returns:
            ``shape``, and the dtype of ``grad``.

        Raises:
            ValueError: shapes and sizes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        require_readable(grad, self._device.memory, "grad")
        like = _Like(tuple(shape), grad.dtype)
        mode = _average(include=count_include_pad)
        pooling = _Pooling(mode, like, window, stride, padding, layout)
        return self._pool_backward(pooling, grad, None, None, out)

    def _pool(
        self,
        mode: str,
        x: GpuRef,
        window: Steps,
        stride: Steps | None,
        padding: Steps,
        layout: str | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        require_readable(x, self._device.memory, "x")
        pooling = _Pooling(mode, x, window, stride, padding, layout)

        def message(inputs: list[Any], output: Any) -> Pool:
            return pooling.message(x=inputs[0], y=output)

        shape = pooling.y_shape
        require_int32(self._device, "pooling", pooling.counts())
        return self._routine(f"dnn.{mode}_pool", {"x": x}, shape, out, message)

    def _pool_backward(
        self,
        pooling: _Pooling,
        grad: GpuRef,
        y: GpuRef | None,
        x: GpuRef | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        inputs = {"grad": grad}
        expected = {"grad": pooling.y_shape}
        if y is not None and x is not None:
            inputs |= {"y": y, "x": x}
            expected["y"] = pooling.y_shape
        for name, shape in expected.items():
            require_readable(inputs[name], self._device.memory, name)
            if inputs[name].shape != shape:
                raise ValueError(f"{name} must have shape {shape}, not {inputs[name].shape}")

        def message(given: list[Any], output: Any) -> Pool:
            dy_at, y_at, x_at = (*given, 0, 0)[:3]
            return pooling.message(x=x_at, y=y_at, dy=dy_at, dx=output)

        name = f"dnn.{pooling.mode}_pool_grad"
        require_int32(self._device, "pooling", pooling.counts())
        return self._routine(name, inputs, pooling.x_shape, out, message)

    # --- softmax --------------------------------------------------------------------------

    @op
    def softmax(self, x: GpuRef, axis: int = -1, *, out: GpuRef | None = None) -> Request[GpuRef]:
        """``exp(x) / sum(exp(x))`` along an axis.

        As ``scipy.special.softmax``. Vendor function: ``cudnnSoftmaxForward``.

        Args:
            x: float16, bfloat16, float32 or float64, of any shape.
            axis: along which one.
            out: where to put the result, ``x`` itself too. Made if absent.

        Returns:
            Shape and dtype of ``x``.

        Raises:
            ValueError: no such axis, shapes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        return self._softmax(x, axis, out, log=False)

    @op
    def log_softmax(
        self, x: GpuRef, axis: int = -1, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """The logarithm of ``softmax``, which does not underflow.

        As ``scipy.special.log_softmax``. Vendor function: ``cudnnSoftmaxForward``.

        Args:
            x: float16, bfloat16, float32 or float64, of any shape.
            axis: along which one.
            out: where to put the result, ``x`` itself too. Made if absent.

        Returns:
            Shape and dtype of ``x``.

        Raises:
            ValueError: no such axis, shapes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        return self._softmax(x, axis, out, log=True)

    @op
    def softmax_grad(
        self, grad: GpuRef, y: GpuRef, axis: int = -1, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """The gradient of ``softmax``.

        Vendor function: ``cudnnSoftmaxBackward``.

        Args:
            grad: gradient by the result.
            y: what ``softmax`` gave.
            axis: along which one it was.
            out: where to put the gradient, ``grad`` itself too. Made if absent.

        Returns:
            Shape and dtype of ``y``.

        Raises:
            ValueError: no such axis, shapes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        return self._softmax_backward(grad, y, axis, out, log=False)

    @op
    def log_softmax_grad(
        self, grad: GpuRef, y: GpuRef, axis: int = -1, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """The gradient of ``log_softmax``.

        Vendor function: ``cudnnSoftmaxBackward``.

        Args:
            grad: gradient by the result.
            y: what ``log_softmax`` gave.
            axis: along which one it was.
            out: where to put the gradient, ``grad`` itself too. Made if absent.

        Returns:
            Shape and dtype of ``y``.

        Raises:
            ValueError: no such axis, shapes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        return self._softmax_backward(grad, y, axis, out, log=True)

    def _softmax(self, x: GpuRef, axis: int, out: GpuRef | None, *, log: bool) -> Request[GpuRef]:
        require_readable(x, self._device.memory, "x")
        around = _around(x.shape, axis)
        require_int32(self._device, "softmax", (*around, around[1] * around[2]))

        def message(inputs: list[Any], output: Any) -> Softmax:
            return Softmax(log, around, x.dtype.name, inputs[0], output)

        name = "dnn.log_softmax" if log else "dnn.softmax"
        return self._routine(name, {"x": x}, x.shape, out, message, in_place=True)

    def _softmax_backward(
        self, grad: GpuRef, y: GpuRef, axis: int, out: GpuRef | None, *, log: bool
    ) -> Request[GpuRef]:
        require_readable(y, self._device.memory, "y")
        require_readable(grad, self._device.memory, "grad")
        if grad.shape != y.shape:
            raise ValueError(f"grad has shape {grad.shape}, but y has {y.shape}")
        around = _around(y.shape, axis)
        require_int32(self._device, "softmax", (*around, around[1] * around[2]))

        def message(inputs: list[Any], output: Any) -> Softmax:
            return Softmax(log, around, y.dtype.name, 0, inputs[1], inputs[0], output)

        name = f"dnn.{'log_' if log else ''}softmax_grad"
        given = {"grad": grad, "y": y}
        return self._routine(name, given, y.shape, out, message, in_place=True)

    # --- dropout --------------------------------------------------------------------------

    @op
    def dropout(
        self,
        x: GpuRef,
        p: float = 0.5,
        *,
        seed: int,
        offset: int = 0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Set elements to zero by chance, and divide the others by ``1 - p``.

        Element ``i`` is decided by word ``offset + i`` of the Philox sequence of ``seed``
        (Salmon et al., 2011), so a mask is two numbers: the same on every backend, after
        every rebuild, and in the backward pass, which is this very function of the gradient.
        Go on at ``offset + x.size`` for the next one. cuDNN's own generator has a state in
        memory that a rebuild would lose, so it is not used here.

        Args:
            x: float16, bfloat16, float32 or float64, of any shape.
            p: the share that is dropped, at least 0 and below 1.
            seed: which sequence, from 0 to 2**63 - 1.
            offset: where in the sequence to begin.
            out: where to put the result, ``x`` itself too. Made if absent.

        Returns:
            Shape and dtype of ``x``.

        Raises:
            ValueError: numbers out of range, shapes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        require_readable(x, self._device.memory, "x")
        share = real(p, "p", least=0, below=1)
        which, begin = whole(seed, "seed", 0, LARGEST), whole(offset, "offset", 0, LARGEST)

        def message(inputs: list[Any], output: Any) -> Dropout:
            return Dropout(share, which, begin, x.dtype.name, x.size, inputs[0], output)

        return self._routine("dnn.dropout", {"x": x}, x.shape, out, message, in_place=True)

    # --- local response normalisation -----------------------------------------------------

    @op
    def local_response_norm(
        self,
        x: GpuRef,
        size: int,
        *,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """``x / (k + alpha / size * sum(x**2)) ** beta``, the sum over neighbouring channels.

        As ``torch.nn.functional.local_response_norm``, but of an even ``size`` the extra
        channel lies behind. Vendor function: ``cudnnLRNCrossChannelForward``.

        Args:
            x: float16, bfloat16, float32 or float64; shape (batch, channels, ...space) with
                one to three dimensions of space.
            size: how many channels count, at most 16.
            alpha: of the formula.
            beta: of the formula, at least 0.01.
            k: of the formula, at least 1e-5.
            layout: ``"NCHW"`` or ``"NHWC"``, or their like in one and three dimensions of
                space; by default channels come first.
            out: where to put the result. Made if absent.

        Returns:
            Shape and dtype of ``x``.

        Raises:
            ValueError: shapes and sizes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        tensor, numbers = self._lrn(x, size, alpha, beta, k, layout)

        def message(inputs: list[Any], output: Any) -> Normalize:
            return Normalize(*numbers, tensor, inputs[0], output)

        return self._routine("dnn.local_response_norm", {"x": x}, x.shape, out, message)

    @op
    def local_response_norm_grad(
        self,
        grad: GpuRef,
        y: GpuRef,
        x: GpuRef,
        size: int,
        *,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
        layout: str | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``local_response_norm`` by ``x``.

        Vendor function: ``cudnnLRNCrossChannelBackward``.

        Args:
            grad: gradient by the result.
            y: what ``local_response_norm`` gave.
            x: what ``local_response_norm`` was called with, shape (batch, channels, ...space).
            size: how many channels count, at most 16.
            alpha: of the formula.
            beta: of the formula, at least 0.01.
            k: of the formula, at least 1e-5.
            layout: ``"NCHW"`` or ``"NHWC"``, or their like in one and three dimensions of
                space; by default channels come first.
            out: where to put the gradient. Made if absent.

        Returns:
            Shape and dtype of ``x``.

        Raises:
            ValueError: shapes and sizes that do not fit.
            TypeError: dtypes that do not fit, an argument that is no GpuRef.
            Unsupported: cuDNN does not do this.
            GpuRefStale: of an older generation, or freed.
            GpuRefSealed: ``out`` is sealed.
            OutOfMemory: no room for the result.
        """
        tensor, numbers = self._lrn(x, size, alpha, beta, k, layout)
        given = {"grad": grad, "y": y, "x": x}
        for name, ref in given.items():
            require_readable(ref, self._device.memory, name)
            if ref.shape != x.shape:
                raise ValueError(f"{name} has shape {ref.shape}, but x has {x.shape}")

        def message(inputs: list[Any], output: Any) -> Normalize:
            dy_at, y_at, x_at = inputs
            return Normalize(*numbers, tensor, x_at, y_at, dy_at, output)

        name = "dnn.local_response_norm_grad"
        return self._routine(name, given, x.shape, out, message)

    def _lrn(
        self, x: GpuRef, size: int, alpha: float, beta: float, k: float, layout: str | None
    ) -> tuple[Tensor, tuple[int, float, float, float]]:
        require_readable(x, self._device.memory, "x")
        numbers = (
            whole(size, "size", 1, _MOST_LRN),
            real(alpha, "alpha"),
            real(beta, "beta", least=_LEAST_BETA),
            real(k, "k", least=_LEAST_K),
        )
        tensor = _image(x, layout)
        counts = (*tensor.shape, *tensor.strides)
        require_int32(self._device, "local response normalisation", counts)
        return tensor, numbers

    # --- all of them ----------------------------------------------------------------------

    def _routine(
        self,
        name: str,
        inputs: dict[str, GpuRef],
        shape: tuple[int, ...],
        out: GpuRef | None,
        message: Callable[[list[Any], Any], Any],
        *,
        in_place: bool = False,
    ) -> Request[GpuRef]:
        """A request for a routine with one result.

        Args:
            name: what to call it.
            inputs: what it reads, all of one dtype.
            shape: of the result.
            out: where the caller wants it.
            message: makes the message from the addresses of inputs and result.
            in_place: whether ``out`` may be one of the inputs.
        """
        memory = self._device.memory

        def prepare(driver: Driver) -> Submission[GpuRef]:
            first = next(iter(inputs.values()))
            blocks: list[Block] = []
            for what, ref in inputs.items():
                blocks.append(require_readable(ref, memory, what))
                if ref.dtype.name not in DTYPES_OF_ROUTINES:
                    known = ", ".join(DTYPES_OF_ROUTINES)
                    raise TypeError(f"{what} must be one of {known}, not {ref.dtype.name}")
                if ref.dtype is not first.dtype:
                    raise TypeError(
                        f"{what} has dtype {ref.dtype.name}, but another input has "
                        f"{first.dtype.name}; they must be the same"
                    )
            result = out
            if result is None:
                result = driver.output(shape, first.dtype)
            else:
                _check_out(name, result, inputs, shape, in_place=in_place)
                require_writable(result, memory, "out")
            places = [block.address for block in blocks]
            return Submission(
                message(places, result._block.address), blocks, [result._block], result
            )

        return Request(LANE, name, prepare)


class _Like:
    """What is known of a tensor that is not there."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype


class _Pooling:
    """How a window moves, checked."""

    def __init__(
        self,
        mode: str,
        x: Any,
        window: Steps,
        stride: Steps | None,
        padding: Steps,
        layout: str | None,
    ) -> None:
        self.mode = mode
        image = _image(x, layout)
        dims = len(image.shape) - 2
        sizes = steps(window, dims, "window")
        moves = sizes if stride is None else steps(stride, dims, "stride")
        around = steps(padding, dims, "padding", 0)
        places = []
        for size, taps, step, extra in zip(image.shape[2:], sizes, moves, around, strict=True):
            if 2 * extra > taps:
                raise ValueError(f"padding {extra} is more than half of a window of {taps}")
            if size + 2 * extra < taps:
                raise ValueError(
                    f"a window of {taps} does not fit into {size} elements with padding {extra}"
                )
            places.append((size + 2 * extra - taps) // step + 1)
        shape = (*image.shape[:2], *places)
        last = is_last(layout, len(shape))
        result = Tensor(image.dtype, shape, strides_of(shape, last=last), last=last)
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

    def message(self, *, x: Any, y: Any, dy: Any = 0, dx: Any = 0) -> Pool:
        """What the lane executes, with its addresses."""
        return Pool(self.mode, *self._numbers, *self._tensors, x, y, dy, dx)


def _image(x: Any, layout: str | None) -> Tensor:
    """How an image lies in memory, as (batch, channels, ...space)."""
    if len(x.shape) not in _RANKS or 0 in x.shape:
        raise ValueError(
            f"x must have a batch, channels and one to three dimensions of space, none of "
            f"them 0, not shape {x.shape}"
        )
    last = is_last(layout, len(x.shape))
    shape = logical(x.shape, last=last)
    return Tensor(x.dtype.name, shape, strides_of(shape, last=last), last=last)


def _average(*, include: bool) -> str:
    return "average" if flag(include, "count_include_pad") else "average_valid"


def _around(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """What comes before an axis, the axis, and what comes behind."""
    axis = whole(axis, "axis")
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} is out of bounds for shape {shape}")
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _check_out(
    op: str, out: GpuRef, inputs: dict[str, GpuRef], shape: tuple[int, ...], *, in_place: bool
) -> None:
    first = next(iter(inputs.values()))
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the result has shape {shape}")
    if out.dtype is not first.dtype:
        raise TypeError(f"out has dtype {out.dtype.name}, but the result has {first.dtype.name}")
    may_be = [("out", name) for name in inputs] if in_place else []
    require_no_alias(op, [("out", out)], inputs.items(), in_place=may_be)
