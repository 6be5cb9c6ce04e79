"""Layers of experts on one device: choices, drops and results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from atomr_accel import Device, Unsupported
from atomr_accel.patterns import Gating, MoeWeights, Routing, mixture_of_experts, route
from atomr_accel.patterns.moe._gating import choose

from .. import seeds
from ..harness import on_shared
from . import moe_model
from .moe_model import Array, Model

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROUNDING = {"float32": 2.0**-18, "float16": 2.0**-8, "bfloat16": 2.0**-5}
"""Largest error of a result, relative to the sum of its absolute terms."""

FACTORS = st.sampled_from([None, 0.25, 0.5, 1.0, 1.25, 4.0])

LOGITS = st.one_of(
    st.integers(-16, 16).map(lambda n: n / 2),  # with many ties
    st.sampled_from([np.nan, np.inf, -np.inf]),
)


def gatings(experts: int, factors: Any = FACTORS) -> st.SearchStrategy[Gating]:
    """Gatings for a number of experts."""
    return st.builds(
        Gating,
        top_k=st.integers(1, min(experts, 4)),
        capacity_factor=factors,
        normalize=st.booleans(),
    )


@st.composite
def routings(draw: st.DrawFn) -> tuple[Array, Gating]:
    """A router's logits, and a gating."""
    shape = draw(st.integers(0, 12)), draw(st.integers(1, 6))
    return draw(some.arrays(np.float32, shape, elements=LOGITS)), draw(gatings(shape[1]))


