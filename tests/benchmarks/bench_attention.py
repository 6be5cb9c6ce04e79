"""Attention forward and backward against PyTorch, and decoding from a cache in pages.

Bfloat16, 16384 tokens in sequences of 512 to 16384, 2048 columns in heads of 64 or 128, causal
and not: the sizes of FlashAttention's papers. PyTorch's ``scaled_dot_product_attention`` runs
with each backend that it has, and counts with its best one. Measured side by side, see
``side_by_side.py``, with shorter rounds because there are many. Stops when its time is over.
Without a GPU sizes are small, and only our own numbers are printed.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import side_by_side
import trio
from attention_shapes import BFLOAT16, Shape, random
from side_by_side import Rival, Row, compare, geometric_mean, open_first, show, torch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

MATMUL = 790.0
"""TFLOP/s that an H200 reaches in matrix products."""

BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION")
PASSES = ("forward", "backward")

side_by_side.ROUNDS = 3
side_by_side.ROUND_SECONDS = 0.02
side_by_side.MOST_QUEUED = 64
side_by_side.ALONE = 4


def shapes(*, gpu: bool) -> list[Shape]:
    """Return the shapes to measure, the longest ones last."""
    tokens, columns = (16384, 2048) if gpu else (256, 64)
    lengths = (512, 1024, 2048, 4096, 8192, 16384) if gpu else (128,)
    return [
        Shape(tokens // length, length, columns // size, size, causal)
        for length in lengths
        for size in ((64, 128) if gpu else (32,))
        for causal in (False, True)
    ]


async def measure(device: Device, shape: Shape, *, autotune: bool) -> list[Row]:
    """Both passes."""
    batch, length, heads, size, causal = shape
    q, k, v, do = [await random(device, batch, length, heads, size) for _ in range(4)]
    out, *grads = [await device.empty(q.shape, BFLOAT16) for _ in range(4)]
    forward: Any = device.dnn.flash_attention_with_lse
    options: Any = {"causal": causal, "autotune": autotune}
    _, lse = await forward(q, k, v, out=out, **options)
    three: Any = tuple(grads)
    ours: dict[str, Callable[[Any], Any]] = {
        "forward": lambda on: on.dnn.flash_attention_with_lse(q, k, v, out=out, **options),
        "backward": lambda on: on.dnn.flash_attention_grad(
            do, q, k, v, out, lse, grads=three, **options
        ),
    }
    theirs = rivals(device, shape)
    rows = []
    for name in PASSES:
        pace, paces = await compare(device, ours[name], theirs.get(name, {}))
        operations = shape.operations(name)
        row = Row(f"{name} {shape.name}", operations, "TFLOP/s", pace, paces, {})
        share = operations / pace.queued / 1e12 / MATMUL
        print(*row.lines(), sep="\n")
        if row.theirs:
            print(f"{'':32} {best(row):.2f} of torch's best; {share:.0%} of matmul", flush=True)
        rows.append(row)
    for ref in (q, k, v, do, out, lse, *grads):
        await device.free(ref)
    return rows


def rivals(device: Device, shape: Shape) -> dict[str, dict[str, Rival]]:
    """Return PyTorch's attention for each of its backends that takes the shape."""
    torch = torch_of(device)
    if torch is None:
        return {}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, length, heads, size, causal = shape

    def made() -> Any:
        there_ = torch.randn(batch, length, heads, size, device="cuda", dtype=torch.bfloat16)
        return there_.transpose(1, 2).requires_grad_()

    q, k, v = made(), made(), made()
    do = made().detach()
    attention = torch.nn.functional.scaled_dot_product_attention
    found: dict[str, dict[str, Rival]] = {name: {} for name in PASSES}
    for backend in BACKENDS:
        kernel = getattr(SDPBackend, backend)

        def forward(kernel: Any = kernel) -> Any:
            with sdpa_kernel(kernel):
                return attention(q, k, v, is_causal=causal)

        try:
            result = forward()
        except RuntimeError:
            continue

        def backward(result: Any = result) -> object:
            return torch.autograd.grad(result, (q, k, v), do, retain_graph=True)

        label = backend.partition("_")[0].lower()
        found["forward"][label] = Rival(forward, torch.cuda.synchronize)
        found["backward"][label] = Rival(backward, torch.cuda.synchronize)
    return found


async def decode(device: Device, *, gpu: bool, autotune: bool) -> list[Row]:
    """One query for each sequence, keys and values in pages or, by PyTorch, without gaps."""
    batch, length, heads, kv_heads, size, page = (
        (32, 8192, 32, 8, 128, 64) if gpu else (2, 64, 4, 2, 16, 16)
    )
    columns = length // page
    pages = batch * columns
    rng = np.random.default_rng(0)
    q = await random(device, batch, 1, heads, size)
    k, v = [await random(device, pages, page, kv_heads, size) for _ in "kv"]
    table = rng.permutation(pages).reshape(batch, columns).astype(np.int32)
    rows = []
    theirs: dict[str, Rival] = {}
    if torch := torch_of(device):

        def made(count: int, steps: int) -> Any:
            shape = (batch, steps, count, size)
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16).transpose(1, 2)

        tq, tk, tv = made(heads, 1), made(kv_heads, length), made(kv_heads, length)
        attention = torch.nn.functional.scaled_dot_product_attention
        theirs["torch"] = Rival(
            lambda: attention(tq, tk, tv, enable_gqa=True), torch.cuda.synchronize
        )
    block_table = await device.put(table)
    lengths = await device.put(np.full(batch, length, np.int32))
    out = await device.empty(q.shape, BFLOAT16)

    options: Any = {"causal": True, "autotune": autotune}

    def ours(on: Any) -> Any:
        return on.dnn.flash_attention_with_kvcache(
            q, k, v, cache_seqlens=lengths, block_table=block_table, out=out, **options
        )

    pace, paces = await compare(device, ours, theirs)
    amount = float(k.nbytes + v.nbytes)
    rows.append(show(Row(f"decode {batch} x {length}, pages", amount, "GB/s", pace, paces, {})))
    return rows


def best(row: Row) -> float:
    """Our speed over that of the best rival."""
    return float(min(pace.queued for pace in row.theirs.values()) / row.ours.queued)


def mean(rows: list[Row]) -> float:
    """The geometric mean."""
    return geometric_mean([best(row) for row in rows if row.theirs])


async def run(seconds: float, *, autotune: bool) -> None:
    """Measure and print."""
    begin = time.monotonic()
    async with open_first() as device:
        gpu = device.backend == "cuda"
        await decode(device, gpu=gpu, autotune=autotune)
        rows: list[Row] = []
        for shape in shapes(gpu=gpu):
            if time.monotonic() - begin > seconds:
                print(f"the time is over before {shape.name}")
                break
            rows += await measure(device, shape, autotune=autotune)
        print(device.dnn.statistics())
    if not any(row.theirs for row in rows):
        return
    for name in PASSES:
        found = [row for row in rows if row.name.startswith(name)]
        print(f"{name}: {mean(found):.2f} of torch's best backend")
    print(f"all: {mean(rows):.2f} of torch's best backend (geometric mean; goal >= 1.0)")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--autotune", action="store_true", help="try all of cuDNN's plans")
    options = parser.parse_args()
    trio.run(lambda: run(options.seconds, autotune=options.autotune))


if __name__ == "__main__":
    main()
