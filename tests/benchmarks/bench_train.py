"""Training: steps of AdamW, the cost of fault tolerance, GPT-2 next to torch, and kills.

- Bytes per second of one fused step of AdamW, which reads parameters, gradients and two means, and
  writes all but the gradients. A copy on the device and NumPy's step are compared with it.
- A whole step of a trainer beside the same step by hand, without snapshots, repeats and checks.
- Tokens per second of a step of GPT-2 in bfloat16, next to ``torch.compile`` of the same model.
- The same with data parallel training on two devices, next to torch's DistributedDataParallel.
- Steps of the pipeline, tensor parallel and parameter server trainers on two devices.
- Kills of a host: how long until the next step is made, and whether the losses have the same bits.

On CUDA there are a billion parameters and GPT-2 with 124 million; without a GPU few.

    python tests/benchmarks/bench_train.py
    python tests/benchmarks/bench_train.py --parts adamw,gpt
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import ml_dtypes
import numpy as np
import trio
from measuring import median_of, told_by_torch

from atomr_accel import CpuFallbackWarning, DeviceUnavailable, open_device, train
from atomr_accel.testing import kill_host
from atomr_accel.train import ModelLayout, ModelState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atomr_accel import Device

TIMES = 3
ROUNDS = 3
STEPS = 20


async def seconds(call: Callable[[], Awaitable[object]]) -> float:
    """Return the median duration of a call."""
    return await median_of(call, TIMES)


def by_numpy(size: int) -> Callable[[], Awaitable[object]]:
    """Make AdamW's step with NumPy, in place where it can be."""
    p, g, mean, square = (np.full(size, 0.5, np.float32) for _ in range(4))

    async def step() -> None:
        await trio.lowlevel.checkpoint()
        p[:] = p * (1 - 1e-5)
        mean[:] = 0.9 * mean + 0.1 * g
        square[:] = 0.999 * square + 0.001 * (g * g)
        p[:] = p - 1e-3 * (mean / (np.sqrt(square) + 1e-8))

    return step


async def adamw(device: Device, size: int, *, numpy: bool) -> None:
    """Print the first table."""
    params = {"w": np.zeros(size, np.float32)}
    optimizer = train.AdamW(lr=1e-3)
    buffers = [await device.zeros(size, np.float32) for _ in range(1 + optimizer.slots)]
    state = ModelState(ModelLayout(params, optimizer), device, buffers, 0)
    grads = await device.full(size, 0.5, np.float32)
    other = await device.empty(size, np.float32)

    async def step() -> None:
        await state.update(optimizer, grads, 1.0)

    async def copy() -> None:
        await device.copy(grads, other)

    ours = 7 * 4 * size / await seconds(step)
    memory = 2 * 4 * size / await seconds(copy)
    print(f"AdamW, {size:,} parameters: {ours / 1e9:.1f} GB/s")
    print(f"  a copy on the device: {memory / 1e9:.1f} GB/s, ratio {ours / memory:.2f}")
    if numpy:
        theirs = 7 * 4 * size / await seconds(by_numpy(size))
        print(f"  NumPy: {theirs / 1e9:.1f} GB/s, ratio {ours / theirs:.2f}")


