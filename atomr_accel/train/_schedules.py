"""Learning rates as functions of the step, and factors of losses of 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

from .._errors import said_of
from ..wire.options import count, real

Schedule = Callable[[int], float]
"""The learning rate of a step; the first step has number 0."""


def cosine(peak: float, *, steps: int, warmup: int = 0, floor: float = 0.0) -> Schedule:
    """Rise in a line to a learning rate, and fall along a cosine.

    Args:
        peak: the largest learning rate.
        steps: number of steps until the floor; it stays there.
        warmup: number of steps of the rise, at most ``steps``.
        floor: the last learning rate, at most ``peak``.
    """
    peak, steps, warmup, floor = _checked(peak, steps, warmup, floor)

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        if step >= steps:
            return floor
        done = (step - warmup) / max(1, steps - warmup)
        return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * done))

    return rate


def linear(peak: float, *, steps: int, warmup: int = 0, floor: float = 0.0) -> Schedule:
    """Rise in a line to a learning rate, and fall in one; arguments as for `cosine`."""
    peak, steps, warmup, floor = _checked(peak, steps, warmup, floor)

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return peak + (floor - peak) * done

    return rate


def _checked(peak: float, steps: int, warmup: int, floor: float) -> tuple[float, int, int, float]:
    peak, steps = real(peak, "peak", above=0), count(steps, "steps")
    return peak, steps, count(warmup, "warmup", 0, steps), real(floor, "floor", least=0, most=peak)


@final
class LossScale:
    """A factor of the loss that keeps small gradients of 16 bits from becoming 0.

    It grows after ``interval`` good steps. A step with gradients that are not finite is skipped,
    and the factor shrinks.

    Args:
        value: the first factor.
        growth: the factor after ``interval`` good steps.
        backoff: the factor after a step that was skipped.
        interval: number of steps.

    Attributes:
        value: the present factor.
        good: good steps since it last changed.
    """

    def __init__(
        self,
        value: float = 2.0**16,
        *,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        self.value: float = real(value, "value", above=0)
        self.good: int = 0
        self.growth: Final = real(growth, "growth", least=1)
        self.backoff: Final = real(backoff, "backoff", above=0, below=1)
        self.interval: Final = count(interval, "interval")

    def note(self, *, finite: bool) -> None:
        """Note whether the gradients of a step were finite."""
        if not finite:
            self.value, self.good = self.value * self.backoff, 0
        elif self.good + 1 == self.interval:
            self.value, self.good = self.value * self.growth, 0
        else:
            self.good += 1


def rate_of(rate: float | Schedule, step: int) -> float:
    """Return the learning rate of a step."""
    made: object = rate(step) if callable(rate) else rate
    if not (isinstance(made, (int, float)) and 0 <= made < math.inf):
        raise ValueError(f"the learning rate must be a finite number from 0, not {said_of(made)}")
    return float(made)
