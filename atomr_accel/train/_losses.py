"""Losses as expressions; cross-entropy is ``tape.dnn.cross_entropy``."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy import special

from .._errors import said_of
from ..arrays.expressions import Operand

LossReduction = Literal["mean", "sum", "none"]


def _reduced(losses: Any, reduction: LossReduction) -> Any:
    if reduction == "mean":
        return np.mean(losses)
    if reduction == "sum":
        return np.sum(losses)
    if reduction == "none":
        return losses
    raise ValueError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")


def _alike(x: Any, target: Any) -> None:
    for name, each in (("x", x), ("target", target)):
        if not isinstance(each, Operand):
            raise TypeError(
                f"{name} must be a value of a tape, a ref or an expression, not {said_of(each)}"
            )
    if x.shape != target.shape:
        raise ValueError(
            f"target must have the shape of x, {x.shape}, not {target.shape}; broadcast it: "
            "np.broadcast_to(target, x.shape)"
        )


def mse(x: Any, target: Any, *, reduction: LossReduction = "mean") -> Any:
    """Squared differences, as ``torch.nn.functional.mse_loss``.

    Args:
        x: predictions, floats of any shape.
        target: the same shape.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for each element.

    Returns:
        An expression: a scalar, or the shape of ``x``.
    """
    _alike(x, target)
    return _reduced(np.square(x - target), reduction)


def mae(x: Any, target: Any, *, reduction: LossReduction = "mean") -> Any:
    """Absolute differences, as ``torch.nn.functional.l1_loss``; otherwise as `mse`."""
    _alike(x, target)
    return _reduced(abs(x - target), reduction)


def huber(x: Any, target: Any, *, delta: float = 1.0, reduction: LossReduction = "mean") -> Any:
    """Squares of small differences and multiples of large ones, as ``torch``'s ``huber_loss``.

    ``delta`` is the difference where squares end, above 0. Otherwise as `mse`.
    """
    _alike(x, target)
    if not delta > 0:
        raise ValueError(f"delta must be above 0, not {delta!r}")
    far = abs(x - target)
    near = np.minimum(far, delta)  # so that no square overflows that does not count
    return _reduced(
        np.where(far < delta, near * near * 0.5, (far - 0.5 * delta) * delta), reduction
    )


def bce_with_logits(
    x: Any,
    target: Any,
    *,
    weight: Any = None,
    pos_weight: Any = None,
    reduction: LossReduction = "mean",
) -> Any:
    """Cross-entropy of two classes, as ``torch``'s ``binary_cross_entropy_with_logits``.

    ``x`` are scores, before the sigmoid, and ``target`` probabilities. ``weight`` is a factor of
    each loss, which broadcasts to ``x``, and ``pos_weight`` one of the share of the positive class;
    by default both are 1. The mean divides by the number of elements. Otherwise as `mse`.
    """
    _alike(x, target)
    # log(1 + exp(-x)) in a form that does not overflow.
    soft = np.log1p(np.exp(-abs(x))) + np.maximum(-x, 0)
    if pos_weight is None:
        losses = (1 - target) * x + soft
    else:
        losses = (1 - target) * x + (1 + (pos_weight - 1) * target) * soft
    return _reduced(losses if weight is None else losses * weight, reduction)


def kl_div(
    x: Any,
    target: Any,
    *,
    log_target: bool = False,
    reduction: LossReduction | Literal["batchmean"] = "mean",
) -> Any:
    """Kullback-Leibler divergence, as ``torch.nn.functional.kl_div``.

    ``x`` are logarithms of the predicted probabilities. ``target`` are probabilities, or with
    ``log_target`` their logarithms. The reduction ``"batchmean"`` is the sum divided by the first
    dimension. Otherwise as `mse`.
    """
    _alike(x, target)
    if log_target:
        losses = np.exp(target) * (target - x)
    else:
        losses = special.xlogy(target, target) - target * x
    if reduction == "batchmean":
        if not x.shape:
            raise ValueError("x must have a first dimension for 'batchmean', not shape ()")
        return np.sum(losses) / x.shape[0]
    return _reduced(losses, reduction)
