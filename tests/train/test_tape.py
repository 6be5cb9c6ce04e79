"""Tapes: trees, constants, recomputation, gradients of one's own, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

from atomr_accel import Device, Unsupported, train

from .checks import check_gradient, on_device


async def fetched(device: Device, tree: Any) -> Any:
    """The arrays of a tree of refs."""
    arrays = [await device.get(each) for each in optree.tree_leaves(tree)]
    return optree.tree_unflatten(optree.tree_structure(tree), arrays)


async def _grads(device: Device, function: Any, params: Any, *args: Any) -> Any:
    put = [await device.put(each) for each in optree.tree_leaves(params)]
    tree = optree.tree_unflatten(optree.tree_structure(params), put)
    loss, grads = await train.grad(device, function)(tree, *args)
    return float(await device.get(loss)), await fetched(device, grads)


X = np.array([[0.5, -1.0], [2.0, 0.25], [1.5, -0.5]])


@on_device
async def test_trees(device: Device) -> None:
    """Gradients have the form of the parameters; those that do not matter are zero."""
    params = {"layers": [(X, X[0])], "unused": X[:2]}

    def loss(_tape: Any, p: Any) -> Any:
        w, b = p["layers"][0]
        return np.sum(w * b)

    value, grads = await _grads(device, loss, params)
    assert value == pytest.approx(np.sum(X * X[0]))
    np.testing.assert_allclose(grads["layers"][0][0], np.broadcast_to(X[0], X.shape))
    np.testing.assert_allclose(grads["layers"][0][1], X.sum(0))
    assert not grads["unused"].any()


@on_device
async def test_shared_buffer(device: Device) -> None:
    """One buffer in two places of the tree has a gradient for each place."""
    ref = await device.put(X)
    params = [ref, ref]
    _, grads = await train.grad(device, lambda _t, p: np.sum(p[0] * p[0] * p[1]))(params)
    one, other = [await device.get(each) for each in grads]
    np.testing.assert_allclose(one, 2 * X * X)
    np.testing.assert_allclose(other, X * X)


@on_device
async def test_parameter_is_the_loss(device: Device) -> None:
    """The gradient of a parameter with respect to itself is one."""
    params = await device.put(np.float64(3.0))
    loss, slope = await train.grad(device, lambda _t, p: p)(params)
    assert float(await device.get(loss)) == 3.0
    assert float(await device.get(slope)) == 1.0


@on_device
async def test_constant_loss(device: Device) -> None:
    """Nothing depends on the parameters: zeros."""
    params = await device.put(X)
    stopped = train.grad(device, lambda _t, p: np.sum(train.stop_gradient(p * 2)))
    loss, slope = await stopped(params)
    assert float(await device.get(loss)) == pytest.approx(2 * X.sum())
    assert not (await device.get(slope)).any()


@pytest.mark.parametrize("name", ["target", "weight"])
@on_device
async def test_arguments_of_cross_entropy_without_a_gradient(device: Device, name: str) -> None:
    """Zeros would be a wrong gradient."""
    given = {
        "x": await device.put(np.ones((2, 3))),
        "target": await device.put(np.full((2, 3), 1 / 3)),
        "weight": await device.put(np.arange(1.0, 4.0)),
    }

    def loss(tape: Any, value: Any) -> Any:
        return tape.dnn.cross_entropy(**{**given, name: value})

    with pytest.raises(Unsupported, match=f"{name} of cross_entropy has no gradient"):
        await train.grad(device, loss)(given[name])


@on_device
async def test_slopes_of_attention_have_no_gradient(device: Device) -> None:
    q = await device.put(np.ones((1, 4, 2, 8), np.float16))
    slopes = await device.put(np.array([0.5, 0.25], np.float32))

    def loss(tape: Any, value: Any) -> Any:
        return np.sum(tape.dnn.flash_attention(q, q, q, alibi_slopes=value))

    with pytest.raises(Unsupported, match="alibi_slopes of flash_attention has no gradient"):
        await train.grad(device, loss)(slopes)


@on_device
async def test_stop_gradient(device: Device) -> None:
    """Stopped values count as constants."""
    _, slope = await _grads(device, lambda _t, p: np.sum(p * train.stop_gradient(p)), X)
    np.testing.assert_allclose(slope, X)


@on_device
async def test_checkpoint(device: Device) -> None:
    """The gradients are the same to the bit, and the block runs twice."""
    runs = []

    def block(tape: Any, x: Any, more: Any) -> Any:
        runs.append(tape)
        y = tape.dnn.tanh(tape.blas.gemm(x, more["w"]))
        return {"y": y, "squared": y * y}

    def loss(how: Any) -> Any:
        def compute(tape: Any, p: Any) -> Any:
            made = how(block)(tape, p["x"] * 2, p)
            return np.sum(made["y"]) + np.mean(made["squared"])

        return compute

    params = {"w": X[:2], "x": X}

    def plain(function: Any) -> Any:
        def run(tape: Any, x: Any, more: Any) -> Any:
            return function(tape, tape.evaluate(x), more)

        return run

    def kept(function: Any) -> Any:
        again = train.checkpoint(function)
        return lambda tape, x, more: again(tape, tape.evaluate(x), more)

    one = await _grads(device, loss(plain), params)
    assert len(runs) == 1
    other = await _grads(device, loss(kept), params)
    assert len(runs) == 3
    assert one[0] == other[0]
    for name in params:
        np.testing.assert_array_equal(one[1][name], other[1][name])


@on_device
async def test_checkpoint_of_foreign_value(device: Device) -> None:
    """A checkpoint does not see values that are none of its arguments."""

    def loss(tape: Any, p: Any) -> Any:
        return np.sum(train.checkpoint(lambda t, x: t.evaluate(x * p))(tape, tape.evaluate(p + 1)))

    with pytest.raises(ValueError, match="must be of the tape"):
        await train.grad(device, loss)(await device.put(X))


@on_device
async def test_custom(device: Device) -> None:
    """A function with a gradient of its own, here straight through a rounding."""
    rounded = train.custom(
        lambda batch, x, _scale: batch.evaluate(np.rint(x)),
        lambda _batch, grad, _result, _x, scale: [grad * scale, None],
    )
    value, slope = await _grads(device, lambda t, p: np.sum(rounded(t, p * 1, 3.0)), X)
    assert value == np.rint(X).sum()
    np.testing.assert_array_equal(slope, np.full(X.shape, 3.0))
    short = train.custom(lambda b, x: b.evaluate(x * 1), lambda *_: [])
    with pytest.raises(ValueError, match="one gradient for each"):
        await _grads(device, lambda t, p: np.sum(short(t, p)), X)


@on_device
async def test_rule_of_another_library(device: Device) -> None:
    """An op gets a rule from outside."""

    def loss(tape: Any, p: Any) -> Any:
        return np.sum(tape.array.cumsum(p, axis=0) ** 2)

    with pytest.raises(Unsupported, match=r"array\.cumsum has no gradient rule"):
        await _grads(device, loss, X)

    @train.rule("array.cumsum")
    def backward(batch: Any, call: train.Applied, grad: Any) -> Any:
        flipped = batch.array.flip(grad, axis=call["axis"])
        return {"a": batch.array.flip(batch.array.cumsum(flipped, axis=call["axis"]), axis=0)}

    try:
        await check_gradient(device, loss, X, np.random.default_rng(0))
    finally:
        from atomr_accel.train import _rules

        del _rules._rules["array.cumsum"]


@on_device
async def test_a_rule_names_the_gradients_that_it_has(device: Device) -> None:
    """An argument without any is refused, rather than given zeros, unless the rule says None."""

    def loss(tape: Any, p: Any) -> Any:
        return np.sum(tape.array.cumsum(p, axis=0) ** 2)

    from atomr_accel.train import _rules

    made: dict[str, Any] = {}
    train.rule("array.cumsum")(lambda *_: made)
    try:
        with pytest.raises(Unsupported, match=r"a of array\.cumsum has no gradient"):
            await _grads(device, loss, X)
        made["a"] = None
        assert not (await _grads(device, loss, X))[1].any()
    finally:
        del _rules._rules["array.cumsum"]


@on_device
async def test_in_a_recording(device: Device) -> None:
    """A recorded step computes the gradients of what its inputs hold at each replay."""
    w, x = await device.put(X[:2]), await device.put(X)

    def loss(tape: Any, w: Any, x: Any) -> Any:
        return np.mean(tape.dnn.tanh(tape.blas.gemm(x, w)) ** 2)

    async with device.record(w, x) as step:
        value, slope = train.differentiate(step, loss, w, x)
    for factor in (1.0, 2.0):
        await step.replay(w, await device.put(factor * X))
        direct, expected = await _grads(device, loss, X[:2], await device.put(factor * X))
        assert float(await device.get(value)) == direct
        np.testing.assert_array_equal(await device.get(slope), expected)


@on_device
async def test_dtypes(device: Device) -> None:
    """Gradients have the dtype of their parameters, also behind casts and integers."""

    def loss(_tape: Any, p: Any) -> Any:
        whole = p["half"].astype(np.int32).astype(np.float32)
        return np.sum(p["half"].astype(np.float32) * p["single"] + whole)

    params = {"half": X.astype(np.float16), "single": X.astype(np.float32)}
    _, grads = await _grads(device, loss, params)
    assert grads["half"].dtype == np.float16
    assert grads["single"].dtype == np.float32
    np.testing.assert_array_equal(grads["half"], X)


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": (lambda _t, _p: None, TypeError, "must return a value of its tape"),
    "not a scalar": (lambda _t, p: p * 1, ValueError, r"one float, shape \(\)"),
    "not a float": (lambda _t, p: np.sum(p > 0), ValueError, "must return one float"),
    "out": (lambda t, p: t.blas.gemm(p, p, out=p), Unsupported, "takes no out="),
    "evaluate out": (lambda t, p: t.evaluate(p * 2, out=p), Unsupported, "takes no out="),
    "no rule": (lambda t, p: t.linalg.det(p), Unsupported, r"linalg\.det has no gradient rule"),
    "no ufunc rule": (
        lambda _t, p: np.sum(np.spacing(p)),
        Unsupported,
        "numpy's spacing has no gradient rule",
    ),
    "product": (lambda _t, p: np.prod(p), Unsupported, "multiply has no gradient rule"),
    "fill": (lambda t, p: t.fill(p, 0), Unsupported, "fill has no gradient rule"),
}


@pytest.mark.parametrize("name", BAD)
@on_device
async def test_refused(device: Device, name: str) -> None:
    """Functions without a gradient raise in the caller, which names the reason."""
    function, error, match = BAD[name]
    with pytest.raises(error, match=match):
        await train.grad(device, function)(await device.put(X[:2]))


@on_device
async def test_parameters_that_are_none(device: Device) -> None:
    """Parameters are refs to floats, and there is at least one."""
    compute = train.grad(device, lambda _t, p: np.sum(p))
    with pytest.raises(TypeError, match="must be a GpuRef"):
        await compute({"w": X})
    with pytest.raises(TypeError, match=r"params\['w'\] must be floats"):
        await compute({"w": await device.put(np.arange(3))})
    with pytest.raises(ValueError, match="at least one buffer"):
        await compute({})
    with pytest.raises(TypeError, match="function must be callable"):
        train.grad(device, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'library\.op'"):
        train.rule("gemm")
