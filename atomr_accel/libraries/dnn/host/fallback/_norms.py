"""Normalisation by our own kernels: group norm, and cases of others that cuDNN refuses."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from .....executors.device_code import C_TYPES, CudaSource
from ...wire._nodes import wider
from ._launch import THREADS, LaunchForm, NumberPlace, Pointer, form

if TYPE_CHECKING:
    from ...wire._graph import DnnGraph, DnnTensor, GraphNode
    from ._launch import Part

_MOST_DIMS: Final = 6
SOURCE: Final = CudaSource(__package__, "norms.cu", DIMS=_MOST_DIMS)

_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})
_FORWARD: Final = frozenset({"layernorm", "rmsnorm", "instancenorm", "groupnorm", "batchnorm"})
_STATISTICS: Final = (
    *("mean", "inv_variance", "in_running_mean", "in_running_var"),
    *("next_running_mean", "next_running_var"),
)
_BACKWARD: Final = frozenset(f"{op}_backward" for op in _FORWARD)
_ALIKE: Final = (("scale", "bias"), ("dscale", "dbias"), _STATISTICS)
"""Groups of tensors that must have the same steps."""

_FORWARD_POINTERS: Final[tuple[str, ...]] = (
    *("y", "input", "scale", "bias", "mean", "inv_variance"),
    *("next_running_mean", "next_running_var", "in_running_mean", "in_running_var"),
)
_INPUT_POINTERS: Final[tuple[str, ...]] = (
    *("dx", "grad", "input", "scale", "mean", "inv_variance"),
)
_PARAMETER_POINTERS: Final[tuple[str, ...]] = (
    *("dscale", "dbias", "grad", "input", "mean", "inv_variance"),
)


class NormAxis(NamedTuple):
    """A dimension of a normalisation: its size, and the step it makes in each tensor."""

    size: int
    x: int
    grad: int = 0
    out: int = 0
    parameter: int = 0
    statistic: int = 0


def computes(graph: DnnGraph) -> bool:
    """Return whether the kernels compute a graph of one node."""
    (node,) = graph.nodes
    if node.op not in _FORWARD | _BACKWARD:
        return False
    tensors = {name: graph.tensors[id_] for name, id_ in (*node.inputs, *node.outputs)}
    if not all(_alike([tensors[name] for name in names if name in tensors]) for names in _ALIKE):
        return False
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    element, parameter = dtypes["input"], dtypes["scale"]
    expected = {
        **dict.fromkeys(("y", "grad", "dx"), element),
        "bias": parameter,
        **dict.fromkeys(_STATISTICS, wider(element)),
    }
    return set(dtypes.values()) <= _FLOATS and all(
        dtype == expected.get(name, dtype) for name, dtype in dtypes.items()
    )


def _alike(tensors: list[DnnTensor]) -> bool:
    """Return whether tensors have the same steps, except along dimensions of size 1."""
    steps = {tuple(_step(tensor, axis) for axis in range(len(tensor.shape))) for tensor in tensors}
    return len(steps) < 2


def axes_of(
    graph: DnnGraph, node: GraphNode, parameter: str = "scale"
) -> list[tuple[NormAxis, bool]]:
    """The dimensions of a normalisation, each with whether it is summed over.

    For group norm the channels are two of them: groups, and channels of a group. Parameters
    have the steps of ``parameter``.
    """
    tensors = {name: graph.tensors[id_] for name, id_ in (*node.inputs, *node.outputs)}
    x, scale = tensors["input"], tensors["scale"]
    ndim, attributes = len(x.shape), dict(node.attributes)
    kind = node.op.removesuffix("_backward")
    groups = int(str(attributes.get("groups", 0)))
    others = {
        "grad": tensors.get("grad"),
        "out": tensors.get("y") or tensors.get("dx"),
        "parameter": tensors[parameter],
    }
    statistic = tensors.get("inv_variance")
    axes: list[tuple[NormAxis, bool]] = []
    for axis in range(ndim):
        size = x.shape[axis]
        steps = {name: _step(tensor, axis) for name, tensor in others.items()}
        if kind == "groupnorm" and axis == 1:
            each = size // groups
            wide = {name: step * each for name, step in steps.items()}
            at = _step(statistic, axis)
            axes.append((NormAxis(groups, x.strides[axis] * each, statistic=at, **wide), False))
            axes.append((NormAxis(each, x.strides[axis], **steps), True))
            continue
        at = _step(statistic, axis)
        summed = {
            "batchnorm": axis != 1,
            "instancenorm": axis > 1,
            "groupnorm": axis > 1,
        }.get(kind, scale.shape[axis] != 1)
        axes.append((NormAxis(size, x.strides[axis], statistic=at, **steps), summed))
    return axes


def _step(tensor: DnnTensor | None, axis: int) -> int:
    return 0 if tensor is None or tensor.shape[axis] == 1 else tensor.strides[axis]


def packed(outer: list[NormAxis], inner: list[NormAxis]) -> bytes:
    """The kernels' ``Norm``: a block for each place in ``outer``, which sums over ``inner``."""
    counts = [math.prod(axis.size for axis in axes) for axes in (outer, inner)]
    data = struct.pack("<4q", *counts, len(outer), len(inner))
    for axes in (outer, inner):
        assert len(axes) <= _MOST_DIMS
        for axis in (*axes, *[NormAxis(1, 0)] * (_MOST_DIMS - len(axes))):
            data += struct.pack("<6q", *axis)
    return data


def forms(graph: DnnGraph) -> list[LaunchForm]:
    """Return the forms of the kernels of a graph for which ``computes`` is true."""
    (node,) = graph.nodes
    axes = axes_of(graph, node)
    ids = dict((*node.inputs, *node.outputs))
    tensors = {name: graph.tensors[id_] for name, id_ in ids.items()}
    kept = [axis for axis, summed in axes if not summed]
    over = [axis for axis, summed in axes if summed]
    element, wide = tensors["input"].dtype, wider(tensors["input"].dtype)
    types = (element, tensors["scale"].dtype, wide)
    if node.op in _FORWARD:
        momentum = NumberPlace(ids["momentum"]) if "momentum" in ids else struct.pack("<d", 0.0)
        centred = struct.pack("<q", not node.op.startswith("rms"))
        tail = (NumberPlace(ids["epsilon"]), momentum, centred)
        return [_form("forward", types, _FORWARD_POINTERS, ids, kept, over, *tail)]
    made = [axis for axis, _ in axes_of(graph, node, "dscale")]
    varying = [axis for axis in made if axis.parameter]
    others = [axis for axis in made if not axis.parameter]
    sums = (element, tensors["dscale"].dtype, wide)
    return [
        _form("backward_input", types, _INPUT_POINTERS, ids, kept, over),
        _form("backward_parameters", sums, _PARAMETER_POINTERS, ids, varying, others),
    ]


def _form(
    kernel: str,
    types: tuple[str, str, str],
    names: tuple[str, ...],
    ids: dict[str, int],
    outer: list[NormAxis],
    inner: list[NormAxis],
    *tail: Part,
) -> LaunchForm:
    places = [Pointer(ids.get(name)) for name in names]
    blocks = math.prod(axis.size for axis in outer)
    name = f"{kernel}<{', '.join(C_TYPES[each] for each in types)}>"
    return form(SOURCE, name, blocks * THREADS, *places, packed(outer, inner), *tail)
