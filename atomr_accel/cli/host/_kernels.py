"""Kernels of the command line, and their substitutes on the CPU backend."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def source_of(name: str) -> str:
    """Return the CUDA C++ source of a kernel."""
    return (files(__package__) / "kernels" / f"{name}.cu").read_text(encoding="utf-8")


def scale(x: np.ndarray[Any, Any], n: int, factor: float) -> None:
    """Multiply the first elements by a factor."""
    x.reshape(-1)[:n] *= factor
