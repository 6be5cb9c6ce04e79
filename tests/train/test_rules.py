"""Each gradient rule next to finite differences, with random shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from atomr_accel import Blocking, Device
from atomr_accel.train._expressions import differentiable_ufuncs
from atomr_accel.train._rules import ruled

from ..harness import sized
from .checks import Case, check_gradient

Rng = np.random.Generator

seeds = st.integers(0, 2**32 - 1)


def shape_of(rng: Rng, least: int, most: int) -> tuple[int, ...]:
    """A small shape."""
    return tuple(int(n) for n in rng.integers(1, 5, rng.integers(least, most + 1)))


def away(rng: Rng, shape: Any) -> Any:
    """Numbers that are not near a kink at 0, and not near each other's negatives."""
    return rng.uniform(0.2, 2.0, shape) * rng.choice([-1.0, 1.0], shape)


def distinct(rng: Rng, shape: Any) -> Any:
    """Numbers with gaps between them, for functions that choose the largest."""
    size = int(np.prod(shape))
    return (rng.permutation(size) - size / 2 + 0.25).reshape(shape) / 3


# --- ufuncs -----------------------------------------------------------------------------------

UNIT = {"arcsin", "arccos", "arctanh", "logit"}
POSITIVE = {"log", "log2", "log10", "log1p", "sqrt", "entr", "cbrt", "power", "float_power"}
SPLIT = {"maximum", "minimum", "fmax", "fmin", "remainder", "fmod"}


def operand(rng: Rng, name: str, shape: Any) -> Any:
    """Values inside a ufunc's domain."""
    if name in UNIT:
        return rng.uniform(0.2, 0.8, shape)
    if name == "arccosh":
        return rng.uniform(1.5, 3, shape)
    if name in POSITIVE or name in ("xlogy", "xlog1py", "rel_entr"):
        return rng.uniform(0.3, 2.0, shape)
    return away(rng, shape)


@pytest.mark.parametrize("name", differentiable_ufuncs())
@settings(max_examples=2)
@given(seed=seeds)
def test_ufunc(module_device: Blocking[Device], name: str, seed: int) -> None:
    """Gradients of every ufunc, with operands that broadcast."""
    rng = np.random.default_rng(seed)
    function: Any = getattr(np, name, None) or getattr(special, name)
    shape = shape_of(rng, 1, 3)
    params = {"a": operand(rng, name, shape)}
    if function.nin == 2:
        other = tuple(n if rng.random() < 0.6 else 1 for n in shape)[rng.integers(0, 2) :]
        params["b"] = operand(rng, name, other)
        if name in SPLIT:  # not where the two are equal, or one divides the other
            params["b"] = rng.uniform(2.1, 2.2, other)

    def compute(_tape: Any, p: Any) -> Any:
        return function(*p.values())

    module_device.run(check_gradient, compute, params, rng)


# --- other expressions ------------------------------------------------------------------------


def _where(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 3)
    params = {"x": away(rng, shape), "y": away(rng, shape[-1:])}
    return lambda _t, p: np.where(p["x"] > 0, p["x"] * p["y"], p["y"] ** 3), params


def _axis(rng: Rng, shape: tuple[int, ...]) -> Any:
    kinds: list[Any] = [None, int(rng.integers(-len(shape), len(shape)))]
    kinds.append(tuple(int(n) for n in rng.permutation(len(shape))[:2]))
    return kinds[rng.integers(3)]


