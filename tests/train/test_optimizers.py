"""Optimizers next to NumPy in float64, and flat states."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, train

from .checks import on_device


def reference(optimizer: Any, p: Any, grads: list[Any], decay: float) -> Any:
    """The parameters after some steps, as the papers have them."""
    p = p.astype(np.float64)
    m, v, moving = np.zeros_like(p), np.zeros_like(p), None
    for number, given_grad in enumerate(grads, 1):
        g = given_grad.astype(np.float64)
        lr = optimizer.lr(number - 1) if callable(optimizer.lr) else optimizer.lr
        if isinstance(optimizer, train.AdamW):
            p = p - lr * decay * p
        else:
            g = g + decay * p
        if isinstance(optimizer, train.SGD):
            if optimizer.momentum:
                moving = g if moving is None else optimizer.momentum * moving + g
                g = g + optimizer.momentum * moving if optimizer.nesterov else moving
            p = p - lr * g
            continue
        b1, b2 = optimizer.betas
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        p = p - lr * (m / (1 - b1**number)) / (np.sqrt(v / (1 - b2**number)) + optimizer.eps)
    return p


OPTIMIZERS = {
    "sgd": train.SGD(lr=0.1),
    "momentum": train.SGD(lr=train.cosine(0.1, steps=6, warmup=2), momentum=0.9, weight_decay=0.1),
    "nesterov": train.SGD(lr=0.1, momentum=0.8, nesterov=True),
    "adam": train.Adam(lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    "adamw": train.AdamW(lr=0.01, weight_decay=0.1, decays=lambda _path, shape: len(shape) > 1),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**32 - 1))
@on_device
async def test_steps(device: Device, name: str, dtype: str, seed: int) -> None:
    """Five steps of several tensors."""
    optimizer: Any = OPTIMIZERS[name]
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    shapes = {"b": (3,), "w": (2, 3), "deep": [(1,), (4, 1, 2)]}
    shapes["b"] = (int(rng.integers(1, 9)),)

    def drawn() -> Any:
        def one(shape: Any) -> Any:
            return rng.standard_normal(shape).astype(kind)

        return {
            k: [one(s) for s in v] if isinstance(v, list) else one(v) for k, v in shapes.items()
        }

    params, grads = drawn(), [drawn() for _ in range(5)]
    layout = train.ModelLayout(params, optimizer)
    state = await train.ModelState.create(device, layout, params, optimizer)
    for each in grads:
        tree = {
            k: [await device.put(a) for a in v] if isinstance(v, list) else await device.put(v)
            for k, v in each.items()
        }
        await state.update(optimizer, await state.gathered(tree), 0.5)
    assert state.step == 5
    found = layout.tree(await device.get(state.buffers[0]))
    # Masters are float32 for 16 bits, so they do not lose small steps.
    rtol = 1e-11 if dtype == "float64" else 2e-5
    for path in (("b",), ("w",), ("deep", 0), ("deep", 1)):
        p, f, gs = params, found, list(grads)
        for key in path:
            p, f, gs = p[key], f[key], [g[key] for g in gs]
        flag = optimizer.decays is None or p.ndim > 1
        halved = [g.astype(np.float64) * 0.5 for g in gs]
        expected = reference(optimizer, p, halved, optimizer.weight_decay if flag else 0.0)
        np.testing.assert_allclose(f, expected, rtol=rtol, atol=rtol)
    if dtype == "bfloat16":
        half = await device.get(state.params["w"])
        assert half.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(half, found["w"].astype(ml_dtypes.bfloat16))


@on_device
async def test_digest(device: Device) -> None:
    """One bit, or two elements that changed places, change the digest."""
    optimizer = train.SGD(lr=0.1, momentum=0.9)
    params = [np.arange(5, dtype=np.float32)]
    layout = train.ModelLayout(params, optimizer)
    state = await train.ModelState.create(device, layout, params, optimizer)
    first = await state.digest()
    assert await state.digest() == first
    for changed in ([0, 1, 2, 3, np.nextafter(np.float32(4), 5)], [1, 0, 2, 3, 4]):
        await device.put(np.array(changed, np.float32), out=state.buffers[0][:5])
        assert await state.digest() != first
    await device.put(params[0], out=state.buffers[0][:5])
    assert await state.digest() == first


@on_device
async def test_norm(device: Device) -> None:
    """The norm of all gradients, infinite if one is."""
    optimizer = train.SGD(lr=0.1)
    params = {"a": np.ones(2), "b": np.ones(1)}
    layout = train.ModelLayout(params, optimizer)
    state = await train.ModelState.create(device, layout, params, optimizer)
    flat = await device.put(np.array([3.0, 0.0, 4.0]))
    assert await state.norm(flat, 2.0) == 10.0
    assert not np.isfinite(await state.norm(await device.put(np.array([1, np.inf, 0])), 1.0))
    with pytest.raises(ValueError, match=r"gradient of a must have shape \(2,\)"):
        await state.gathered({"a": flat, "b": flat[:1]})
    with pytest.raises(ValueError, match="form of the parameters"):
        await state.gathered([flat[:2], flat[:1]])


def test_schedules() -> None:
    """Rates rise, fall, and stay at the floor."""
    curve = train.cosine(1.0, steps=10, warmup=2, floor=0.1)
    assert [curve(n) for n in (0, 1, 2, 10, 99)] == [0.5, 1.0, 1.0, 0.1, 0.1]
    assert curve(6) == pytest.approx(0.55)
    line = train.linear(1.0, steps=4, warmup=1)
    assert [line(n) for n in range(6)] == pytest.approx([1, 1, 2 / 3, 1 / 3, 0, 0])


def test_loss_scale() -> None:
    """The factor grows after good steps, and shrinks after bad ones."""
    scale = train.LossScale(8.0, interval=2)
    for finite, expected in ((True, 8), (True, 16), (False, 8), (True, 8), (False, 4)):
        scale.note(finite=finite)
        assert scale.value == expected


BAD: dict[str, tuple[Any, str]] = {
    "lr": (lambda: train.SGD(lr=-1), "learning rate must be"),
    "decay": (lambda: train.SGD(lr=1, weight_decay=-1), "weight_decay must be 0"),
    "nesterov": (lambda: train.SGD(lr=1, nesterov=True), "momentum must be above 0"),
    "betas": (lambda: train.Adam(lr=1, betas=(0.9, 1.0)), r"betas\[1\] must be"),
    "warmup": (lambda: train.cosine(1, steps=1, warmup=2), "warmup must be"),
    "steps": (lambda: train.cosine(1, steps=0), "steps must be"),
    "peak": (lambda: train.cosine(-1, steps=5), "peak must be"),
    "floor": (lambda: train.linear(0.1, steps=5, floor=0.2), "floor must be"),
    "scale": (lambda: train.LossScale(0), "value must be more than 0"),
    "none": (lambda: train.ModelLayout({}, train.SGD(lr=1)), "at least one array"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    """Numbers out of range."""
    make, match = BAD[name]
    with pytest.raises(ValueError, match=match):
        make()


def test_refused_parameters() -> None:
    """Parameters of several dtypes, of integers, and on the device."""
    optimizer = train.SGD(lr=1)
    with pytest.raises(TypeError, match="must have one dtype"):
        train.ModelLayout([np.ones(2), np.ones(2, np.float32)], optimizer)
    with pytest.raises(TypeError, match="w must be floats"):
        train.ModelLayout({"w": np.ones(2, int)}, optimizer)
    with pytest.raises(TypeError, match="w must be a NumPy array"):
        train.ModelLayout({"w": 1.0}, optimizer)
