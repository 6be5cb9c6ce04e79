"""The operations of graphs, one row each.

Inputs, outputs and attributes have the names of the vendor's Python frontend, so a row is enough to
add a node to its graph (``_lowering.py``). Every row has a function of the same name on the CPU
(``_cpu_*.py``). A row also infers the outputs, so graphs are checked when they are made, before
they run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from ._attention_nodes import ATTENTION
from ._block_nodes import BLOCKS
from ._element_types import result_of
from ._graph import DnnTensor, packed_strides, strides_of
from ._layout_nodes import LAYOUT
from ._node_type import REQUIRED, NodeType
from ._resample_nodes import RESAMPLING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._graph import Attribute
    from ._node_type import Attributes, Infer, Inputs


def like(
    tensor: DnnTensor, shape: tuple[int, ...] | None = None, dtype: str | None = None
) -> DnnTensor:
    """A virtual tensor of another's layout, without its gaps."""
    sizes = tensor.shape if shape is None else shape
    strides = strides_of(sizes, last=tensor.last)
    kind = tensor.dtype if dtype is None else dtype
    return DnnTensor(kind, sizes, strides, "virtual", last=tensor.last)


def wider(dtype: str) -> str:
    """The dtype of statistics and gradients of parameters."""
    return "float64" if dtype == "float64" else "float32"


# --- convolution --------------------------------------------------------------------------


class FilterWindow(NamedTuple):
    """Movement of a filter over an image, for each dimension of space."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def output(self, image: tuple[int, ...], filter_: tuple[int, ...]) -> tuple[int, ...]:
        """Positions of the filter along each dimension."""
        sizes = []
        for size, taps, before, after, stride, dilation in zip(image, filter_, *self, strict=True):
            span = dilation * (taps - 1) + 1
            room = size + before + after - span
            if room < 0:
                raise ValueError(
                    f"a filter must span at most {size} elements and {before} + "
                    f"{after} of padding, not {span}, with {taps} taps and dilation "
                    f"{dilation}"
                )
            sizes.append(room // stride + 1)
        return tuple(sizes)


def window_of(op: str, space: int, attributes: Attributes) -> FilterWindow:
    """The window of a convolution, checked."""
    window = FilterWindow(*(attributes[name] for name in _WINDOW))
    for name, values, least in zip(_WINDOW, window, (0, 0, 1, 1), strict=True):
        if len(values) != space or min(values) < least:
            raise ValueError(
                f"{op}: {name} must have {space} numbers of at least {least}, not {values}"
            )
    return window


_WINDOW: Final = ("pre_padding", "post_padding", "stride", "dilation")
_WINDOW_ATTRIBUTES: Final[Mapping[str, Attribute]] = dict.fromkeys(_WINDOW, REQUIRED)
_SHAPE: Final[Mapping[str, Attribute]] = {"shape": REQUIRED}


def groups_of(op: str, channels: int, filter_: tuple[int, ...]) -> int:
    """The number of groups of a convolution."""
    groups, rest = divmod(channels, filter_[1])
    if rest or filter_[0] % groups:
        raise ValueError(
            f"{op}: {channels} channels in and {filter_[0]} out do not split into groups of "
            f"{filter_[1]} channels in, which is what the filter {filter_} has"
        )
    return groups


def _ranks(op: str, *tensors: DnnTensor) -> int:
    first = tensors[0]
    space = len(first.shape) - 2
    if not 1 <= space <= 3 or any(len(each.shape) != len(first.shape) for each in tensors):
        shapes = ", ".join(str(each.shape) for each in tensors)
        raise ValueError(
            f"{op} takes tensors of 3 to 5 dimensions, all the same number, not {shapes}"
        )
    same_dtype(op, *tensors)
    return space


def same_dtype(op: str, *tensors: DnnTensor) -> None:
    """Check that tensors have one dtype. Virtual ones may have any."""
    dtypes = {each.dtype for each in tensors if each.kind == "buffer"}
    if len(dtypes) > 1:
        raise TypeError(f"{op} takes tensors of one dtype, not {' and '.join(sorted(dtypes))}")


def _conv_fprop(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    image, weight = inputs["image"], inputs["weight"]
    window = window_of("conv_fprop", _ranks("conv_fprop", image, weight), attributes)
    groups_of("conv_fprop", image.shape[1], weight.shape)
    space = window.output(image.shape[2:], weight.shape[2:])
    return {"y": like(image, (image.shape[0], weight.shape[0], *space))}


def _conv_dgrad(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    loss, weight, shape = inputs["loss"], inputs["filter"], attributes["shape"]
    window = window_of("conv_dgrad", _ranks("conv_dgrad", loss, weight), attributes)
    _same_window("conv_dgrad", window, shape, weight.shape, loss.shape)
    return {"dx": like(loss, shape)}


def _conv_wgrad(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    image, loss, shape = inputs["image"], inputs["loss"], attributes["shape"]
    window = window_of("conv_wgrad", _ranks("conv_wgrad", image, loss), attributes)
    _same_window("conv_wgrad", window, image.shape, shape, loss.shape)
    return {"dw": like(image, shape)}


def _same_window(
    op: str,
    window: FilterWindow,
    image: tuple[int, ...],
    filter_: tuple[int, ...],
    loss: tuple[int, ...],
) -> None:
    if not len(image) == len(filter_) == len(loss):
        raise ValueError(f"{op}: image {image}, filter {filter_} and loss {loss} differ in rank")
    groups_of(op, image[1], filter_)
    expected = (image[0], filter_[0], *window.output(image[2:], filter_[2:]))
    if loss != expected:
        raise ValueError(
            f"{op}: the gradient must have shape {expected}, as an image {image} and "
            f"a filter {filter_} give, not {loss}"
        )


# --- pointwise ----------------------------------------------------------------------------


def broadcast_shapes(op: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Broadcast shapes of one rank."""
    sizes = []
    if len({len(shape) for shape in shapes}) == 1:
        for column in zip(*shapes, strict=True):
            wide = {size for size in column if size != 1}
            if len(wide) > 1:
                break
            sizes.append(wide.pop() if wide else 1)
        else:
            return tuple(sizes)
    raise ValueError(
        f"{op}: shapes {' and '.join(map(str, shapes))} do not broadcast; they need the same "
        "number of dimensions, and in each the same size or 1"
    )


