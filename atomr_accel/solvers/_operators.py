"""Operators of solvers, and the linear systems that solvers get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import said_of
from ..arrays import GpuRef, ref_error
from ..libraries.sparse.array import SparseRef

if TYPE_CHECKING:
    from ..device import Device
    from ..device.batches.record import Recording

Operator = SparseRef | GpuRef | Callable[["Recording", GpuRef], GpuRef]
"""A sparse matrix, a dense one, or a function that multiplies a vector with one.

A function gets a recording and a vector, and makes the product with calls of the recording. It is
called when a step is recorded, not when it is executed.
"""

FLOATS = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, slots=True)
class LinearSystem:
    """A linear system, checked.

    Attributes:
        device: the device of the system.
        a: the matrix.
        b: the right side.
        m: the preconditioner.
    """

    device: Device
    a: Operator
    b: GpuRef
    m: Operator | None

    @property
    def n(self) -> int:
        """Rows."""
        return self.b.shape[0]

    @property
    def real(self) -> np.dtype[Any]:
        """The dtype of norms."""
        return np.dtype(self.b.dtype.name.replace("complex128", "float64").replace(
            "complex64", "float32"
        ))  # fmt: skip

    def multiply(self, recording: Recording, x: GpuRef) -> GpuRef:
        """A product with the matrix."""
        return applied(recording, self.a, x)

    def precondition(self, recording: Recording, x: GpuRef) -> GpuRef:
        """A product with the preconditioner, or the vector itself."""
        return x if self.m is None else applied(recording, self.m, x)

    async def residual(self, x: GpuRef) -> GpuRef:
        """``b - a @ x``, in a buffer of its own."""
        async with self.device.record(shared=True) as recording:
            made = recording.evaluate(self.b - self.multiply(recording, x))
        await recording.replay()
        return await self.device.copy(made)


def system(
    device: Device, a: Operator, b: GpuRef, m: Operator | None, callback: object
) -> LinearSystem:
    """A system of what a caller gave."""
    require_floats(device, b, "b")
    if b.ndim != 1:
        raise ValueError(f"b must have one dimension, not shape {b.shape}")
    require_operators(a, m, b.shape[0], b.dtype, callback)
    return LinearSystem(device, a, b, m)


def require_ref(device: Device, thing: object, name: str) -> None:
    """Raise unless an argument is a ref.

    Raises:
        TypeError: the argument is not a ref. If it can become one, the message says how.
    """
    if not isinstance(thing, GpuRef):
        raise ref_error(thing, device.core.memory, name)


def require_floats(device: Device, thing: GpuRef, name: str) -> None:
    """Raise unless an argument is a ref of a dtype that solvers support."""
    require_ref(device, thing, name)
    if thing.dtype.name not in FLOATS:
        raise TypeError(f"{name} must be a ref of {', '.join(FLOATS)}, not of {thing.dtype.name}")


def require_operators(
    a: Operator, m: Operator | None, n: int, dtype: np.dtype[Any], callback: object
) -> None:
    """Raise unless the operators fit vectors of ``n`` elements and the callback is a function."""
    _require_operator(a, n, dtype, "A")
    if m is not None:
        _require_operator(m, n, dtype, "M")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be a function, not {said_of(callback)}")


def _require_operator(each: Operator, n: int, dtype: np.dtype[Any], name: str) -> None:
    if isinstance(each, (SparseRef, GpuRef)):
        if each.shape != (n, n):
            raise ValueError(
                f"{name} must have {n} elements, as vectors have, not shape {each.shape}"
            )
        if each.dtype is not dtype:
            raise TypeError(
                f"{name} must have the dtype of vectors, {dtype.name}, not {each.dtype.name}"
            )
    elif not callable(each):
        raise TypeError(
            f"{name} must be a SparseRef, a GpuRef or a function of a recording and a vector, "
            f"not {said_of(each)}"
        )


def applied(recording: Recording, operator: Operator, x: GpuRef) -> GpuRef:
    """A product of an operator and a vector, or several, as part of a recording."""
    if isinstance(operator, SparseRef):
        return recording.sparse.matmul(operator, x)
    if isinstance(operator, GpuRef):
        return recording.blas.gemv(operator, x) if x.ndim == 1 else recording.blas.gemm(operator, x)
    made: object = operator(recording, x)
    name = getattr(operator, "__name__", "an operator's function")
    if not isinstance(made, GpuRef):
        raise TypeError(
            f"{name} must give a ref, which calls of the recording do, not {said_of(made)}"
        )
    if made.dtype is not x.dtype:
        raise TypeError(f"{name} gives {made.dtype.name} for a vector of {x.dtype.name}")
    if made.shape != x.shape:
        raise ValueError(f"{name} gives shape {made.shape} for a vector of shape {x.shape}")
    return made