def loss(tape: train.Tape, p: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Mean squared error of three layers."""
    hidden = tape.dnn.gelu(tape.blas.gemm(batch["x"], p["a"]))
    hidden = tape.dnn.gelu(tape.blas.gemm(hidden, p["b"]))
    return train.mse(tape.blas.gemm(hidden, p["c"]), batch["y"])


async def trainer_step(device: Device, width: int, rows: int) -> None:
    """Print the second table."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape, dtype=np.float32)

    params = {"a": normal(64, width) / 8, "b": normal(width, width) / width, "c": normal(width, 1)}
    batch = {"x": normal(rows, 64), "y": normal(rows, 1)}
    optimizer = train.AdamW(lr=1e-3)
    state = await ModelState.create(device, ModelLayout(params, optimizer), params, optimizer)
    gradients = train.grad(device, loss)

    async def by_hand() -> None:
        for _ in range(STEPS):
            shard = {name: await device.put(array) for name, array in batch.items()}
            made, grads = await gradients(state.params, shard)
            flat = await state.gathered(grads)
            await device.get(made)
            await state.norm(flat, 1.0)
            await state.update(optimizer, flat, 1.0)

    async with train.open_data_parallel(
        [device], train.gradient_step(loss), params, optimizer, snapshot_every=STEPS
    ) as trainer:

        async def tolerant() -> None:
            async for _ in trainer.run([batch] * STEPS):
                pass

        await by_hand()
        await tolerant()
        rounds = [(await seconds(by_hand), await seconds(tolerant)) for _ in range(ROUNDS)]
    hand, whole = (statistics.median(each) / STEPS for each in zip(*rounds, strict=True))
    print(f"a step of {sum(each.size for each in params.values()):,} parameters, {rows} rows")
    print(f"  by hand {hand * 1e3:.3f} ms, trainer {whole * 1e3:.3f} ms, ratio {whole / hand:.3f}")


# --- GPT-2 ------------------------------------------------------------------------------------


class GptSize(NamedTuple):
    """Numbers of a GPT, and of its batches."""

    layers: int
    heads: int
    width: int
    letters: int
    length: int
    rows: int


GPT2: Final = GptSize(12, 12, 768, 50304, 1024, 8)
SMALL: Final = GptSize(2, 2, 32, 64, 32, 8)
BF16: Final = np.dtype(ml_dtypes.bfloat16)

RIVAL: Final = """
import json, os, sys, time, torch, torch.nn.functional as F
layers, heads, width, letters, length, rows = json.loads(sys.argv[2])
rank, ranks = int(sys.argv[1]), json.loads(sys.argv[3])
torch.cuda.set_device(rank)
torch.manual_seed(0)
nn = torch.nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, width))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))
class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight
        for block in self.blocks:
            h = block(h)
        logits = self.norm(h) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, letters), y.view(-1))
model = Gpt().cuda()
if ranks > 1:
    import torch.distributed as dist
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
run = torch.compile(model)
adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
x = torch.randint(letters, (rows, length), device="cuda")
def step():
    with torch.autocast("cuda", torch.bfloat16):
        loss = run(x, x)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adamw.step()
    adamw.zero_grad(set_to_none=True)
for _ in range(8):
    step()
torch.cuda.synchronize()
begun = time.perf_counter()
for _ in range(20):
    step()
torch.cuda.synchronize()
print(json.dumps((time.perf_counter() - begun) / 20))
"""


def gpt_params(size: GptSize) -> Any:
    """Return random parameters in bfloat16."""
    rng = np.random.default_rng(0)
    width = size.width

    def normal(*shape: int) -> Any:
        return (rng.standard_normal(shape, dtype=np.float32) * 0.02).astype(BF16)

    def norm() -> Any:
        return {"w": np.ones(width, BF16), "b": np.zeros(width, BF16)}

    def linear(n: int, m: int) -> Any:
        return {"w": normal(n, m), "b": np.zeros(m, BF16)}

    return {
        "wte": normal(size.letters, width),
        "wpe": normal(size.length, width),
        "norm": norm(),
        "blocks": [
            {
                "n1": norm(),
                "qkv": linear(width, 3 * width),
                "o": linear(width, width),
                "n2": norm(),
                "up": linear(width, 4 * width),
                "down": linear(4 * width, width),
            }
            for _ in range(size.layers)
        ],
    }


def gpt_loss(size: GptSize) -> Callable[..., Any]:
    """Return the loss of a GPT with this package's ops."""
    heads, width = size.heads, size.width

    def model_loss(tape: train.Tape, p: dict[str, Any], batch: dict[str, Any]) -> Any:
        rows, length = batch["x"].shape

        def normed(x: Any, n: Any) -> Any:
            return tape.dnn.layer_norm(x, n["w"], n["b"])

        def linear(x: Any, n: Any, epilogue: str = "bias") -> Any:
            return tape.blaslt.matmul(x, n["w"], bias=n["b"], epilogue=epilogue)

        x = tape.evaluate(tape.array.take(p["wte"], batch["x"], axis=0) + p["wpe"])
        x = x.reshape(rows * length, width)
        for block in p["blocks"]:
            qkv = linear(normed(x, block["n1"]), block["qkv"])
            q, k, v = (
                tape.copy(qkv[:, at * width : (at + 1) * width]).reshape(rows, length, heads, -1)
                for at in range(3)
            )
            y = tape.dnn.flash_attention(q, k, v, causal=True).reshape(rows * length, width)
            x = tape.evaluate(x + linear(y, block["o"]))
            hidden = linear(normed(x, block["n2"]), block["up"], "gelu_bias")
            x = tape.evaluate(x + linear(hidden, block["down"]))
        logits = tape.blaslt.matmul(normed(x, p["norm"]), p["wte"], trans_b=True)
        return tape.dnn.cross_entropy(logits, batch["y"].reshape(-1))

    return model_loss


async def gpt(devices: list[Device], size: GptSize) -> float:
    """Print tokens per second of a data parallel trainer on some devices, and return seconds."""
    rng = np.random.default_rng(0)
    ranks = len(devices)
    shape = (size.rows * ranks, size.length)
    batch = {name: rng.integers(0, size.letters, shape).astype(np.int32) for name in "xy"}
    step = train.gradient_step(gpt_loss(size), recorded=True)
    params = gpt_params(size)
    async with train.open_data_parallel(
        devices, step, params, train.AdamW(lr=1e-4), clip=1.0, snapshot_every=100
    ) as trainer:
        _ = [made async for made in trainer.run([batch] * 3)]

        async def some() -> None:
            _ = [made async for made in trainer.run([batch] * 5)]

        ours = await seconds(some) / 5
        losses = [made.loss async for made in trainer.run([batch] * 2)]
    tokens = shape[0] * shape[1]
    print(f"GPT of {size}, {ranks} device(s): {tokens / ours:,.0f} tokens/s, loss {losses[-1]:.3f}")
    return ours


def compare(size: GptSize, ranks: int, ours: float | None) -> None:
    """Print tokens per second of torch, next to a trainer's seconds for a step, if known."""
    theirs = told_by_torch(RIVAL, ranks, size, ranks, seconds=240)
    if theirs is None:
        print("  torch: skipped")
    else:
        tokens = size.rows * ranks * size.length
        ratio = "" if ours is None else f", ratio {theirs / ours:.3f}"
        print(f"  torch: {tokens / theirs:,.0f} tokens/s{ratio}")


# --- other trainers ---------------------------------------------------------------------------


def first_stage(tape: train.Tape, p: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Half of a network."""
    return tape.dnn.gelu(tape.blas.gemm(batch["x"], p["a"]))


def last_stage(tape: train.Tape, p: dict[str, Any], x: Any, batch: dict[str, Any]) -> Any:
    """Other half, and the loss."""
    return train.mse(tape.blas.gemm(tape.dnn.gelu(tape.blas.gemm(x, p["b"])), p["c"]), batch["y"])


async def cut_loss(part: train.TensorPart, p: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Loss of the network in parts."""
    hidden = part.tape.dnn.gelu(await part.column(batch["x"], p["a"]))
    hidden = part.tape.dnn.gelu(await part.row(hidden, p["b"]))
    return train.mse(part.tape.blas.gemm(hidden, p["c"]), batch["y"])


async def trainers(devices: list[Device], width: int, rows: int) -> None:
    """Print a step of each trainer, on one device and on all."""
    rng = np.random.default_rng(0)
    shapes = {"a": (64, width), "b": (width, width), "c": (width, 1)}
    params = {
        name: rng.standard_normal(shape, dtype=np.float32) / shape[0] ** 0.5
        for name, shape in shapes.items()
    }
    batch = {
        "x": rng.standard_normal((rows, 64), dtype=np.float32),
        "y": rng.standard_normal((rows, 1), dtype=np.float32),
    }
    sgd, step = train.SGD(lr=1e-3), train.gradient_step(loss)
    stages: list[Any] = [first_stage, last_stage]
    cut = [{"a": params["a"]}, {"b": params["b"], "c": params["c"]}]
    splits = {"a": 1, "b": 0, "c": None}

    def opened(which: str, some: list[Device]) -> Any:
        if which == "data parallel":
            return train.open_data_parallel(some, step, params, sgd, shards=4)
        if which == "pipeline parallel":
            return train.open_pipeline_parallel(some, stages, cut, sgd, micro_batches=4)
        if which == "tensor parallel":
            return train.open_tensor_parallel(
                some, cut_loss, params, sgd, split=lambda path, _: splits[path[0]], parts=2
            )
        return train.open_parameter_server(some, step, params, sgd, staleness=1)

    count = 5
    names = ("data parallel", "pipeline parallel", "tensor parallel", "parameter server")
    for which in names:
        found = []
        for some in (devices[:1], devices):
            async with opened(which, some) as trainer:

                async def steps(trainer: Any = trainer) -> None:
                    _ = [made async for made in trainer.run([batch] * count)]

                found.append(await seconds(steps) / count * 1e3)
        one, all_ = found
        print(f"{which}: {one:.2f} ms a step on one device, {all_:.2f} ms on {len(devices)}")


async def kills(backend: str, count: int) -> None:
    """Print how long it takes until a step is made after a kill."""
    rng = np.random.default_rng(0)
    params = {
        name: rng.standard_normal(shape, dtype=np.float32) / 8
        for name, shape in {"a": (64, 64), "b": (64, 64), "c": (64, 1)}.items()
    }
    batch = {
        "x": rng.standard_normal((64, 64), dtype=np.float32),
        "y": rng.standard_normal((64, 1), dtype=np.float32),
    }
    steps = 3 * (count + 1)
    found: list[list[float]] = []
    waits: list[float] = []
    repeats = 0
    for kill in (False, True):
        losses: list[float] = []
        async with AsyncExitStack() as stack:
            devices = [
                await stack.enter_async_context(
                    open_device(n if backend == "cuda" else 0, backend=backend, deterministic=True)
                )
                for n in range(1 if backend == "cuda" else 2)
            ]
            trainer = await stack.enter_async_context(
                train.open_data_parallel(
                    *(devices, train.gradient_step(loss), params, train.AdamW(lr=1e-3)),
                    snapshot_every=1,
                )
            )
            for number in range(steps):
                begun = time.perf_counter()
                if hurts := kill and number % 3 == 2 and len(waits) < count:
                    await kill_host(devices[-1])
                made = await trainer.make_step(batch)
                repeats += made.repeats
                losses.append(made.loss)
                if hurts:
                    waits.append(time.perf_counter() - begun)
        found.append(losses)
    same = "the same bits" if found[0] == found[1] else "OTHER BITS"
    middle, worst = statistics.median(waits), max(waits)
    print(
        f"{count} kills: the next step after {middle:.2f} s, at most {worst:.2f} s; {repeats} "
        f"steps repeated; losses have {same}"
    )


async def two_devices(*, cuda: bool) -> None:
    """Print steps of trainers on two devices, if there are as many."""
    async with AsyncExitStack() as stack:
        try:
            devices = [
                await stack.enter_async_context(
                    open_device(n if cuda else 0, backend="cuda" if cuda else "cpu")
                )
                for n in range(2)
            ]
        except DeviceUnavailable:
            print("two devices: skipped")
            return
        ours = await gpt(devices, GPT2 if cuda else SMALL)
        if cuda:
            compare(GPT2, 2, ours)
        await trainers(devices, 4096 if cuda else 256, 8192 if cuda else 256)


async def main(parts: list[str]) -> None:
    """Print some parts. Torch's step comes last, because it takes a minute to compile."""
    async with open_device(0, deterministic=True) as device:
        cuda = device.backend == "cuda"
        if "adamw" in parts:
            await adamw(device, 1_000_000_000 if cuda else 1 << 20, numpy=not cuda)
    ours = None
    if "gpt" in parts:
        async with open_device(0) as device:
            ours = await gpt([device], GPT2 if cuda else SMALL)
    if "cost" in parts:
        async with open_device(0, deterministic=True) as device:
            await trainer_step(device, 4096 if cuda else 256, 8192 if cuda else 256)
    if "kills" in parts:
        await kills("cuda" if cuda else "cpu", 5)
    if "two" in parts:
        await two_devices(cuda=cuda)
    if "torch" in parts and cuda:
        compare(GPT2, 1, ours)


def parsed() -> argparse.Namespace:
    """Return the parsed options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--parts", default="adamw,gpt,cost,kills,two,torch", help="some of these")
    return parser.parse_args()


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    trio.run(main, parsed().parts.split(","))
