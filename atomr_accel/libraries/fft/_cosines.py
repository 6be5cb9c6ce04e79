"""Cosine and sine transforms along one axis, by a Fourier transform of the same length.

A sine transform is the cosine transform of the same type with one side reversed and every other
number's sign changed on the other side. So there is one function for both, but for the first
type, which is the transform of an even or odd continuation.

Types 2 and 3 take a real transform of as many points; J. Makhoul, "A fast cosine transform in one
and two dimensions", 1980. Type 4 takes a complex one of half as many points if they are even, and
of twice as many otherwise.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...expressions import cast
from ...expressions._expression import broadcast_constant, ufunc, where
from ._steps import complex_of, counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...expressions import Operand
    from ...memory import GpuRef
    from ._steps import FftSteps

_ROOT: Final = math.sqrt(2)


class Kind(NamedTuple):
    """A transform along one axis.

    Attributes:
        type: from 1 to 4, as it is computed: that of an inverse is 3 for 2, and 2 for 3.
        sine: a sine transform.
        scale: what the sums are multiplied with.
        orthogonal: whether the first numbers of types 1 to 3 are scaled so that the matrix of
            the transform is orthogonal but for a factor.
    """

    type: int
    sine: bool
    scale: float
    orthogonal: bool


def points_of(type_: int, n: int, *, sine: bool) -> int:
    """Half the period of the continuation that a transform of ``n`` numbers stands for.

    Raises:
        ValueError: a cosine transform of type 1 of a single number.
    """
    if type_ != 1:
        return n
    if not sine and n < 2:
        raise ValueError(f"a cosine transform of type 1 takes at least 2 data points, not {n}")
    return n + 1 if sine else n - 1


def transform(steps: FftSteps, kind: Kind, x: GpuRef, y: GpuRef) -> None:
    """Transform along the last axis.

    Args:
        steps: where.
        kind: what.
        x: float32 or float64.
        y: the result, of ``x``'s shape.
    """
    _TYPES[kind.type](steps, kind, x, y)


def _first(steps: FftSteps, kind: Kind, x: GpuRef, y: GpuRef) -> None:
    n = x.shape[-1]
    half = points_of(1, n, sine=kind.sine)
    whole = steps.output((*x.shape[:-1], 2 * half), x.dtype)
    if kind.sine:
        zeros = whole[..., :: n + 1]
        steps.evaluate(broadcast_constant(zeros.shape, x.dtype), zeros)
        steps.assign((x, whole[..., 1 : n + 1]))
        steps.evaluate(-x[..., ::-1], whole[..., n + 2 :])
        spectrum = steps.do(steps.fft.rfft(whole))[..., 1 : n + 1]
        steps.evaluate(spectrum.imag * -kind.scale, y)
        return
    k = counted(n)
    ends = (k == 0) | (k == n - 1)
    data: Operand = x
    factor: Operand | float = kind.scale
    if kind.orthogonal:
        data = x * cast(where(ends, _ROOT, 1.0), x.dtype)
        factor = cast(where(ends, kind.scale / _ROOT, kind.scale), x.dtype)
    steps.evaluate(data, whole[..., :n])
    steps.assign((x[..., n - 2 : 0 : -1], whole[..., n:]))
    steps.evaluate(steps.do(steps.fft.rfft(whole)).real * factor, y)


def _second(steps: FftSteps, kind: Kind, x: GpuRef, y: GpuRef) -> None:
    n = x.shape[-1]
    half, kept = (n + 1) // 2, n // 2 + 1
    ordered = steps.output(x.shape, x.dtype)
    odd = x[..., 1::2][..., ::-1]
    if kind.sine:
        steps.assign((x[..., ::2], ordered[..., :half]))
        steps.evaluate(-odd, ordered[..., half:])
        y = y[..., ::-1]
    else:
        steps.assign((x[..., ::2], ordered[..., :half]), (odd, ordered[..., half:]))
    spectrum = steps.do(steps.fft.rfft(ordered))
    k = counted(kept)
    scale: Operand | float = 2 * kind.scale
    if kind.orthogonal:
        scale = cast(where(k == 0, _ROOT * kind.scale, 2 * kind.scale), x.dtype)
    cos, sin = _turned(k * (math.pi / (2 * n)), x.dtype)
    steps.evaluate((spectrum.real * cos + spectrum.imag * sin) * scale, y[..., :kept])
    rest = spectrum[..., 1 : n - kept + 1][..., ::-1]  # what belongs to y[n - k]
    cos, sin = _turned(counted(n - kept, n - kept, -1) * (math.pi / (2 * n)), x.dtype)
    steps.evaluate((rest.real * sin - rest.imag * cos) * (2 * kind.scale), y[..., kept:])


def _third(steps: FftSteps, kind: Kind, x: GpuRef, y: GpuRef) -> None:
    n = x.shape[-1]
    half, kept = (n + 1) // 2, n // 2 + 1
    if kind.sine:
        x = x[..., ::-1]
    spectrum = steps.output((*x.shape[:-1], kept), complex_of(x.dtype))
    steps.evaluate(x[..., :1] * (_ROOT if kind.orthogonal else 1.0), spectrum[..., :1])
    up, down = x[..., 1:kept], x[..., ::-1][..., : kept - 1]
    cos, sin = _turned(counted(kept - 1, 1) * (math.pi / (2 * n)), x.dtype)
    turned = (up * cos + down * sin) + 1j * (up * sin - down * cos)
    steps.evaluate(turned, spectrum[..., 1:])
    ordered = steps.do(steps.fft.irfft(spectrum, n, norm="forward"))
    sign = -1 if kind.sine else 1
    steps.evaluate(ordered[..., :half] * kind.scale, y[..., ::2])
    steps.evaluate(ordered[..., half:][..., ::-1] * (sign * kind.scale), y[..., 1::2])


def _fourth(steps: FftSteps, kind: Kind, x: GpuRef, y: GpuRef) -> None:
    n = x.shape[-1]
    if kind.sine:
        x = x[..., ::-1]
    sign = -1 if kind.sine else 1
    if n % 2:
        cos, sin = _turned(counted(n) * (math.pi / (2 * n)), x.dtype)
        data = steps.evaluate(x * cos - 1j * (x * sin))
        spectrum = steps.do(steps.fft.fft(data, 2 * n))[..., :n]
        k = counted(n)
        cos, sin = _turned((k * 2 + 1) * (math.pi / (4 * n)), x.dtype)
        signs = cast(where(k % 2 == 0, 1, sign), x.dtype)
        steps.evaluate((spectrum.real * cos + spectrum.imag * sin) * signs * (2 * kind.scale), y)
        return
    up, down = x[..., ::2], x[..., ::-1][..., ::2]
    cos, sin = _turned((counted(n // 2) * 4 + 1) * (math.pi / (4 * n)), x.dtype)
    turned = (up * cos + down * sin) + 1j * (down * cos - up * sin)
    spectrum = steps.do(steps.fft.fft(steps.evaluate(turned)))
    cos, sin = _turned(counted(n // 2) * (math.pi / n), x.dtype)
    real = spectrum.real * cos + spectrum.imag * sin
    imag = spectrum.imag * cos - spectrum.real * sin
    steps.evaluate(real * (2 * kind.scale), y[..., ::2])
    steps.evaluate(imag * (-2 * sign * kind.scale), y[..., ::-1][..., ::2])


_TYPES: Final[dict[int, Callable[[FftSteps, Kind, GpuRef, GpuRef], None]]] = {
    1: _first,
    2: _second,
    3: _third,
    4: _fourth,
}


def _turned(angle: Operand, dtype: np.dtype[Any]) -> tuple[Operand, Operand]:
    """Cosine and sine, computed in double."""
    return cast(ufunc("cos", angle), dtype), cast(ufunc("sin", angle), dtype)
