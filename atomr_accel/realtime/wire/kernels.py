"""Sources of kernels with their Python functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Kernels of one source.

    Attributes:
        source: CUDA C++. Each kernel has one thread for each element, in one axis.
        twins: for each kernel, by its name, a function that does the same with NumPy arrays.
        headers: texts that the source includes, by name.
    """

    source: str
    twins: Mapping[str, Callable[..., object]]
    headers: Mapping[str, str] = field(default_factory=dict)