@st.composite
def layers(draw: st.DrawFn, factors: Any = FACTORS) -> tuple[Array, MoeWeights[Array], Gating]:
    """Tokens, the weights of a layer, and how to choose."""
    experts, d = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from([np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    weights = moe_model.made(
        rng,
        d=d,
        f=draw(st.integers(1, 12)),
        experts=experts,
        dtype=dtype,
        gated=draw(st.booleans()),
        biased=draw(st.booleans()),
    )
    x = rng.uniform(-1, 1, (draw(st.integers(0, 9)), d))
    return np.asarray(x).astype(dtype), weights, draw(gatings(experts, factors))


async def put_all(device: Device, weights: MoeWeights[Array]) -> MoeWeights[Any]:
    """Weights on a device."""
    there = {}
    for name in ("router", "up", "down", "gate", "up_bias", "down_bias"):
        array = getattr(weights, name)
        there[name] = None if array is None else await device.put(array)
    return MoeWeights(**there)


async def check_routing(device: Device, routing: Routing, model: Model) -> None:
    """A router has chosen as the model says."""
    weights, experts = await device.get(routing.weights), await device.get(routing.experts)
    tokens = weights.shape[1]
    dense = np.zeros((tokens, model.load.size + 1))
    dense[np.arange(tokens), experts] = weights
    np.testing.assert_allclose(dense[:, :-1], model.weights, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(await device.get(routing.load), model.load)
    assert await device.get(routing.dropped) == model.dropped
    assert await device.get(routing.unrouted) == model.unrouted
    for loss, expected in (
        (routing.balance_loss, model.balance_loss),
        (routing.z_loss, model.z_loss),
    ):
        np.testing.assert_allclose(await device.get(loss), expected, rtol=1e-4, atol=1e-6)

    # No two tokens share a row, and those of an expert are its own.
    rows, kept = (await device.get(routing.rows))[weights > 0], experts[weights > 0]
    assert len({*rows.tolist()}) == rows.size
    if routing.capacity is not None:
        np.testing.assert_array_equal(rows // max(routing.capacity, 1), kept)
    else:
        starts = await device.get(routing.starts)
        assert ((starts[kept] <= rows) & (rows < starts[kept + 1])).all()


@settings(max_examples=20)
@given(routings())
@on_shared
async def test_a_router_chooses_as_the_model(device: Device, asked: tuple[Array, Gating]) -> None:
    host, gating = asked
    async with device.batch() as batch:
        routing = choose(batch, batch.put(host), gating)
    await check_routing(device, routing, moe_model.routed(host, gating))


@settings(max_examples=20)
@given(layer=layers(FACTORS.filter(bool)), residual=st.booleans())
@on_shared
async def test_a_layer_is_its_model(
    device: Device, layer: tuple[Array, MoeWeights[Array], Gating], residual: bool
) -> None:
    host, weights, gating = layer
    x, there = await device.put(host), await put_all(device, weights)
    async with device.batch() as batch:
        y, routing = mixture_of_experts(batch, x, there, gating, residual=residual)
    model = moe_model.routed(await device.get(routing.logits), gating)
    await check_routing(device, routing, model)
    expected, size = moe_model.computed(host, weights, model.weights)
    if residual:
        expected, size = expected + host.astype(np.float64), size + np.abs(host.astype(np.float64))
    error = np.abs((await device.get(y)).astype(np.float64) - expected)
    assert y.dtype == host.dtype
    assert (error <= ROUNDING[host.dtype.name] * (size + 0.1)).all()


@on_shared
async def test_a_recording_does_the_same_for_other_tokens(device: Device) -> None:
    rng = seeds.rng()
    weights = moe_model.made(rng, d=8, f=16, experts=4, dtype=np.float32, gated=True)
    there, gating = await put_all(device, weights), Gating(capacity_factor=1.0)
    first, second = (rng.uniform(-1, 1, (10, 8)).astype(np.float32) for _ in range(2))
    x, other = await device.put(first), await device.put(second)
    async with device.record(x) as recording:
        y, routing = mixture_of_experts(recording, x, there, gating)
    for replaced in (x, other):
        await recording.replay(replaced)
        async with device.batch() as batch:
            expected, chosen = mixture_of_experts(batch, replaced, there, gating)
        np.testing.assert_array_equal(await device.get(y), await device.get(expected))
        np.testing.assert_array_equal(
            await device.get(routing.weights), await device.get(chosen.weights)
        )
    assert await device.get(routing.dropped) > 0


@on_shared
async def test_infinities_stay_with_their_token(device: Device) -> None:
    """Rows that no token has hold others, and a token without weights reads some row."""
    weights = moe_model.made(seeds.rng(), d=4, f=4, experts=3, dtype=np.float32)
    host = seeds.rng().uniform(-1, 1, (6, 4)).astype(np.float32)
    there, gating = await put_all(device, weights), Gating(top_k=2, capacity_factor=0.5)
    results = []
    for spoilt in (None, np.nan, np.inf):
        if spoilt is not None:
            host[0] = spoilt
        x = await device.put(host)
        async with device.batch() as batch:
            y, routing = mixture_of_experts(batch, x, there, gating)
        results.append(await device.get(y))
        assert np.isfinite(results[-1]).all()
        assert await device.get(routing.unrouted) == (spoilt is not None)
    np.testing.assert_array_equal(results[1], results[2])
    assert not results[1][0].any()
    async with device.batch() as batch:
        y, _ = mixture_of_experts(batch, batch.put(np.full_like(host, np.nan)), there, gating)
    assert not (await device.get(y)).any()


@on_shared
async def test_losses_of_extremes(device: Device) -> None:
    """All alike is 1, and all to one expert is as much as there are experts."""
    even = np.zeros((8, 4), np.float32)
    one = np.full((8, 4), -np.inf, np.float32)
    one[:, 2] = 3.0
    for host, balance, z in ((even, 1.0, np.log(4) ** 2), (one, 4.0, 9.0)):
        async with device.batch() as batch:
            routing = choose(batch, batch.put(host), Gating(top_k=1))
        assert float(await device.get(routing.balance_loss)) == pytest.approx(balance)
        assert float(await device.get(routing.z_loss)) == pytest.approx(z)


@on_shared
async def test_jitter_is_what_the_router_sees(device: Device) -> None:
    rng = seeds.rng()
    host, router = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((7, 5), (5, 3)))
    x, w = await device.put(host), await device.put(router)
    gating = Gating(jitter=0.25)
    async with device.batch() as batch:
        plain = route(batch, x, w, gating)
        routing = route(batch, x, w, gating, noise=device.rng.default_rng(3))
        factors = batch.using(device.rng.default_rng(3)).uniform(
            0.75, 1.25, (7, 5), dtype=np.float32
        )
    seen = host.astype(np.float64) * await device.get(factors)
    np.testing.assert_allclose(await device.get(routing.logits), seen @ router, atol=1e-5)
    np.testing.assert_allclose(await device.get(plain.logits), host @ router, atol=1e-5)


def changed(weights: MoeWeights[Any], name: str, array: object) -> MoeWeights[Any]:
    """Weights of which one is another."""
    return replace(weights, **{name: array})


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda x, w, g: (x[:, :3], w, g), ValueError, r"\(tokens, 4\)"),
        (lambda x, w, g: (x[0], w, g), ValueError, r"\(tokens, 4\)"),
        (lambda x, w, g: (x, changed(w, "down", w.up), g), ValueError, "down must have shape"),
        (lambda x, w, g: (x, changed(w, "up", w.router), g), ValueError, r"experts, d, f"),
        (lambda x, w, g: (x, changed(w, "down_bias", w.router), g), ValueError, "down_bias"),
        (lambda x, w, g: (x, replace(w, gate=w.up, up_bias=w.up[0]), g), ValueError, "no up_bias"),
        (
            lambda x, w, g: (x, w, replace(g, top_k=4)),
            ValueError,
            "top_k must be at most 3, the number of experts, not 4",
        ),
        (lambda x, w, g: (x, w, replace(g, capacity_factor=None)), Unsupported, "open_moe"),
    ],
    ids=["width", "rank", "down", "up", "bias", "gate and bias", "choices", "no capacity"],
)
@on_shared
async def test_moe_refuses_mismatched_shapes(
    device: Device, change: Callable[..., Any], error: type[Exception], text: str
) -> None:
    weights = moe_model.made(np.random.default_rng(0), d=4, f=6, experts=3, dtype=np.float32)
    x = await device.put(np.ones((2, 4), np.float32))
    arguments = change(x, await put_all(device, weights), Gating())
    async with device.batch() as batch:
        with pytest.raises(error, match=text):
            mixture_of_experts(batch, *arguments)


