"""Mixtures of experts: grouped products against loops of them, and a layer against PyTorch's.

Measured side by side, see ``side_by_side.py``. The layer in PyTorch is written as most are: it
looks up the tokens of each expert, one expert after the other. Without a GPU sizes are small, and
only our own numbers are printed.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import trio
from side_by_side import Pace, Rival, Row, compare, open_first, show, there

from atomr_accel.patterns import Gating, MoeWeights, mixture_of_experts, open_moe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atomr_accel import Device

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def numbers(*shape: int, dtype: Any = BFLOAT16) -> NDArray[Any]:
    """Return random numbers, equal for all experts, which saves time and does not change the
    result.
    """
    rng = np.random.default_rng()
    block = rng.standard_normal(shape[-2:], dtype=np.float32) / np.sqrt(np.float32(shape[-2]))
    return np.ascontiguousarray(np.broadcast_to(block.astype(dtype), shape))


def ragged(tokens: int, experts: int) -> list[int]:
    """Return the number of tokens of each expert: a few have many, and some have none."""
    rng = np.random.default_rng(0)
    return [int(n) for n in rng.multinomial(tokens, rng.dirichlet(np.full(experts, 0.5)))]


async def grouped(device: Device, tokens: int, experts: int, d: int, f: int) -> Row:
    """Tokens times the matrices of their experts: in one call, and in one for each expert."""
    sizes = ragged(tokens, experts)
    ends = [0, *accumulate(sizes)]
    x, w = await device.put(numbers(tokens, d)), await device.put(numbers(experts, d, f))
    out = await device.empty((tokens, f), BFLOAT16)
    groups = [
        (x[start:end], w[expert], out[start:end])
        for expert, (start, end) in enumerate(pairwise(ends))
        if end > start
    ]

    def multiply(on: Any) -> Any:
        return on.blas.gemm_grouped(x, w, sizes, out=out)

    async def looped_alone() -> None:
        async with device.batch() as batch:
            loop(batch)

    def loop(on: Any) -> Any:
        if on is device:
            return looped_alone()
        return [on.blas.gemm(a, b, out=c) for a, b, c in groups]

    ours, theirs = await compare(device, multiply, torch_products(device, sizes, d, f))
    theirs["our loop"], _ = await compare(device, loop, {})
    name = f"grouped {tokens} x {d} x {f}, {experts}"
    return Row(name, 2.0 * tokens * d * f, "TFLOP/s", ours, theirs)


def torch_products(device: Device, sizes: Sequence[int], d: int, f: int) -> dict[str, Rival]:
    """Return the same products by PyTorch."""
    if device.backend != "cuda" or not there("torch"):
        return {}
    import torch

    kind = {"device": "cuda", "dtype": torch.bfloat16}
    x, w = torch.randn(sum(sizes), d, **kind), torch.randn(len(sizes), d, f, **kind)
    out = torch.empty(sum(sizes), f, **kind)
    each = zip(x.split(sizes), w, out.split(sizes), strict=True)
    groups = [group for group in each if len(group[0])]

    def loop() -> None:
        for a, b, c in groups:
            torch.mm(a, b, out=c)

    rivals = {"torch": Rival(loop, torch.cuda.synchronize)}
    multiply = getattr(torch, "_grouped_mm", None)
    if multiply is not None:
        ends = torch.tensor([*accumulate(sizes)], dtype=torch.int32, device="cuda")
        rivals["torch, grouped"] = Rival(lambda: multiply(x, w, ends), torch.cuda.synchronize)
    return rivals


async def layers(device: Device, tokens: int, experts: int, d: int, f: int) -> list[Row]:
    """A layer with SwiGLU, two experts for each token: with capacities, and without."""
    host = MoeWeights(
        router=np.random.default_rng(0).standard_normal((d, experts), dtype=np.float32),
        up=numbers(experts, d, f),
        gate=numbers(experts, d, f),
        down=numbers(experts, f, d),
    )
    up, gate, down = [await device.put(each) for each in (host.up, host.gate, host.down)]
    weights = MoeWeights(router=await device.put(host.router), up=up, gate=gate, down=down)
    x = await device.put(numbers(tokens, d))
    gating = Gating(top_k=2, capacity_factor=1.25)

    async def alone() -> None:
        async with device.batch() as batch:
            layer(batch)

    def layer(on: Any) -> Any:
        return alone() if on is device else mixture_of_experts(on, x, weights, gating)

    name, amount = f"layer {tokens} x {d} x {f}, {experts}", 2.0 * 3 * 2 * tokens * d * f
    rivals = torch_layers(device, tokens, experts, d, f)
    batched, theirs = await compare(device, layer, rivals)
    rows = [Row(f"{name}: batch", amount, "TFLOP/s", batched, theirs)]
    async with device.record(shared=True) as recording:
        mixture_of_experts(recording, x, weights, gating)
    replayed = await paced(device, lambda _: recording.replay())
    rows.append(Row(f"{name}: replay", amount, "TFLOP/s", replayed, theirs))
    async with open_moe([device], host, Gating(capacity_factor=None)) as server:
        dropless = await paced(device, lambda _: server.on_devices([x]))
    rows.append(Row(f"{name}: dropless", amount, "TFLOP/s", dropless, theirs))
    return rows


async def paced(device: Device, call: Any) -> Pace:
    """Return the pace of a call that has to be awaited each time."""
    pace, _ = await compare(device, call, {}, together=False)
    return pace


def torch_layers(device: Device, tokens: int, experts: int, d: int, f: int) -> dict[str, Rival]:
    """Return the same layers by PyTorch, without capacities."""
    if device.backend != "cuda" or not there("torch"):
        return {}
    import torch

    silu = torch.nn.functional.silu
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    x, router = torch.randn(tokens, d, **kind), torch.randn(d, experts, device="cuda")
    up, gate = (torch.randn(experts, d, f, **kind) for _ in range(2))
    down = torch.randn(experts, f, d, **kind)

    def layer() -> torch.Tensor:
        gates, chosen = torch.softmax(x.float() @ router, -1).topk(2)
        gates = (gates / gates.sum(-1, keepdim=True)).to(x.dtype)
        y = torch.zeros_like(x)
        for expert in range(experts):
            token, choice = torch.where(chosen == expert)
            rows = x[token]
            hidden = silu(rows @ gate[expert]) * (rows @ up[expert])
            y.index_add_(0, token, (hidden @ down[expert]) * gates[token, choice, None])
        return y

    return {"torch": Rival(torch.inference_mode()(layer), torch.cuda.synchronize)}


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        gpu = device.backend == "cuda"
        sizes = [(8192, 8, 2048, 1408), (8192, 64, 2048, 1408), (512, 64, 2048, 1408)]
        for each in sizes if gpu else [(64, 8, 32, 64)]:
            show(await grouped(device, *each))
        for each in [(4096, 8, 2048, 1408), (512, 64, 2048, 1408)] if gpu else [(64, 8, 32, 64)]:
            for row in await layers(device, *each):
                show(row)


if __name__ == "__main__":
    trio.run(run)
