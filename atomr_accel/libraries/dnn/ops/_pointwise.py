"""Activations and reductions of ``device.dnn``."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from ...._dtypes import DTYPES
from ....arrays import GpuRef
from ....ops import D, op, op_family, require_dtype, require_readable, require_shape
from ....wire.options import flag, real, whole
from ..graph._builder import Builder
from ..graph._run import NAN, ZERO, DnnPart, EncodedGraph, FillCall, GraphCall, RunOutput
from ..graph.layout import exact, require_float

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....memory import MemoryMap
    from ....ops import Request
    from ..graph._run import CachedCall


Attributes = dict[str, float]

_NO_ATTRIBUTES: Final[Attributes] = {}
_ARGUMENTS: Final = {"loss": "grad", "input": "x"}
"""Argument names of the inputs of an operation."""
_NODES: Final = ("relu", "sigmoid", "tanh", "gelu", "gelu_approx_tanh", "swish", "elu", "softplus")
_NAMES: Final = {node: f"dnn.{node}" for each in _NODES for node in (each, f"{each}_backward")}
"""Names of requests, by operation."""


class Activations(DnnPart[D]):
    """Activations with their gradients, and reductions, of arrays of any shape.

    All activations take ``x``, float16, bfloat16, float32 or float64 of any shape, and ``out``, a
    buffer for the result of x's shape and dtype, made if absent. They return x's shape and dtype,
    computed in float32, or in float64 for float64. The gradients take ``grad``, the gradient with
    respect to the result, of the same shape and dtype, before ``x``.

    At infinities results are limits, and NaN stays NaN. On CUDA kernels of this package compute
    the activations for which cuDNN differs, and ``tanh`` in float32, for which cuDNN is exact to
    only five digits. cuDNN always computes activations that are part of another operation or of a
    larger graph, and then it decides the results for infinities and NaN.

    All methods raise ``ValueError`` for a view that does not begin at a multiple of 16 bytes, too.

    Vendor operation: the pointwise mode that each names, ``CUDNN_POINTWISE_..._FWD``, and
    ``..._BWD`` for its gradient.
    """

    @op_family
    def relu(self, _name: str, x: GpuRef, *, out: GpuRef | None = None) -> Request[GpuRef]:
        """``max(x, 0)``. Mode ``RELU``; see the class."""
        return self._each(_name, (x,), out)

    sigmoid: Final = relu.like("``1 / (1 + exp(-x))``. Mode ``SIGMOID``; see the class.")
    tanh: Final = relu.like("``tanh(x)``. Mode ``TANH``; see the class.")
    elu: Final = relu.like(
        "``x`` where positive, else ``exp(x) - 1``. Mode ``ELU``; see the class."
    )
    softplus: Final = relu.like("``log(1 + exp(x))``. Mode ``SOFTPLUS``; see the class.")

    @op_family
    def relu_grad(
        self, _name: str, grad: GpuRef, x: GpuRef, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """The gradient of ``relu``; see the class."""
        return self._each(_name.replace("grad", "backward"), (grad, x), out)

    sigmoid_grad: Final = relu_grad.like("The gradient of ``sigmoid``; see the class.")
    tanh_grad: Final = relu_grad.like("The gradient of ``tanh``; see the class.")
    elu_grad: Final = relu_grad.like("The gradient of ``elu``; see the class.")
    softplus_grad: Final = relu_grad.like("The gradient of ``softplus``; see the class.")

    @op
    def leaky_relu(
        self, x: GpuRef, negative_slope: float = 0.01, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """``x`` where positive, else ``negative_slope * x``.

        Mode ``RELU`` with a lower slope; see the class.
        """
        slope = real(negative_slope, "negative_slope")
        return self._each("relu", (x,), out, {"negative_slope": slope})

    @op
    def leaky_relu_grad(
        self, grad: GpuRef, x: GpuRef, negative_slope: float = 0.01, *, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """The gradient of ``leaky_relu``; see the class."""
        slope = real(negative_slope, "negative_slope")
        return self._each("relu_backward", (grad, x), out, {"negative_slope": slope})

    @op
    def gelu(
        self,
        x: GpuRef,
        *,
        approximate: Literal["none", "tanh"] = "none",
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """``x * (1 + erf(x / sqrt(2))) / 2``, or its approximation by ``tanh``.

        Mode ``GELU``, or ``GELU_APPROX_TANH``; see the class.
        """
        return self._each(_gelu(approximate), (x,), out)

    @op
    def gelu_grad(
        self,
        grad: GpuRef,
        x: GpuRef,
        *,
        approximate: Literal["none", "tanh"] = "none",
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """The gradient of ``gelu``; see the class."""
        return self._each(f"{_gelu(approximate)}_backward", (grad, x), out)

    @op
    def silu(self, x: GpuRef, *, beta: float = 1.0, out: GpuRef | None = None) -> Request[GpuRef]:
        """``x * sigmoid(beta * x)``, which with a ``beta`` is also called swish.

        Mode ``SWISH`` with a beta; see the class.
        """
        return self._each("swish", (x,), out, {"swish_beta": real(beta, "beta")})

    @op
    def silu_grad(
        self, grad: GpuRef, x: GpuRef, *, beta: float = 1.0, out: GpuRef | None = None
    ) -> Request[GpuRef]:
        """The gradient of ``silu``; see the class."""
        return self._each("swish_backward", (grad, x), out, {"swish_beta": real(beta, "beta")})

    @op
    def reduce(
        self,
        x: GpuRef,
        mode: Literal["sum", "mean", "max", "min", "absmax", "norm1", "norm2"],
        axis: int | Sequence[int] | None = None,
        *,
        keepdims: bool = False,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Reduce over dimensions.

        Vendor operation: ``reduction``, with pointwise ones around it.

        Args:
            x: float16, bfloat16, float32 or float64, of any shape. Over no elements sums and
                norms are 0, means NaN.
            mode: ``"absmax"`` is the largest magnitude; ``"norm1"`` the sum of magnitudes;
                ``"norm2"`` the root of the sum of squares.
            axis: dimensions to reduce; None for all, ``()`` for none: every element by itself. On
                CUDA they must be neighbours, or all but one run of neighbours.
            keepdims: leave them in the result, with size 1.
            out: where the result goes.

        Returns:
            float32, or float64 for float64.

        Raises:
            ValueError: an axis does not exist or repeats; a largest or smallest of no elements.
        """
        if mode not in _REDUCTIONS:
            raise ValueError(f"mode must be one of {', '.join(_REDUCTIONS)}, not {mode!r}")
        flag(keepdims, "keepdims")
        memory = self.home.memory

        def make() -> CachedCall:
            require_readable(x, memory, "x")
            require_float(x, "x")
            axes = _axes(axis, x.ndim)
            shape = _reduced(x.shape, axes, keepdims=keepdims)
            wide = "float64" if x.dtype.name == "float64" else "float32"
            if 0 in x.shape:
                if mode in ("max", "min", "absmax") and any(x.shape[each] == 0 for each in axes):
                    raise ValueError(f"x must have elements for {mode}, not shape {x.shape}")
                return FillCall.of_one(["x"], shape, DTYPES[wide], NAN if mode == "mean" else ZERO)
            before, op, after = _REDUCTIONS[mode]
            builder = Builder()
            if not axes:
                # Every element by itself, of any shape: only how many there are counts.
                source = builder.tensor((x.size,), x.dtype)
                symbol = builder.node(_OF_ONE.get(mode, "identity"), input=source)["y"]
                builder.output(symbol, wide)
                outputs = (RunOutput(symbol.id, x.shape),)
                return GraphCall(EncodedGraph(builder.finish()), ((source.id, "x"),), outputs)
            source = symbol = builder.tensor(x.shape, x.dtype)
            if before == "square":
                symbol = builder.node("mul", a=symbol, b=symbol)["y"]
            elif before:
                symbol = builder.node(before, input=symbol)["y"]
            symbol = builder.node("reduction", input=symbol, mode=op, axes=axes)["y"]
            if after == "divide":
                number = builder.scalar(wide, x.ndim)
                symbol = builder.node("mul", a=symbol, b=number)["y"]
            elif after:
                symbol = builder.node(after, input=symbol)["y"]
            builder.output(symbol, wide)
            count = math.prod(x.shape[each] for each in axes)
            numbers = (1 / count,) if mode == "mean" else ()
            outputs = (RunOutput(symbol.id, shape),)
            graph = EncodedGraph(builder.finish())
            return GraphCall(graph, ((source.id, "x"),), outputs, numbers)

        key = ("reduce", mode, exact((axis, keepdims)))
        return self._request("dnn.reduce", key, (x,), (out,), make)

    def _each(
        self,
        op: str,
        refs: tuple[GpuRef, ...],
        out: GpuRef | None,
        attributes: Attributes = _NO_ATTRIBUTES,
    ) -> Request[GpuRef]:
        """Ask for an activation of ``(x,)``, or for the gradient of one, given ``(grad, x)``."""
        make = partial(_pointwise, self.home.memory, op, refs, attributes)
        key = (op, *attributes.items()) if attributes else op
        return self._request(_NAMES[op], key, refs, (out,), make)


