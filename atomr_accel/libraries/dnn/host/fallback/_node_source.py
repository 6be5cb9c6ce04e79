"""Kernels for single nodes that cuDNN refuses: other layouts, float64, odd broadcasts.

The source of a kernel is made for its operation; element types are template parameters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from ....host._device_code import C_TYPES
from ._common_source import ACCESS

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_DIMS: Final = 8
MOST_INPUTS: Final = 5

_POINTWISE: Final = r"""
// An input without a pointer is the number itself.
struct Input { const void* data; double number; i64 strides[DIMS]; };
struct Node { void* out; i64 count, ndim; i64 shape[DIMS]; i64 strides[DIMS]; Input in[INPUTS]; };

// Not further from zero than that, where a function has come to its limit long ago; NaN stays.
template <class A> __device__ A within(A a, A most) {
  return a > most ? most : a < -most ? -most : a;
}
// The product, but 0 where s is: a may be infinite there.
template <class A> __device__ A vanishing(A a, A s) { return s == (A)0 ? s : a * s; }
template <class A> __device__ A at_most(A a, A most) { return a > most ? most : a; }
template <class A> __device__ A at_least(A a, A least) { return a < least ? least : a; }

template <class A> __device__ A converted(double number) { return (A)number; }
// Of a negative number a conversion to unsigned integers makes 0, so it goes by signed ones.
template <> __device__ unsigned long long converted(double number) { return (i64)number; }

template <class A, class T> __device__ A load(const Input& input, i64 at) {
  return input.data ? get<A>(((const T*)input.data)[at]) : converted<A>(input.number);
}

template <class A, class Y, TYPES>
__global__ void node(Node node) {
  const i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < node.count; i += step) {
    i64 rest = i, out = 0, at[INPUTS] = {};
    for (i64 d = node.ndim - 1; d >= 0; --d) {
      const i64 before = d ? rest / node.shape[d] : 0;
      const i64 index = rest - before * node.shape[d];
      rest = before;
      out += index * node.strides[d];
      for (int n = 0; n < COUNT; ++n) at[n] += index * node.in[n].strides[d];
    }
LOADS
    put(((Y*)node.out)[out], RESULT);
  }
}
"""

_REDUCTION: Final = r"""
struct Dims { i64 count, ndim; i64 shape[DIMS]; i64 from[DIMS]; i64 to[DIMS]; };

__device__ void move(const Dims& dims, i64 i, i64& from, i64& to) {
  for (i64 d = dims.ndim - 1; d >= 0; --d) {
    const i64 before = i / dims.shape[d];
    const i64 index = i - before * dims.shape[d];
    i = before;
    from += index * dims.from[d];
    to += index * dims.to[d];
  }
}

