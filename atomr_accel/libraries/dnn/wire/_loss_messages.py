"""What the DNN lane executes for losses."""

from __future__ import annotations

from ....wire import Message


class CrossEntropy(Message, frozen=True):
    """Cross-entropy of scores, or with ``dy`` and ``dx`` its gradient.

    Attributes:
        shape: what comes before classes, how many there are, what comes behind.
        dtype: of scores, weights and results.
        index: dtype of targets.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        ignore: a target that does not count.
        smoothing: the share of a target that all classes get alike.
        x, target: addresses.
        weight: address of a number for each class, or 0.
        y: address of the result; the gradient has none.
        scratch: address of two numbers for each row, or one for a gradient: float32, but
            float64 for float64.
        dy, dx: addresses, or 0.
    """

    shape: tuple[int, int, int]
    dtype: str
    index: str
    reduction: str
    ignore: int
    smoothing: float
    x: int
    target: int
    weight: int
    y: int
    scratch: int
    dy: int = 0
    dx: int = 0


class Ctc(Message, frozen=True):
    """Connectionist temporal classification, or with ``dy`` and ``dx`` its gradient.

    Attributes:
        shape: steps of time, sequences, classes.
        dtype: of probabilities and results.
        index: dtype of targets and lengths.
        size: how many targets there are.
        width: of a row of targets; 0 where they lie one behind the other.
        blank: the class that is none.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        zero_infinity: whether a loss that is infinite counts as 0.
        log_probs, targets, input_lengths, target_lengths: addresses.
        y: address of the result; the gradient has none.
        scratch: address of ``scratch_count`` numbers: float32, but float64 for float64.
        dy, dx: addresses, or 0.
        vendor: whether the vendor's routine computes what it can.
    """

    shape: tuple[int, int, int]
    dtype: str
    index: str
    size: int
    width: int
    blank: int
    reduction: str
    zero_infinity: bool
    log_probs: int
    targets: int
    input_lengths: int
    target_lengths: int
    y: int
    scratch: int
    dy: int = 0
    dx: int = 0
    vendor: bool = False


def scratch_count(steps: int, batch: int, size: int, *, gradient: bool) -> int:
    """How many numbers ``Ctc`` needs: a loss for each sequence, and rows for its states.

    A sequence has a state for each target, and one before, between and behind. A gradient
    looks back at those of all steps, a loss at those of the step before; for what it looks at
    besides it has four more rows.
    """
    rows = steps + 4 if gradient else 2
    return batch + rows * (2 * size + batch)
