"""A GPT-2 forward of 124M parameters, op by op, and ops awaited alone; next to PyTorch.

The forward is of 8 x 512 tokens in float16. It has 86 ops by four libraries: twelve layers of seven
ops, a kernel of the program that looks up embeddings, and a last norm. Queries, keys and values are
views of one product. It is timed in a batch, in flight from eight tasks that await each op, and
recorded; PyTorch's eager forward and its CUDA graph alternate with it. Results are compared first.
``--layers``, ``--batch`` and ``--tokens`` make it smaller. ``--only forward`` or ``--only alone``
leaves out the other part.

Then ops are awaited one by one, next to PyTorch's launch and synchronize. This is the wait of a
program that needs each answer.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import statistics
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import trio
from side_by_side import open_first, parser_of_lines, wanted

from atomr_accel import Device, GpuRef

WIDTH, HEADS = 768, 12
VOCABULARY = 50257
TASKS = 8
ROUNDS, PASSED_OVER, COUNTED = 6, 3, 8

Way = Callable[[], Awaitable[object] | None]
"""A call to time; an awaitable result is awaited."""

EMBED = """
    #include <cuda_fp16.h>
    extern "C" __global__ void embed(
        const int* tokens, const __half* words, const __half* places, __half* x,
        int length, int width, long long n) {
        long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        long long row = i / width, column = i % width;
        x[i] = __hadd(words[(long long)tokens[row] * width + column],
                      places[row % length * width + column]);
    }