// A block for each result.
template <class A, class Y, class T>
__global__ void reduce(Y* y, const T* x, Dims kept, Dims summed) {
  __shared__ A parts[256];
  for (i64 block = blockIdx.x; block < kept.count; block += gridDim.x) {
    i64 from = 0, to = 0, nowhere = 0;
    move(kept, block, from, to);
    A sum = (A)(START);
    for (i64 i = threadIdx.x; i < summed.count; i += blockDim.x) {
      i64 at = from;
      move(summed, i, at, nowhere);
      const A value = get<A>(x[at]);
      const A next = VALUE;
      sum = JOIN;
    }
    __syncthreads();
    parts[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half; half /= 2) {
      __syncthreads();
      if (threadIdx.x < half) {
        const A next = parts[threadIdx.x + half];
        sum = parts[threadIdx.x];
        parts[threadIdx.x] = JOIN;
      }
    }
    if (threadIdx.x == 0) put(y[to], FINISH);
  }
}
"""

_SLOPE: Final = "(A)0.79788456080286535588"
_CUBIC: Final = "(A)0.044715"
_ROOT: Final = "(A)0.70710678118654752440"
_DENSITY: Final = "(A)0.39894228040143267794"
_SIGMOID: Final = "((A)1 / ((A)1 + exp(-(%s))))"
_NEAR: Final = "within<A>(a, (A)64)"  # beyond, GELU is 0 or a in every type
# The normal distribution function; 1 + erf would lose its digits below zero.
_NORMAL: Final = f"(A)0.5 * erfc(-{_NEAR} * {_ROOT})"
_TANH: Final = f"tanh({_SLOPE} * ({_NEAR} + {_CUBIC} * {_NEAR} * {_NEAR} * {_NEAR}))"
_STEEP: Final = f"{_SLOPE} * ((A)1 + (A)3 * {_CUBIC} * {_NEAR} * {_NEAR})"
_GATE: Final = "within<A>({beta} * a, (A)2048)"  # beyond, the sigmoid is 0 or 1 in every type
_FLAT: Final = "(loss != loss ? loss : (A)0)"

EXPRESSIONS: Final[dict[str, str]] = {
    "abs": "fabs(a)",
    "add": "a + b",
    "add_square": "a + b * b",
    "binary_select": "c != (A)0 ? a : b",
    "ceil": "ceil(a)",
    "cmp_eq": "a == b",
    "cmp_ge": "a >= b",
    "cmp_gt": "a > b",
    "cmp_le": "a <= b",
    "cmp_lt": "a < b",
    "cmp_neq": "a != b",
    "cos": "cos(a)",
    "div": "a / b",
    "elu": "a > (A)0 ? a : expm1(a)",
    "elu_backward": "loss * (a > (A)0 ? (A)1 : exp(a))",
    "erf": "erf(a)",
    "exp": "exp(a)",
    "floor": "floor(a)",
    "gelu": f"at_least<A>(a, (A)-64) * {_NORMAL}",
    "gelu_approx_tanh": f"(A)0.5 * at_least<A>(a, (A)-64) * ((A)1 + {_TANH})",
    "gelu_approx_tanh_backward": (
        f"loss * ((A)0.5 * ((A)1 + {_TANH}) + "
        f"(A)0.5 * {_NEAR} * ((A)1 - {_TANH} * {_TANH}) * {_STEEP})"
    ),
    "gelu_backward": (
        f"loss * ({_NORMAL} + {_NEAR} * {_DENSITY} * exp((A)-0.5 * {_NEAR} * {_NEAR}))"
    ),
    "identity": "a",
    "log": "log(a)",
    "logical_and": "a != (A)0 && b != (A)0",
    "logical_not": "a == (A)0",
    "logical_or": "a != (A)0 || b != (A)0",
    "max": "a != a ? a : b != b ? b : a > b ? a : b",
    "min": "a != a ? a : b != b ? b : a < b ? a : b",
    "mod": "fmod(a, b)",
    "mul": "a * b",
    "neg": "-a",
    "pow": "pow(a, b)",
    "reciprocal": "(A)1 / a",
    "relu": "{clip_high}(a > {low} ? a : {below}{close}",
    "relu_backward": "a != a ? a : {outside}a > {low} ? loss : {below}",
    "rsqrt": "(A)1 / sqrt(a)",
    "sigmoid": _SIGMOID % "a",
    "sigmoid_backward": f"loss * {_SIGMOID % 'a'} * ((A)1 - {_SIGMOID % 'a'})",
    "sin": "sin(a)",
    "softplus": "log1p(exp(-fabs(a))) + (a > (A)0 ? a : (A)0)",
    "softplus_backward": f"loss * {_SIGMOID % 'a'}",
    "sqrt": "sqrt(a)",
    "sub": "a - b",
    "swish": f"vanishing<A>(a, {_SIGMOID % _GATE})",
    "swish_backward": (
        f"loss * ({_SIGMOID % _GATE} * ((A)1 + {_GATE} * ((A)1 - {_SIGMOID % _GATE})))"
    ),
    "tan": "tan(a)",
    "tanh": "tanh(a)",
    "tanh_backward": "loss * ((A)1 - tanh(a) * tanh(a))",
    "batchnorm_inference": "(a - b) * c * d + e",
    "gen_index": "(A)at[0]",
}
"""What a node computes from its inputs a, b, ... in the order of its row; the backward ones
of ``loss`` and a."""

_OF_INTEGERS: Final = {"abs": "a < (A)0 ? -a : a"}
"""Expressions that are others for integers."""

_REDUCTIONS: Final[dict[str, tuple[str, str, str, str]]] = {
    "ADD": ("0", "value", "sum + next", "parts[0]"),
    "AVG": ("0", "value", "sum + next", "parts[0] / (A)summed.count"),
    "AMAX": ("0", "fabs(value)", "next > sum || next != next ? next : sum", "parts[0]"),
    "MAX": ("-INFINITY", "value", "next > sum || next != next ? next : sum", "parts[0]"),
    "MIN": ("INFINITY", "value", "next < sum || next != next ? next : sum", "parts[0]"),
    "MUL": ("1", "value", "sum * next", "parts[0]"),
    "NORM1": ("0", "fabs(value)", "sum + next", "parts[0]"),
    "NORM2": ("0", "value * value", "sum + next", "sqrt(parts[0])"),
}


def pointwise_kernel(
    op: str, inputs: int, attributes: Mapping[str, Any], integers: str = ""
) -> str:
    """The kernel of a pointwise node, with the dtype of its result if it is one of integers."""
    result = _expression(op, attributes)
    if integers:
        result = f"({C_TYPES[integers]})({_OF_INTEGERS.get(op, result)})"
    names = ["loss", "a"] if op.endswith("_backward") else ["a", "b", "c", "d", "e"][:inputs]
    if op == "gen_index":
        names = []  # it knows by where it is
    loads = "\n".join(
        f"    const A {name} = load<A, T{number}>(node.in[{number}], at[{number}]);"
        for number, name in enumerate(names)
    )
    types = ", ".join(f"class T{number}" for number in range(inputs))
    return _with_sizes(
        (ACCESS + _POINTWISE)
        .replace("TYPES", types)
        .replace("COUNT", str(inputs))
        .replace("LOADS", loads)
        .replace("RESULT", result)
    )


def _expression(op: str, attributes: Mapping[str, Any]) -> str:
    text = EXPRESSIONS[op]
    if op.startswith("swish"):
        beta = attributes["swish_beta"]
        # Nothing is multiplied by 0, because infinity times 0 is NaN.
        return text.replace(
            "{beta} * a", f"{_literal(beta)} * a" if beta else "(a != a ? a : (A)0)"
        )
    if not op.startswith("relu"):
        return text
    low, high = _literal(attributes["lower_clip"] or 0.0), attributes["upper_clip"]
    clip = "" if high is None else _literal(high)
    slope = attributes["negative_slope"]
    if op == "relu":
        # As above.
        below = f"{low} + {_literal(slope)} * (a - {low})" if slope else f"a != a ? a : {low}"
    else:
        below = f"{_literal(slope)} * loss" if slope else _FLAT
    return (
        text.replace("{low}", low)
        .replace("{below}", below)
        .replace("{clip_high}", "at_most<A>(" if clip else "")
        .replace("{close}", f"), {clip})" if clip else ")")
        .replace("{outside}", f"a >= {clip} ? {_FLAT} : " if clip else "")
    )


def _literal(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"an attribute of an operation must be a finite number, not {value}")
    return f"(A)({float(value)!r})"


def reduction_kernel(mode: str) -> str:
    """The kernel of a reduction."""
    start, value, join, finish = _REDUCTIONS[mode]
    infinite = "#undef INFINITY\n#define INFINITY __longlong_as_double(0x7ff0000000000000LL)\n"
    text = ACCESS + _REDUCTION
    for name, what in (("START", start), ("VALUE", value), ("JOIN", join), ("FINISH", finish)):
        text = text.replace(name, what)
    return infinite + _with_sizes(text)


def _with_sizes(text: str) -> str:
    return text.replace("DIMS", str(MOST_DIMS)).replace("INPUTS", str(MOST_INPUTS))
