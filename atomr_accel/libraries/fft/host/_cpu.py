"""FFT on the CPU, with NumPy, and SciPy for what that lacks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES, NUMBER_KINDS, number_kind
from ....host.host import IMPORTS
from ..wire._cosines import cosines_shape
from ..wire._messages import Cosines, ForgetPlan, Frequencies, Prepare, Roll, RunTransform, decode
from ..wire._plan import HALF, result_shape, result_type

if TYPE_CHECKING:
    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._messages import FftSpec, Hook

_Array = np.ndarray[Any, np.dtype[Any]]

_COMPUTED_IN: Final = {
    "float16": ("float32", "complex64"),
    "bfloat16": ("float32", "complex64"),
    "float32": ("float32", "complex64"),
    "float64": ("float64", "complex128"),
}
"""The real and complex dtype in which a precision is computed."""


@final
class CpuFft:
    """Executes FFT messages with ``numpy.fft``; half precision is computed in single."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final = {
            RunTransform: self._transform,
            Prepare: self._prepare,
            ForgetPlan: self._forget,
            Roll: self._roll,
            Frequencies: self._frequencies,
        }

    def close(self) -> None:
        """Nothing is held."""

    def _prepare(self, message: Prepare) -> int:
        del message
        self._context.check()
        return 0

    def _forget(self, message: ForgetPlan) -> None:
        del message
        self._context.check()

    def _transform(self, message: RunTransform) -> None:
        self._context.check()
        spec = decode(message.spec)
        if isinstance(spec, Cosines):
            target = self._array(message.target, spec.precision, cosines_shape(spec))
            if target.size:
                source = self._array(message.source, spec.source, spec.shape)
                target[...] = _cosines(spec, source.astype(spec.precision))
            return
        target = self._array(message.target, result_type(spec), result_shape(spec))
        if not target.size:
            return
        real, complex_ = _COMPUTED_IN[spec.precision]
        source = self._array(message.source, spec.source, spec.shape)
        if spec.source.endswith("x2"):
            source = _joined(source)
        source = source.astype(real if spec.kind == "r2c" else complex_, copy=False)
        source = _hooked(spec.load, source)
        # Half precision sums scaled numbers, on a GPU too, because the sums overflow early.
        first = spec.scale if spec.precision in HALF else 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            result = _compute(spec, source * first if first != 1.0 else source)
            if spec.scale != first:
                result *= result.dtype.type(spec.scale)
            result = _hooked(spec.store, result)
            if target.shape != result.shape:
                np.stack((result.real, result.imag), axis=-1, out=target, casting="unsafe")
            else:
                target[...] = result

    def _array(self, address: int, kind: str, shape: tuple[int, ...]) -> _Array:
        name, pair, _ = kind.partition("x2")
        return self._context.array(address, (*shape, 2) if pair else shape, DTYPES[name])

    def _roll(self, message: Roll) -> None:
        self._context.check()
        count = math.prod(message.shape)
        dtype = np.dtype((np.void, message.itemsize))
        nbytes = count * message.itemsize
        source = self._context.bytes_at(message.source, nbytes).view(dtype)
        target = self._context.bytes_at(message.target, nbytes).view(dtype)
        shifts = tuple(-shift for shift in message.shifts)
        axes = tuple(range(len(message.shape)))
        shape = message.shape
        target.reshape(shape)[...] = np.roll(source.reshape(shape), shifts, axes)

    def _frequencies(self, message: Frequencies) -> None:
        self._context.check()
        n = message.n
        count = n // 2 + 1 if message.half else n
        index = np.arange(count)
        if not message.half:
            index[(n - 1) // 2 + 1 :] -= n
        target = self._context.array(message.target, (count,), DTYPES["float64"])
        target[...] = index * message.step


def _compute(spec: FftSpec, source: _Array) -> _Array:
    """The transform without its scale."""
    if spec.kind == "r2c":
        spectrum = np.fft.rfftn(source, spec.sizes, spec.axes)
        return np.conjugate(spectrum) if spec.conjugate else spectrum
    if spec.kind == "c2r":
        if spec.conjugate:
            source = np.conjugate(source)
        if not source.shape[spec.axes[-1]]:  # NumPy would give what its memory held before
            points = [(0, 0)] * source.ndim
            points[spec.axes[-1]] = 0, 1
            source = np.pad(source, points)
        return np.fft.irfftn(source, spec.sizes, spec.axes, norm="forward")
    if spec.inverse:
        return np.fft.ifftn(source, spec.sizes, spec.axes, norm="forward")
    return np.fft.fftn(source, spec.sizes, spec.axes)


def _cosines(spec: Cosines, values: _Array) -> _Array:
    """Cosine or sine transforms."""
    with IMPORTS.late():
        import scipy.fft  # which few programs need

    with scipy.fft.set_backend("scipy", only=True):  # whatever the program has told SciPy
        for each in spec.along:
            function: Any = scipy.fft.dst if each.sine else scipy.fft.dct
            values = function(
                values, each.type, each.points, each.axis, orthogonalize=each.orthogonal
            )
            values *= values.dtype.type(each.scale)
    return values


def _hooked(hook: Hook | None, values: _Array) -> _Array:
    """Return the elements that a callback makes of elements and their offsets in the array."""
    if hook is None:
        return values
    import cloudpickle  # which few programs need

    with IMPORTS.running():
        function = cloudpickle.loads(hook.function)
        # Of its own: it may write there, and what is loaded is the program's.
        made = np.asarray(function(values.flatten(), np.arange(values.size)))
    if made.size != values.size or number_kind(made.dtype) not in NUMBER_KINDS:
        raise ValueError(
            f"the callback {hook.name!r} gave {made.dtype.name} of shape {made.shape} "
            f"for {values.size} elements of {values.dtype.name}"
        )
    return made.astype(values.dtype, copy=False).reshape(values.shape)


def _joined(pairs: _Array) -> _Array:
    """Complex numbers from pairs in the last axis."""
    wide = pairs.astype(np.float32)
    return wide.view(np.complex64)[..., 0]
