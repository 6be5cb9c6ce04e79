"""The beginning of a solver: numbers of about one, whatever the right side's magnitude is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..wire.options import real
from ._iterating import norm
from ._operators import require_ref

if TYPE_CHECKING:
    from ..arrays import GpuRef
    from ._iterating import Callback
    from ._operators import LinearSystem

_ORDINARY: Final = 16
"""Largest exponent, up or down, of right sides and residuals that are not scaled."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """A system whose vectors are scaled by a power of two, so that no square of them underflows.

    Attributes:
        system: the system, with the scaled right side.
        exponent: the power of two.
        x: where to begin.
        r: its residual.
        tolerance: how small the residual's norm has to be.
        size: the residual's norm.
    """

    system: LinearSystem
    exponent: int
    x: GpuRef
    r: GpuRef
    tolerance: float
    size: float

    async def norm(self, vector: GpuRef) -> float:
        """Return the norm of a scaled vector."""
        return await _number(self.system, norm(vector))

    async def solution(self, x: GpuRef) -> GpuRef:
        """Return a vector without its scale."""
        if not self.exponent:
            return x
        made: GpuRef = await self.system.device.evaluate(_scaled(x, -self.exponent))
        return made

    def callback(self, callback: Callback | None, done: int) -> Callback | None:
        """Return a callback for scaled norms, after ``done`` iterations."""
        if callback is None:
            return None
        return lambda count, size: callback(count + done, self.plain(size))

    def plain(self, size: float) -> float:
        """Return a norm without its scale."""
        return size * 2.0 ** (-self.exponent // 2) * 2.0 ** (-self.exponent - -self.exponent // 2)


async def started(given: LinearSystem, x0: GpuRef | None, rtol: float, atol: float) -> Beginning:
    """Return the beginning of a solver.

    ``rtol`` is relative to the norm of the right side.
    """
    device, b = given.device, given.b
    if x0 is not None:
        require_ref(device, x0, "x0")
        if x0.shape != b.shape or x0.dtype is not b.dtype:
            raise ValueError(
                f"x0 must be of the shape and dtype of b, {b.shape} and {b.dtype.name}, not "
                f"{x0.shape} and {x0.dtype.name}"
            )
    relative, absolute = real(rtol, "rtol", least=0), real(atol, "atol", least=0)
    most = await _largest(given, b)
    if x0 is None or not most:  # relative to nothing no other solution would be near enough
        x, r = await device.full(b.shape, 0, b.dtype), await device.copy(b)
    else:
        x = await device.copy(x0)
        r = await given.residual(x)
        most = max(most, await _largest(given, r))
    exponent = -math.frexp(most)[1] if math.isfinite(most) else 0
    if abs(exponent) <= _ORDINARY:
        exponent = 0
    else:
        given = replace(given, b=await device.evaluate(_scaled(b, exponent)))
        x = await device.evaluate(_scaled(x, exponent))
        r = await device.evaluate(_scaled(r, exponent))
        absolute *= 2.0 ** (exponent // 2)
        absolute *= 2.0 ** (exponent - exponent // 2)
    bound = await _number(given, norm(given.b))
    size = bound if x0 is None else await _number(given, norm(r))
    return Beginning(given, exponent, x, r, max(absolute, relative * bound), size)


def _scaled(x: GpuRef, exponent: int) -> Any:
    """Return a vector times a power of two, which narrow dtypes may hold in two parts only."""
    half = exponent // 2
    return x * 2.0**half * 2.0 ** (exponent - half)


async def _largest(given: LinearSystem, x: GpuRef) -> float:
    """Return the largest magnitude of a part, 0 of nothing."""
    if not x.size:
        return 0.0
    parts: list[Any] = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    return max([await _number(given, np.abs(each).max(keepdims=True)) for each in parts])


async def _number(given: LinearSystem, expression: Any) -> float:
    return float((await given.device.get(await given.device.evaluate(expression)))[0])