def _sum(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    axis, keep = _axis(rng, shape), bool(rng.integers(2))
    params = {"x": away(rng, shape)}
    return lambda _t, p: np.sum(p["x"] ** 2, axis=axis, keepdims=keep), params


def _mean(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 4)
    axis = _axis(rng, shape)
    return lambda t, p: t.array.mean(p["x"] * p["x"], axis), {"x": away(rng, shape)}


def _var(rng: Rng) -> Case:
    shape = (*shape_of(rng, 0, 2), 4)
    return lambda _t, p: np.sqrt(np.var(p["x"], axis=-1) + 1), {"x": away(rng, shape)}


def _largest(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 3)
    axis, keep = _axis(rng, shape), bool(rng.integers(2))
    choose = [np.max, np.min][rng.integers(2)]
    params = {"x": distinct(rng, shape)}
    return lambda _t, p: choose(p["x"], axis=axis, keepdims=keep) ** 2, params


def _softmax(rng: Rng) -> Case:
    def compute(_tape: Any, p: Any) -> Any:
        e = np.exp(p["x"] - np.max(p["x"], axis=-1, keepdims=True))
        return e / np.sum(e, axis=-1, keepdims=True)

    return compute, {"x": distinct(rng, shape_of(rng, 1, 3))}


def _transposed(rng: Rng) -> Case:
    shape = shape_of(rng, 2, 4)
    order = tuple(int(n) for n in rng.permutation(len(shape)))
    params = {"x": away(rng, shape), "y": away(rng, tuple(shape[n] for n in order))}
    return lambda _t, p: np.transpose(p["x"] * 2, order) * p["y"], params


def _spread(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 3)
    wide = (2, *(5 if n == 1 else n for n in shape))
    params = {"x": away(rng, shape)}
    return lambda _t, p: np.broadcast_to(p["x"] ** 2, wide) * p["x"], params


def _matmul(rng: Rng) -> Case:
    m, k, n = (int(each) for each in rng.integers(1, 5, 3))
    lead = shape_of(rng, 0, 2)
    forms = [
        ((*lead, m, k), (*lead, k, n)),
        ((*lead, m, k), (k, n)),
        ((m, k), (*lead, k, n)),
        ((k,), (*lead, k, n)),
        ((*lead, m, k), (k,)),
        ((k,), (k,)),
    ]
    one, other = forms[rng.integers(len(forms))]
    params = {"a": away(rng, one), "b": away(rng, other)}
    return lambda _t, p: np.tanh(np.matmul(p["a"] * 0.5, p["b"])), params


def _views(rng: Rng) -> Case:
    params = {"x": away(rng, (3, 4, 2))}

    def compute(tape: Any, p: Any) -> Any:
        x = p["x"]
        first = x[1:, ::-2] * x[:2, 1:3]
        second = x.transpose(2, 0, 1).reshape(6, 4)  # needs a copy
        third = x.mT.swapaxes(0, 1).moveaxis(0, -1)[0, None].squeeze(0)
        wide = x[0].broadcast_to((3, 4, 2))
        whole = np.sum(first) * np.sum(second**2) + np.sum(third**3) + np.sum(wide * x)
        return whole + np.sum(x.reshape(12, 2).T.diagonal() ** 2) + x.ravel()[3]

    return compute, params


def _computed_once(rng: Rng) -> Case:
    def compute(tape: Any, p: Any) -> Any:
        y = tape.evaluate(np.sin(p["x"]) * p["y"])
        z, same = tape.evaluate(y * p["x"], y * y)
        return z * same + y

    return compute, {"x": away(rng, (3, 2)), "y": away(rng, (2,))}


EXPRESSIONS = [
    *(_where, _sum, _mean, _var, _largest, _softmax, _transposed, _spread, _matmul),
    *(_views, _computed_once),
]


@pytest.mark.parametrize("make", EXPRESSIONS, ids=lambda make: make.__name__[1:])
@settings(max_examples=2)
@given(seed=seeds)
def test_expression(
    module_device: Blocking[Device], make: Callable[[Rng], Case], seed: int
) -> None:
    """Gradients of what expressions are made of beside ufuncs."""
    rng = np.random.default_rng(seed)
    module_device.run(check_gradient, *make(rng), rng)


# --- ops of libraries ---------------------------------------------------------------------------

OPS: dict[str, Callable[[Rng], Case]] = {}


def covers(*names: str) -> Callable[[Any], Any]:
    """Note a case of rules."""

    def note(make: Any) -> Any:
        OPS.update(dict.fromkeys(names, make))
        return make

    return note


def _factors(rng: Rng) -> tuple[dict[str, np.ndarray], dict[str, Any], tuple[int, ...]]:
    m, k, n = (int(each) for each in rng.integers(1, 5, 3))
    trans_a, trans_b = (bool(each) for each in rng.integers(0, 2, 2))
    a = away(rng, (k, m) if trans_a else (m, k))
    b = away(rng, (n, k) if trans_b else (k, n))
    options = {"trans_a": trans_a, "trans_b": trans_b, "alpha": 0.5}
    return {"a": a, "b": b}, options, (m, n)


@covers("blas.gemm")
def _gemm(rng: Rng) -> Case:
    params, options, _ = _factors(rng)
    return lambda t, p: t.blas.gemm(p["a"], p["b"], **options), params


@covers("blaslt.matmul")
def _blaslt(rng: Rng) -> Case:
    params, options, shape = _factors(rng)
    epilogue = [None, "bias", "relu", "relu_bias", "gelu", "gelu_bias"][rng.integers(6)]
    options["epilogue"] = epilogue
    if epilogue is not None and epilogue.endswith("bias"):
        params["bias"] = away(rng, shape[-1:])
    if rng.integers(2):
        params["c"] = away(rng, shape)
        options["beta"] = 0.25
    return lambda t, p: t.blaslt.matmul(**p, **options), params


@covers("blaslt.matmul batched")
def _blaslt_batched(rng: Rng) -> Case:
    lead = shape_of(rng, 1, 1)
    m, k, n = (int(each) for each in rng.integers(1, 5, 3))
    shared = bool(rng.integers(2))
    params = {"a": away(rng, (*lead, m, k)), "b": away(rng, (k, n) if shared else (*lead, k, n))}
    return lambda t, p: t.blaslt.matmul(p["a"], p["b"]), params


def _pointwise(name: str, **options: Any) -> None:
    @covers(f"dnn.{name}")
    def make(rng: Rng) -> Case:
        params = {"x": away(rng, shape_of(rng, 1, 4))}
        return lambda t, p: getattr(t.dnn, name)(p["x"], **options), params


for _name in ("relu", "sigmoid", "tanh", "elu", "softplus", "gelu"):
    _pointwise(_name)
_pointwise("silu", beta=1.5)
_pointwise("leaky_relu", negative_slope=0.2)
_pointwise("dropout", p=0.4, seed=3)


@covers("dnn.softmax", "dnn.log_softmax")
def _softmaxes(rng: Rng) -> Case:
    shape = shape_of(rng, 1, 3)
    name = ["softmax", "log_softmax"][rng.integers(2)]
    axis = int(rng.integers(-len(shape), len(shape)))
    return lambda t, p: getattr(t.dnn, name)(p["x"], axis=axis), {"x": away(rng, shape)}


@covers("dnn.cross_entropy")
def _cross_entropy(rng: Rng) -> Case:
    rows, classes = 5, int(rng.integers(2, 6))
    target = rng.integers(0, classes, rows)
    target[0] = -100
    weight = rng.uniform(0.5, 2, classes)
    reduction = ["mean", "sum", "none"][rng.integers(3)]

    def compute(tape: Any, p: Any) -> Any:
        return tape.dnn.cross_entropy(
            p["x"], tape.put(target), tape.put(weight), reduction=reduction, label_smoothing=0.1
        )

    return compute, {"x": away(rng, (rows, classes))}


@covers("dnn.layer_norm", "dnn.rms_norm")
def _row_norms(rng: Rng) -> Case:
    shape = (*shape_of(rng, 1, 2), int(rng.integers(3, 6)))
    name = ["layer_norm", "rms_norm"][rng.integers(2)]
    params = {name: away(rng, shape[-1:]) for name in ("weight", "bias")} | {"x": away(rng, shape)}
    return lambda t, p: getattr(t.dnn, name)(p["x"], p["weight"], p["bias"]), params


@covers("dnn.instance_norm", "dnn.group_norm", "dnn.batch_norm_train")
def _channel_norms(rng: Rng) -> Case:
    shape = (2, 4, 3, 2)
    params = {name: away(rng, (4,)) for name in ("weight", "bias")} | {"x": away(rng, shape)}

    def compute(tape: Any, p: Any) -> Any:
        x, weight, bias = p["x"], p["weight"], p["bias"]
        one = tape.dnn.instance_norm(x, weight, bias)
        two = tape.dnn.group_norm(x, 2, weight, bias)
        three, _, _ = tape.dnn.batch_norm_train(x, None, None, weight, bias)
        return one + 2 * two + 3 * three

    return compute, params


@covers("dnn.local_response_norm")
def _response(rng: Rng) -> Case:
    return lambda t, p: t.dnn.local_response_norm(p["x"], 3, alpha=0.5), {
        "x": away(rng, (2, 4, 3, 2))
    }


@covers("dnn.conv")
def _conv(rng: Rng) -> Case:
    groups = int(rng.integers(1, 3))
    options = {
        "stride": int(rng.integers(1, 3)),
        "padding": int(rng.integers(0, 2)),
        "dilation": int(rng.integers(1, 3)),
        "groups": groups,
    }
    params = {
        "x": away(rng, (2, 2 * groups, 6, 5)),
        "w": away(rng, (2 * groups, 2, 2, 2)),
        "bias": away(rng, (2 * groups,)),
    }
    return lambda t, p: t.dnn.conv(p["x"], p["w"], bias=p["bias"], **options), params


@covers("dnn.max_pool", "dnn.avg_pool", "dnn.adaptive_avg_pool", "dnn.adaptive_max_pool")
def _pools(rng: Rng) -> Case:
    params = {"x": distinct(rng, (2, 2, 4, 6))}

    def compute(tape: Any, p: Any) -> Any:
        dnn = tape.dnn
        small = dnn.max_pool(p["x"], 2, padding=1) + dnn.avg_pool(p["x"], 2, padding=1)
        even = dnn.adaptive_max_pool(p["x"], 2) * dnn.adaptive_avg_pool(p["x"], 2)
        return np.sum(small**2) + np.sum(even)

    return compute, params


@covers("dnn.interpolate")
def _interpolate(rng: Rng) -> Case:
    mode = ["nearest", "bilinear"][rng.integers(2)]
    return lambda t, p: t.dnn.interpolate(p["x"], (5, 4), mode=mode), {"x": away(rng, (1, 2, 3, 2))}


@covers("dnn.affine_grid", "dnn.grid_sample")
def _sampled(rng: Rng) -> Case:
    mode = ["border", "zeros", "reflection"][rng.integers(3)]
    # Places move by less than half of an element, from where there is no kink.
    matrix = np.array([[0.55, 0.0, 0.0], [0.0, 0.45, 0.0]]) + rng.uniform(-0.01, 0.01, (2, 2, 3))

    def compute(tape: Any, p: Any) -> Any:
        grid = tape.dnn.affine_grid(p["theta"], (2, 1, 2, 2))
        return np.sum(tape.dnn.grid_sample(p["x"], grid, padding_mode=mode) ** 2)

    return compute, {"x": away(rng, (2, 2, 5, 4)), "theta": matrix}


@covers("dnn.unfold", "dnn.fold")
def _columns(rng: Rng) -> Case:
    options = {"stride": int(rng.integers(1, 3)), "padding": 1, "dilation": int(rng.integers(1, 3))}
    layout = ["NCHW", "NHWC"][rng.integers(2)]

    def compute(tape: Any, p: Any) -> Any:
        columns = tape.dnn.unfold(p["x"], (2, 1), layout=layout, **options)
        folded = tape.dnn.fold(columns**2, (4, 3), (2, 1), **options)
        return np.sum(folded**2) + np.sum(columns**3)

    return compute, {"x": away(rng, (2, 4, 3, 2) if layout == "NHWC" else (2, 2, 4, 3))}


@covers("dnn.max_pool_with_indices", "dnn.max_unpool")
def _unpooled(rng: Rng) -> Case:
    def compute(tape: Any, p: Any) -> Any:
        y, indices = tape.dnn.max_pool_with_indices(p["x"], 2)
        return np.sum(tape.dnn.max_unpool(y**2, indices, 2) ** 2) + np.sum(y)

    return compute, {"x": distinct(rng, (2, 2, 4, 6))}


@covers("fft.fht", "fft.ifht")
def _hankel(rng: Rng) -> Case:
    how = {"mu": 0.5, "offset": rng.uniform(-1, 1), "bias": rng.uniform(-0.4, 0.4)}

    def compute(tape: Any, p: Any) -> Any:
        made = tape.fft.fht(p["x"], 0.3, **how)
        return np.sum(made**3) + np.sum(tape.fft.ifht(p["x"] ** 2, 0.3, **how) ** 2)

    return compute, {"x": away(rng, (2, int(rng.integers(1, 8))))}


@covers("array.take", "array.getitem", "array.take_along_axis")
def _picked(rng: Rng) -> Case:
    rows, width = int(rng.integers(2, 6)), int(rng.integers(1, 4))
    ids = rng.integers(-rows, rows, (3, 4))  # some of them twice
    along = rng.integers(0, rows, (2, width))

    def compute(tape: Any, p: Any) -> Any:
        found = tape.array.take(p["x"], tape.put(ids), axis=0)
        also = tape.array.getitem(p["x"], (tape.put(ids[0]), 0))
        rest = tape.array.take_along_axis(p["x"], tape.put(along), axis=0)
        flat = tape.array.take(p["x"], tape.put(ids[1]))
        return np.sum(found**2) + np.sum(also * flat) + np.sum(rest**3)

    return compute, {"x": away(rng, (rows, width))}


@covers(
    *("array.concatenate", "array.stack", "array.astype", "array.ascontiguousarray"),
    "array.flip",
)
def _joined(rng: Rng) -> Case:
    shape = (2, int(rng.integers(1, 4)))

    def compute(tape: Any, p: Any) -> Any:
        array = tape.array
        longer = array.concatenate([p["x"], p["y"], p["x"]], axis=1)
        deeper = array.stack([array.flip(p["x"], axis=0), tape.put(np.ones(shape))], axis=-1)
        same = array.ascontiguousarray(array.astype(p["x"], np.float64).T)
        return np.sum(longer**2 * 0.5) + np.sum(deeper**3) + np.sum(same * same)

    return compute, {"x": away(rng, shape), "y": away(rng, (2, 3))}


@pytest.mark.parametrize("name", OPS)
@settings(max_examples=2)
@given(seed=seeds)
def test_op(module_device: Blocking[Device], name: str, seed: int) -> None:
    """Gradients of the ops of libraries."""
    rng = np.random.default_rng(seed)
    module_device.run(check_gradient, *OPS[name](rng), rng)


@pytest.mark.slow
@settings(max_examples=sized(100, 5000))
@given(make=st.sampled_from([*EXPRESSIONS, *OPS.values()]), seed=seeds)
def test_many(module_device: Blocking[Device], make: Callable[[Rng], Case], seed: int) -> None:
    """Gradients of both, with more shapes."""
    rng = np.random.default_rng(seed)
    module_device.run(check_gradient, *make(rng), rng)


async def _attention(device: Device, seed: int) -> None:
    """The gradient of attention, next to that of the same formula in expressions."""
    from atomr_accel import train

    rng = np.random.default_rng(seed)
    shape = (1, int(rng.integers(2, 6)), 2, 8)
    arrays = [rng.standard_normal(shape).astype(np.float16) for _ in range(4)]

    def fused(tape: Any, p: Any, weight: Any) -> Any:
        y = tape.dnn.flash_attention(p["q"], p["k"], p["v"], causal=True)
        return np.sum(y.astype(np.float32) * weight.astype(np.float32))

    def written(_tape: Any, p: Any, weight: Any) -> Any:
        q, k, v = (x.transpose(0, 2, 1, 3).astype(np.float32) for x in p.values())
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(8)
        n = shape[1]
        mask = _tape.put(np.tril(np.ones((n, n), bool)))
        scores = np.where(mask, scores, -1e9)
        e = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
        y = (e / np.sum(e, axis=-1, keepdims=True)) @ v
        return np.sum(y * weight.transpose(0, 2, 1, 3).astype(np.float32))

    refs = [await device.put(each) for each in arrays]
    params = dict(zip("qkv", refs[:3], strict=True))
    _, one = await train.grad(device, fused)(params, refs[3])
    _, other = await train.grad(device, written)(params, refs[3])
    for name in "qkv":
        found = (await device.get(one[name])).astype(float)
        expected = (await device.get(other[name])).astype(float)
        np.testing.assert_allclose(found, expected, atol=2e-2, rtol=2e-2)


@settings(max_examples=2)
@given(seed=seeds)
def test_attention(module_device: Blocking[Device], seed: int) -> None:
    """Attention takes 16 bits, so differences of its results say little."""
    module_device.run(_attention, seed)


def test_every_rule_is_tested() -> None:
    """A rule without a case here has no test."""
    ours = {name for name in ruled() if name.split(".")[0] in ("array", "blas", "blaslt", "dnn")}
    assert ours - OPS.keys() == {"dnn.flash_attention"}
