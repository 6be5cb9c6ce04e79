"""CUTLASS on the CPU, with NumPy and ml_dtypes: sums in float32, rounded where CUTLASS rounds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from scipy.special import erf, expit

from ...._dtypes import DTYPES
from ...blaslt.host.cpu import saturate
from ..wire._messages import BuildCutlass, Grouped, RecallKernel, RunCutlass, TuneCutlass
from ..wire._spec import ACCUMULATOR, SOURCE, decode
from ..wire._window import ImageWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._spec import CutlassSpec, EpilogueNode

Array = np.ndarray[Any, Any]

_FLOAT32: Final = DTYPES["float32"]
_TF32_DROPPED: Final = np.uint32(13)
"""Bits of a float32 that TF32 does not have."""


@final
class CpuCutlass:
    """Executes CUTLASS's messages."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self._built: Final[set[bytes]] = set()
        self.handlers: Final = {
            BuildCutlass: self._build,
            Grouped: self._grouped,
            RunCutlass: self._matmul,
            RecallKernel: self._recall,
            TuneCutlass: self._tune,
        }

    def close(self) -> None:
        """Nothing is held."""

    def _build(self, message: BuildCutlass) -> tuple[str, float]:
        self._context.check()
        origin = "memory" if message.spec in self._built else "built"
        self._built.add(message.spec)
        return origin, 0.0

    def _recall(self, message: RecallKernel) -> list[tuple[bytes, int]]:
        del message
        self._context.check()
        return []

    def _tune(self, message: TuneCutlass) -> list[float]:
        self._matmul(message.product)
        return [0.0] * len(message.candidates)

    def _matmul(self, message: RunCutlass) -> None:
        self._context.check()
        _CpuProduct(self._context, decode(message.spec), message).run()

    def _grouped(self, message: Grouped) -> None:
        self._context.check()
        spec = decode(message.spec)
        _, n, k, _ = message.sizes
        places = zip(message.rows, message.a, message.b, message.out, strict=True)
        for rows, a, b, out in places:
            sizes = (rows, n, k, 1)
            one = RunCutlass(message.spec, sizes, 1, a, b, 0, out, (), message.numbers)
            _CpuProduct(self._context, spec, one).run()


