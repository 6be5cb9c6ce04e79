"""Single nodes by our own kernels, for cases that cuDNN refuses."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final

from .....executors.device_code import C_TYPES, CudaSource
from ...wire._element_types import MODULAR, integers_of, stored_as
from ...wire._graph import MOST_DIMS
from ...wire._nodes import NODES
from ._launch import THREADS, LaunchForm, NumberPlace, Part, Pointer, form

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...wire._graph import Attribute, DnnGraph, DnnTensor

MOST_INPUTS: Final = 5

POINTWISE: Final = CudaSource(__package__, "pointwise.cu", DIMS=MOST_DIMS, INPUTS=MOST_INPUTS)
REDUCTIONS: Final = CudaSource(__package__, "reductions.cu", DIMS=MOST_DIMS, THREADS=THREADS)

OPERATIONS: Final = frozenset(
    {
        *("abs", "add", "add_square", "batchnorm_inference", "binary_select", "ceil"),
        *("cmp_eq", "cmp_ge", "cmp_gt", "cmp_le", "cmp_lt", "cmp_neq", "cos", "div"),
        *("elu", "elu_backward", "erf", "exp", "floor", "gelu", "gelu_approx_tanh"),
        *("gelu_approx_tanh_backward", "gelu_backward", "gen_index", "identity", "log"),
        *("logical_and", "logical_not", "logical_or", "max", "min", "mod", "mul", "neg"),
        *("pow", "reciprocal", "relu", "relu_backward", "rsqrt", "sigmoid"),
        *("sigmoid_backward", "sin", "softplus", "softplus_backward", "sqrt", "sub"),
        *("swish", "swish_backward", "tan", "tanh", "tanh_backward"),
    }
)
"""Operations for which ``pointwise.cu`` has a struct."""

_STATISTICS: Final = ("ADD", "SQUARES")
"""Outputs of ``genstats``, as modes of reductions."""

_TYPES: Final = frozenset(C_TYPES) - {"complex64", "complex128"}


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernels compute a graph of one node."""
    (node,) = graph.nodes
    tensors = [graph.tensors[id_] for _, id_ in (*node.inputs, *node.outputs)]
    return (node.op in OPERATIONS or node.op in ("reduction", "genstats")) and all(
        tensor.dtype in _TYPES and tensor.ragged < 0 for tensor in tensors
    )


def packed_node(
    graph: DnnGraph,
    ids: list[int],
    target: int,
    attributes: Mapping[str, Attribute],
) -> list[Part]:
    """The arguments of a pointwise kernel that reads tensors ``ids`` and writes ``target``.

    With an ``axis`` to be counted it does not read, and moves along that axis alone.
    """
    counted = attributes.get("axis")
    out = graph.tensors[target]
    axes = range(len(out.shape))
    lists: list[Sequence[int]] = [out.strides]
    for id_ in ids:
        steps = [_step(graph.tensors[id_], axis) for axis in axes]
        lists.append(steps if counted is None else [int(axis == counted) for axis in axes])
    shape, (steps, *others) = _merged(out.shape, lists)
    sizes = struct.pack("<qq", math.prod(shape), len(shape)) + _words(shape) + _words(steps)
    parts: list[Part] = [Pointer(target), sizes]
    for id_, steps in zip(ids, others, strict=True):
        if graph.tensors[id_].kind == "scalar":
            parts += [Pointer(None), NumberPlace(id_), _words(steps)]
        else:
            parts += [Pointer(id_), struct.pack("<d", 0.0), _words(steps)]
    empty = struct.pack("<Qd", 0, 0.0) + _words(())
    return [*parts, empty * (MOST_INPUTS - len(ids)), _numbers(attributes)]


def _numbers(attributes: Mapping[str, Attribute]) -> bytes:
    """The kernel's ``Attributes``: NaN is an upper end that is nowhere."""
    names = ("swish_beta", "lower_clip", "upper_clip", "negative_slope")
    numbers = [attributes.get(name) for name in names]
    for name, number in zip(names, numbers, strict=True):
        if number is not None and not math.isfinite(number):  # type: ignore[arg-type]
            raise ValueError(f"{name} must be a finite number, not {number}")
    beta, low, high, slope = numbers
    return struct.pack(
        "<4d", beta or 0.0, low or 0.0, math.nan if high is None else high, slope or 0.0
    )


