"""Recurrent networks in ways that tables do not show."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from atomr_accel import Unsupported

from ...conformance import MARKS, dtype_of, on_cuda
from ..rows.rnn import differences, parameter_shapes

pytestmark = MARKS

Array = np.ndarray[Any, Any]

FLOAT = np.dtype(np.float32)


async def pack(device: Any, net: Any, rng: np.random.Generator) -> tuple[list[Array], Any]:
    dtype = dtype_of(net.spec.dtype)
    hosts = [rng.uniform(-1, 1, shape).astype(dtype) for shape in net.parameter_shapes]
    return hosts, await net.pack([await device.put(host) for host in hosts])


@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh", "relu"])
async def test_parameters_come_out_as_they_went_in(device: Any, cell: str) -> None:
    net = device.dnn.rnn(cell, 5, 6, num_layers=2, bidirectional=True)
    hosts, weights = await pack(device, net, np.random.default_rng(0))
    assert weights.ndim == 1
    assert weights.size >= sum(host.size for host in hosts)
    for ref, host in zip(await net.unpack(weights), hosts, strict=True):
        np.testing.assert_array_equal(await device.get(ref), host)


async def test_relus_gradient(device: Any) -> None:
    """All sums are positive, which avoids the kink of the ReLU."""
    case: dict[str, Any] = {"cell": "relu", "steps": 3, "batch": 2}
    rng = np.random.default_rng(0)
    arrays = [
        rng.uniform(0.1, 0.5, shape)
        for shape in ((3, 2, 3), (1, 2, 4), (1, 2, 4), *parameter_shapes(case))
    ]
    dy, dhn = rng.uniform(-1, 1, (3, 2, 4)), rng.uniform(-1, 1, (1, 2, 4))
    expected = differences(case, arrays, (dy, dhn, np.zeros((1, 2, 4))))
    refs = [await device.put(array) for array in arrays]
    net = device.dnn.rnn("relu", 3, 4, dtype="float64")
    result = await net.forward(refs[0], await net.pack(refs[3:]), refs[1], training=True)
    found = await net.forward_grad(await device.put(dy), result.tape, await device.put(dhn))
    got = [found.dx, found.dh0, *await net.unpack(found.dweights)]
    del expected[2]
    for ref, value in zip(got, expected, strict=True):
        np.testing.assert_allclose(await device.get(ref), value, atol=1e-7)


async def test_dropout_between_layers(device: Any) -> None:
    rng = np.random.default_rng(0)
    net = device.dnn.rnn("gru", 8, 16, num_layers=2, dropout=0.5)
    _, weights = await pack(device, net, rng)
    x = await device.put(rng.standard_normal((6, 4, 8)).astype(FLOAT))
    calm = [await net.forward(x, weights) for _ in range(2)]
    runs = [await net.forward(x, weights, training=True, seed=seed) for seed in (1, 1, 2)]
    calm_y = [await device.get(each.y) for each in calm]
    y = [await device.get(each.y) for each in runs]
    np.testing.assert_array_equal(*calm_y)
    np.testing.assert_array_equal(y[0], y[1])
    assert abs(y[0] - y[2]).max() > 1e-3
    assert abs(y[0] - calm_y[0]).max() > 1e-3
    # The first layer is not dropped: its last state is the same in all.
    states = [(await device.get(each.hn))[0] for each in (*calm, *runs)]
    for state in states[1:]:
        np.testing.assert_allclose(state, states[0], atol=1e-6)
    # The gradient drops the same elements: a step along it raises the loss accordingly.
    dy = await device.put(np.ones((6, 4, 16), FLOAT))
    found = await net.forward_grad(dy, runs[0].tape)
    dx = await device.get(found.dx)
    host = await device.get(x)
    step = 1e-2 / np.linalg.norm(dx)
    sums = []
    for sign in (1, -1):
        moved = await device.put((host + sign * step * dx).astype(FLOAT))
        sums.append(
            (await device.get((await net.forward(moved, weights, training=True, seed=1)).y)).sum()
        )
    assert (sums[0] - sums[1]) / (2 * step) == pytest.approx((dx**2).sum(), rel=0.05)


async def test_sizes_are_asked_for_before_a_batch(device: Any) -> None:
    net = device.dnn.rnn("lstm", 4, 4)
    rng = np.random.default_rng(0)
    _, weights = await pack(device, net, rng)
    x = await device.put(rng.standard_normal((3, 2, 4)).astype(FLOAT))
    async with device.batch() as batch:
        with pytest.raises(Unsupported, match="once before the batch"):
            batch.dnn.rnn("lstm", 4, 4).forward(x, weights)
    alone = await net.forward(x, weights)
    async with device.batch() as batch:
        inside = batch.dnn.rnn("lstm", 4, 4).forward(x, weights)
    np.testing.assert_array_equal(await device.get(alone.y), await device.get(inside.y))


async def test_bad_arguments_of_networks(device: Any) -> None:
    dnn = device.dnn
    for error, match, args, options in (
        (ValueError, "cell must be", ("LSTM", 3, 4), {}),
        (ValueError, "hidden_size must be", ("lstm", 3, 0), {}),
        (ValueError, "proj_size must be", ("gru", 3, 4), {"proj_size": 2}),
        (ValueError, "proj_size must be", ("lstm", 3, 4), {"proj_size": 4}),
        (ValueError, "dropout must be", ("lstm", 3, 4), {"dropout": 1.0}),
        (TypeError, "dtype must be", ("lstm", 3, 4), {"dtype": "int32"}),
    ):
        with pytest.raises(error, match=match):
            dnn.rnn(*args, **options)
    net = dnn.rnn("gru", 3, 4)
    hosts, weights = await pack(device, net, np.random.default_rng(0))
    refs = [await device.put(host) for host in hosts]
    x = await device.put(np.zeros((5, 2, 3), FLOAT))
    flat = await device.put(np.zeros((5, 3), FLOAT))
    state = await device.put(np.zeros((1, 2, 4), FLOAT))
    y = await device.put(np.zeros((5, 2, 4), FLOAT))
    run = await net.forward(x, weights, training=True)
    calls: Any = (
        (ValueError, "there are 4 parameters, not 3", lambda: net.pack(refs[:3])),
        (ValueError, "parameter 0 must have shape", lambda: net.pack(refs[::-1])),
        (
            TypeError,
            "weights must have dtype float32, not int32",
            lambda: net.unpack(weights.view("int32")),
        ),
        (ValueError, "x must have 3 dimensions", lambda: net.forward(flat, weights)),
        (ValueError, "x must have 2 dimensions", lambda: net.forward(x, weights, layout="packed")),
        (ValueError, "layout must be", lambda: net.forward(x, weights, layout="sideways")),
        (ValueError, "need their lengths", lambda: net.forward(flat, weights, layout="packed")),
        (
            ValueError,
            "descending order",
            lambda: net.forward(flat, weights, layout="packed", lengths=(2, 3)),
        ),
        (ValueError, "lengths must be at least 1", lambda: net.forward(x, weights, lengths=(5, 0))),
        (ValueError, "2 lengths of at most 5", lambda: net.forward(x, weights, lengths=(5, 6))),
        (ValueError, "weights must have shape", lambda: net.forward(x, flat.reshape(-1))),
        (ValueError, r"h0 must have shape \(1, 2, 4\)", lambda: net.forward(x, weights, x)),
        (
            ValueError,
            "c0 must be None for a network of gru, which has no cell states",
            lambda: net.forward(x, weights, state, state),
        ),
        (ValueError, "there is no tape", lambda: net.forward_grad(y, None)),
        (ValueError, "grad must have shape", lambda: net.forward_grad(x, run.tape)),
        (
            ValueError,
            "dcn must be None for a network of gru, which has no cell states",
            lambda: net.forward_grad(y, run.tape, state, state),
        ),
    )
    for error, match, call in calls:
        with pytest.raises(error, match=match):
            await call()


# --- against PyTorch ----------------------------------------------------------------------

needs_torch = pytest.mark.skipif(
    not (on_cuda() and importlib.util.find_spec("torch")), reason="needs PyTorch and a GPU"
)


@needs_torch
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
async def test_networks_beside_torch(device: Any, cell: str) -> None:
    """Real sizes, in double precision: parameters are PyTorch's own, in its order."""
    import torch

    torch.manual_seed(0)
    more: dict[str, Any] = {"proj_size": 48} if cell == "LSTM" else {}
    more |= {"num_layers": 2, "bidirectional": True}
    theirs = getattr(torch.nn, cell)(64, 96, dtype=torch.float64, **more)
    x = torch.randn(20, 8, 64, dtype=torch.float64, requires_grad=True)
    y, _ = theirs(x)
    y.square().sum().backward()
    net = device.dnn.rnn(cell.lower(), 64, 96, dtype="float64", **more)
    flat = theirs._flat_weights
    weights = await net.pack([await device.put(each.detach().numpy()) for each in flat])
    run = await net.forward(await device.put(x.detach().numpy()), weights, training=True)
    ours = await device.get(run.y)
    np.testing.assert_allclose(ours, y.detach().numpy(), atol=1e-10)
    found = await net.forward_grad(await device.put(2 * ours), run.tape)
    assert x.grad is not None
    np.testing.assert_allclose(await device.get(found.dx), x.grad.numpy(), atol=1e-8)
    for ref, each in zip(await net.unpack(found.dweights), flat, strict=True):
        np.testing.assert_allclose(await device.get(ref), each.grad.numpy(), atol=1e-7)


