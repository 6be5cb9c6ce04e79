"""What solvers multiply with, and the systems that they get."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._errors import said_of
from ..libraries.sparse._array import SparseRef
from ..memory import GpuRef

if TYPE_CHECKING:
    from ..device import Device
    from ..device.batches._record import Recording

Operator = SparseRef | GpuRef | Callable[["Recording", GpuRef], GpuRef]
"""A sparse matrix, a dense one, or a function that multiplies a vector with one.

A function gets a recording and a vector, and makes the product with calls of the recording. It is
called when a step is recorded, not when it is executed.
"""

FLOATS = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, slots=True)
class System:
    """A linear system, checked.

    Attributes:
        device: where it is.
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

    def multiply(self, program: Recording, x: GpuRef) -> GpuRef:
        """A product with the matrix."""
        return applied(program, self.a, x)

    def precondition(self, program: Recording, x: GpuRef) -> GpuRef:
        """A product with the preconditioner, or the vector itself."""
        return x if self.m is None else applied(program, self.m, x)

    async def residual(self, x: GpuRef) -> GpuRef:
        """``b - a @ x``, in a buffer of its own."""
        async with self.device.record() as program:
            made = program.evaluate(self.b - self.multiply(program, x))
        await program.replay()
        return await self.device.copy(made)


def system(device: Device, a: Operator, b: GpuRef, m: Operator | None) -> System:
    """A system of what a caller gave.

    Raises:
        TypeError: no operators, or dtypes that solvers have not.
        ValueError: shapes that do not fit.
    """
    given: object = b
    if not isinstance(given, GpuRef) or b.dtype.name not in FLOATS:
        raise TypeError(f"b must be a ref of {', '.join(FLOATS)}, not {said_of(b)}")
    if b.ndim != 1:
        raise ValueError(f"b must have one dimension, not shape {b.shape}")
    for each, name in ((a, "A"), (m, "M")):
        require_operator(each, b.shape[0], b.dtype, name)
    return System(device, a, b, m)


def require_operator(each: Operator | None, n: int, dtype: np.dtype[Any], name: str) -> None:
    """What a caller gave multiplies vectors of ``n`` elements.

    Raises:
        TypeError: it is no operator, or of another dtype.
        ValueError: another shape.
    """
    if isinstance(each, (SparseRef, GpuRef)):
        if each.shape != (n, n):
            raise ValueError(f"{name} has shape {each.shape}, but vectors have {n} elements")
        if each.dtype is not dtype:
            raise TypeError(f"{name} is {each.dtype.name}, but vectors are {dtype.name}")
    elif each is not None and not callable(each):
        raise TypeError(
            f"{name} must be a SparseRef, a GpuRef or a function of a recording and a vector, "
            f"not {said_of(each)}"
        )


def applied(program: Recording, operator: Operator, x: GpuRef) -> GpuRef:
    """A product of an operator and a vector, or several, as part of a recording."""
    if isinstance(operator, SparseRef):
        return program.sparse.matmul(operator, x)
    if isinstance(operator, GpuRef):
        return program.blas.gemv(operator, x) if x.ndim == 1 else program.blas.gemm(operator, x)
    return operator(program, x)


def least(bound: float, rtol: float, atol: float) -> float:
    """The norm of a residual that is small enough.

    Raises:
        ValueError: negative tolerances.
    """
    if not (rtol >= 0 and atol >= 0 and math.isfinite(rtol) and math.isfinite(atol)):
        raise ValueError(f"rtol and atol must not be negative: {rtol}, {atol}")
    return max(atol, rtol * bound)
