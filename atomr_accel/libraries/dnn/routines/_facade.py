"""``device.dnn``: softmax, dropout, local response normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ....ops import D, op, op_family, require_int32, require_readable, require_shape
from ....wire.options import LARGEST, real, whole
from ..wire._routine_messages import Dropout, Normalize, Softmax
from ._routine import RoutinePart, image_of

if TYPE_CHECKING:
    from ....arrays import GpuRef
    from ....ops import Request
    from ..wire._graph import DnnTensor

_MOST_LRN: Final = 16
_LEAST_BETA: Final = 0.01
_LEAST_K: Final = 1e-5


class DnnRoutines(RoutinePart[D]):
    """Operations for which cuDNN has routines, but no graphs."""

    # --- softmax --------------------------------------------------------------------------

    @op_family
    def softmax(
        self,
        _name: str,
        x: GpuRef,
        axis: int = -1,
        *,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """``exp(x) / sum(exp(x))`` along an axis.

        As ``scipy.special.softmax``. Vendor function: ``cudnnSoftmaxForward``.

        Args:
            x: float16, bfloat16, float32 or float64, of any shape.
            axis: the axis of the sums.
            out: where to put the result, ``x`` itself too. Made if absent.

        Returns:
            Shape and dtype of ``x``.
        """
        require_readable(x, self.home.memory, "x")
        around = _around(x.shape, axis)
        require_int32(self.home, "softmax", (*around, around[1] * around[2]))

        def message(inputs: list[Any], output: Any) -> Softmax:
            return Softmax(_name == "log_softmax", around, x.dtype.name, inputs[0], output)

        return self._routine(f"dnn.{_name}", {"x": x}, x.shape, out, message, in_place=True)

    log_softmax: Final = softmax.like(
        """The logarithm of ``softmax``, with its arguments, which does not underflow.

        As ``scipy.special.log_softmax``, but NaN wherever ``softmax`` is. Vendor function:
        ``cudnnSoftmaxForward``.
        """
    )

    @op_family
    def softmax_grad(
        self,
        _name: str,
        grad: GpuRef,
        y: GpuRef,
        axis: int = -1,
        *,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``softmax``.

        Vendor function: ``cudnnSoftmaxBackward``.

        ``grad`` is the gradient with respect to the result ``y``, and ``axis`` that of the forward
        pass. ``out`` is a buffer for the gradient, ``grad`` itself too.

        Returns:
            Shape and dtype of ``y``.
        """
        require_readable(y, self.home.memory, "y")
        require_readable(grad, self.home.memory, "grad")
        require_shape(grad, y.shape, "grad")
        around = _around(y.shape, axis)
        require_int32(self.home, "softmax", (*around, around[1] * around[2]))
        log = _name == "log_softmax_grad"

        def message(inputs: list[Any], output: Any) -> Softmax:
            return Softmax(log, around, y.dtype.name, 0, inputs[1], inputs[0], output)

        given = {"grad": grad, "y": y}
        return self._routine(f"dnn.{_name}", given, y.shape, out, message, in_place=True)

    log_softmax_grad: Final = softmax_grad.like(
        """The gradient of ``log_softmax``, whose result ``y`` is; else as ``softmax_grad``."""
    )

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

        Word ``offset + i`` of the Philox sequence of ``seed`` (Salmon et al., 2011) decides
        element ``i``. So two numbers determine the mask. It is the same on every backend, after
        every rebuild, and in the backward pass, which is this same function of the gradient.
        Continue at ``offset + x.size`` for the next call. cuDNN's own generator is not used,
        because a rebuild would lose its state in memory.

        Args:
            x: float16, bfloat16, float32 or float64, of any shape.
            p: the share that is dropped, at least 0 and below 1.
            seed: number of the random sequence, from 0 to 2**63 - 1.
            offset: where in the sequence to begin.
            out: where to put the result, ``x`` itself too. Made if absent.

        Returns:
            Shape and dtype of ``x``.
        """
        require_readable(x, self.home.memory, "x")
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
            size: number of channels that count, at most 16.
            alpha: parameter of the formula.
            beta: parameter of the formula, at least 0.01.
            k: parameter of the formula, at least 1e-5.
            layout: ``"NCHW"`` or ``"NHWC"``, or the equivalent in one and three dimensions of
                space; by default channels come first.
            out: where to put the result. Made if absent.

        Returns:
            Shape and dtype of ``x``.
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
        """Gradient of ``local_response_norm`` with respect to ``x``.

        Arguments are those of ``local_response_norm``, whose result is ``y``; ``grad`` is the
        gradient with respect to it. Vendor function: ``cudnnLRNCrossChannelBackward``.

        Returns:
            Shape and dtype of ``x``.
        """
        tensor, numbers = self._lrn(x, size, alpha, beta, k, layout)
        given = {"grad": grad, "y": y, "x": x}
        for name, ref in given.items():
            require_readable(ref, self.home.memory, name)
            require_shape(ref, x.shape, name)

        def message(inputs: list[Any], output: Any) -> Normalize:
            dy_at, y_at, x_at = inputs
            return Normalize(*numbers, tensor, x_at, y_at, dy_at, output)

        name = "dnn.local_response_norm_grad"
        return self._routine(name, given, x.shape, out, message)

    def _lrn(
        self, x: GpuRef, size: int, alpha: float, beta: float, k: float, layout: str | None
    ) -> tuple[DnnTensor, tuple[int, float, float, float]]:
        require_readable(x, self.home.memory, "x")
        numbers = (
            whole(size, "size", 1, _MOST_LRN),
            real(alpha, "alpha"),
            real(beta, "beta", least=_LEAST_BETA),
            real(k, "k", least=_LEAST_K),
        )
        tensor = image_of(x, layout)
        counts = (*tensor.shape, *tensor.strides)
        require_int32(self.home, "local response normalisation", counts)
        return tensor, numbers


def _around(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """Return the sizes before an axis, of the axis, and behind it."""
    axis = whole(axis, "axis")
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis {axis} is out of bounds for shape {shape}")
    axis %= len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
