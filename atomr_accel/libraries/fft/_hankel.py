"""``device.fft``'s Hankel transforms of functions at points that are even in their logarithm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._dtypes import DTYPES
from ...arrays.expressions import cast
from ...arrays.expressions.expression import ufunc
from ...ops import D, Request, op
from ...wire.options import real
from ..array.steps import target_of
from ._steps import FftPart, FftSteps, complex_of, computed_in, counted

if TYPE_CHECKING:
    from ...arrays import GpuRef

_PIECE = 4096
"""Number of coefficients that travel together."""


class Hankel(FftPart[D]):
    """Hankel transforms by the method of Hamilton (2000), "FFTLog"."""

    @op
    def fht(
        self,
        a: GpuRef,
        dln: float,
        mu: float,
        offset: float = 0.0,
        bias: float = 0.0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The fast Hankel transform along the last axis; as ``scipy.fft.fht``.

        Vendor function: ``cufftXtExec``, real to complex and back. The program makes the
        coefficients, half as many as there are points.

        Args:
            a: real, of any shape but 0-d: a periodic function at points that are even in their
                logarithm.
            dln: distance of their logarithms.
            mu: order of the Bessel function.
            offset: logarithm of the product of the middle points of input and output.
            bias: exponent of the power law by which the function is multiplied first.
            out: where to put the result; it shares no memory with ``a``.

        Returns:
            The shape of ``a``, float32 or float64.

        Raises:
            ValueError: numbers for which the transform is singular, of which SciPy warns; or for
                which coefficients are not finite.
        """
        return self._hankel("fht", a, (dln, mu, offset, bias), out, inverse=False)

    @op
    def ifht(
        self,
        A: GpuRef,  # noqa: N803 - SciPy's
        dln: float,
        mu: float,
        offset: float = 0.0,
        bias: float = 0.0,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The inverse of ``fht``, with its arguments; as ``scipy.fft.ifht``."""
        return self._hankel("ifht", A, (dln, mu, offset, bias), out, inverse=True)

    def fhtoffset(self, dln: float, mu: float, initial: float = 0.0, bias: float = 0.0) -> float:
        """Return the offset next to ``initial`` with which ``fht`` rings least.

        As ``scipy.fft.fhtoffset``. It is not awaited; batches have it, too.

        Raises:
            TypeError, ValueError: arguments that are no finite numbers.
        """
        from scipy import fft

        numbers = [real(each, name) for each, name in _named(dln, mu, initial, bias)]
        return float(fft.fhtoffset(*numbers))

    def _hankel(
        self,
        name: str,
        a: GpuRef,
        how: tuple[float, float, float, float],
        out: GpuRef | None,
        *,
        inverse: bool,
    ) -> Request[GpuRef]:
        dln, mu, offset, bias = (real(each, what) for each, what in _named(*how))
        if dln == 0:
            raise ValueError("dln must be a distance, not 0")

        called = "A" if inverse else "a"

        def build(steps: FftSteps) -> GpuRef:
            given = steps.ref(a, called)
            if not given.ndim or given.dtype.kind == "c":
                raise TypeError(f"{called} must be real and have an axis, not {given!r}")
            n = given.shape[-1]
            if n < 1:
                raise ValueError(f"{called} must have one point or more, not shape {given.shape}")
            dtype = computed_in(name, given.dtype)
            target = target_of(steps, out, given.shape, dtype, [(called, given)], op=name)
            if not target.size:
                return target
            factors = hankel_coefficients(n, dln, mu, offset, bias, inverse=inverse)
            whole: Any = steps.output(factors.shape, DTYPES["complex128"])
            for at in range(0, len(factors), _PIECE):
                piece = steps.upload(factors[at : at + _PIECE], whole.dtype)
                steps.assign((piece, whole[at : at + _PIECE]))
            middle: Any = counted(n) - (n - 1) / 2
            sign = 1 if inverse else -1
            before = sign * bias * (middle * dln + (offset if inverse else 0.0))
            after = sign * bias * (middle * dln + (0.0 if inverse else offset))
            data: Any = given
            if bias:
                data = given * ufunc("exp", before)
            spectrum: Any = steps.do(steps.fft.rfft(steps.evaluate(cast(data, dtype))))
            product = steps.evaluate(cast(spectrum * whole, complex_of(dtype)))
            found: Any = steps.do(steps.fft.irfft(product, n))[..., ::-1]
            if bias:
                found = found * ufunc("exp", after)
            return steps.evaluate(cast(found, target.dtype), target)

        return self._several(name, build)


def hankel_coefficients(
    n: int, dln: float, mu: float, offset: float, bias: float, *, inverse: bool
) -> np.ndarray[Any, Any]:
    """Return the factors of the spectrum, complex128, for ``n`` points.

    Raises:
        ValueError: the transform is singular, or coefficients are not finite.
    """
    from scipy.special import loggamma, poch

    y = np.arange(n // 2 + 1) * (math.pi / (n * dln))
    high, low = (mu + 1 + bias) / 2, (mu + 1 - bias) / 2
    with np.errstate(all="ignore"):
        up, down = loggamma(high + 1j * y), loggamma(low + 1j * y)
        turn = up.imag + down.imag + 2 * y * (math.log(2) - offset)
        made = np.exp(up.real - down.real + math.log(2) * bias + 1j * turn)
        if n % 2 == 0:  # of an even number of points the last coefficient is real
            made[-1] = made[-1].real
        if not np.isfinite(made[0]):
            made[0] = np.exp2(bias) * poch(low, high - low)
        if made[0] == 0 if inverse else not np.isfinite(made[0]):
            raise ValueError(
                f"mu and bias must make no singular transform, not {mu} and {bias}; "
                "choose another bias"
            )
        if inverse:
            first = 1 / made[0].conj() if np.isfinite(made[0]) else 0
            made = np.concatenate([[first], 1 / made[1:].conj()])
    if not np.isfinite(made).all():
        raise ValueError(
            f"mu, offset and bias must make finite coefficients, not {mu}, {offset} and {bias}; "
            "choose smaller ones"
        )
    return np.asarray(made)


def _named(dln: float, mu: float, offset: float, bias: float) -> list[tuple[float, str]]:
    return [(dln, "dln"), (mu, "mu"), (offset, "offset"), (bias, "bias")]
