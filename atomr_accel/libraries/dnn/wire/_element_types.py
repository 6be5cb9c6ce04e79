"""Table of the element types that operations of graphs take and compute in.

The facade refuses by it, and both backends compute by it, so they agree. cuDNN computes in floating
point, which would round integers to single precision.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ._graph import DnnGraph, DnnTensor, GraphNode

INTEGERS: Final = frozenset(name for name, dtype in DTYPES.items() if dtype.kind in "iu")
FLOATS: Final = frozenset(
    ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
)
KNOWN: Final = INTEGERS | FLOATS | {"bool"}
"""Element types that tensors of graphs may have."""

MODULAR: Final = frozenset({"add", "add_square", "mul", "neg", "sub"})
"""Operations on integers whose results are taken modulo 2 to the number of bits."""

COMPARISONS: Final = frozenset(f"cmp_{name}" for name in ("eq", "ge", "gt", "le", "lt", "neq"))

LOGICAL: Final = frozenset({"logical_and", "logical_or", "logical_not"})
_MOVED: Final = frozenset({"binary_select", "identity"})
OF_INTEGERS: Final = MODULAR | COMPARISONS | LOGICAL | _MOVED | {"abs", "max", "min"}
"""Operations that compute with integers."""

_OF_BOOLEANS: Final = COMPARISONS | LOGICAL | _MOVED
_POSITIONS: Final = frozenset(
    {
        *("seq_len_q", "seq_len_kv", "seed", "offset", "shift", "left", "right"),
        *("paged_attention_k_table", "paged_attention_v_table"),
    }
)
"""Inputs of attention that are integers."""

_LAID_OUT: Final = frozenset({"concatenate", "reshape", "slice", "transpose"})
"""Operations that only move elements, of whatever dtype."""

_SCALE: Final = "descale"
"""An input that is a scale of eight bits, as a whole number; its row says which."""

_MOST_EXACT: Final = 1 << 53
"""Numbers travel as doubles."""


def require_known(dtype: str) -> None:
    """A graph may have tensors of a dtype."""
    if dtype in KNOWN:
        return
    hint = "; give real and imaginary parts as tensors of their own" if "complex" in dtype else ""
    raise Unsupported(
        f"graphs have no tensors of {dtype}, only of {', '.join(sorted(KNOWN))}{hint}"
    )


def require_types(op: str, inputs: Mapping[str, DnnTensor]) -> None:
    """An operation that is not pointwise takes tensors of these dtypes."""
    if op in _LAID_OUT:
        return
    for name, tensor in inputs.items():
        dtype = tensor.dtype
        if name == _SCALE:
            continue
        if dtype not in (INTEGERS if name in _POSITIONS else FLOATS):
            raise Unsupported(f"{op}: {name} has dtype {dtype}{_instead(dtype)}")


def _instead(dtype: str) -> str:
    return "" if dtype in FLOATS else "; multiply it by 1.0 to go on in floating point"


def result_of(op: str, inputs: Mapping[str, DnnTensor]) -> str:
    """Return the dtype of the result of a pointwise operation, except for comparisons.

    Booleans are promoted to integers, and integers to floating point. Among floating-point dtypes
    the first tensor's counts, or without such a tensor the first number's.
    """
    operands = _operands(op, inputs.items())
    floats = [each for each in operands if each.dtype in FLOATS]
    if floats:
        return next((each.dtype for each in floats if each.kind != "scalar"), floats[0].dtype)
    integers = {each.dtype for each in operands} & INTEGERS
    if len(integers) > 1:
        raise Unsupported(
            f"{op} of {' and '.join(sorted(integers))}; integers in an operation have one dtype"
        )
    if not integers:
        if op not in _OF_BOOLEANS:
            raise Unsupported(f"{op} of booleans; use logical operations{_instead('bool')}")
        return "bool"
    (dtype,) = integers
    if op not in OF_INTEGERS:
        raise Unsupported(f"{op} of {dtype}{_instead(dtype)}")
    return dtype


def require_stored(dtype: str, wanted: str) -> None:
    """Check that a result of ``dtype`` can be an output of dtype ``wanted``.

    Outputs have a floating-point dtype, or that of the result.
    """
    if wanted != dtype and wanted not in FLOATS:
        raise Unsupported(
            f"a result of {dtype} cannot be an output of {wanted}; outputs are floating point, "
            "or have the dtype of the result"
        )


def integers_of(graph: DnnGraph, node: GraphNode) -> str:
    """The dtype of the integers that a node computes with; empty for none."""
    if node.op not in OF_INTEGERS:
        return ""
    operands = _operands(node.op, ((name, graph.tensors[id_]) for name, id_ in node.inputs))
    dtypes = {each.dtype for each in operands}
    return "" if dtypes & FLOATS else next(iter(dtypes & INTEGERS), "")


def stored_as(op: str, integers: str) -> str:
    """Return the dtype of the result of an operation on integers."""
    return "bool" if op in COMPARISONS | LOGICAL else integers


def _operands(op: str, inputs: Iterable[tuple[str, DnnTensor]]) -> list[DnnTensor]:
    """Return the inputs that are computed with. A mask only selects."""
    return [tensor for name, tensor in inputs if op != "binary_select" or name != "mask"]


def fitting(value: Any, dtype: str, name: str) -> float:
    """Convert a value to a number for a tensor of integers."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer, because it is {dtype}, not {value!r}"
        ) from None
    limits = np.iinfo(dtype)
    if not max(limits.min, -_MOST_EXACT) <= number <= min(limits.max, _MOST_EXACT):
        raise ValueError(
            f"{name} is {number}, which does not fit {dtype}"
            + (", as far as numbers travel: up to 2**53" if limits.bits > 53 else "")
        )
    return float(number)
