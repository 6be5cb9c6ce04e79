"""Models as ONNX has them: checked, described, and converted, before an engine is made of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ..wire.messages import TensorOf
from ._library import DecodeError, checker, helper, onnx, shape_inference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..wire.messages import EngineOptions, Extent

_DEFAULT_DOMAINS: Final = ("", "ai.onnx")


def read_model(data: bytes, options: EngineOptions) -> Any:
    """Return a model, after checks that do not need the engine's library.

    Args:
        data: the file's bytes.
        options: those of the build. Axes that its profiles fix get these extents.

    Raises:
        ValueError: these bytes are no model, or an invalid one; its external data is missing or
            outside its folder; profiles name an axis that there is not.
        Unsupported: it has an opset, an op or a type that this release does not have.
    """
    try:
        model = onnx.load_from_string(data)
    except DecodeError as error:
        raise ValueError(
            f"model must be a whole ONNX file, not {len(data)} bytes that cannot be decoded; "
            "export or fetch it again"
        ) from error
    if not model.HasField("graph"):
        raise ValueError(
            f"model must be a whole ONNX file, not {len(data)} bytes without a graph; export or "
            "fetch it again"
        )
    _require_known_opsets(model)
    _require_files(model.graph, options.folder)
    _require_known_ops(model)
    try:
        _check(model)
    except checker.ValidationError as error:
        raise ValueError(
            f"model must be a valid ONNX model, not one with this fault: {error}; export it again"
        ) from error
    _name_axes(model, options)
    return model


def described(model: Any) -> tuple[tuple[TensorOf, ...], tuple[TensorOf, ...]]:
    """Return the inputs and the outputs of a model of ``read_model``.

    Raises:
        Unsupported: one is not a tensor, or of a type that buffers do not have.
    """
    inputs = tuple(_tensor(each, "input") for each in _inputs(model.graph))
    axes = {extent for each in inputs for extent in each.shape or () if isinstance(extent, str)}
    declared = {each.name: _tensor(each, "output") for each in model.graph.output}
    found = _inferred(model, declared)
    outputs = []
    for name, tensor in declared.items():
        outputs.append(TensorOf(name, tensor.dtype, _merged(found.get(name), tensor.shape, axes)))
    return inputs, tuple(outputs)


def declare(model: Any, outputs: tuple[TensorOf, ...]) -> None:
    """Write into a model which shapes its outputs have. A run is refused if they are others."""
    for value, tensor in zip(model.graph.output, outputs, strict=True):
        told = value.type.tensor_type
        told.ClearField("shape")
        for extent in tensor.shape or ():
            dim = told.shape.dim.add()
            if isinstance(extent, int):
                dim.dim_value = extent
        if tensor.shape == ():
            told.shape.SetInParent()


def in_half(model: Any) -> Any:
    """Return a model that computes in float16; inputs and outputs keep their types."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def _require_known_opsets(model: Any) -> None:
    newest = onnx.defs.onnx_opset_version()
    for opset in model.opset_import:
        if opset.domain in _DEFAULT_DOMAINS and not 1 <= opset.version <= newest:
            raise Unsupported(
                f"opset {opset.version} of ONNX is not known to onnx {onnx.__version__}, which "
                f"knows those from 1 to {newest}; export the model for one of these, or update onnx"
            )


def _require_known_ops(model: Any) -> None:
    """Name ops of ONNX's own domain that its opset does not have."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 1))
    own = {(each.domain, each.name) for each in model.functions}
    unknown = sorted(
        {
            node.op_type
            for node in _nodes(model.graph)
            if node.domain in _DEFAULT_DOMAINS
            and (node.domain, node.op_type) not in own
            and not onnx.defs.has(node.op_type, version, "")
        }
    )
    if unknown:
        raise Unsupported(f"opset {version} of ONNX has no op {', '.join(unknown)}")


def _require_files(graph: Any, folder: str) -> None:
    base = Path(folder).resolve() if folder else None
    for tensor in _tensors(graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        if base is None:
            raise ValueError(
                f"model must be a path, not bytes, because {tensor.name!r} is in the file "
                f"{location!r}; pass the path"
            )
        path = Path(os.path.realpath(base / location))
        if not location or Path(location).is_absolute() or not path.is_relative_to(base):
            raise ValueError(
                f"external data of {tensor.name!r} must be in the model's folder, not at "
                f"{location!r}; move it there"
            )
        if not path.is_file():
            raise ValueError(
                f"external data of {tensor.name!r} must be in the file {location!r}, not missing; "
                "copy it with the model"
            )
        offset, length = (_number(entries.get(key, "0")) for key in ("offset", "length"))
        if min(offset, length) < 0 or offset + length > path.stat().st_size:
            raise ValueError(
                f"external data of {tensor.name!r} must be whole, not end with the file "
                f"{location!r} of {path.stat().st_size} bytes; copy it again"
            )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _check(model: Any) -> None:
    """Check a model; also one with external values, and with inputs or outputs of any shape."""
    copy = type(model)()
    copy.CopyFrom(model)
    for tensor in _tensors(copy.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
            tensor.dims[:] = [0]
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    checker.check_model(copy)


def _subgraphs(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for inner in _subgraphs(node):
            yield from _nodes(inner)


def _tensors(graph: Any) -> Iterator[Any]:
    """All tensors with values, also those in subgraphs and attributes."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for inner in _subgraphs(node):
            yield from _tensors(inner)


