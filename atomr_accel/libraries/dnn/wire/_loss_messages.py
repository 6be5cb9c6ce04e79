"""Messages of the DNN lane for losses."""

from __future__ import annotations

from ....wire import Address, Message


class CrossEntropy(Message, frozen=True):
    """Cross-entropy of scores, or with ``dy`` and ``dx`` its gradient.

    Attributes:
        shape: number of elements before the classes, number of classes, number behind them.
        dtype: dtype of scores, weights and results.
        index: dtype of targets, or "" if they are probabilities, as many as scores.
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
    x: Address
    target: Address
    weight: Address
    y: Address
    scratch: Address
    dy: Address = 0
    dx: Address = 0


class Ctc(Message, frozen=True):
    """Connectionist temporal classification, or with ``dy`` and ``dx`` its gradient.

    Attributes:
        shape: steps of time, sequences, classes.
        dtype: dtype of probabilities and results.
        index: dtype of targets and lengths.
        size: number of targets.
        width: width of a row of targets; 0 if they lie one behind the other.
        blank: the blank class, which is not a target.
        reduction: ``"none"``, ``"mean"`` or ``"sum"``.
        zero_infinity: whether an infinite loss counts as 0.
        log_probs, targets, input_lengths, target_lengths: addresses.
        y: address of the result; the gradient has none.
        scratch: address of ``scratch_count`` numbers: float32, but float64 for float64.
        dy, dx: addresses, or 0.
        vendor: whether the vendor's routine computes the sequences that it supports.
    """

    shape: tuple[int, int, int]
    dtype: str
    index: str
    size: int
    width: int
    blank: int
    reduction: str
    zero_infinity: bool
    log_probs: Address
    targets: Address
    input_lengths: Address
    target_lengths: Address
    y: Address
    scratch: Address
    dy: Address = 0
    dx: Address = 0
    vendor: bool = False


def scratch_count(steps: int, batch: int, size: int, *, gradient: bool) -> int:
    """Return the numbers of scratch that ``Ctc`` needs: a loss per sequence, and rows of states.

    A sequence has a state for each target, and one before, between and behind. A loss needs the
    states of the current and the previous step. A gradient needs those of all steps, and four
    more rows.
    """
    rows = steps + 4 if gradient else 2
    return batch + rows * (2 * size + batch)
