"""Graphs as the vendor's frontend (``nvidia-cudnn-frontend``) has them.

Tables and one function: rows of ``NODES`` have the frontend's names, so a node is a call of
the method that its row is named after. Needs no GPU: a graph can be lowered, and offered to
cuDNN for a device that is only described.
"""

from __future__ import annotations

import contextlib
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ...._errors import LibraryError, LibraryMissing, OutOfMemory, Unsupported
from ...._install import cuda_command
from ....executors.vendor import lacks_memory
from ..wire._attention_nodes import SCORES, is_single
from ..wire._block_nodes import BLOCKS
from ..wire._element_types import FLOATS, LOGICAL, integers_of
from ..wire._layout_nodes import LAYOUT
from ..wire._nodes import NODES
from . import _lowering_attention
from ._prototypes import DATA_TYPES, library_handle, status_codes
from ._rewrite import ELEMENTWISE, live, unfusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..wire._graph import DnnGraph, DnnTensor, GraphNode

_MOST_CHARACTERS: Final = 2000
_REASON: Final = re.compile(r"Reason: (.*?)(?= at: | Warning:| Error:|_*\{\"engineId|$)")
_ECHO: Final = re.compile(r"\(\)$|\(\w*\)$|NOT_INITIALIZED == status|isSupported")
_REFUSAL: Final = "cudnnGraphNotSupportedError"
"""The frontend's exception for unsupported graphs."""

_LEAST_DIMS: Final = 3
"""Dimensions that the library wants; missing ones come first, with size 1."""

_OURS: Final = frozenset({"axes", "shape"})
"""Attributes for the shape of the result, which the frontend gets in another way."""

_ENUMS: Final = {"norm_forward_phase": "norm_forward_phase", "mode": "reduction_mode"}
"""Attributes that are members of one of the frontend's enumerations."""

_IMAGES: Final = frozenset({"grad", "input"})
"""Inputs of a gradient of a normalisation whose layout counts."""

_UNLIMITED: Final = frozenset(
    {
        *("gelu", "gelu_backward", "gelu_approx_tanh", "gelu_approx_tanh_backward"),
        *("relu_backward", "swish", "swish_backward"),
    }
)
"""Activations that return NaN instead of a limit, or a number for NaN."""

_ROUGH: Final = frozenset({"tanh", "tanh_backward"})
"""Activations of float32 that are off by a hundred units in the last place and more."""

_PADDED: Final = {
    "conv_wgrad": frozenset({"eng1", "eng18", "eng20"}),
    "conv_dgrad": frozenset({"eng50"}),
}
"""Engines with wrong results if the padding differs between two sides of an image."""

_FILTERS: Final = frozenset({"eng70"})
"""Engines that sum uninitialised memory if channels come first."""

_FUSED: Final = frozenset({"eng7"})
"""Engines that leave out elements of a result, where other nodes follow a convolution."""

_OWN: Final = LAYOUT.keys() | BLOCKS.keys()
"""Operations that are never requested from cuDNN. Its engines (9.19) fuse slices with other
operations, and shift their pointers regardless of alignment. They read scales of blocks in an order
of their own."""

SPECIAL: Final[dict[str, Callable[[Any, Any, GraphNode, dict[str, Any]], Any]]] = {
    **_lowering_attention.SPECIAL,
}
"""Nodes that are no plain method call: functions of the frontend, its graph, the node, and
its inputs; they return the outputs in the order of the row."""


@cache
def load_frontend() -> Any:
    """The frontend's module, made to use the cuDNN that is loaded here."""
    library = library_handle()
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        from cuda.pathfinder import load_nvidia_dynamic_lib

        load_nvidia_dynamic_lib("cudart")  # which the frontend looks for by its name
    try:
        import cudnn

        # It looks for a library by itself. Two of them would not know each other's handles.
        cudnn._pybind_module._set_dlhandle_cudnn(library)
    except (ImportError, OSError, AssertionError, AttributeError) as error:
        raise LibraryMissing(
            "the vendor's Python package cudnn (nvidia-cudnn-frontend) is not installed, or too "
            f"old or too new ({error}); this brings one that fits: {cuda_command()}",
            library="cudnn_frontend",
        ) from error
    return cudnn


