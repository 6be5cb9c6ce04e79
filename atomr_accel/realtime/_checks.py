"""Checks of arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._dtypes import REAL_KINDS


@dataclass(frozen=True, slots=True)
class SceneParameter:
    """A number that a program may change while a simulation runs.

    Attributes:
        default: its value unless it is given.
        low: the smallest value.
        high: the largest value.
        unit: its unit, for display.
    """

    default: float
    low: float = 0.0
    high: float = math.inf
    unit: str = ""


def number(value: object, name: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite number within bounds as float."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(
        value, (int, float, np.integer, np.floating)
    ):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    made = float(value)
    if not math.isfinite(made):
        raise ValueError(f"{name} must be finite, not {made}")
    if not low <= made <= high:
        raise ValueError(f"{name} must be from {low:g} to {high:g}, not {made:g}")
    return made


def whole(value: object, name: str, low: int, high: int = 2**31 - 1) -> int:
    """Return a whole number within bounds."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be from {low} to {high}, not {value}")
    return int(value)


def one_of(value: object, name: str, choices: Iterable[str]) -> str:
    """Return a word that is one of some."""
    allowed = [*choices]
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def shape_of(shape: object, name: str, axes: tuple[int, ...], low: int = 1) -> tuple[int, ...]:
    """Return a shape with a number of axes that is one of ``axes``."""
    if not isinstance(shape, (tuple, list)):
        raise TypeError(f"{name} must be a tuple of whole numbers, not {shape!r}; write (64, 64)")
    if len(shape) not in axes:
        wanted = " or ".join(map(str, axes))
        raise ValueError(f"{name} must have {wanted} axes, not {len(shape)}")
    made = tuple(whole(size, name, low) for size in shape)
    if math.prod(made) >= 2**31:
        raise ValueError(f"{name} must have fewer than 2**31 elements, not {math.prod(made)}")
    return made


def array_of(
    value: object, name: str, shape: tuple[int | None, ...], dtype: Any = np.float32
) -> np.ndarray[Any, Any]:
    """Return a finite array of a shape, in which None is any size, as a dtype."""
    made = np.asarray(value)
    if made.dtype.kind not in REAL_KINDS:
        raise TypeError(f"{name} must be an array of numbers, not of {made.dtype}")
    if len(made.shape) != len(shape) or any(
        wanted not in {None, size} for wanted, size in zip(shape, made.shape, strict=True)
    ):
        wanted = str(shape).replace("None", "n")
        raise ValueError(f"{name} must have shape {wanted}, not {made.shape}")
    made = np.ascontiguousarray(made, dtype)
    if not np.isfinite(made).all():
        raise ValueError(f"{name} must be finite, not NaN or infinity")
    return made


def parameters_of(
    known: Mapping[str, SceneParameter], present: Mapping[str, float], changes: Mapping[str, object]
) -> dict[str, float]:
    """Return parameters with changes."""
    for name in changes:
        if name not in known:
            raise TypeError(f"{name!r} must be a parameter: one of {', '.join(known) or 'none'}")
    checked = {
        name: number(value, name, known[name].low, known[name].high)
        for name, value in changes.items()
    }
    return {**present, **checked}