def _pointwise(op: str, dtype: str | None = None) -> Infer:
    def infer(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
        del attributes
        tensors = [each for each in inputs.values() if each.kind != "scalar"]
        if not tensors:
            raise ValueError(f"{op} needs a tensor, not only numbers")
        shapes = [
            (1,) * len(tensors[0].shape) if each.kind == "scalar" else each.shape
            for each in inputs.values()
        ]
        shape = broadcast_shapes(op, *shapes)
        found = result_of(op, inputs)
        leading = max(tensors, key=lambda each: math.prod(each.shape))  # of equals the first
        return {"y": like(leading, shape, dtype or found)}

    return infer


def _gen_index(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    tensor, axis = inputs["input"], attributes["axis"]
    if not 0 <= axis < len(tensor.shape):
        raise ValueError(f"gen_index: axis {axis} is not one of shape {tensor.shape}")
    return {"y": like(tensor, dtype="int32")}


_UNARY: Final = {
    "abs": "``|x|``",
    "ceil": "``ceil(x)``",
    "cos": "``cos(x)``",
    "elu": "``x`` where positive, else ``exp(x) - 1``",
    "erf": "``erf(x)``",
    "exp": "``exp(x)``",
    "floor": "``floor(x)``",
    "gelu": "``x * (1 + erf(x / sqrt(2))) / 2``",
    "gelu_approx_tanh": "GELU by its tanh approximation",
    "identity": "``x``, which may change its dtype or its layout",
    "log": "``log(x)``",
    "neg": "``-x``",
    "reciprocal": "``1 / x``",
    "rsqrt": "``1 / sqrt(x)``",
    "sigmoid": "``1 / (1 + exp(-x))``",
    "sin": "``sin(x)``",
    "softplus": "``log(1 + exp(x))``",
    "sqrt": "``sqrt(x)``",
    "tan": "``tan(x)``",
    "tanh": "``tanh(x)``",
}
_BINARY: Final = {
    "add": "``a + b``",
    "add_square": "``a + b * b``",
    "div": "``a / b``",
    "mul": "``a * b``",
    "sub": "``a - b``",
}
_BINARY_NUMBERED: Final = {
    "max": "the larger one",
    "min": "the smaller one",
    "mod": "the remainder of a division, with the sign of the first (``fmod``)",
    "pow": "``input0 ** input1``",
}
_COMPARED: Final = {
    "cmp_eq": "``input == comparison``",
    "cmp_ge": "``input >= comparison``",
    "cmp_gt": "``input > comparison``",
    "cmp_le": "``input <= comparison``",
    "cmp_lt": "``input < comparison``",
    "cmp_neq": "``input != comparison``",
}
_RELU: Final[Mapping[str, Attribute]] = {
    "negative_slope": None,
    "lower_clip": None,
    "upper_clip": None,
}
_BACKWARD: Final[Mapping[str, Mapping[str, Attribute]]] = {
    "elu": {},
    "gelu": {},
    "gelu_approx_tanh": {},
    "relu": _RELU,
    "sigmoid": {},
    "softplus": {},
    "swish": {"swish_beta": 1.0},
    "tanh": {},
}


def _pointwise_rows() -> dict[str, NodeType]:
    y = ("y",)
    rows = {op: NodeType(("input",), y, _pointwise(op), about=text) for op, text in _UNARY.items()}
    rows["relu"] = NodeType(
        ("input",),
        y,
        _pointwise("relu"),
        attributes=_RELU,
        about="``x`` where it is above ``lower_clip`` (0), else ``negative_slope`` (0) times it",
    )
    rows["swish"] = NodeType(
        ("input",),
        y,
        _pointwise("swish"),
        attributes=_BACKWARD["swish"],
        about="``x * sigmoid(swish_beta * x)``",
    )
    for names, table in ((("a", "b"), _BINARY), (("input0", "input1"), _BINARY_NUMBERED)):
        for op, text in table.items():
            rows[op] = NodeType(names, y, _pointwise(op), about=text)
    for op, text in _COMPARED.items():
        rows[op] = NodeType(("input", "comparison"), y, _pointwise(op, "bool"), about=text)
    for op in ("logical_and", "logical_or"):
        rows[op] = NodeType(("a", "b"), y, _pointwise(op, "bool"), about=op.replace("_", " "))
    rows["logical_not"] = NodeType(
        ("input",), y, _pointwise("logical_not", "bool"), about="logical not"
    )
    rows["binary_select"] = NodeType(
        ("input0", "input1", "mask"),
        y,
        _pointwise("binary_select"),
        about="``input0`` where ``mask``, else ``input1``",
    )
    rows["gen_index"] = NodeType(
        ("input",),
        y,
        _gen_index,
        attributes={"axis": REQUIRED},
        about="the index along ``axis``, int32, in the shape of ``input``",
    )
    for op, attributes in _BACKWARD.items():
        rows[f"{op}_backward"] = NodeType(
            ("loss", "input"),
            y,
            _pointwise(f"{op}_backward"),
            attributes=attributes,
            about=f"the gradient of ``{op}`` at ``input``, times ``loss``",
        )
    return rows


POINTWISE: Final = frozenset(_pointwise_rows())
"""Operations whose results depend on one element of each input, and on its position."""


# --- products and reductions --------------------------------------------------------------


def _matmul(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    del attributes
    a, b = inputs["A"], inputs["B"]
    if len(a.shape) != len(b.shape) or len(a.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"matmul: A {a.shape} and B {b.shape} need the same number of dimensions, and the "
            "last of A must be the last but one of B"
        )
    same_dtype("matmul", a, b)
    batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    return {"c": DnnTensor(a.dtype, shape, packed_strides(shape), "virtual")}


REDUCTIONS: Final = ("ADD", "AMAX", "AVG", "MAX", "MIN", "MUL", "NORM1", "NORM2")
"""The modes of ``reduction``."""


def _reduction(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    tensor, axes, mode = inputs["input"], attributes["axes"], attributes["mode"]
    if mode not in REDUCTIONS:
        raise ValueError(f"reduction: mode must be one of {', '.join(REDUCTIONS)}, not {mode!r}")
    if not axes or not set(axes) <= set(range(len(tensor.shape))):
        raise ValueError(f"reduction: axes {axes} are not some of those of shape {tensor.shape}")
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(tensor.shape))
    return {"y": like(tensor, shape, wider(tensor.dtype))}


def _genstats(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    del attributes
    tensor = inputs["input"]
    if len(tensor.shape) < 3:
        raise ValueError(f"genstats takes tensors of at least 3 dimensions, not {tensor.shape}")
    shape = (1, tensor.shape[1], *(1 for _ in tensor.shape[2:]))
    each = like(tensor, shape, wider(tensor.dtype))
    return {"sum": each, "sq_sum": each}


# --- normalisation ------------------------------------------------------------------------


def _statistics(tensor: DnnTensor, scale: DnnTensor) -> DnnTensor:
    """Return a tensor of statistics, with size 1 along dimensions that ``scale`` varies over."""
    shape = tuple(
        1 if factor != 1 else size for size, factor in zip(tensor.shape, scale.shape, strict=True)
    )
    return like(tensor, shape, wider(tensor.dtype))


def _norm_inputs(op: str, inputs: Inputs, *names: str) -> tuple[DnnTensor, DnnTensor]:
    tensor, scale = inputs["input"], inputs["scale"]
    if len(tensor.shape) < 3:
        raise ValueError(f"{op} takes tensors of at least 3 dimensions, not {tensor.shape}")
    for name in ("scale", *names):
        other = inputs.get(name)
        if other is not None:
            if other.shape != scale.shape:
                raise ValueError(
                    f"{op}: {name} must have the shape of scale, {scale.shape}, not {other.shape}"
                )
            if broadcast_shapes(op, tensor.shape, other.shape) != tensor.shape:
                raise ValueError(f"{op}: {name} {other.shape} does not fit input {tensor.shape}")
    return tensor, scale


def _phase(op: str, attributes: Attributes) -> bool:
    """Return whether statistics are kept."""
    phase = attributes["norm_forward_phase"]
    if phase not in ("TRAINING", "INFERENCE"):
        raise ValueError(
            f"{op}: norm_forward_phase must be 'TRAINING' or 'INFERENCE', not {phase!r}"
        )
    return bool(phase == "TRAINING")


def _norm(op: str, *, mean: bool = True, instance: bool = False) -> Infer:
    def infer(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
        tensor, scale = _norm_inputs(op, inputs, "bias")
        outputs = {"y": like(tensor)}
        if _phase(op, attributes):
            shape = (*tensor.shape[:2], *(1 for _ in tensor.shape[2:]))
            each = like(tensor, shape, wider(tensor.dtype))
            kept = each if instance else _statistics(tensor, scale)
            if mean:
                outputs["mean"] = kept
            outputs["inv_variance"] = kept
        return outputs

    return infer


def _groupnorm(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    tensor, _ = _norm_inputs("groupnorm", inputs, "bias")
    groups = _groups("groupnorm", tensor, attributes)
    outputs = {"y": like(tensor)}
    if _phase("groupnorm", attributes):
        shape = (tensor.shape[0], groups, *(1 for _ in tensor.shape[2:]))
        kept = like(tensor, shape, wider(tensor.dtype))
        outputs |= {"mean": kept, "inv_variance": kept}
    return outputs


def _groupnorm_backward(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    _groups("groupnorm_backward", inputs["input"], attributes)
    return _norm_backward("groupnorm_backward")(inputs, attributes)


def _groups(op: str, tensor: DnnTensor, attributes: Attributes) -> int:
    groups: int = attributes["groups"]
    if groups < 1 or tensor.shape[1] % groups:
        raise ValueError(f"{op}: {tensor.shape[1]} channels do not split into {groups} groups")
    return groups


def _norm_backward(op: str) -> Infer:
    def infer(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
        tensor, scale = _norm_inputs(op, inputs)
        if inputs["grad"].shape != tensor.shape:
            raise ValueError(
                f"{op}: grad must have the shape of input, {tensor.shape}, not "
                f"{inputs['grad'].shape}"
            )
        outputs = {"dx": like(tensor), "dscale": like(scale)}
        if attributes.get("has_dbias", True):
            outputs["dbias"] = like(scale)
        return outputs

    return infer


def _batchnorm(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    del attributes
    running = ("in_running_mean", "in_running_var", "momentum")
    given = [name for name in running if name in inputs]
    if given and len(given) != len(running):
        raise ValueError(f"batchnorm: {', '.join(running)} belong together; only {given} came")
    names = ("bias", *(running[:2] if given else ()))
    tensor, scale = _norm_inputs("batchnorm", inputs, *names)
    kept = like(scale, dtype=wider(tensor.dtype))
    outputs = {"y": like(tensor), "mean": kept, "inv_variance": kept}
    if given:
        outputs |= {"next_running_mean": kept, "next_running_var": kept}
    return outputs


def _batchnorm_inference(inputs: Inputs, attributes: Attributes) -> dict[str, DnnTensor]:
    del attributes
    names = ("mean", "inv_variance", "bias")
    return {"y": like(_norm_inputs("batchnorm_inference", inputs, *names)[0])}


_PHASE: Final[Mapping[str, Attribute]] = {"norm_forward_phase": "TRAINING"}
_STATISTICS: Final = ("mean", "inv_variance")
_GRADIENTS: Final = ("dx", "dscale", "dbias")
_SAVED: Final = ("grad", "input", "scale", *_STATISTICS)

NODES: Final[dict[str, NodeType]] = {
    "conv_fprop": NodeType(
        ("image", "weight"),
        ("y",),
        _conv_fprop,
        attributes=_WINDOW_ATTRIBUTES,
        about="cross-correlation of ``image`` (N, C, ...) with ``weight`` (K, C / groups, ...)",
    ),
    "conv_dgrad": NodeType(
        ("loss", "filter"),
        ("dx",),
        _conv_dgrad,
        attributes={**_WINDOW_ATTRIBUTES, **_SHAPE},
        about="the gradient of ``conv_fprop`` by its image, of ``shape``",
    ),
    "conv_wgrad": NodeType(
        ("image", "loss"),
        ("dw",),
        _conv_wgrad,
        attributes={**_WINDOW_ATTRIBUTES, **_SHAPE},
        about="the gradient of ``conv_fprop`` by its weight, of ``shape``",
    ),
    "matmul": NodeType(("A", "B"), ("c",), _matmul, about="``A @ B``"),
    "reduction": NodeType(
        ("input",),
        ("y",),
        _reduction,
        attributes={"mode": REQUIRED, "axes": REQUIRED},
        about=f"one of {', '.join(REDUCTIONS)} over ``axes``, which stay with size 1",
    ),
    "genstats": NodeType(
        ("input",),
        ("sum", "sq_sum"),
        _genstats,
        about="the sums of the elements of each channel, and of their squares",
    ),
    **_pointwise_rows(),
    **LAYOUT,
    **RESAMPLING,
    **BLOCKS,
    "layernorm": NodeType(
        ("input", "scale", "bias", "epsilon"),
        ("y", *_STATISTICS),
        _norm("layernorm"),
        attributes=_PHASE,
        about="normalised over the dimensions in which ``scale`` varies",
    ),
    "layernorm_backward": NodeType(
        _SAVED,
        _GRADIENTS,
        _norm_backward("layernorm_backward"),
        about="the gradients of ``layernorm`` by its input, scale and bias",
    ),
    "rmsnorm": NodeType(
        ("input", "scale", "epsilon"),
        ("y", "inv_variance"),
        _norm("rmsnorm", mean=False),
        optional=("bias",),
        attributes=_PHASE,
        about="``layernorm`` without its mean",
    ),
    "rmsnorm_backward": NodeType(
        ("grad", "input", "scale", "inv_variance"),
        _GRADIENTS,
        _norm_backward("rmsnorm_backward"),
        attributes={"has_dbias": False},
        about="the gradients of ``rmsnorm`` by its input, scale and, if wanted, bias",
    ),
    "instancenorm": NodeType(
        ("input", "scale", "bias", "epsilon"),
        ("y", *_STATISTICS),
        _norm("instancenorm", instance=True),
        attributes=_PHASE,
        about="normalised over space, for each channel of each image",
    ),
    "instancenorm_backward": NodeType(
        _SAVED,
        _GRADIENTS,
        _norm_backward("instancenorm_backward"),
        about="the gradients of ``instancenorm`` by its input, scale and bias",
    ),
    "groupnorm": NodeType(
        ("input", "scale", "bias", "epsilon"),
        ("y", *_STATISTICS),
        _groupnorm,
        attributes={**_PHASE, "groups": REQUIRED},
        about="normalised over space and the channels of each of ``groups``; cuDNN has none, "
        "so on CUDA it is a kernel of this package",
    ),
    "groupnorm_backward": NodeType(
        _SAVED,
        _GRADIENTS,
        _groupnorm_backward,
        attributes={"groups": REQUIRED},
        about="the gradients of ``groupnorm`` by its input, scale and bias",
    ),
    "batchnorm": NodeType(
        ("input", "scale", "bias", "epsilon"),
        ("y", *_STATISTICS, "next_running_mean", "next_running_var"),
        _batchnorm,
        optional=("in_running_mean", "in_running_var", "momentum"),
        about="normalised over batch and space, for each channel; running statistics move "
        "towards those of the batch by ``momentum``, the variance unbiased",
    ),
    "batchnorm_inference": NodeType(
        ("input", *_STATISTICS, "scale", "bias"),
        ("y",),
        _batchnorm_inference,
        about="``(input - mean) * inv_variance * scale + bias``",
    ),
    "batchnorm_backward": NodeType(
        _SAVED,
        _GRADIENTS,
        _norm_backward("batchnorm_backward"),
        about="the gradients of ``batchnorm`` by its input, scale and bias",
    ),
    **ATTENTION,
}
"""The operations by name."""
