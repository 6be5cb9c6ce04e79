"""``device.dnn``: losses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....ops import (
    D,
    Request,
    Submission,
    op,
    require_no_alias,
    require_readable,
    require_shape,
    require_writable,
)
from ....wire.options import flag, real, whole
from ..graph._run import LANE, DnnPart
from ..graph.layout import require_float
from ..wire._loss_messages import CrossEntropy, Ctc, scratch_count
from ..wire._nodes import wider

if TYPE_CHECKING:
    from ....arrays import GpuRef
    from ....memory import Block
    from ....ops import Preparer

_MOST_LABELS: Final = 255
_IGNORED: Final = -100
_INDICES: Final = ("int32", "int64")

Reduction = Literal["mean", "sum", "none"]


class Losses(DnnPart[D]):
    """Loss functions, which compare results of a network with targets.

    cuDNN has no cross-entropy. On CUDA kernels of this package compute losses, in float32, or
    float64 for float64, and the same each time.

    For an empty batch the mean is NaN and the sum 0.

    All methods raise ``ValueError`` on the CPU for classes and lengths that are out of range. On
    CUDA such classes and lengths read no memory, and the result is NaN.
    """

    @op
    def cross_entropy(
        self,
        x: GpuRef,
        target: GpuRef,
        weight: GpuRef | None = None,
        *,
        ignore_index: int = _IGNORED,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Cross-entropy of scores and targets: ``-log_softmax(x)[target]``.

        As ``torch.nn.functional.cross_entropy``, with targets that are classes or probabilities of
        them; see the class.

        Args:
            x: scores, float16, bfloat16, float32 or float64; shape (batch, classes, ...), or
                (classes,).
            target: the right classes, int32 or int64; the shape of ``x`` without the classes. Or
                the probability of each class, shape and dtype of ``x``.
            weight: weight of each class, shape (classes,), dtype of ``x``; by default all 1.
            ignore_index: a target that does not count; for classes only.
            reduction: ``"mean"`` divides the sum of all losses by that of the weights of their
                targets, or by their number, if targets are probabilities; without targets it is
                NaN. ``"sum"``, or ``"none"`` for each loss.
            label_smoothing: the share of each target that is divided equally among all classes,
                from 0 to 1.
            out: where to put the result. Made if absent.

        Returns:
            A scalar, or the shape of ``x`` without the classes; dtype of ``x``.
        """
        call = _Entropy(self, x, target, weight, ignore_index, reduction, label_smoothing)
        shape = call.rows if reduction == "none" else ()
        return self._loss("dnn.cross_entropy", call, {}, shape, out)

    @op
    def cross_entropy_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        target: GpuRef,
        weight: GpuRef | None = None,
        *,
        ignore_index: int = _IGNORED,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``cross_entropy`` with respect to ``x``, with its arguments.

        ``grad`` is the gradient with respect to the result, of its shape, dtype of ``x``.

        Returns:
            Shape and dtype of ``x``; zeros where a target does not count.
        """
        call = _Entropy(self, x, target, weight, ignore_index, reduction, label_smoothing)
        require_readable(grad, self.home.memory, "grad")
        require_shape(grad, call.rows if reduction == "none" else (), "grad")
        return self._loss("dnn.cross_entropy_grad", call, {"dy": grad}, x.shape, out)

    @op
    def ctc_loss(
        self,
        log_probs: GpuRef,
        targets: GpuRef,
        input_lengths: GpuRef,
        target_lengths: GpuRef,
        *,
        blank: int = 0,
        reduction: Reduction = "mean",
        zero_infinity: bool = False,
        cudnn: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Loss of unaligned targets of sequences: connectionist temporal classification.

        The method of Graves et al. (2006), as ``torch.nn.functional.ctc_loss``; see the class.

        Args:
            log_probs: logarithms of probabilities, as of ``log_softmax``: float16, bfloat16,
                float32 or float64 of shape (steps, batch, classes).
            targets: classes, int32 or int64; shape (batch, most), whose rows count up to their
                lengths, or (sum of ``target_lengths``,), one sequence behind the other.
            input_lengths: number of steps of each sequence, shape (batch,), dtype of ``targets``.
            target_lengths: number of targets of each sequence, of the same shape and dtype.
            blank: the blank class, which is not a target.
            reduction: ``"mean"`` divides each loss by the number of its targets, and the sum by
                the number of sequences. ``"sum"``, or ``"none"`` for each loss.
            zero_infinity: whether a sequence too short for its targets, whose loss is infinite,
                has a loss and a gradient of 0.
            cudnn: whether on CUDA cuDNN computes ordinary sequences: ``cudnnCTCLoss_v8``. It takes
                float32, rows of at most 255 targets in int32, and blank 0. A kernel of this
                package computes sequences without targets, and those too short for their targets.
            out: where to put the result. Made if absent.

        Returns:
            A scalar, or shape (batch,); dtype of ``log_probs``.
        """
        call = _Classification(
            *(self, log_probs, targets, input_lengths, target_lengths),
            *(blank, reduction, zero_infinity, cudnn),
        )
        shape = log_probs.shape[1:2] if reduction == "none" else ()
        return self._loss("dnn.ctc_loss", call, {}, shape, out)

    @op
    def ctc_loss_grad(
        self,
        grad: GpuRef,
        log_probs: GpuRef,
        targets: GpuRef,
        input_lengths: GpuRef,
        target_lengths: GpuRef,
        *,
        blank: int = 0,
        reduction: Reduction = "mean",
        zero_infinity: bool = False,
        cudnn: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Gradient of ``ctc_loss`` with respect to scores whose ``log_softmax`` is ``log_probs``.

        PyTorch returns the same for ``log_probs``, too: ``log_softmax_grad`` does not change it.
        Steps behind a sequence's end have gradient 0. A sequence with an infinite loss has NaN,
        unless ``zero_infinity``. Other arguments are those of ``ctc_loss``; ``grad`` is the
        gradient with respect to its result, of its shape, dtype of ``log_probs``.

        Returns:
            Shape and dtype of ``log_probs``.
        """
        call = _Classification(
            *(self, log_probs, targets, input_lengths, target_lengths),
            *(blank, reduction, zero_infinity, cudnn),
        )
        require_readable(grad, self.home.memory, "grad")
        require_shape(grad, log_probs.shape[1:2] if reduction == "none" else (), "grad")
        return self._loss("dnn.ctc_loss_grad", call, {"dy": grad}, log_probs.shape, out)

    def _loss(
        self,
        name: str,
        call: _Entropy | _Classification,
        more: dict[str, GpuRef],
        shape: tuple[int, ...],
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        """A request for a loss, or with the gradient ``dy`` by it for its gradient."""
        memory, inputs = self.home.memory, {**call.inputs, **more}
        dtype = call.dtype
        named = [("grad" if name == "dy" else name, ref) for name, ref in inputs.items()]

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            blocks: list[Block] = [require_readable(ref, memory, what) for what, ref in named]
            if more and more["dy"].dtype is not dtype:
                raise TypeError(f"grad must have dtype {dtype.name}, not {more['dy'].dtype.name}")
            result = out
            if result is None:
                result = preparer.output(shape, dtype)
            else:
                require_writable(result, memory, "out")
                if result.shape != shape or result.dtype is not dtype:
                    raise (ValueError if result.shape != shape else TypeError)(
                        f"out is {result.dtype.name} of shape {result.shape}, but the result is "
                        f"{dtype.name} of shape {shape}"
                    )
                require_no_alias(name, [("out", result)], named)
            count = call.scratch(gradient=bool(more))
            scratch = self.plans.workspaces.obtain(preparer, max(1, count) * dtype_size(dtype.name))
            places: dict[str, Any] = {
                what: block.address for what, block in zip(inputs, blocks, strict=True)
            }
            places["dx" if more else "y"] = result.block.address
            message = call.message({"y": 0, **places, "scratch": scratch.address})
            return Submission(message, blocks, [result.block, scratch], result)

        return Request(LANE, name, prepare)


def dtype_size(dtype: str) -> int:
    """Bytes of a number of the type that losses of a dtype are computed in."""
    return DTYPES[wider(dtype)].itemsize


class _Entropy:
    """A checked cross-entropy.

    Attributes:
        inputs: its inputs, by the message's names.
        rows: the shape of targets.
        dtype: dtype of its result.
    """

    def __init__(
        self,
        part: DnnPart[Any],
        x: GpuRef,
        target: GpuRef,
        weight: GpuRef | None,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
    ) -> None:
        memory = part.home.memory
        require_readable(x, memory, "x")
        require_readable(target, memory, "target")
        require_float(x, "x")
        soft = target.dtype is x.dtype
        if not soft and target.dtype.name not in _INDICES:
            raise TypeError(
                "target must be int32 or int64, for classes, or of the dtype of x, "
                f"{x.dtype.name}, for probabilities, not {target.dtype.name}"
            )
        axis = min(1, x.ndim - 1)
        if not x.ndim or not x.shape[axis]:
            raise ValueError(
                "x must have shape (batch, classes, ...) or (classes,), with one class or more, "
                f"not {x.shape}"
            )
        self.rows = (*x.shape[:axis], *x.shape[axis + 1 :])
        require_shape(target, x.shape if soft else self.rows, "target")
        self.inputs = {"x": x, "target": target}
        if weight is not None:
            require_readable(weight, memory, "weight")
            require_shape(weight, (x.shape[axis],), "weight")
            if weight.dtype is not x.dtype:
                raise TypeError(f"weight must have dtype {x.dtype.name}, not {weight.dtype.name}")
            self.inputs["weight"] = weight
        self.dtype = x.dtype
        self._shape = (math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :]))
        self._index = "" if soft else target.dtype.name
        self._reduction = _reduction(reduction)
        self._ignore = whole(ignore_index, "ignore_index")
        if soft and self._ignore != _IGNORED:
            raise ValueError(
                "ignore_index must be left out if targets are probabilities, "
                f"not {ignore_index}; give these targets no probability at all"
            )
        self._smoothing = real(label_smoothing, "label_smoothing", least=0, most=1)

    def scratch(self, *, gradient: bool) -> int:
        """Return the length of the scratch memory, in numbers."""
        return 1 if gradient else 2 * self._shape[0] * self._shape[2]

    def message(self, places: dict[str, Any]) -> CrossEntropy:
        """Return the message for the lane, with its addresses."""
        return CrossEntropy(
            shape=self._shape,
            dtype=self.dtype.name,
            index=self._index,
            reduction=self._reduction,
            ignore=self._ignore,
            smoothing=self._smoothing,
            **{"weight": 0, **places},
        )


class _Classification:
    """A checked connectionist temporal classification.

    Attributes:
        inputs: its inputs, by the message's names.
        dtype: dtype of its result.
    """

    def __init__(
        self,
        part: DnnPart[Any],
        log_probs: GpuRef,
        targets: GpuRef,
        input_lengths: GpuRef,
        target_lengths: GpuRef,
        blank: int,
        reduction: str,
        zero_infinity: bool,
        cudnn: bool,
    ) -> None:
        memory = part.home.memory
        whole_ones = {
            "targets": targets,
            "input_lengths": input_lengths,
            "target_lengths": target_lengths,
        }
        require_readable(log_probs, memory, "log_probs")
        require_float(log_probs, "log_probs")
        for name, ref in whole_ones.items():
            require_readable(ref, memory, name)
            _require_index(ref, name)
            if ref.dtype is not targets.dtype:
                raise TypeError(
                    f"{name} must have dtype {targets.dtype.name}, not {ref.dtype.name}"
                )
        if log_probs.ndim != 3 or 0 in log_probs.shape[::2]:
            raise ValueError(
                "log_probs must have shape (steps, batch, classes), with steps and "
                f"classes, not {log_probs.shape}"
            )
        steps, batch, classes = log_probs.shape
        if targets.ndim not in (1, 2) or (targets.ndim == 2 and targets.shape[0] != batch):
            raise ValueError(
                f"targets must have shape ({batch}, most), or one dimension, not {targets.shape}"
            )
        for name in ("input_lengths", "target_lengths"):
            require_shape(whole_ones[name], (batch,), name)
        self.inputs = {"log_probs": log_probs, **whole_ones}
        self.dtype = log_probs.dtype
        self._shape = (steps, batch, classes)
        self._index = targets.dtype.name
        self._size = targets.size
        self._width = targets.shape[1] if targets.ndim == 2 else 0
        self._blank = whole(blank, "blank", 0, classes - 1)
        self._reduction = _reduction(reduction)
        self._zero = flag(zero_infinity, "zero_infinity")
        self._vendor = flag(cudnn, "cudnn")
        wanted = (self.dtype.name, self._index, self._blank) == ("float32", "int32", 0)
        if self._vendor and not (wanted and 0 < self._width <= _MOST_LABELS and classes > 1):
            raise Unsupported(
                f"cuDNN's CTC takes float32, rows of 1 to {_MOST_LABELS} targets in int32, classes "
                f"beside blank, and blank 0; not {self.dtype.name}, targets {targets.shape} in "
                f"{self._index}, {classes} classes and blank {self._blank}"
            )

    def scratch(self, *, gradient: bool) -> int:
        """Return the length of the scratch memory, in numbers."""
        steps, batch, _ = self._shape
        return scratch_count(steps, batch, self._size, gradient=gradient)

    def message(self, places: dict[str, Any]) -> Ctc:
        """Return the message for the lane, with its addresses."""
        return Ctc(
            shape=self._shape,
            dtype=self.dtype.name,
            index=self._index,
            size=self._size,
            width=self._width,
            blank=self._blank,
            reduction=self._reduction,
            zero_infinity=self._zero,
            vendor=self._vendor,
            **places,
        )


def _reduction(reduction: str) -> str:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    return reduction


def _require_index(ref: GpuRef, name: str) -> None:
    if ref.dtype.name not in _INDICES:
        raise TypeError(f"{name} must be int32 or int64, not {ref.dtype.name}")
