"""Losses with NumPy, in double precision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ....executors.indices import require_within
from ..wire._loss_messages import CrossEntropy, Ctc
from ._cpu_pointwise import special

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext

Array = np.ndarray[Any, Any]

_log_softmax: Final = special("log_softmax")


@final
class CpuLosses:
    """Executes losses and their gradients."""

    def __init__(self, context: CpuContext) -> None:
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            CrossEntropy: self._cross_entropy,
            Ctc: self._ctc,
        }

    # --- cross-entropy --------------------------------------------------------------------

    def _cross_entropy(self, message: CrossEntropy) -> None:
        self._context.check()
        read, (before, classes, behind) = self._context.array, message.shape
        dtype = DTYPES[message.dtype]
        if not message.index:
            self._soft(message)
            return
        target = read(message.target, (before, behind), DTYPES[message.index]).astype(np.int64)
        counts = target != message.ignore
        require_within(np.where(counts, target, 0), 0, classes - 1, "target")
        target = np.where(counts, target, 0)
        weight = np.ones(classes)
        if message.weight:
            weight = read(message.weight, (classes,), dtype).astype(np.float64)
        own = np.where(counts, weight[target], 0.0)
        x = read(message.x, message.shape, dtype).astype(np.float64)
        with np.errstate(all="ignore"):
            logs = _log_softmax(x, axis=1)
            total = own.sum() if message.reduction == "mean" else 1.0
            if message.dx:
                dy = read(message.dy, target.shape if message.reduction == "none" else (), dtype)
                factor = np.where(counts, dy.astype(np.float64) / total, 0.0)[:, None]
                dx = factor * _slopes(message, logs, target, weight)
                made = np.where(counts[:, None], dx, 0.0)
                read(message.dx, message.shape, dtype)[...] = made.astype(dtype)
                return
            losses = -weight[target] * np.take_along_axis(logs, target[:, None], 1)[:, 0]
            if message.smoothing:
                even = -(weight[:, None] * logs).sum(1) / classes
                losses = (1 - message.smoothing) * losses + message.smoothing * even
            losses = np.where(counts, losses, 0.0)
            if message.reduction == "none":
                read(message.y, target.shape, dtype)[...] = losses.astype(dtype)
            else:
                read(message.y, (), dtype)[...] = (losses.sum() / total).astype(dtype)

    def _soft(self, message: CrossEntropy) -> None:
        """Execute a cross-entropy with targets that are probabilities."""
        read, (before, classes, behind) = self._context.array, message.shape
        dtype = DTYPES[message.dtype]
        x, target = (
            read(at, message.shape, dtype).astype(np.float64) for at in (message.x, message.target)
        )
        own = (1 - message.smoothing) * target + message.smoothing / classes
        if message.weight:
            own *= read(message.weight, (classes,), dtype).astype(np.float64)[:, None]
        each = message.reduction == "none"
        total = float(before * behind) if message.reduction == "mean" else 1.0
        with np.errstate(all="ignore"):
            logs = _log_softmax(x, axis=1)
            if message.dx:
                dy = read(message.dy, (before, behind) if each else (), dtype).astype(np.float64)
                factor = dy[:, None] if each else dy / np.float64(total)
                slopes = factor * (own.sum(1, keepdims=True) * np.exp(logs) - own)
                read(message.dx, message.shape, dtype)[...] = slopes.astype(dtype)
                return
            losses = -np.where(own != 0, own * logs, 0).sum(1)
            if each:
                read(message.y, losses.shape, dtype)[...] = losses.astype(dtype)
            else:
                read(message.y, (), dtype)[...] = (losses.sum() / total).astype(dtype)

    # --- connectionist temporal classification --------------------------------------------

    def _ctc(self, message: Ctc) -> None:
        self._context.check()
        read, (steps, batch, classes) = self._context.array, message.shape
        dtype, index = DTYPES[message.dtype], DTYPES[message.index]
        targets = read(message.targets, (message.size,), index).astype(np.int64)
        lengths = read(message.input_lengths, (batch,), index).astype(np.int64)
        counts = read(message.target_lengths, (batch,), index).astype(np.int64)
        require_within(lengths, 0, steps, "input_lengths")
        require_within(counts, 0, message.width or message.size, "target_lengths")
        if message.width:
            offsets = np.arange(batch) * message.width
        else:
            offsets = np.cumsum(counts) - counts
            require_within(offsets + counts, 0, message.size, "the sum of target_lengths up to ")
        labels = [targets[at : at + count] for at, count in zip(offsets, counts, strict=True)]
        for number, each in enumerate(labels):
            require_within(each, 0, classes - 1, f"target of sequence {number}, ")
        x = read(message.log_probs, message.shape, dtype).astype(np.float64)
        losses, slopes = np.zeros(batch), np.zeros(message.shape)
        with np.errstate(all="ignore"):
            for n, each in enumerate(labels):
                states = np.full(2 * len(each) + 1, message.blank)
                states[1::2] = each
                losses[n], slopes[: lengths[n], n] = classified(
                    x[: lengths[n], n], states, gradient=bool(message.dx)
                )
            endless = losses == np.inf
            if message.zero_infinity:
                losses, slopes[:, endless] = np.where(endless, 0.0, losses), 0.0
            mean = message.reduction == "mean"
            share = np.maximum(counts, 1) if mean else np.ones(batch)
            if message.dx:
                dy = read(message.dy, (batch,) if message.reduction == "none" else (), dtype)
                factor = dy.astype(np.float64) / share / (batch if mean else 1)
                made = np.where(slopes != 0, slopes * factor[:, None], 0.0)
                read(message.dx, message.shape, dtype)[...] = made.astype(dtype)
            elif message.reduction == "none":
                read(message.y, (batch,), dtype)[...] = losses.astype(dtype)
            else:
                total = (losses / share).sum() / (batch if mean else 1)
                read(message.y, (), dtype)[...] = total.astype(dtype)


def _slopes(message: CrossEntropy, logs: Array, target: Array, weight: Array) -> Array:
    """Return the gradient of each row's loss with respect to its scores."""
    p = np.exp(logs)
    own = p.copy()
    at = target[:, None]
    np.put_along_axis(own, at, np.take_along_axis(own, at, 1) - 1, 1)
    slopes = weight[target][:, None] * own
    if message.smoothing:
        even = (weight.sum() * p - weight[:, None]) / message.shape[1]
        slopes = (1 - message.smoothing) * slopes + message.smoothing * even
    return slopes


