"""``device.dnn``: losses."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

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
from ..graph._run import LANE, DnnPart, require_result
from ..graph.layout import require_float
from ..wire._loss_messages import CrossEntropy, Ctc, scratch_count
from ..wire._nodes import wider

if TYPE_CHECKING:
    from collections.abc import Callable

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
        call = self._entropy(x, target, weight, ignore_index, reduction, label_smoothing)
        return self._loss("dnn.cross_entropy", call, None, out)

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
        call = self._entropy(x, target, weight, ignore_index, reduction, label_smoothing)
        return self._loss("dnn.cross_entropy_grad", call, grad, out)

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
        given = (log_probs, targets, input_lengths, target_lengths)
        call = self._classification(*given, blank, reduction, zero_infinity, cudnn)
        return self._loss("dnn.ctc_loss", call, None, out)

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
        given = (log_probs, targets, input_lengths, target_lengths)
        call = self._classification(*given, blank, reduction, zero_infinity, cudnn)
        return self._loss("dnn.ctc_loss_grad", call, grad, out)

    def _entropy(
        self,
        x: GpuRef,
        target: GpuRef,
        weight: GpuRef | None,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
    ) -> _CheckedLoss:
        """Check a cross-entropy."""
        memory = self.home.memory
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
        rows = (*x.shape[:axis], *x.shape[axis + 1 :])
        require_shape(target, x.shape if soft else rows, "target")
        inputs = {"x": x, "target": target}
        if weight is not None:
            require_readable(weight, memory, "weight")
            require_shape(weight, (x.shape[axis],), "weight")
            if weight.dtype is not x.dtype:
                raise TypeError(f"weight must have dtype {x.dtype.name}, not {weight.dtype.name}")
            inputs["weight"] = weight
        before, behind = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
        message = partial(
            CrossEntropy,
            shape=(before, x.shape[axis], behind),
            dtype=x.dtype.name,
            index="" if soft else target.dtype.name,
            reduction=_reduction(reduction),
            ignore=whole(ignore_index, "ignore_index"),
            weight=0,
        )
        if soft and ignore_index != _IGNORED:
            raise ValueError(
                "ignore_index must be left out if targets are probabilities, "
                f"not {ignore_index}; give these targets no probability at all"
            )
        smoothing = real(label_smoothing, "label_smoothing", least=0, most=1)
        return _CheckedLoss(
            inputs,
            rows if reduction == "none" else (),
            partial(message, smoothing=smoothing),
            lambda *, gradient: 1 if gradient else 2 * before * behind,
        )

    def _classification(
        self,
        log_probs: GpuRef,
        targets: GpuRef,
        input_lengths: GpuRef,
        target_lengths: GpuRef,
        blank: int,
        reduction: str,
        zero_infinity: bool,
        cudnn: bool,
    ) -> _CheckedLoss:
        """Check a connectionist temporal classification."""
        memory = self.home.memory
        whole_ones = {
            "targets": targets,
            "input_lengths": input_lengths,
            "target_lengths": target_lengths,
        }
        require_readable(log_probs, memory, "log_probs")
        require_float(log_probs, "log_probs")
        for name, ref in whole_ones.items():
            require_readable(ref, memory, name)
            if ref.dtype.name not in _INDICES:
                raise TypeError(f"{name} must be int32 or int64, not {ref.dtype.name}")
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
        dtype, index = log_probs.dtype.name, targets.dtype.name
        width = targets.shape[1] if targets.ndim == 2 else 0
        message = partial(
            Ctc,
            shape=(steps, batch, classes),
            dtype=dtype,
            index=index,
            size=targets.size,
            width=width,
            blank=whole(blank, "blank", 0, classes - 1),
            reduction=_reduction(reduction),
            zero_infinity=flag(zero_infinity, "zero_infinity"),
            vendor=flag(cudnn, "cudnn"),
        )
        wanted = (dtype, index, blank) == ("float32", "int32", 0)
        if cudnn and not (wanted and 0 < width <= _MOST_LABELS and classes > 1):
            raise Unsupported(
                f"cuDNN's CTC takes float32, rows of 1 to {_MOST_LABELS} targets in int32, classes "
                f"beside blank, and blank 0; not {dtype}, targets {targets.shape} in "
                f"{index}, {classes} classes and blank {blank}"
            )
        return _CheckedLoss(
            {"log_probs": log_probs, **whole_ones},
            (batch,) if reduction == "none" else (),
            message,
            partial(scratch_count, steps, batch, targets.size),
        )

    def _loss(
        self,
        name: str,
        call: _CheckedLoss,
        grad: GpuRef | None,
        out: GpuRef | None,
    ) -> Request[GpuRef]:
        """A request for a loss, or with the gradient by it for its gradient."""
        memory, inputs = self.home.memory, call.inputs
        scores = next(iter(inputs.values()))
        dtype, shape = scores.dtype, call.shape
        named = [*inputs.items()]
        if grad is not None:
            require_readable(grad, memory, "grad")
            require_shape(grad, shape, "grad")
            inputs, shape = {**inputs, "dy": grad}, scores.shape
            named.append(("grad", grad))

        def prepare(preparer: Preparer) -> Submission[GpuRef]:
            blocks: list[Block] = [require_readable(ref, memory, what) for what, ref in named]
            if grad is not None and grad.dtype is not dtype:
                raise TypeError(f"grad must have dtype {dtype.name}, not {grad.dtype.name}")
            result = out
            if result is None:
                result = preparer.output(shape, dtype)
            else:
                require_writable(result, memory, "out")
                require_result(result, shape, dtype, "out")
                require_no_alias(name, [("out", result)], named)
            count = call.scratch(gradient=grad is not None)
            nbytes = max(1, count) * DTYPES[wider(dtype.name)].itemsize
            scratch = self.plans.workspaces.obtain(preparer, nbytes)
            places: dict[str, Any] = {
                what: block.address for what, block in zip(inputs, blocks, strict=True)
            }
            places["y" if grad is None else "dx"] = result.block.address
            message = call.message(**{"y": 0, **places, "scratch": scratch.address})
            return Submission(message, blocks, [result.block, scratch], result)

        return Request(LANE, name, prepare)


class _CheckedLoss(NamedTuple):
    """A checked loss.

    Attributes:
        inputs: its inputs, by the message's names, scores first: the result has their dtype.
        shape: the shape of its result.
        message: makes the message for the lane from its addresses.
        scratch: gives the length of the scratch memory, in numbers, with or without ``gradient``.
    """

    inputs: dict[str, GpuRef]
    shape: tuple[int, ...]
    message: Callable[..., CrossEntropy | Ctc]
    scratch: Callable[..., int]


def _reduction(reduction: str) -> str:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
    return reduction
