"""A mixture of experts: as part of a batch on one device, and spread over two that serve it."""

import warnings
from collections.abc import Sequence

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, open_device
from atomr_accel.patterns import Gating, MoeWeights, mixture_of_experts, open_moe

TOKENS, WIDTH, HIDDEN, EXPERTS = 256, 64, 128, 8

rng = np.random.default_rng(0)
x = rng.standard_normal((TOKENS, WIDTH), dtype=np.float32)


def draw(*shape: int) -> np.ndarray:
    """Weights at random, of a size that keeps results near one."""
    return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[-2]), np.float32)


gate = draw(EXPERTS, WIDTH, HIDDEN)
weights = MoeWeights(
    router=draw(WIDTH, EXPERTS),
    up=draw(EXPERTS, WIDTH, HIDDEN),
    gate=gate,
    down=draw(EXPERTS, HIDDEN, WIDTH),
)


def expected(gates: np.ndarray) -> np.ndarray:
    """Return NumPy's result in float64: every expert on every token, with weights."""
    seen, total = x.astype(np.float64), np.zeros((TOKENS, WIDTH))
    for expert in range(EXPERTS):
        gated = seen @ gate[expert]
        hidden = gated / (1 + np.exp(-gated)) * (seen @ weights.up[expert])
        total += gates[:, expert, None] * (hidden @ weights.down[expert])
    return total


async def on_one_device(device: Device) -> None:
    """Each expert takes as many tokens as its capacity. Nothing waits for the device."""
    gating = Gating(top_k=2, capacity_factor=1.0)
    there = MoeWeights(
        router=await device.put(weights.router, sealed=True),
        up=await device.put(weights.up, sealed=True),
        gate=await device.put(gate, sealed=True),
        down=await device.put(weights.down, sealed=True),
    )
    async with device.batch() as batch:
        y, routing = mixture_of_experts(batch, batch.put(x), there, gating)
        told = (routing.experts, routing.weights, routing.load, routing.dropped)
        losses = (routing.balance_loss, routing.z_loss)
        fetched = [batch.get(ref) for ref in (y, *told, *losses)]
    result, experts, chosen, load, dropped, balance, z = (later.value for later in fetched)
    gates = np.zeros((TOKENS, EXPERTS))
    np.put_along_axis(gates, experts.T, chosen.T, axis=1)
    np.testing.assert_allclose(result, expected(gates), atol=1e-2)
    print(f"one device, with capacities: load {load.tolist()}, {dropped} of {load.sum()} dropped,")
    print(f"    load-balance loss {balance:.3f}, z-loss {z:.3f}")


async def on_devices(devices: Sequence[Device]) -> None:
    """Half of the experts on each; tokens go to them and come back, and none is dropped."""
    gating = Gating(top_k=2, capacity_factor=None)
    async with open_moe(devices, weights, gating) as layer:
        result = await layer(x)
        statistics = layer.statistics()
    logits = x.astype(np.float64) @ weights.router
    best = np.argsort(-logits, axis=1)[:, :2]
    likely = np.exp(np.take_along_axis(logits, best, axis=1))
    gates = np.zeros((TOKENS, EXPERTS))
    np.put_along_axis(gates, best, likely / likely.sum(axis=1, keepdims=True), axis=1)
    np.testing.assert_allclose(result, expected(gates), atol=1e-2)
    print(f"two devices, without: load {[*statistics.load]}, {statistics.dropped_choices} dropped")


async def main() -> None:
    """One device, then both."""
    # With several GPUs these are two of them. Two contexts on one do as well.
    async with open_device(0) as first, open_device(0) as second:
        await on_one_device(first)
        await on_devices([first, second])


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
