"""Learning rates as functions of the step, and factors of losses of 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, final

from .._errors import said_of

Schedule = Callable[[int], float]
"""The learning rate of a step; the first step has number 0."""


def cosine(peak: float, *, steps: int, warmup: int = 0, floor: float = 0.0) -> Schedule:
    """Rise in a line to a learning rate, and fall along a cosine.

    Args:
        peak: the largest learning rate.
        steps: number of steps until the floor; it stays there.
        warmup: number of steps of the rise, at most ``steps``.
        floor: the last learning rate.
    """
    _check(steps, warmup, floor)

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
    _check(steps, warmup, floor)

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return peak + (floor - peak) * done

    return rate


def _check(steps: int, warmup: int, floor: float) -> None:
    if not 0 <= warmup <= steps:
        raise ValueError(f"warmup must be from 0 to steps, {steps}, not {warmup}")
    if floor < 0:
        raise ValueError(f"floor must be 0 or more, not {floor}")


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
        if not (value > 0 and growth >= 1 and 0 < backoff < 1 and interval >= 1):
            raise ValueError(
                "value must be above 0, growth at least 1, backoff between 0 and 1, and interval "
                f"at least 1, not {value}, {growth}, {backoff} and {interval}"
            )
        self.value: float = float(value)
        self.good: int = 0
        self.growth: Final = growth
        self.backoff: Final = backoff
        self.interval: Final = interval

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