@contextlib.contextmanager
def refusals(call: str) -> Iterator[None]:
    """Turn the frontend's exceptions into ours."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (raises it, or what it means)
        ref_error(call, error)


def ref_error(call: str, error: Exception) -> NoReturn:
    """Raise our error for an exception of the frontend. Reraise exceptions of other origin.

    Frequent calls use this function, because ``refusals`` would take as long as the call.
    """
    if not isinstance(error, RuntimeError) and type(error).__name__ != _REFUSAL:
        raise error
    raise _failure(call, error) from error


def lower(frontend: Any, graph: DnnGraph, **options: Any) -> Any:
    """Build a graph with the frontend.

    Args:
        frontend: its module.
        graph: the graph.
        options: for ``cudnn.pygraph``: a handle, or a device's description.

    Returns:
        A ``cudnn.pygraph``, validated; tensor ``id`` has the uid ``id + 1``.

    Raises:
        Unsupported: the frontend does not take it.
    """
    types = frontend.data_type
    compute = _data_type(types, graph.compute)
    require_right(graph)
    with refusals("cudnnBackendFinalize"):
        made = frontend.pygraph(
            name="graph",
            io_data_type=compute,
            intermediate_data_type=compute,
            compute_data_type=compute,
            **options,
        )
        tensors: dict[int, Any] = {}
        computed = {id_ for node in graph.nodes for _, id_ in node.outputs}
        ids = graph.used()
        missing = max(0, _LEAST_DIMS - max(len(graph.tensors[id_].shape) for id_ in ids))
        # One that tells where others begin comes before them.
        for id_ in sorted(ids - computed, key=lambda id_: graph.tensors[id_].ragged):
            tensors[id_] = _input(made, types, graph, id_, tensors, missing)
        for node in graph.nodes:
            for (_, id_), output in _lowered(frontend, made, node, tensors, missing):
                tensors[id_] = output
                _describe(types, graph, id_, output, tensors, missing)
        made.validate()
    return made


def require_right(graph: DnnGraph) -> None:
    """Refuse graphs that the vendor takes, but computes wrongly."""
    # Seen with 9.19: it reads and writes beyond such results, and those that nothing uses.
    if reason := unfusable(graph):
        raise Unsupported(f"cuDNN does not do this right: {reason}")
    if len(live(graph).nodes) < len(graph.nodes):
        raise Unsupported("cuDNN does not do this right: steps whose results nothing uses")
    for node in graph.nodes:
        if reason := _wrong(graph, node):
            raise Unsupported(f"cuDNN does not do this right: {reason}")


def _wrong(graph: DnnGraph, node: GraphNode) -> str:
    """Why not to ask for a node that the vendor takes, and computes wrongly (seen with 9.19)."""
    if node.op.startswith("conv_") and graph.compute == "float64":
        # The frontend hands over factors in single precision, which are read as double.
        return "convolutions in float64"
    if node.op == "matmul" and not graph.tf32:
        # All of its engines do, those too that have no numerical note which says so.
        factors = {graph.tensors[id_].dtype for _, id_ in node.inputs}
        if "float32" in factors:
            return "products of float32 in full precision: it rounds their factors to TF32"
    if integers := integers_of(graph, node):
        return f"{node.op} of {integers}: it computes in floating point"
    tensors = [graph.tensors[id_] for _, id_ in (*node.inputs, *node.outputs)]
    if any(tensor.dtype == "bool" and tensor.kind == "buffer" for tensor in tensors):
        return f"{node.op} of booleans in memory: its masks are single bits, and not bytes"
    close = node.op in ELEMENTWISE
    if not all(tensor.whole or (tensor.dense and not close) for tensor in tensors):
        return f"{node.op} of tensors with gaps: it reads them as if they had none"
    if node.op == "binary_select" and any(
        graph.tensors[id_].kind != "scalar"
        and graph.tensors[id_].shape != graph.tensors[node.outputs[0][1]].shape
        for _, id_ in node.inputs
    ):
        return "a choice between values that are broadcast: it takes other rows' values"
    if node.op in _UNLIMITED and len(graph.nodes) == 1:
        # Together with others it saves a pass over memory, alone it is no faster than we are.
        return f"{node.op} of infinities and NaN"
    results = {graph.tensors[id_].dtype for _, id_ in node.outputs}
    if node.op in _ROUGH and "float32" in results and len(graph.nodes) == 1:
        return f"{node.op} of float32: it has five digits"
    outputs = {name for name, _ in node.outputs}
    if "dSink_token" in outputs and graph.tensors[dict(node.inputs)["q"]].ragged >= 0:
        return "it sums a sink's gradient beyond the ends of ragged sequences"
    inputs = {name for name, _ in node.inputs}
    if node.op == "instancenorm_backward" and any(
        graph.tensors[id_].strides[1] == 1 for name, id_ in node.inputs if name in _IMAGES
    ):
        return "the gradient by the scale of an instance norm whose channels are last"
    if node.op == "sdpa" and "seq_len_q" in inputs and not inputs.isdisjoint(SCORES):
        return "scores with a cap or with slopes where sequences have lengths or pages"
    if node.op == "sdpa" and "seed" in inputs and is_single(graph, node):
        return "dropout of a single query and key: it has no gradient that drops the same"
    if node.op == "sdpa_backward" and {"seq_len_q", "softcap"} <= inputs:
        # It ends the process that plans it; and forward there is nothing to have a gradient of.
        return "the gradient of a cap where sequences have lengths"
    return ""


def engines_at_fault(graph: DnnGraph) -> frozenset[str]:
    """Engines that compute a graph wrongly, though they offer to (seen with 9.19)."""
    found: frozenset[str] = frozenset()
    for node in graph.nodes:
        attributes = dict(node.attributes)
        if node.op in _PADDED and attributes["pre_padding"] != attributes["post_padding"]:
            found |= _PADDED[node.op]
        if node.op == "conv_wgrad":
            found |= _FILTERS
        if node.op == "conv_fprop" and len(graph.nodes) > 1:
            found |= _FUSED
    return found


def _input(
    made: Any, types: Any, graph: DnnGraph, id_: int, tensors: dict[int, Any], missing: int
) -> Any:
    tensor = graph.tensors[id_]
    dims, strides = _padded(tensor, missing)
    return made.tensor(
        dim=dims,
        stride=strides,
        data_type=_data_type(types, tensor.dtype),
        is_pass_by_value=tensor.kind == "scalar",
        ragged_offset=tensors.get(tensor.ragged),
        name=f"t{id_}",
        uid=id_ + 1,
    )


def _lowered(
    frontend: Any, made: Any, node: GraphNode, tensors: dict[int, Any], missing: int
) -> list[tuple[tuple[str, int], Any]]:
    """Add a node to a graph, and return its outputs, each with its name and id."""
    row = NODES[node.op]
    inputs = {name: tensors[id_] for name, id_ in node.inputs}
    special = SPECIAL.get(node.op)
    if special is not None:
        results = special(frontend, made, node, inputs)
    else:
        method = None if node.op in _OWN else getattr(made, node.op, None)
        if method is None:
            raise Unsupported(f"cuDNN's graphs have no {node.op}")
        arguments: dict[str, Any] = dict.fromkeys(row.optional) | inputs
        for name, value in node.attributes:
            if name in _ENUMS:
                arguments[name] = getattr(getattr(frontend, _ENUMS[name]), str(value))
            elif name not in _OURS and value is not None:
                arguments[name] = list(value) if isinstance(value, tuple) else value
        if node.op in LOGICAL:
            arguments["compute_data_type"] = frontend.data_type.BOOLEAN
        if node.op == "gen_index":
            arguments["compute_data_type"] = frontend.data_type.INT32
            arguments["axis"] += missing
        results = method(**arguments)
    if not isinstance(results, (list, tuple)):
        results = (results,)
    by_name = dict(zip(row.outputs, results, strict=False))
    return [(output, by_name[output[0]]) for output in node.outputs]


def _describe(
    types: Any, graph: DnnGraph, id_: int, output: Any, tensors: dict[int, Any], missing: int
) -> None:
    """Set the properties of a node's output."""
    tensor = graph.tensors[id_]
    dims, strides = _padded(tensor, missing)
    output.set_dim(dims).set_stride(strides).set_uid(id_ + 1)
    if tensor.kind == "buffer":
        output.set_output(True).set_data_type(_data_type(types, tensor.dtype))
        if tensor.ragged >= 0:
            output.set_ragged_offset(tensors[tensor.ragged])
    elif tensor.dtype not in FLOATS:
        output.set_data_type(_data_type(types, tensor.dtype))
    else:
        output.set_data_type(_data_type(types, graph.compute))


