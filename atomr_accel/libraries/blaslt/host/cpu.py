"""BLASLt on the CPU, with NumPy and ml_dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import ml_dtypes
import msgspec
import numpy as np

from ...._dtypes import DTYPES
from ....wire.recent import Recent
from ..wire._messages import (
    EPILOGUES,
    BlasLtSpec,
    EpilogueSpec,
    Heuristic,
    MatrixLayout,
    RunBlasLt,
    TuneBlasLt,
)
from ..wire._narrow import BLOCKS, EXPONENTS, mask_width

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._messages import Scalar

Array = np.ndarray[Any, Any]

_ALGORITHM: Final = b"numpy"
_MOST_SPECS: Final = 512
_SLOPE: Final = float(np.sqrt(2 / np.pi))
_CUBIC: Final = 0.044715
_FURTHEST: Final = 64.0
"""Beyond, GELU is 0 or its argument, in every type."""

_POWERS: Final = np.dtype(ml_dtypes.float8_e8m0fnu)
_FLOAT32: Final = DTYPES["float32"]
_finfo: Final[Callable[..., Any]] = ml_dtypes.finfo


@final
class CpuBlasLt:
    """Executes BLASLt messages. Narrow types are computed in float32."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._specs: Recent[bytes, BlasLtSpec] = Recent(_MOST_SPECS)
        self._decode: Final = msgspec.msgpack.Decoder(BlasLtSpec).decode
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Heuristic: self._heuristic,
            RunBlasLt: self._matmul,
            TuneBlasLt: self._tune,
        }

    def close(self) -> None:
        """Nothing is held."""

    def _heuristic(self, message: Heuristic) -> list[tuple[bytes, int, int]]:
        self._context.check()
        return [(_ALGORITHM, 0, number) for number in range(min(2, message.most))]

    def _tune(self, message: TuneBlasLt) -> int:
        self._matmul(message.product)
        return 0

    def _matmul(self, message: RunBlasLt) -> None:
        context = self._context
        context.check()
        spec = self._specs.get(message.spec)
        if spec is None:
            spec = self._specs.keep(message.spec, self._decode(message.spec))
        epilogue = EPILOGUES[spec.epilogue]
        m, n, batch = spec.m, spec.n, spec.batch
        if message.zeros:
            context.bytes_at(message.a, message.zeros)[:] = 0
        wide = _wide(spec)
        a = self._input(message.a, spec.a, spec.op_a, batch, wide)
        b = self._input(message.b, spec.b, spec.op_b, batch, wide)
        a, b, factor = self._scaled(spec, message, a, b)
        alpha: Any = wide.type(_number(message.alpha))
        if spec.factors:
            kind = DTYPES[spec.scale_type]
            alpha = context.array(message.factors, (n,), kind).astype(wide)
        value = alpha * ((a @ b) * factor)
        beta = _number(message.beta)
        if beta != 0:
            c = self._matrices(message.c, spec.c, batch)
            value = value + wide.type(beta) * c.astype(wide)
        if epilogue.bias:
            value = value + self._bias(spec, message, n)[:, None, :].astype(wide)
        value = self._after(spec, epilogue, message, value)
        if epilogue.bias_gradient:
            sums = {"bgrada": a.sum(-1), "bgradb": b.sum(-2)}.get(spec.epilogue)
            gradient = value.sum(-2) if sums is None else sums
            where = (batch, m if epilogue.bias_gradient == "m" else n)
            kind = DTYPES[spec.bias_dtype]
            context.array(message.bias, where, kind)[...] = gradient.astype(kind)
        if message.amax:
            largest = np.abs(value).max(initial=0)
            context.array(message.amax, (), _FLOAT32)[...] = largest
        if message.scale_d:
            value = value * context.array(message.scale_d, (), _FLOAT32)
        if m and n and batch:
            d = self._matrices(message.d, spec.d, batch)
            d[...] = saturate(value, d.dtype)

    def _matrices(self, address: int, operand: MatrixLayout, batch: int) -> Array:
        """The matrices of an operand, as a view."""
        dtype = DTYPES[operand.dtype]
        shape = (batch, operand.rows, operand.columns)
        if 0 in shape:
            return np.zeros(shape, dtype)
        last = (batch - 1) * operand.step + (operand.rows - 1) * operand.ld
        memory = self._context.bytes_at(address, (last + operand.columns) * dtype.itemsize)
        strides = [step * dtype.itemsize for step in (operand.step, operand.ld, 1)]
        return np.ndarray(shape, dtype, memory, strides=strides)

    def _input(
        self, address: int, operand: MatrixLayout, op: int, batch: int, wide: np.dtype[Any]
    ) -> Array:
        array = self._matrices(address, operand, batch).astype(wide, copy=False)
        if not op:
            return array
        return np.swapaxes(array.conj() if op == 2 else array, -1, -2)

    def _scaled(
        self, spec: BlasLtSpec, message: RunBlasLt, a: Array, b: Array
    ) -> tuple[Array, Array, Any]:
        """Return the operands with their scales, and the factor that remains for the product."""
        context = self._context
        if spec.scaling in BLOCKS:
            block = BLOCKS[spec.scaling]
            shape = (spec.m, spec.k // block), (spec.n, spec.k // block)
            exponents = spec.scaling == "mxfp8"
            kind = DTYPES[EXPONENTS if exponents else "float8_e4m3fn"]
            scales_a, scales_b = (
                context.array(address, each, kind)
                for address, each in zip((message.scale_a, message.scale_b), shape, strict=True)
            )
            if exponents:
                scales_a, scales_b = (each.view(_POWERS) for each in (scales_a, scales_b))
            scales_a, scales_b = (each.astype(np.float32) for each in (scales_a, scales_b))
            return a * scales_a.repeat(block, -1), b * scales_b.repeat(block, -1).T, 1
        factor: Any = np.float32(1)
        lengths = (spec.m, spec.n) if spec.scaling == "rows" else (1, 1)
        for address, length, axis in (
            (message.scale_a, lengths[0], (-1, 1)),
            (message.scale_b, lengths[1], (1, -1)),
        ):
            if address:
                factor = factor * context.array(address, (length,), _FLOAT32).reshape(axis)
        return a, b, factor if spec.scaling else 1

    def _bias(self, spec: BlasLtSpec, message: RunBlasLt, n: int) -> Array:
        kind = DTYPES[spec.bias_dtype]
        count = spec.batch if spec.bias_step else 1
        return self._context.array(message.bias, (count, n), kind)

    def _after(
        self, spec: BlasLtSpec, epilogue: EpilogueSpec, message: RunBlasLt, value: Array
    ) -> Array:
        """Apply activations, and write or read their auxiliary output."""
        name, n = spec.epilogue, spec.n
        lead = value.shape[:-1]
        if epilogue.mask:
            aux = self._context.array(message.aux, (*lead, mask_width(n)), DTYPES["uint8"])
            if epilogue.makes_aux:
                bits = np.packbits(value > 0, axis=-1, bitorder="little")
                aux[..., : bits.shape[-1]] = bits
        elif epilogue.makes_aux or epilogue.takes_aux:
            kind = DTYPES[spec.c.dtype]
            aux = self._context.array(message.aux, (*lead, spec.aux_ld), kind)[..., :n]
            if epilogue.makes_aux:
                aux[...] = value.astype(kind)
        if name.startswith("relu"):
            return np.maximum(value, 0)
        if name.startswith("gelu"):
            return gelu(value)
        if name.startswith("drelu"):
            bits = np.unpackbits(aux, axis=-1, count=n, bitorder="little")
            return np.where(bits, value, 0)
        if name.startswith("dgelu"):
            return value * gelu_slope(aux.astype(value.dtype))
        return value


def gelu(x: Array) -> Array:
    """GELU by its tanh approximation, as the vendor computes it; at infinities its limits."""
    near = np.clip(x, -_FURTHEST, _FURTHEST)
    bent = 1 + np.tanh(_SLOPE * (near + _CUBIC * near**3))
    result: Array = 0.5 * np.maximum(x, -_FURTHEST) * bent
    return result


def gelu_slope(x: Array) -> Array:
    """The derivative of ``gelu``."""
    x = np.clip(x, -_FURTHEST, _FURTHEST)
    t = np.tanh(_SLOPE * (x + _CUBIC * x**3))
    result: Array = 0.5 * (1 + t) + 0.5 * x * (1 - t**2) * _SLOPE * (1 + 3 * _CUBIC * x**2)
    return result


def saturate(value: Array, dtype: np.dtype[Any]) -> Array:
    """Convert values; fp8 and int8 clip to their largest number."""
    if dtype.name.startswith("float8"):
        most = float(_finfo(dtype).max)
        return np.clip(value, -most, most).astype(dtype)
    if dtype.name == "int8":
        return np.clip(np.rint(value), -128, 127).astype(dtype)
    return value.astype(dtype)


def _wide(spec: BlasLtSpec) -> np.dtype[Any]:
    """The type to compute in."""
    if spec.scale_type in ("float64", "complex64", "complex128", "int32"):
        return DTYPES[spec.scale_type]
    if spec.a.dtype == "int8":  # whose sums float32 does not hold
        return DTYPES["float64"]
    return _FLOAT32


def _number(value: Scalar) -> Any:
    return complex(*value) if isinstance(value, (tuple, list)) else value
