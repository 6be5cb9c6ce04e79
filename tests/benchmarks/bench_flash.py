"""Our attention kernels next to cuDNN's, and next to PyTorch's if cuDNN has none.

``device.flash_attention`` is measured with each backend on shapes that both take, next to PyTorch's
FlashAttention. The goals: kernels of this package reach 0.9 of cuDNN's speed forward, and 0.8
backward. Features that only they have are measured next to ``flex_attention``, compiled. Bfloat16,
16384 tokens in sequences of 512 to 8192 with 2048 columns, as in FlashAttention's papers. The
papers' kernels reach 335 (FlashAttention-2) and 740 TFLOP/s (-3) forward on an H100. Measured side
by side, see ``side_by_side.py``. Stops when its time is over. Without a GPU sizes are small, and
only our own numbers are printed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import side_by_side
import trio
from attention_shapes import BFLOAT16, Shape, random
from side_by_side import (
    Rival,
    Row,
    compare,
    geometric_mean,
    open_first,
    parser_of_lines,
    show,
    torch_of,
    wanted,
)

from atomr_accel import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from atomr_accel import Device

GOALS = {"forward": 1 / 0.9, "backward": 1 / 0.8}
"""Largest ratio of our kernels' time to cuDNN's."""

side_by_side.ROUNDS = 3
side_by_side.ROUND_SECONDS = 0.02
side_by_side.MOST_QUEUED = 32
side_by_side.ALONE = 4


def shapes(*, gpu: bool) -> list[Shape]:
    """Return the shapes to measure, the longest ones last."""
    tokens, columns = (16384, 2048) if gpu else (128, 64)
    return [
        Shape(tokens // length, length, columns // size, size, causal)
        for length in ((512, 2048, 8192) if gpu else (64,))
        for size in ((64, 128) if gpu else (32,))
        for causal in (False, True)
    ]


async def both(device: Device, shape: Shape) -> dict[str, float]:
    """Return the ratio of our kernels' time to cuDNN's, by pass."""
    batch, length, heads, size, causal = shape
    q, k, v, do = [await random(device, batch, length, heads, size) for _ in range(4)]
    out = await device.empty(q.shape, BFLOAT16)
    grads: Any = tuple([await device.empty(q.shape, BFLOAT16) for _ in range(3)])
    flash: Any = device.flash_attention
    given: dict[str, Any] = {"causal": causal}
    _, lse, _ = await flash.flash_attn_func(q, k, v, out=out, return_attn_probs=True, **given)

    def forward(backend: str) -> Callable[[Any], Any]:
        return lambda on: on.flash_attention.flash_attn_func(
            q, k, v, out=out, backend=backend, **given
        )

    def backward(backend: str) -> Callable[[Any], Any]:
        return lambda on: on.flash_attention.flash_attn_backward(
            do, q, k, v, out, lse, grads=grads, backend=backend, **given
        )

    theirs = sdpa(device, shape)
    ratios = {}
    for name, call in (("forward", forward), ("backward", backward)):
        paces = {}
        for backend in ("kernel", "cudnn"):
            rivals = theirs.get(name, {}) if backend == "kernel" else {}
            pace, others = await compare(device, call(backend), rivals)
            row = Row(
                f"{name} {shape.name} {backend}",
                shape.operations(name),
                "TFLOP/s",
                pace,
                others,
                {},
            )
            show(row)
            paces[backend] = pace.queued
        ratios[name] = paces["kernel"] / paces["cudnn"]
        print(f"{name} {shape.name:23} {ratios[name]:.2f} times cuDNN's time", flush=True)
    for ref in (q, k, v, do, out, lse, *grads):
        await device.free(ref)
    return ratios


async def alone(device: Device, shape: Shape) -> None:
    """A softcap where sequences have lengths, which cuDNN has not."""
    batch, length, heads, size, _ = shape
    q, k, v = [await random(device, batch, length, heads, size) for _ in range(3)]
    counts = await device.put(np.full(batch, length, np.int32))
    out = await device.empty(q.shape, BFLOAT16)

    def ours(on: Any) -> Any:
        return on.flash_attention.flash_attn_func(
            q, k, v, causal=True, softcap=30.0, seqlens_q=counts, seqlens_k=counts, out=out
        )

    pace, paces = await compare(device, ours, flex(device, shape))
    operations = shape._replace(causal=True).operations("forward")
    show(Row(f"softcap {length} x {size} causal", operations, "TFLOP/s", pace, paces, {}))


def sdpa(device: Device, shape: Shape) -> dict[str, dict[str, Rival]]:
    """Return PyTorch's FlashAttention on the same shape."""
    torch = torch_of(device)
    if torch is None:
        return {}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = (each.requires_grad_() for each in _made(shape, 3))
    (do,) = _made(shape, 1)

    def forward() -> Any:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)

    try:
        result = forward()
    except RuntimeError:
        return {}

    def backward() -> object:
        return torch.autograd.grad(result, (q, k, v), do, retain_graph=True)

    return {
        "forward": {"torch": Rival(forward, torch.cuda.synchronize)},
        "backward": {"torch": Rival(backward, torch.cuda.synchronize)},
    }