"""


def embed(
    tokens: Any, words: Any, places: Any, x: Any, length: int, width: int, _count: int
) -> None:
    """Look up embeddings, as the kernel does."""
    rows = np.arange(tokens.size)
    x.reshape(-1, width)[:] = words[tokens.reshape(-1)] + places[rows % length]


def weights(layers: int, tokens: int) -> dict[str, np.ndarray[Any, Any]]:
    """Random ones, by name."""
    rng = np.random.default_rng(0)

    def of(*shape: int) -> np.ndarray[Any, Any]:
        return (0.02 * rng.standard_normal(shape, np.float32)).astype(np.float16)

    made = {"words": of(VOCABULARY, WIDTH), "places": of(tokens, WIDTH)}
    for layer in range(layers):
        for name, columns, rows in (
            *(("qkv", WIDTH, 3 * WIDTH), ("o", WIDTH, WIDTH)),
            *(("up", WIDTH, 4 * WIDTH), ("down", 4 * WIDTH, WIDTH)),
        ):
            made[f"{layer}.{name}.w"] = of(columns, rows)
            made[f"{layer}.{name}.b"] = of(rows)
    for name in [f"{layer}.{each}" for layer in range(layers) for each in ("norm1", "norm2")]:
        made[f"{name}.w"], made[f"{name}.b"] = 1 + of(WIDTH), of(WIDTH)
    made["norm.w"], made["norm.b"] = 1 + of(WIDTH), of(WIDTH)
    return made


@dataclass
class Model:
    """The forward, in our ops."""

    kernel: Any
    params: dict[str, GpuRef]
    layers: int
    batch: int
    length: int

    def forward(self, on: Any, tokens: GpuRef, x: GpuRef) -> Generator[Any, Any, GpuRef]:
        """Its ops, one by one; each is sent what the last one gave.

        Args:
            on: a device or a batch.
            tokens: int32, (batch, length).
            x: where embeddings go, (batch * length, width).
        """
        p, rows = self.params, self.batch * self.length
        heads = (self.batch, self.length, 3, HEADS, WIDTH // HEADS)

        def linear(name: str, y: GpuRef, **more: Any) -> Any:
            return on.blaslt.matmul(y, p[f"{name}.w"], bias=p[f"{name}.b"], **more)

        count = rows * WIDTH
        args = (tokens, p["words"], p["places"], x, self.length, WIDTH, count)
        grid = -(-count // 256)
        if isinstance(on, Device):
            yield self.kernel.launch(grid, 256, *args)
        else:
            yield on.launch(self.kernel, grid, 256, *args)
        for layer in range(self.layers):
            y = yield on.dnn.layer_norm(x, p[f"{layer}.norm1.w"], p[f"{layer}.norm1.b"])
            qkv = (yield linear(f"{layer}.qkv", y)).reshape(heads)
            q, k, v = (qkv[:, :, at] for at in range(3))
            y = yield on.dnn.flash_attention(q, k, v, causal=True)
            x = yield linear(f"{layer}.o", y.reshape(rows, WIDTH), c=x, beta=1)
            y = yield on.dnn.layer_norm(x, p[f"{layer}.norm2.w"], p[f"{layer}.norm2.b"])
            y = yield linear(f"{layer}.up", y, epilogue="gelu_bias")
            x = yield linear(f"{layer}.down", y, c=x, beta=1)
        result: GpuRef = yield on.dnn.layer_norm(x, p["norm.w"], p["norm.b"])
        return result


def collected(ops: Generator[Any, Any, GpuRef]) -> GpuRef:
    """The ops of a forward in a batch or a recording."""
    given = None
    while True:
        try:
            given = ops.send(given)
        except StopIteration as end:
            result: GpuRef = end.value
            return result


async def awaited(ops: Generator[Any, Any, GpuRef]) -> GpuRef:
    """The ops of a forward, each awaited."""
    given = None
    while True:
        try:
            given = await ops.send(given)
        except StopIteration as end:
            result: GpuRef = end.value
            return result


def rival(made: dict[str, Any], layers: int, tokens: np.ndarray[Any, Any]) -> Any:
    """Return the same forward in PyTorch, which gives its last norm, or None without PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch
    from torch.nn import functional as f

    if not torch.cuda.is_available():
        return None
    p = {name: torch.from_numpy(each).cuda() for name, each in made.items()}
    for name, each in p.items():
        if name.endswith(".w") and each.ndim == 2:
            p[name] = each.T.contiguous()
    ids = torch.from_numpy(tokens).cuda()
    batch, length = tokens.shape

    def forward() -> Any:
        x = f.embedding(ids, p["words"]) + p["places"]
        for layer in range(layers):
            y = f.layer_norm(x, (WIDTH,), p[f"{layer}.norm1.w"], p[f"{layer}.norm1.b"])
            qkv = f.linear(y, p[f"{layer}.qkv.w"], p[f"{layer}.qkv.b"])
            q, k, v = (
                each.view(batch, length, HEADS, -1).transpose(1, 2) for each in qkv.split(WIDTH, -1)
            )
            y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = y.transpose(1, 2).reshape(batch, length, WIDTH)
            x = x + f.linear(y, p[f"{layer}.o.w"], p[f"{layer}.o.b"])
            y = f.layer_norm(x, (WIDTH,), p[f"{layer}.norm2.w"], p[f"{layer}.norm2.b"])
            y = f.linear(y, p[f"{layer}.up.w"], p[f"{layer}.up.b"])
            y = f.gelu(y, approximate="tanh")
            x = x + f.linear(y, p[f"{layer}.down.w"], p[f"{layer}.down.b"])
        return f.layer_norm(x, (WIDTH,), p["norm.w"], p["norm.b"])

    with torch.no_grad():
        for _ in range(3):
            forward()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()

        def eager() -> None:
            with torch.no_grad():
                forward()
            torch.cuda.synchronize()

        def graphed() -> None:
            graph.replay()
            torch.cuda.synchronize()

    with torch.no_grad():
        result = forward().float().cpu().numpy()
    return result, eager, graphed


async def model(device: Device, layers: int, batch: int, length: int) -> None:
    """Time the forward and print."""
    made = weights(layers, length)
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCABULARY, (batch, length)).astype(np.int32)
    ours = Model(
        await device.nvrtc.compile(EMBED, "embed", cpu=embed),
        {name: await device.put(each, sealed=True) for name, each in made.items()},
        layers, batch, length,
    )  # fmt: skip
    ids = await device.put(tokens)
    spaces = [await device.empty((batch * length, WIDTH), np.float16) for _ in range(TASKS)]

    async def in_batch() -> GpuRef:
        async with device.batch() as on:
            return collected(ours.forward(on, ids, spaces[0]))

    async def in_tasks() -> None:
        async with trio.open_nursery() as nursery:
            for x in spaces:
                nursery.start_soon(awaited, ours.forward(device, ids, x))

    async with device.record(shared=True) as recording:
        kept = collected(ours.forward(recording, ids, spaces[0]))

    ways: dict[str, Way] = {
        "in a batch": in_batch,
        f"of {TASKS} tasks, each": in_tasks,
        "recorded": recording.replay,
    }
    result = await device.get(await in_batch())
    await recording.replay()
    assert np.array_equal(result, await device.get(kept))
    each = await awaited(ours.forward(device, ids, spaces[0]))
    assert np.array_equal(result, await device.get(each))
    theirs = rival(made, layers, tokens)
    if theirs is not None:
        expected, eager, graphed = theirs
        error = float(np.max(np.abs(result.astype(np.float32).reshape(expected.shape) - expected)))
        assert error < 0.1, error
        ways |= {"torch, eager": eager, "torch, CUDA graph": graphed}
    middle = await in_turns(ways)
    middle = {name: each / (TASKS if name.startswith("of") else 1) for name, each in middle.items()}
    ops = 2 + 7 * layers
    print(f"GPT-2 forward, {ops} ops, {batch} x {length} {'ms':>14} us an op  of torch eager")
    eager_time = middle.get("torch, eager")
    for name, seconds in middle.items():
        ratio = f"{seconds / eager_time:10.2f}" if eager_time else ""
        print(f"  {name:42} {seconds * 1e3:8.2f} {seconds / ops * 1e6:9.1f} {ratio}", flush=True)