def _pointwise(
    memory: MemoryMap,
    op: str,
    refs: tuple[GpuRef, ...],
    attributes: Attributes,
) -> CachedCall:
    """Check the arguments of an operation on each element, and make its graph."""
    x = refs[-1]
    names = ("loss", "input")[-len(refs) :]
    arguments = [_ARGUMENTS[name] for name in names]
    for ref, name in zip(refs, arguments, strict=True):
        require_readable(ref, memory, name)
    for ref, name in zip(refs, arguments, strict=True):
        require_dtype(ref, x.dtype, name, "x")
        if ref.shape != x.shape:
            require_shape(ref, x.shape, name)
    require_float(x, "x")
    if 0 in x.shape:
        return FillCall.of_one(arguments, x.shape, x.dtype)
    builder = Builder()
    # Of any shape: only how many there are counts.
    symbols = {name: builder.tensor((x.size,), x.dtype) for name in names}
    y = builder.output(builder.node(op, **symbols, **attributes)["y"])
    reads = zip([symbol.id for symbol in symbols.values()], arguments, strict=True)
    return GraphCall(EncodedGraph(builder.finish()), reads, (RunOutput(y.id, x.shape),))


_REDUCTIONS: dict[str, tuple[str, str, str]] = {
    "sum": ("", "ADD", ""),
    "mean": ("", "ADD", "divide"),
    "max": ("", "MAX", ""),
    "min": ("", "MIN", ""),
    "absmax": ("", "AMAX", ""),
    "norm1": ("abs", "ADD", ""),
    "norm2": ("square", "ADD", "sqrt"),
}
"""Operation before a reduction, mode of the reduction, and operation on its result."""

_OF_ONE: Final = {"absmax": "abs", "norm1": "abs", "norm2": "abs"}
"""Operations that replace reductions of single elements. Others return the element."""


def _reduced(shape: tuple[int, ...], axes: tuple[int, ...], *, keepdims: bool) -> tuple[int, ...]:
    """Return the shape after a reduction."""
    return tuple(
        1 if axis in axes else size
        for axis, size in enumerate(shape)
        if keepdims or axis not in axes
    )


def _gelu(approximate: str) -> str:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', not {approximate!r}")
    return "gelu" if approximate == "none" else "gelu_approx_tanh"


def _axes(axis: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    given = tuple(
        whole(each, "axis") for each in (axis if isinstance(axis, (tuple, list)) else (axis,))
    )
    axes = tuple(sorted(each + ndim if each < 0 else each for each in given))
    if len(set(axes)) < len(axes) or any(not 0 <= each < ndim for each in axes):
        raise ValueError(f"axis {axis} does not fit {ndim} dimensions")
    return axes
