"""Convolutions by our own kernels, where cuDNN's frontend has none."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, final

from .._device_code import C_TYPES
from ._conv_source import SOURCE
from ._nodes import wider

if TYPE_CHECKING:
    from ...backends.cuda._context import CudaContext, CudaStream
    from .._cuda_kernels import Kernels
    from ._graph import Graph, Tensor

_ROLES: Final = {
    "conv_fprop": ("forward", ("y", "image", "weight"), ("image", "weight", "y")),
    "conv_dgrad": ("images", ("dx", "loss", "filter"), ("dx", "filter", "loss")),
    "conv_wgrad": ("filters", ("dw", "image", "loss"), ("image", "dw", "loss")),
}
"""The kernel of a node, its pointers, and which of its tensors are image, filter, result."""


def computes(graph: Graph) -> bool:
    """Whether a graph is one convolution that the kernels compute."""
    if len(graph.nodes) != 1 or graph.nodes[0].op not in _ROLES:
        return False
    (node,) = graph.nodes
    dtypes = {graph.tensors[id_].dtype for _, id_ in (*node.inputs, *node.outputs)}
    return dtypes == {"float64"}


def launch_of(graph: Graph, addresses: dict[int, int]) -> tuple[str, int, bytes]:
    """A kernel's name, the threads it needs and its arguments, for one convolution."""
    (node,) = graph.nodes
    kernel, pointers, roles = _ROLES[node.op]
    ids = dict((*node.inputs, *node.outputs))
    image, filter_, result = (graph.tensors[ids[role]] for role in roles)
    window = dict(node.attributes)
    groups = image.shape[1] // filter_.shape[1]
    data = b"".join(struct.pack("<Q", addresses[ids[name]]) for name in pointers)
    data += b"".join(map(_steps, (image, filter_, result)))
    data += struct.pack(
        "<5q", image.shape[0], image.shape[1], filter_.shape[0], filter_.shape[1], groups
    )
    for tensor in (image, filter_, result):
        data += _three(tensor.shape[2:], 1)
    data += _three(window["pre_padding"], 0)
    data += _three(window["stride"], 1) + _three(window["dilation"], 1)
    count = math.prod(graph.tensors[ids[pointers[0]]].shape)
    types = C_TYPES[wider(image.dtype)], C_TYPES[image.dtype]
    return f"{kernel}<{', '.join(types)}>", count, data + struct.pack("<q", count)


def _steps(tensor: Tensor) -> bytes:
    return struct.pack("<2q", *tensor.strides[:2]) + _three(tensor.strides[2:], 0)


def _three(values: Any, missing: int) -> bytes:
    """Numbers for three dimensions of space; missing ones come first."""
    return struct.pack("<3q", *[missing] * (3 - len(values)), *values)


@final
class Convs:
    """The kernels, for one stream."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context = context
        self._stream = stream
        self._made: Kernels | None = None

    def close(self) -> None:
        """Unload what was loaded."""
        if self._made is not None:
            self._made.close()

    def run(self, graph: Graph, addresses: dict[int, int], scalars: dict[int, float]) -> None:
        """Queue a graph of one convolution.

        Args:
            graph: one for which ``computes`` is true.
            addresses: pointers by id.
            scalars: none.
        """
        from .._cuda_kernels import Arguments, Kernels  # needs NVRTC, which others do not

        del scalars
        if self._made is None:
            self._made = Kernels(self._context, self._stream, SOURCE)
        name, count, data = launch_of(graph, addresses)
        self._made.launch(self._made.function(name), count, Arguments(data))
