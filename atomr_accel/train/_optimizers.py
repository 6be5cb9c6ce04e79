"""Optimizers: a step of all parameters as one expression over flat buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from ._schedules import Schedule, rate_of


@dataclass(frozen=True, kw_only=True)
class Optimizer(ABC):
    """Base of optimizers; one of your own is a subclass with ``slots`` and ``update``.

    Attributes:
        lr: the learning rate, or a function of the number of the step, from 0.
        weight_decay: how much parameters shrink; see each optimizer.
        decays: whether a parameter shrinks, from its path in the tree and its shape; by default
            all do. ``lambda path, shape: len(shape) > 1`` leaves out biases and norms.
    """

    lr: float | Schedule
    weight_decay: float = 0.0
    decays: Any = None

    def __post_init__(self) -> None:
        if not callable(self.lr):
            rate_of(self.lr, 0)
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must be 0 or more, not {self.weight_decay}")

    @property
    @abstractmethod
    def slots(self) -> int:
        """Number of buffers of state, each as large as the parameters."""

    @abstractmethod
    def update(
        self, p: Any, g: Any, slots: Sequence[Any], step: int, lr: float, decay: float
    ) -> tuple[Any, ...]:
        """Return the new parameters and the new state, as expressions.

        Args:
            p: parameters, a flat ref.
            g: their gradients, an expression.
            slots: the state; zeros before the first step.
            step: number of this step, from 0.
            lr: the learning rate.
            decay: ``weight_decay``, or 0 for parameters that do not shrink.
        """


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ValueError(f"{name} must be from 0 to below 1, not {value}")


@final
@dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """Steps down the gradient, as ``torch.optim.SGD`` without dampening.

    Attributes:
        momentum: the share of the last step that goes on.
        nesterov: whether the gradient is looked at one step ahead.
    """

    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _share("momentum", self.momentum)
        if self.nesterov and not self.momentum:
            raise ValueError("momentum must be above 0 with nesterov, not 0")

    @property
    def slots(self) -> int:
        """One with momentum, else none."""
        return 1 if self.momentum else 0

    def update(
        self,
        p: Any,
        g: Any,
        slots: Sequence[Any],
        step: int,  # noqa: ARG002 (of those that correct means)
        lr: float,
        decay: float,
    ) -> tuple[Any, ...]:
        """See ``Optimizer.update``."""
        if decay:
            g = g + decay * p
        if not self.momentum:
            return (p - lr * g,)
        moving = self.momentum * slots[0] + g
        way = g + self.momentum * moving if self.nesterov else moving
        return p - lr * way, moving


@dataclass(frozen=True, kw_only=True)
class Adam(Optimizer):
    """Steps by the mean of gradients over the root of that of their squares, as ``torch``'s.

    Attributes:
        betas: the shares of the two means that stay with each step.
        eps: added to the root.
    """

    betas: tuple[float, float] = field(default=(0.9, 0.999))
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        pair: object = self.betas
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(f"betas must be two numbers, not {pair!r}")
        for at, beta in enumerate(self.betas):
            _share(f"betas[{at}]", beta)
        if not self.eps >= 0:
            raise ValueError(f"eps must be 0 or more, not {self.eps}")

    @property
    def slots(self) -> int:
        """The means of gradients and of their squares."""
        return 2

    def update(
        self, p: Any, g: Any, slots: Sequence[Any], step: int, lr: float, decay: float
    ) -> tuple[Any, ...]:
        """See ``Optimizer.update``."""
        return self._moved(p, g + decay * p if decay else g, slots, step, lr)

    def _moved(self, p: Any, g: Any, slots: Sequence[Any], step: int, lr: float) -> tuple[Any, ...]:
        first, second = self.betas
        mean = first * slots[0] + (1 - first) * g
        square = second * slots[1] + (1 - second) * (g * g)
        # Both means begin at 0, which the divisors make up for.
        root = np.sqrt(square) * (1 / (1 - second ** (step + 1)) ** 0.5) + self.eps
        return p - (lr / (1 - first ** (step + 1))) * (mean / root), mean, square


@final
@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """`Adam` whose parameters shrink apart from the gradients, as ``torch.optim.AdamW``."""

    weight_decay: float = 0.01

    def update(
        self, p: Any, g: Any, slots: Sequence[Any], step: int, lr: float, decay: float
    ) -> tuple[Any, ...]:
        """See ``Optimizer.update``."""
        return self._moved(p * (1 - lr * decay) if decay else p, g, slots, step, lr)