@pytest.mark.parametrize("layout", ["time", "batch"])
@pytest.mark.parametrize("cell", ["lstm", "gru", "tanh", "relu"])
async def test_values_behind_the_ends_of_sequences_have_no_effect(
    device: Any, cell: str, layout: str
) -> None:
    dnn, lengths = device.dnn, [5, 3]
    network = dnn.rnn(cell, 3, 4, num_layers=2, bidirectional=True)
    rng = np.random.default_rng(4)
    parameters = [
        await device.put(rng.standard_normal(shape).astype(np.float32))
        for shape in network.parameter_shapes
    ]
    weights = await network.pack(parameters)
    x, dy = (rng.standard_normal((5, 2, size)).astype(np.float32) for size in (3, 8))
    results = []
    for behind in (0, np.nan, np.inf):
        given = []
        for array in (x, dy):
            array[3:, 1] = behind
            swapped = array if layout == "time" else array.swapaxes(0, 1)
            given.append(await device.put(np.ascontiguousarray(swapped)))
        run = await network.forward(
            given[0], weights, lengths=lengths, layout=layout, training=True
        )
        back = await network.forward_grad(given[1], run.tape)
        made = (run.y, run.hn, back.dx, back.dh0, back.dweights)
        results.append([await device.get(ref) for ref in made])
    for first, *others in zip(*results, strict=True):
        assert np.isfinite(first).all()
        for other in others:
            np.testing.assert_array_equal(other, first)