def classified(x: Array, states: Array, *, gradient: bool) -> tuple[float, Array]:
    """A sequence's loss, and its gradient by scores whose logarithms of softmax ``x`` is.

    Graves et al., 2006: sums over all ways through the states, forwards and backwards.
    """
    steps, count = len(x), len(states)
    if not steps:
        return (0.0 if count == 1 else np.inf), x
    logs = x[:, states]
    skips = np.zeros(count, bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    alpha = np.full((steps, count), -np.inf)
    alpha[0, :2] = logs[0, :2]
    for t in range(1, steps):
        alpha[t] = _step(alpha[t - 1], skips) + logs[t]
    loss = -float(np.logaddexp.reduce(alpha[-1, -2:]))
    if not gradient:
        return loss, x
    if not np.isfinite(loss):
        return loss, np.full_like(x, np.nan)
    beta = np.full(count, -np.inf)
    beta[-2:] = 0
    p = np.exp(x)
    # What a state can be followed by, the other way round.
    turned = np.roll(skips[::-1], 2)
    turned[:2] = False
    for t in range(steps - 1, -1, -1):
        if t < steps - 1:
            beta = _step((beta + logs[t + 1])[::-1], turned)[::-1]
        np.subtract.at(p[t], states, np.exp(alpha[t] + beta + loss))
    return loss, p


def _step(states: Array, skips: Array) -> Array:
    """Logarithms of sums over a state, the one before, and where one skips the one before that."""
    made = states.copy()
    made[1:] = np.logaddexp(made[1:], states[:-1])
    made[2:] = np.where(skips[2:], np.logaddexp(made[2:], states[:-2]), made[2:])
    return made