@on_shared
async def test_dtypes_that_do_not_fit_are_refused(device: Device) -> None:
    def draw(dtype: Any) -> MoeWeights[Any]:
        return moe_model.made(np.random.default_rng(0), d=4, f=6, experts=3, dtype=dtype)

    half, double = await put_all(device, draw(np.float16)), await put_all(device, draw(np.float64))
    x = await device.put(np.ones((2, 4), np.float32))
    async with device.batch() as batch:
        for weights, text in (
            (half, "x must be float16"),
            (double, "not float64"),
            (replace(half, router=half.up[0, :, :3]), "router must be float32"),
        ):
            with pytest.raises(TypeError, match=text):
                mixture_of_experts(batch, x, weights, Gating())


@pytest.mark.parametrize(
    "options",
    [{"top_k": 0}, {"capacity_factor": 0.0}, {"capacity_factor": np.inf}, {"jitter": 1.0}],
    ids=str,
)
def test_gatings_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Gating(**options)


def test_capacities_that_mean_nothing_are_refused() -> None:
    with pytest.raises(TypeError, match="normalize must be"):
        Gating(normalize="x")  # type: ignore[arg-type]
    for tokens, experts in ((-1, 4), (5, 0)):
        with pytest.raises(ValueError, match="must be a whole number of at least"):
            Gating().capacity(tokens, experts)