def packed_reduction(graph: DnnGraph, source: int, target: int) -> list[Part]:
    """The arguments of a reduction kernel."""
    x, y = graph.tensors[source], graph.tensors[target]
    data = b""
    for summed in (False, True):
        axes = [axis for axis in range(len(x.shape)) if (x.shape[axis] != y.shape[axis]) == summed]
        sizes = [x.shape[axis] for axis in axes]
        data += struct.pack("<qq", math.prod(sizes), len(axes)) + _words(sizes)
        data += _words([x.strides[axis] for axis in axes])
        data += _words([_step(y, axis) for axis in axes])
    return [Pointer(target), Pointer(source), data]


def _merged(
    shape: Sequence[int], lists: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Merge dimensions, because a position costs a division for each but the first.

    Args:
        shape: sizes.
        lists: steps along the dimensions, for each tensor. Results begin with the slowest
            dimension of the first tensor.
    """
    sizes: list[int] = []
    merged: list[list[int]] = [[] for _ in lists]
    for axis in sorted(range(len(shape)), key=lambda axis: -lists[0][axis]):
        size, steps = shape[axis], [each[axis] for each in lists]
        if size == 1:
            continue
        if sizes and all(each[-1] == size * step for each, step in zip(merged, steps, strict=True)):
            sizes[-1] *= size
        else:
            sizes.append(size)
            for each in merged:
                each.append(0)
        for each, step in zip(merged, steps, strict=True):
            each[-1] = step
    return sizes, merged


def _step(tensor: DnnTensor, axis: int) -> int:
    """Elements from one index to the next; 0 where one number serves all."""
    return 0 if tensor.kind == "scalar" or tensor.shape[axis] == 1 else tensor.strides[axis]


def _words(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{MOST_DIMS}q", *values, *[0] * (MOST_DIMS - len(values)))


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    if node.op == "genstats":
        return [
            _reduction(graph, mode, target)
            for mode, (_, target) in zip(_STATISTICS, node.outputs, strict=True)
            if graph.tensors[target].kind == "buffer"
        ]
    ((_, target),) = node.outputs
    order = dict(node.inputs)
    ids = [order[name] for name in NODES[node.op].inputs]
    out = graph.tensors[target]
    attributes, integers = dict(node.attributes), integers_of(graph, node)
    compute = "int64" if node.op == "gen_index" else graph.compute
    if integers:
        # Those of arithmetic modulo a power of two, where C++ has no such thing for signed ones.
        signed = node.op not in MODULAR and not integers.startswith("u")
        compute = "int64" if signed else "uint64"
    types = [out.dtype, *(graph.tensors[id_].dtype for id_ in ids)]
    if node.op == "reduction":
        return [_reduction(graph, str(attributes["mode"]), target)]
    name = pointwise_name(
        node.op, compute, stored_as(node.op, integers) if integers else compute, types
    )
    parts = packed_node(graph, ids, target, attributes)
    return [form(POINTWISE, name, math.prod(out.shape), *parts)]


def _reduction(graph: DnnGraph, mode: str, target: int) -> LaunchForm:
    """A reduction of a node's input to one of its outputs."""
    ((_, source),) = graph.nodes[0].inputs
    x, y = graph.tensors[source], graph.tensors[target]
    name = reduction_name(mode, graph.compute, [y.dtype, x.dtype])
    parts = packed_reduction(graph, source, target)
    return form(REDUCTIONS, name, math.prod(y.shape) * THREADS, *parts)


def pointwise_name(op: str, compute: str, result: str, types: Sequence[str]) -> str:
    """Return the name of the kernel of a pointwise operation."""
    operation = "".join(word.capitalize() for word in op.split("_"))
    names = ", ".join(C_TYPES[dtype] for dtype in (compute, result, *types))
    return f"node<{operation}, {names}>"


def reduction_name(mode: str, compute: str, types: Sequence[str]) -> str:
    """The kernel of a reduction, with the dtypes of its output and of its input."""
    names = ", ".join(C_TYPES[dtype] for dtype in (compute, *types))
    return f"reduce<{mode.capitalize()}, {names}>"