def _inputs(graph: Any) -> Iterable[Any]:
    """The inputs that a call gives: older models list their weights there, too."""
    weights = {each.name for each in graph.initializer}
    weights |= {each.values.name for each in graph.sparse_initializer}
    return [each for each in graph.input if each.name not in weights]


def _name_axes(model: Any, options: EngineOptions) -> None:
    """Fix the axes that profiles fix, and name those without a name."""
    known = {each.name: each for each in _inputs(model.graph)}
    for name, axis, extent in options.fixed:
        if name not in known:
            raise ValueError(
                f"profiles must be of inputs of the model, {', '.join(map(repr, known))}, not of "
                f"{name!r}; rename it"
            )
        shape = known[name].type.tensor_type.shape
        if axis >= len(shape.dim):
            continue  # the program compares the numbers of axes
        dim = shape.dim[axis]
        if dim.dim_param:  # wherever it is
            _set_everywhere(known.values(), dim.dim_param, extent)
        elif not dim.HasField("dim_value"):
            dim.dim_value = extent
    for name, each in known.items():
        for axis, dim in enumerate(each.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value") and not dim.dim_param:
                dim.dim_param = f"{name}.{axis}"


def _set_everywhere(inputs: Iterable[Any], symbol: str, extent: int) -> None:
    for each in inputs:
        for dim in each.type.tensor_type.shape.dim:
            if dim.dim_param == symbol:
                dim.dim_value = extent


def _tensor(value: Any, what: str) -> TensorOf:
    if not value.type.HasField("tensor_type"):
        kind = value.type.WhichOneof("value") or "nothing known"
        raise Unsupported(
            f"{what} {value.name!r} is a {kind.removesuffix('_type')}, and engines take and give "
            "tensors only"
        )
    tensor = value.type.tensor_type
    dtype = ""
    if tensor.elem_type != onnx.TensorProto.STRING:
        try:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        except KeyError:
            dtype = ""
    if dtype not in DTYPES:
        name = helper.tensor_dtype_to_string(tensor.elem_type).removeprefix("TensorProto.")
        raise Unsupported(f"{what} {value.name!r} has elements of type {name}, not of a buffer's")
    if not tensor.HasField("shape"):
        return TensorOf(value.name, dtype, None)
    return TensorOf(value.name, dtype, _extents(tensor.shape))


def _extents(shape: Any) -> tuple[Extent, ...]:
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in shape.dim
    )


def _inferred(model: Any, declared: dict[str, TensorOf]) -> dict[str, tuple[Extent, ...]]:
    """The shapes of outputs that ONNX infers from those of inputs.

    Exporters declare shapes of outputs that are those of an example, so they are left out here.
    """
    copy = type(model)()
    copy.CopyFrom(model)
    for output in copy.graph.output:
        output.type.tensor_type.ClearField("shape")
    del copy.graph.value_info[:]
    try:
        made = shape_inference.infer_shapes(copy, data_prop=True)
    except (shape_inference.InferenceError, RuntimeError, ValueError):
        return {}  # the run tells
    return {
        each.name: _extents(each.type.tensor_type.shape)
        for each in made.graph.output
        if each.name in declared and each.type.tensor_type.HasField("shape")
    }


def _merged(
    inferred: tuple[Extent, ...] | None, declared: tuple[Extent, ...] | None, axes: set[str]
) -> tuple[Extent, ...] | None:
    """The shape of an output in numbers and names of axes of inputs, as far as these are known."""
    if inferred is None:
        return None
    if declared is None or len(declared) != len(inferred):
        declared = (None,) * len(inferred)
    merged: list[Extent] = []
    for made, told in zip(inferred, declared, strict=True):
        if isinstance(made, int) or made in axes:
            merged.append(made)
        else:  # a number that is declared may be an example's
            merged.append(told if told in axes else None)
    return tuple(merged)