def flex(device: Device, shape: Shape) -> dict[str, Rival]:
    """A softcap and a causal mask by PyTorch's flex_attention."""
    torch = torch_of(device)
    if torch is None:
        return {}
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = _made(shape, 3)

    def capped(score: Any, *_: Any) -> Any:
        return 30.0 * torch.tanh(score / 30.0)

    try:
        mask = create_block_mask(
            lambda _b, _h, row, column: column <= row, None, None, shape.length, shape.length
        )
        compiled = torch.compile(flex_attention)
        compiled(q, k, v, score_mod=capped, block_mask=mask)
    except Exception as error:  # noqa: BLE001 - whatever it lacks, such as a compiler
        print(f"flex_attention: {type(error).__name__}: {str(error)[:100]}")
        return {}
    return {
        "flex": Rival(
            lambda: compiled(q, k, v, score_mod=capped, block_mask=mask), torch.cuda.synchronize
        )
    }


def _made(shape: Shape, count: int) -> list[Any]:
    import torch

    sizes = (shape.batch, shape.length, shape.heads, shape.size)
    return [
        torch.randn(*sizes, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        for _ in range(count)
    ]


async def decode(device: Device, *, gpu: bool) -> None:
    """One query for each sequence: a cache in 16 bits, in pages of two sizes, and in fp8."""
    batch, length, heads, kv_heads, size = (32, 8192, 32, 8, 128) if gpu else (2, 64, 4, 2, 16)
    q = await random(device, batch, 1, heads, size)
    counts = await device.put(np.full(batch, length, np.int32))
    out = await device.empty(q.shape, BFLOAT16)
    rng = np.random.default_rng(0)
    for page, dtype in ((0, BFLOAT16), (64, BFLOAT16), (48, BFLOAT16), (0, "float8_e4m3fn")):
        more = {}
        shape = (batch, length, kv_heads, size)
        if page:
            columns = -(-length // page)
            shape = (batch * columns, page, kv_heads, size)
            table = rng.permutation(batch * columns).reshape(batch, columns)
            more = {"block_table": await device.put(table.astype(np.int32))}
        k, v = [await device.zeros(shape, dtype) for _ in "kv"]
        for backend in ("kernel", "cudnn"):

            def ours(
                on: Any, k: Any = k, v: Any = v, backend: str = backend, more: Any = more
            ) -> Any:
                return on.flash_attention.flash_attn_with_kvcache(
                    *(q, k, v), cache_seqlens=counts, causal=True, out=out, backend=backend, **more
                )

            try:
                await ours(device)
            except Unsupported:
                continue
            pace, _ = await compare(device, ours, {})
            name = f"decode pages of {page or 'none'} {np.dtype(dtype).name} {backend}"
            show(Row(name, float(k.nbytes + v.nbytes), "GB/s", pace, {}, {}))
        await device.free(k)
        await device.free(v)


async def run(seconds: float, only: list[str]) -> None:
    """Measure and print."""
    begin = time.monotonic()
    async with open_first() as device:
        gpu = device.backend == "cuda"
        if wanted("decode", only):
            await decode(device, gpu=gpu)
        every = shapes(gpu=gpu)
        if wanted("softcap", only):
            await alone(device, every[-1])
        found: dict[str, list[float]] = {"forward": [], "backward": []}
        for shape in every:
            if not wanted(shape.name, only):
                continue
            if time.monotonic() - begin > seconds:
                print(f"the time is over before {shape.name}")
                break
            for name, ratio in (await both(device, shape)).items():
                found[name].append(ratio)
    for name, ratios in found.items():
        if gpu and ratios:
            mean = geometric_mean(ratios)
            told = f"{mean:.2f} times cuDNN's time, {max(ratios):.2f} at most"
            print(f"{name}: {told} (goal {GOALS[name]:.2f})")


def main() -> None:
    """Run the benchmark."""
    parser = parser_of_lines(__doc__)
    parser.add_argument("--seconds", type=float, default=55)
    given = parser.parse_args()
    trio.run(run, given.seconds, given.only)


if __name__ == "__main__":
    main()
