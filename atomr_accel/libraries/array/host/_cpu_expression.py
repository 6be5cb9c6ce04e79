"""Expressions on the CPU: NumPy's own functions, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ....wire.ufuncs import ARG_REDUCTIONS, PAIRS, REDUCTIONS, UFUNCS, find_ufunc
from ..wire._program import Interpret

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....backends.cpu.host.context import CpuContext
    from ..wire._program import ExpressionStep, StridedArray

_Array = np.ndarray[Any, np.dtype[Any]]


@final
class CpuExpressions:
    """Executes the messages of expressions; its handlers are some of the lane's."""

    def __init__(self, context: CpuContext) -> None:
        self._context: Final = context
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {Interpret: self._interpret}

    def _interpret(self, message: Interpret) -> None:
        self._context.check()
        operands = [self._array(each) for each in message.operands]
        outputs = [self._array(each) for each in message.outputs]
        with np.errstate(all="ignore"):
            values = interpret(message.steps, operands, message.constants)
            results = [values[at] for at in message.results]
            if len(results) > 1:  # one of them may be written over what another one still reads
                results = [np.array(each) for each in results]
            for output, result in zip(outputs, results, strict=True):
                np.copyto(output, result)

    def _array(self, array: StridedArray) -> _Array:
        return strided(self._context, array)


def strided(context: CpuContext, array: StridedArray) -> _Array:
    """A buffer with any strides as a NumPy array."""
    dtype = DTYPES[array.dtype]
    if 0 in array.shape:
        return np.empty(array.shape, dtype)
    spans = [
        stride * (extent - 1) for stride, extent in zip(array.strides, array.shape, strict=True)
    ]
    first = sum(span for span in spans if span < 0)
    last = sum(span for span in spans if span > 0) + dtype.itemsize
    memory = context.bytes_at(array.address + first, last - first)
    return np.ndarray(array.shape, dtype, memory, -first, array.strides)


def interpret(
    steps: tuple[ExpressionStep, ...],
    operands: list[_Array],
    constants: tuple[tuple[int, ...], ...],
) -> list[Any]:
    """Compute the values of all steps."""
    values: list[Any] = []
    for at, step in enumerate(steps):
        if step.kind not in ("operand", "constant") and any(arg >= at for arg in step.args):
            raise ValueError(f"step {at} is made of later ones: {step.args}")
        values.append(_value(step, values, operands, constants))
    return values


def _value(
    step: ExpressionStep,
    values: list[Any],
    operands: list[_Array],
    constants: tuple[tuple[int, ...], ...],
) -> Any:
    dtype = DTYPES[step.dtype]
    match step.kind:
        case "operand":
            return operands[step.args[0]]
        case "constant":
            words = np.array(constants[step.args[0]], "<u4").view(np.uint8)
            return words[: dtype.itemsize].view(dtype)[0]
        case "index":
            shape = [1] * len(step.shape)
            (axis,) = step.axes
            shape[axis] = step.shape[axis]
            return np.broadcast_to(np.arange(step.shape[axis]).reshape(shape), step.shape)
    args = [values[arg] for arg in step.args]
    match step.kind:
        case "ufunc":
            return _call(step.name, args)
        case "cast":
            given = np.asarray(args[0])
            if given.dtype.kind == "c" and dtype.kind not in "bc":
                given = given.real  # which is what NumPy takes, too, with a warning
            return given.astype(dtype)
        case "where":
            return np.where(*args)
        case "reduce" if step.name in REDUCTIONS:
            return find_ufunc(step.name).reduce(args[0], axis=step.axes, keepdims=step.keepdims)
        case "arg" if step.name in ARG_REDUCTIONS:
            one = step.axes[0] if len(step.axes) == 1 else None
            return getattr(np, step.name)(args[0], axis=one, keepdims=step.keepdims)
        case "matmul":
            return np.matmul(*args)
        case "view":
            return _view(args[0], step.axes, step.shape)
    raise ValueError(f"there is no step {step.kind!r} of {step.name!r}")


def _call(name: str, args: list[Any]) -> Any:
    if name in ("real", "imag"):
        return getattr(args[0], name)
    name, _, which = name.partition(":")
    if name in PAIRS:
        return getattr(np, name)(*args)[int(which)]
    if name not in UFUNCS:
        raise ValueError(f"there is no function {name!r}")
    return find_ufunc(name)(*args)


def _view(array: Any, axes: tuple[int, ...], shape: tuple[int, ...]) -> _Array:
    array = np.asarray(array)
    used = [axis for axis in axes if axis >= 0]
    gone = tuple(axis for axis in range(array.ndim) if axis not in used)
    array = array.squeeze(gone)
    order = [axis - sum(each < axis for each in gone) for axis in used]
    key = tuple(None if axis < 0 else slice(None) for axis in axes)
    return np.broadcast_to(array.transpose(order)[key], shape)