@final
class _CpuProduct:
    """One call."""

    def __init__(self, context: CpuContext, spec: CutlassSpec, message: RunCutlass) -> None:
        self._array: Final = context.array
        self._spec: Final = spec
        self._message: Final = message
        m, n, k, count, *_ = message.sizes
        self._shape: Final = (count, m, n)
        self._per_tap: Final = bool(spec.space and spec.trans_a)
        self._of_a: Final = (count, k, m) if spec.trans_a else (count, m, k)
        self._of_b: Final = (count, n, k) if spec.trans_b else (count, k, n)
        self._seen: Final[dict[EpilogueNode, Array]] = {}

    def run(self) -> None:
        """Compute it."""
        spec, message = self._spec, self._message
        result = self._value(spec.epilogue)
        out = self._full(message.out, spec.out)
        out[...] = saturate(result, out.dtype)

    def _accumulator(self) -> Array:
        if not self._spec.space:
            product = self._product()
        else:
            product = self._by_filters() if self._per_tap else self._convolution()
        # Only where nothing follows is it more than float32 holds that counts.
        alone = self._spec.epilogue.op == ACCUMULATOR
        return product if alone else product.astype(_FLOAT32)

    def _product(self) -> Array:
        spec, message = self._spec, self._message
        a = _wide(self._array(message.a, self._of_a, DTYPES[spec.a]))
        b = _wide(self._array(message.b, self._of_b, DTYPES[spec.b]))
        a = a.swapaxes(1, 2) if spec.trans_a else a
        b = b.swapaxes(1, 2) if spec.trans_b else b
        product: Array = a @ b
        return product

    def _convolution(self) -> Array:
        """Return the sums over all taps of the elements that they meet, times their filters."""
        spec, message = self._spec, self._message
        m, n, *_ = message.sizes
        window = ImageWindow.of(message.sizes, spec.space)
        outer, inner = (n, window.channels) if spec.trans_b else (window.channels, n)
        w = _wide(self._array(message.b, (outer, window.taps, inner), DTYPES[spec.b]))
        w = w.transpose(1, 2, 0) if spec.trans_b else w.swapaxes(0, 1)
        total: Array = np.zeros((m, n), w.dtype)
        for tap, met in enumerate(self._met(window, message.a, m)):
            total += met @ w[window.taps - 1 - tap if window.flipped else tap]
        return total[None]

    def _by_filters(self) -> Array:
        """Return, for each tap, the gradients times the elements that the tap meets."""
        spec, message = self._spec, self._message
        m, _, k, *_ = message.sizes
        grad = _wide(self._array(message.a, (k, m), DTYPES[spec.a])).T
        window = ImageWindow.of(message.sizes, spec.space)
        return np.stack([grad @ met for met in self._met(window, message.b, k)])

    def _met(self, window: ImageWindow, address: int, count: int) -> Iterator[Array]:
        """Yield the elements that each tap meets at all positions, channels innermost."""
        images = count // math.prod(window.positions)
        shape = images, *window.image, window.channels
        x = self._array(address, shape, DTYPES[self._spec.a])
        padded = _wide(np.pad(x, ((0, 0), *window.margins, (0, 0))))
        for tap in np.ndindex(window.filter):
            yield padded[(slice(None), *window.slices(tap))].reshape(count, window.channels)

    def _full(self, address: int, dtype: str) -> Array:
        """A buffer of the result's shape, as the products have it: one for each tap is apart."""
        if not self._per_tap:
            return self._array(address, self._shape, DTYPES[dtype])
        taps, m, n = self._shape
        return self._array(address, (m, taps, n), DTYPES[dtype]).swapaxes(0, 1)

    def _value(self, node: EpilogueNode) -> Array:
        found = self._seen.get(node)
        if found is None:
            found = self._seen[node] = self._compute(node)
        return found

    def _compute(self, node: EpilogueNode) -> Array:
        op, (count, m, n) = node.op, self._shape
        if op == ACCUMULATOR:
            return self._accumulator()
        if op == "number":
            return np.asarray(self._message.numbers[node.slot], _FLOAT32)
        if op == SOURCE:
            return self._full(self._message.c, node.dtype).astype(_FLOAT32)
        inputs = [self._value(each) for each in node.inputs]
        if op in FUNCTIONS:
            with np.errstate(all="ignore"):
                return np.asarray(FUNCTIONS[op](*inputs), _FLOAT32)
        shapes = {
            "scalar": (),
            "row": (n,),
            "column": (m, 1),
            "amax": (),
            "sum_rows": (n,),
            "sum_columns": (m,),
        }
        address = self._message.buffers[node.slot]
        there = (
            self._array(address, shapes[op], DTYPES[node.dtype])
            if op in shapes
            else self._full(address, node.dtype)
        )
        if not inputs:
            return there.astype(_FLOAT32)
        (value,) = inputs
        if op == "store":
            there[...] = saturate(value, there.dtype)
        elif op == "amax":
            there[...] = np.abs(value).max()
        else:
            # Over all products of a batch, as CUTLASS has it for one vector.
            there[...] = value.sum((0, 1) if op == "sum_rows" else (0, 2), dtype=_FLOAT32)
        return np.broadcast_to(value, (count, m, n))


def _wide(x: Array) -> Array:
    """Operands in a type that their products are summed in."""
    if x.dtype == np.int8:
        return x.astype(np.int32)
    wide: Array = x.astype(_FLOAT32)
    return _tf32(wide) if x.dtype == _FLOAT32 else wide


def _tf32(x: Array) -> Array:
    """float32 rounded to TF32, 10 bits of fraction: to the nearest, ties away from zero."""
    bits = x.view(np.uint32)
    half = np.uint32(1) << (_TF32_DROPPED - np.uint32(1))
    rounded = (bits + half) >> _TF32_DROPPED << _TF32_DROPPED
    result: Array = np.where(np.isfinite(x), rounded.view(_FLOAT32), x)
    return result


def _gelu_tanh(x: Array) -> Array:
    slope = np.float32(0.7978845608028654)
    bent: Array = 0.5 * x * (1 + np.tanh(slope * x * (1 + np.float32(0.044715) * x * x)))
    return bent


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "maximum": lambda a, b: np.where(np.isnan(a) | (a > b), a, b),
    "minimum": lambda a, b: np.where(np.isnan(a) | (a < b), a, b),
    "negative": np.negative,
    "relu": lambda a: np.where(a < 0, np.float32(0), a),
    "gelu": lambda a: 0.5 * a * (1 + erf(a * np.float32(0.7071067811865476))),
    "gelu_tanh": _gelu_tanh,
    "silu": lambda a: a / (1 + np.exp(-a)),
    "sigmoid": expit,
    "tanh": np.tanh,
}
"""The functions of ``wire/_spec`` in NumPy."""
