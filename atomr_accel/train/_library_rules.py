"""Gradient rules of the libraries' ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from .._errors import Unsupported
from ..arrays import GpuRef
from ..arrays.expressions import cast, index
from ._expressions import unbroadcast
from ._rules import Applied, rule

if TYPE_CHECKING:
    from collections.abc import Callable

# --- products ---------------------------------------------------------------------------------


def _contiguous(batch: Any, x: GpuRef) -> GpuRef:
    return x if x.contiguous else batch.copy(x)


def _product(call: Applied, grad: GpuRef, multiply: Any) -> dict[str, Any]:
    """Gradients of ``alpha * op(a) @ op(b)`` with respect to ``a`` and ``b``."""
    a, b, alpha = call["a"], call["b"], call["alpha"]
    for name in ("a", "b"):
        if call[name].dtype != grad.dtype:
            raise Unsupported(
                f"gradients of products need one dtype, not {call[name].dtype.name} for {name} and "
                f"{grad.dtype.name} for the result; cast the result afterwards"
            )
    options = call.options("alpha", "compute_type", "allow_tf32")
    if not isinstance(alpha, (int, float)):
        raise Unsupported(
            "gradients of products need a number as alpha, not a ref; multiply afterwards"
        )
    trans_a, trans_b = bool(call["trans_a"]), bool(call["trans_b"])
    made: dict[str, Any] = {}
    if "a" in call.wanted:
        found = (
            multiply(b, grad, trans_a=trans_b, trans_b=True, **options)
            if trans_a
            else multiply(grad, b, trans_b=not trans_b, **options)
        )
        made["a"] = unbroadcast(found, a.shape)
    if "b" in call.wanted:
        found = (
            multiply(grad, a, trans_a=True, trans_b=trans_a, **options)
            if trans_b
            else multiply(a, grad, trans_a=not trans_a, **options)
        )
        made["b"] = unbroadcast(found, b.shape)
    return made


def _plain(call: Applied, *names: str) -> None:
    for name in names:
        if call[name] is not None:
            raise Unsupported(f"a product with {name} has no gradient; leave it away")


@rule("blas.gemm")
def _gemm(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    return _product(call, grad, batch.blas.gemm)


def _matmul_forward(batch: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
    """Compute the product, and with an activation what its gradient takes."""
    epilogue = arguments["epilogue"]
    given = {
        name: argument
        for name, argument in arguments.items()
        if name != "out" and (name in ("a", "b") or argument is not None)
    }
    if epilogue in (None, "bias"):
        return batch.blaslt.matmul(**given), None
    if epilogue not in ("relu", "relu_bias", "gelu", "gelu_bias"):
        raise Unsupported(f"the epilogue {epilogue!r} has no gradient; compute it afterwards")
    # The product before the activation is kept; its own gradient is that of device.dnn.
    inner = {**given, "epilogue": "bias" if epilogue.endswith("_bias") else None}
    before = batch.blaslt.matmul(**inner)
    if epilogue.startswith("relu"):
        return batch.dnn.relu(before), before
    return batch.dnn.gelu(before, approximate="tanh"), before


@rule("blaslt.matmul", forward=_matmul_forward)
def _matmul(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    _plain(call, "scale_a", "scale_b", "scale_out", "layout_a", "layout_b", "layout_out", "aux")
    epilogue = call["epilogue"]
    if epilogue is not None and epilogue.startswith("relu"):
        grad = batch.dnn.relu_grad(grad, call.saved)
    elif epilogue is not None and epilogue.startswith("gelu"):
        grad = batch.dnn.gelu_grad(grad, call.saved, approximate="tanh")
    made = _product(call, grad, batch.blaslt.matmul)
    if "c" in call.wanted:
        made["c"] = call["beta"] * grad
    if "bias" in call.wanted:
        shape = call["bias"].shape
        made["bias"] = (
            unbroadcast(grad, shape)
            if len(shape) < 2
            else np.sum(grad, axis=-2)  # one for each product of a batch
        )
    return made


# --- activations ------------------------------------------------------------------------------


def _pointwise(name: str, *options: str) -> None:
    @rule(f"dnn.{name}")
    def backward(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
        x = _contiguous(batch, call["x"])
        return {"x": getattr(batch.dnn, f"{name}_grad")(grad, x, **call.options(*options))}


for _name in ("relu", "sigmoid", "tanh", "elu", "softplus"):
    _pointwise(_name)
_pointwise("gelu", "approximate")
_pointwise("silu", "beta")
_pointwise("leaky_relu", "negative_slope")


def _of_values(
    name: str, values: Callable[[Applied], tuple[Any, ...]], *options: str, argument: str = "x"
) -> None:
    """Rule of an op by its function ``..._grad``, which takes values of the call, and options."""

    @rule(f"dnn.{name}")
    def backward(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
        gradient = getattr(batch.dnn, f"{name}_grad")
        return {argument: gradient(grad, *values(call), **call.options(*options))}


_of_values("softmax", lambda call: (call.result,), "axis")
_of_values("log_softmax", lambda call: (call.result,), "axis")


@rule("dnn.dropout")
def _dropout(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    return {"x": batch.dnn.dropout(grad, **call.options("p", "seed", "offset"))}


def _require_constant(call: Applied, op: str, *names: str) -> None:
    """Refuse gradients by arguments for which the rule has none: zeros would be wrong."""
    for name in names:
        if name in call.wanted:
            raise Unsupported(f"{name} of {op} has no gradient; pass train.stop_gradient({name})")


@rule("dnn.cross_entropy")
def _cross_entropy(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    _require_constant(call, "cross_entropy", "target", "weight")
    options = call.options("ignore_index", "reduction", "label_smoothing")
    arguments = call["x"], call["target"], call["weight"]
    return {"x": batch.dnn.cross_entropy_grad(grad, *arguments, **options)}


# --- norms ------------------------------------------------------------------------------------


def _norm(name: str, *options: str) -> None:
    """Rule of a norm by the function that returns its statistics."""

    def forward(batch: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
        made = getattr(batch.dnn, f"{name}_train")(**arguments)
        return made[0], made[1:]

    groups = ("num_groups",) if name == "group_norm" else ()

    @rule(f"dnn.{name}", forward=forward)
    def backward(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
        more = [call[each] for each in groups]
        found = getattr(batch.dnn, f"{name}_grad")(
            grad, call["x"], *more, call["weight"], *call.saved, **call.options(*options)
        )
        return dict(zip(("x", "weight", "bias"), found, strict=True))


_norm("layer_norm")
_norm("group_norm", "layout")
_norm("instance_norm", "layout")


def _rms_forward(batch: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
    return batch.dnn.rms_norm_train(**arguments)  # type: ignore[no-any-return]


@rule("dnn.rms_norm", forward=_rms_forward)
def _rms_norm(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    found = batch.dnn.rms_norm_grad(grad, call["x"], call["weight"], call.saved)
    return dict(zip(("x", "weight", "bias"), found, strict=True))


@rule("dnn.batch_norm_train")
def _batch_norm(batch: Any, call: Applied, grads: tuple[GpuRef | None, ...]) -> dict[str, Any]:
    grad, *others = grads
    if any(each is not None for each in others):
        raise Unsupported(
            "the statistics of batch_norm_train have no gradient; use only its first result"
        )
    _, mean, inv_variance = call.result
    found = batch.dnn.batch_norm_grad(
        grad, call["x"], call["weight"], mean, inv_variance, layout=call["layout"]
    )
    return dict(zip(("x", "weight", "bias"), found, strict=True))


_of_values(
    *("local_response_norm", lambda call: (call.result, call["x"])),
    *("size", "alpha", "beta", "k", "layout"),
)


# --- convolutions and pools ---------------------------------------------------------------------


def _conv_forward(batch: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
    if arguments["activation"] is not None:
        raise Unsupported(
            "conv with activation has no gradient; call the activation afterwards, as in "
            "tape.dnn.relu(tape.dnn.conv(x, w))"
        )
    return batch.dnn.conv(**arguments), None


@rule("dnn.conv", forward=_conv_forward)
def _conv(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    layout, x, w = call["layout"], call["x"], call["w"]
    options = call.options(
        "stride", "padding", "dilation", "groups", "layout", "allow_tf32", "autotune"
    )
    made: dict[str, Any] = {}
    if "x" in call.wanted:
        made["x"] = batch.dnn.conv_input_grad(grad, w, x.shape, **options)
    if "w" in call.wanted:
        made["w"] = batch.dnn.conv_weight_grad(grad, x, w.shape, **options)
    if "bias" in call.wanted:
        made["bias"] = batch.dnn.conv_bias_grad(grad, layout=layout)
    return made


_WINDOW: Final = ("window", "stride", "padding", "ceil_mode", "layout")

_of_values("max_pool", lambda call: (call.result, call["x"]), *_WINDOW)
_of_values("avg_pool", lambda call: (call["x"].shape,), *_WINDOW, "count_include_pad")
_of_values("adaptive_avg_pool", lambda call: (call["x"].shape,), "layout")
_of_values("adaptive_max_pool", lambda call: (call["x"],), "layout")
_of_values("interpolate", lambda call: (call["x"].shape,), "mode", "align_corners", "layout")
_of_values("max_unpool", lambda call: (call["indices"],), "layout")
_of_values("affine_grid", lambda _call: (), "align_corners", argument="theta")


@rule("dnn.grid_sample")
def _grid_sample(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    options = call.options("mode", "padding_mode", "align_corners", "layout")
    x, grid = call["x"], call["grid"]
    made: dict[str, Any] = {}
    if "x" in call.wanted:
        made["x"] = batch.dnn.grid_sample_input_grad(grad, grid, x.shape, **options)
    if "grid" in call.wanted:
        made["grid"] = batch.dnn.grid_sample_grid_grad(grad, x, grid, **options)
    return made


@rule("dnn.unfold")
def _unfold(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    options = call.options("window", "stride", "padding", "dilation", "layout")
    shape = call["x"].shape
    space = shape[1:-1] if str(call["layout"]).endswith("C") else shape[2:]
    return {"x": batch.dnn.fold(grad, space, **options)}


@rule("dnn.fold")
def _fold(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    options = call.options("window", "stride", "padding", "dilation", "layout")
    return {"x": batch.dnn.unfold(grad, **options)}


@rule("dnn.max_pool_with_indices")
def _indexed_pool(batch: Any, call: Applied, grads: tuple[GpuRef | None, ...]) -> dict[str, Any]:
    options = call.options(*_WINDOW)
    return {"x": batch.dnn.max_pool_grad(grads[0], call.result[0], call["x"], **options)}


# --- attention --------------------------------------------------------------------------------


def _attention_forward(batch: Any, arguments: dict[str, Any]) -> tuple[Any, Any]:
    return batch.dnn.flash_attention_with_lse(**arguments)  # type: ignore[no-any-return]


@rule("dnn.flash_attention", forward=_attention_forward)
def _attention(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    _require_constant(call, "flash_attention", "alibi_slopes")
    given = {
        name: value for name, value in call.arguments.items() if name not in ("q", "k", "v", "out")
    }
    found = batch.dnn.flash_attention_grad(
        grad, call["q"], call["k"], call["v"], call.result, call.saved, **given
    )
    names = ["q", "k", "v", *(name for name in ("bias", "sink") if given.get(name) is not None)]
    return dict(zip(names, found, strict=True))


# --- indexing and joining -----------------------------------------------------------------------


def _added(batch: Any, call: Applied, name: str, key: Any, grad: Any) -> dict[str, Any]:
    """Add a gradient to the places that an index has read, always in the same order."""
    x = call[name]
    if call["mode"] == "clip":
        raise Unsupported('an index with mode="clip" has no gradient; clip the index before')
    total = batch.zeros(x.shape, x.dtype)
    batch.array.add_at(total, key, grad, deterministic=True)
    return {name: total}


@rule("array.take")
def _take(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    x, axis, indices = call["a"], call["axis"], call["indices"]
    if axis is None:
        if not x.contiguous:
            raise Unsupported("take of a flattened view has no gradient; copy it first")
        total = batch.zeros(x.size, x.dtype)
        batch.array.add_at(total, indices, grad, deterministic=True)
        return {"a": total.reshape(x.shape)}
    before = (slice(None),) * normalize_axis_index(axis, x.ndim)
    return _added(batch, call, "a", (*before, indices), grad)


@rule("array.getitem")
def _getitem(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    return _added(batch, call, "x", call["key"], grad)


@rule("array.take_along_axis")
def _take_along_axis(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    x, axis, indices = call["arr"], call["axis"], call["indices"]
    if axis is None:
        raise Unsupported("take_along_axis of a flattened array has no gradient; name the axis")
    axis = normalize_axis_index(axis, x.ndim)
    key = tuple(indices if at == axis else index(grad.shape, at) for at in range(x.ndim))
    return _added(batch, call, "arr", key, grad)


@rule("array.concatenate")
def _concatenate(_batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    axis = call["axis"]
    if axis is None:
        raise Unsupported("concatenate of flattened arrays has no gradient; name the axis")
    axis = normalize_axis_index(axis, grad.ndim)
    made, at = [], 0
    for each in call["arrays"]:
        key = (slice(None),) * axis + (slice(at, at + each.shape[axis]),)
        made.append(grad[key])
        at += each.shape[axis]
    return {"arrays": made}


@rule("array.stack")
def _stack(_batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    before = (slice(None),) * normalize_axis_index(call["axis"], grad.ndim)
    return {"arrays": [grad[(*before, at)] for at in range(len(call["arrays"]))]}


@rule("array.astype")
def _astype(_batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    return {"x": cast(grad, call["x"].dtype)}


@rule("array.ascontiguousarray")
def _ascontiguousarray(_batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    return {"a": cast(grad, call["a"].dtype)}


@rule("array.flip")
def _flip(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
    return {"m": batch.array.flip(grad, axis=call["axis"])}


# --- Hankel transforms ----------------------------------------------------------------------------


def _symmetric(name: str, argument: str) -> None:
    """Rule of a linear op of real rows whose matrix is symmetric: the op itself."""

    @rule(f"fft.{name}")
    def backward(batch: Any, call: Applied, grad: GpuRef) -> dict[str, Any]:
        options = call.options("dln", "mu", "offset", "bias")
        return {argument: getattr(batch.fft, name)(grad, **options)}


_symmetric("fht", "a")
_symmetric("ifht", "A")
