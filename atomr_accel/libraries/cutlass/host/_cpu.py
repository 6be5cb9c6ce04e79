"""CUTLASS on the CPU, with NumPy and ml_dtypes: sums in float32, rounded where CUTLASS rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
from scipy.special import erf, expit

from ...._dtypes import DTYPES
from ...blaslt.host._cpu import saturate
from ..wire._messages import Build, Grouped, Matmul, Recall, Tune
from ..wire._spec import ACCUMULATOR, SOURCE, decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host._context import CpuContext, CpuStream
    from ..wire._spec import Node, Spec

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
            Build: self._build,
            Grouped: self._grouped,
            Matmul: self._matmul,
            Recall: self._recall,
            Tune: self._tune,
        }

    def close(self) -> None:
        """Nothing is held."""

    def _build(self, message: Build) -> tuple[str, float]:
        self._context.check()
        origin = "memory" if message.spec in self._built else "built"
        self._built.add(message.spec)
        return origin, 0.0

    def _recall(self, message: Recall) -> list[tuple[bytes, int]]:
        del message
        self._context.check()
        return []

    def _tune(self, message: Tune) -> list[float]:
        self._matmul(message.product)
        return [0.0] * len(message.candidates)

    def _matmul(self, message: Matmul) -> None:
        self._context.check()
        _Product(self._context, decode(message.spec), message).run()

    def _grouped(self, message: Grouped) -> None:
        self._context.check()
        spec = decode(message.spec)
        _, n, k, _ = message.sizes
        places = zip(message.rows, message.a, message.b, message.out, strict=True)
        for rows, a, b, out in places:
            sizes = (rows, n, k, 1)
            one = Matmul(message.spec, sizes, 1, a, b, 0, out, (), message.numbers)
            _Product(self._context, spec, one).run()


@final
class _Product:
    """One call."""

    def __init__(self, context: CpuContext, spec: Spec, message: Matmul) -> None:
        self._array: Final = context.array
        self._spec: Final = spec
        self._message: Final = message
        m, n, k, count = message.sizes
        self._shape: Final = (count, m, n)
        self._of_a: Final = (count, k, m) if spec.trans_a else (count, m, k)
        self._of_b: Final = (count, n, k) if spec.trans_b else (count, k, n)
        self._seen: Final[dict[Node, Array]] = {}

    def run(self) -> None:
        """Compute it."""
        spec, message = self._spec, self._message
        result = self._value(spec.epilogue)
        out = self._array(message.out, self._shape, DTYPES[spec.out])
        out[...] = saturate(result, out.dtype)

    def _accumulator(self) -> Array:
        spec, message = self._spec, self._message
        a = _wide(self._array(message.a, self._of_a, DTYPES[spec.a]))
        b = _wide(self._array(message.b, self._of_b, DTYPES[spec.b]))
        a = a.swapaxes(1, 2) if spec.trans_a else a
        b = b.swapaxes(1, 2) if spec.trans_b else b
        product = a @ b
        # Only where nothing follows is it more than float32 holds that counts.
        alone = spec.epilogue.op == ACCUMULATOR
        return product if alone else product.astype(_FLOAT32)

    def _value(self, node: Node) -> Array:
        found = self._seen.get(node)
        if found is None:
            found = self._seen[node] = self._compute(node)
        return found

    def _compute(self, node: Node) -> Array:
        op, (count, m, n) = node.op, self._shape
        if op == ACCUMULATOR:
            return self._accumulator()
        if op == "number":
            return np.asarray(self._message.numbers[node.slot], _FLOAT32)
        if op == SOURCE:
            read = self._array(self._message.c, self._shape, DTYPES[node.dtype])
            return read.astype(_FLOAT32)
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
        shape = shapes.get(op, self._shape)
        there = self._array(self._message.buffers[node.slot], shape, DTYPES[node.dtype])
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