async def in_turns(ways: dict[str, Way]) -> dict[str, float]:
    """Seconds that each takes, medians.

    In turns of several, since a device that goes from one process to another takes a while: the
    first of each turn do not count.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            for turn in range(PASSED_OVER + COUNTED):
                begun = time.perf_counter()
                waiting = way()
                if waiting is not None:
                    await waiting
                if turn >= PASSED_OVER:
                    times[name].append(time.perf_counter() - begun)
    return {name: statistics.median(each) for name, each in times.items()}


async def alone(device: Device, large: int) -> None:
    """Time ops that are awaited one by one and print."""
    import ml_dtypes

    half = await device.put(np.eye(large, dtype=ml_dtypes.bfloat16))
    big = await device.empty((large, large), ml_dtypes.bfloat16)
    single = await device.put(np.eye(256, dtype=np.float32))
    small = await device.empty((256, 256), np.float32)
    scale = await device.put(np.ones(256, np.float32))
    ways: dict[str, Way] = {
        "sgemm 256": lambda: device.blas.gemm(single, single, out=small),
        "layer_norm 256": lambda: device.dnn.layer_norm(single, scale, scale),
        f"bf16 {large}, blaslt": lambda: device.blaslt.matmul(half, half, out=big),
        f"bf16 {large}, blas": lambda: device.blas.gemm(half, half, out=big),
    }
    names = [*ways]
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            t_half = torch.eye(large, dtype=torch.bfloat16, device="cuda")
            t_big = torch.empty_like(t_half)
            t_single = torch.eye(256, device="cuda")
            t_small, t_scale = torch.empty_like(t_single), torch.ones(256, device="cuda")
            norm = torch.nn.functional.layer_norm
            theirs: dict[str, Callable[[], object]] = {
                "sgemm 256": lambda: torch.mm(t_single, t_single, out=t_small),
                "layer_norm 256": lambda: norm(t_single, (256,), t_scale, t_scale),
                f"bf16 {large}, blaslt": lambda: torch.mm(t_half, t_half, out=t_big),
                f"bf16 {large}, blas": lambda: torch.mm(t_half, t_half, out=t_big),
            }

            def synchronized(call: Callable[[], object]) -> None:
                call()
                torch.cuda.synchronize()

            ways |= {f"torch {name}": partial(synchronized, call) for name, call in theirs.items()}
    middle = {name: each * 1e6 for name, each in (await in_turns(ways)).items()}
    print(f"{'awaited alone, us':40} {'ours':>8} {'torch':>8} {'more':>8}")
    for name in names:
        line = f"  {name:38} {middle[name]:8.1f}"
        if f"torch {name}" in middle:
            other = middle[f"torch {name}"]
            line += f" {other:8.1f} {middle[name] - other:8.1f}"
        print(line, flush=True)


async def main() -> None:
    """Measure and print."""
    parser = parser_of_lines("A GPT-2 forward op by op, and ops alone.")
    for name, default in (("layers", 12), ("batch", 8), ("tokens", 512), ("large", 8192)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    async with open_first() as device:
        if importlib.util.find_spec("torch") is not None:
            importlib.import_module("torch")
        gc.collect()
        gc.freeze()  # else all pay for what importing has left
        if wanted("forward", given.only):
            await model(device, given.layers, given.batch, given.tokens)
        if wanted("alone", given.only):
            await alone(device, given.large)


if __name__ == "__main__":
    trio.run(main)
