"""Gradients next to finite differences, and a small model for trainers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec

import numpy as np
import optree

from atomr_accel import Blocking, Device, train

P = ParamSpec("P")

Case = tuple[Callable[..., Any], dict[str, np.ndarray]]


def on_device(function: Callable[Concatenate[Device, P], Awaitable[None]]) -> Callable[..., None]:
    """Make a test of ``async def test(device, ...)``, which gets the fixture ``module_device``."""

    @functools.wraps(function)
    def test(module_device: Blocking[Device], *args: P.args, **kwargs: P.kwargs) -> None:
        module_device.run(function, *args, **kwargs)

    signature = inspect.signature(function)
    first, *others = signature.parameters.values()
    parameters = [first.replace(name="module_device"), *others]
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return test


async def check_gradient(
    device: Device,
    function: Callable[..., Any],
    params: Any,
    rng: np.random.Generator,
    *,
    rtol: float = 2e-5,
    step: float = 1e-5,
) -> None:
    """Compare the gradients of a function of float64 with differences along random directions.

    The function may return any shape: its elements are added up with random weights.
    """
    leaves, form = optree.tree_flatten(params)
    weights: list[Any] = []

    def scalar(tape: Any, values: Any) -> Any:
        result = function(tape, values)
        if not weights:
            weights.append(rng.standard_normal(result.shape))
        return np.sum(result * tape.put(weights[0]))

    compute = train.grad(device, scalar)

    async def put(arrays: Any) -> Any:
        return optree.tree_unflatten(form, [await device.put(each) for each in arrays])

    async def value(arrays: Any) -> float:
        loss, _ = await compute(await put(arrays))
        return float(await device.get(loss))

    _, grads = await compute(await put(leaves))
    found = [await device.get(each) for each in optree.tree_leaves(grads)]
    for at, leaf in enumerate(leaves):
        assert found[at].shape == leaf.shape
        assert found[at].dtype == leaf.dtype
        for _ in range(2):
            way = rng.standard_normal(leaf.shape)
            up, down = list(leaves), list(leaves)
            up[at], down[at] = leaf + step * way, leaf - step * way
            expected = (await value(up) - await value(down)) / (2 * step)
            actual = float(np.sum(found[at] * way))
            scale = np.abs(found[at] * way).sum() + abs(expected)
            assert abs(actual - expected) <= rtol * scale + 1e-8, (at, actual, expected)


def model(rng: np.random.Generator) -> Any:
    """Two layers."""
    shapes = {"w": (3, 5), "b": (5,), "out": (5, 1)}
    return {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}


def loss(tape: Any, p: Any, batch: Any) -> Any:
    """Mean squared error of a small network."""
    hidden = tape.dnn.tanh(tape.blaslt.matmul(batch["x"], p["w"], bias=p["b"]))
    return train.mse(tape.blas.gemm(hidden, p["out"]), batch["y"])


def same(one: Any, other: Any) -> None:
    """Check that two runs have the same bits."""
    assert one[0] == other[0]
    for name in one[1]:
        np.testing.assert_array_equal(one[1][name], other[1][name])
