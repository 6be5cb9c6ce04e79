"""Tensors on the CPU, with NumPy; 16-bit floats are computed in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ..wire._messages import (
    ADDS,
    Available,
    OperationKind,
    RunTensor,
    TuneTensor,
    decode,
    numbers_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext, CpuStream
    from ..wire._messages import TensorLayout, TensorOperation

_Array = np.ndarray[Any, Any]

_WIDE: Final = {"float16": DTYPES["float32"], "bfloat16": DTYPES["float32"]}


def _softplus(x: _Array) -> Any:
    return np.logaddexp(x, 0)


UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: np.exp(-np.logaddexp(-x, 0)),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "swish": lambda x: x * np.exp(-np.logaddexp(-x, 0)),
    "softplus": _softplus,
    "softsign": lambda x: x / (np.abs(x) + 1),
    "identity": lambda x: x,
}
"""Operators that NumPy has no function for."""


@final
class CpuTensors:
    """Executes operations on tensors with ``numpy.einsum`` and ufuncs."""

    def __init__(self, context: CpuContext, stream: CpuStream) -> None:
        del stream
        self._context: Final = context
        self.handlers: Final = {
            Available: self._available,
            RunTensor: self._run,
            TuneTensor: self._tune,
        }

    def close(self) -> None:
        """Nothing is held."""

    def _available(self, message: Available) -> bool:
        """Products of copies are quicker here than sums in NumPy's loops."""
        del message
        self._context.check()
        return False

    def _tune(self, message: TuneTensor) -> None:
        """Run the operation; there is only one way to compute it."""
        self._run(message.run)

    def _run(self, message: RunTensor) -> None:
        self._context.check()
        operation = decode(message.operation)
        arrays = [
            self._array(address, operation.dtype, tensor)
            for address, tensor in zip(message.inputs, operation.inputs, strict=True)
        ]
        target = self._array(message.output, operation.dtype, operation.output)
        wide = _WIDE.get(operation.dtype, DTYPES[operation.dtype])
        with np.errstate(all="ignore"):
            terms = [
                _applied(each.operator, array.astype(wide))
                for array, each in zip(arrays, operation.inputs, strict=True)
            ]
            scalars = [wide.type(each) for each in numbers_of(message.scalars)]
            result = _computed(operation, terms, scalars)
            if operation.kind in ADDS and scalars[1] != 0:
                added = self._array(message.added, operation.dtype, operation.output)
                result = result + scalars[1] * added.astype(wide)
            target[...] = result.astype(target.dtype)

    def _array(self, address: int, dtype: str, tensor: TensorLayout) -> _Array:
        kind = DTYPES[dtype]
        strides = tuple(stride * kind.itemsize for stride in tensor.strides)
        return self._context.array(address, tensor.extents, kind, strides)


def _applied(operator: str, x: _Array) -> Any:
    return (
        UNARY.get(operator) and UNARY[operator](x)
        if operator in UNARY
        else getattr(np, operator)(x)
    )


def _computed(operation: TensorOperation, terms: list[Any], scalars: list[Any]) -> Any:
    """Return the result without the added array."""
    output = operation.output.modes
    modes = [each.modes for each in operation.inputs]
    match operation.kind:
        case OperationKind.CONTRACT | OperationKind.CONTRACT_TRINARY:
            sources = [part for pair in zip(terms, map(list, modes), strict=True) for part in pair]
            product = np.einsum(*sources, list(output), optimize=True)
            return scalars[0] * product
        case OperationKind.REDUCE:
            axes = tuple(at for at, mode in enumerate(modes[0]) if mode not in output)
            kept = [mode for mode in modes[0] if mode in output]
            reduced = getattr(np, operation.operators[0]).reduce(terms[0], axes)
            return scalars[0] * np.transpose(reduced, [kept.index(mode) for mode in output])
    aligned = [
        scale * _aligned(term, each, output)
        for scale, term, each in zip(scalars, terms, modes, strict=True)
    ]
    result = aligned[0]
    for operator, other in zip(operation.operators, aligned[1:], strict=True):
        result = getattr(np, operator)(result, other)
    return np.broadcast_to(result, operation.output.extents)


def _aligned(term: _Array, modes: tuple[int, ...], output: tuple[int, ...]) -> _Array:
    """An array with axes in the order of the result's, and some of one element."""
    there = [mode for mode in output if mode in modes]
    ordered = np.transpose(term, [modes.index(mode) for mode in there])
    return ordered[tuple(slice(None) if mode in modes else None for mode in output)]