def _padded(tensor: DnnTensor, missing: int) -> tuple[list[int], list[int]]:
    """Dimensions and strides with ones in front."""
    steps = zip(tensor.shape, tensor.strides, strict=True)
    whole = max((size * stride for size, stride in steps), default=1)
    return [1] * missing + list(tensor.shape), [max(1, whole)] * missing + list(tensor.strides)


def _data_type(types: Any, dtype: str) -> Any:
    try:
        return getattr(types, DATA_TYPES[dtype])
    except (KeyError, AttributeError):
        raise Unsupported(f"cuDNN has no tensors of dtype {dtype}") from None


def _failure(call: str, error: Exception) -> Exception:
    """Return our error for an exception of the frontend."""
    text = " ".join(str(error).split())
    name = next((word for word in _words(text) if word.startswith("CUDNN_STATUS_")), "")
    if type(error).__name__ == _REFUSAL or "NOT_SUPPORTED" in name or not name:
        return Unsupported(f"cuDNN does not do this: {_reasons(text)}")
    said = f"{call} returned {name}: {text}"
    if lacks_memory(call, name):
        return OutOfMemory(said, requested=0)
    return LibraryError(
        said,
        library="cudnn",
        call=call,
        status=status_codes().get(name, -1),
        status_name=name,
    )


def _reasons(text: str) -> str:
    """The reasons of all engines, each once; what an engine only passes on is left out."""
    found = _REASON.findall(text)
    if not found:
        return text[:_MOST_CHARACTERS]
    reasons = dict.fromkeys(reason.strip() for reason in found)
    telling = [reason for reason in reasons if reason and not _ECHO.search(reason)]
    return "; ".join(telling or reasons)[:_MOST_CHARACTERS]


def _words(text: str) -> list[str]:
    return "".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split()
