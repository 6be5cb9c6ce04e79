"""Fine-tuning of a PyTorch model by LoRA: torch computes in ``device.run``, a trainer makes steps.

The frozen weights are sealed on the device. Only the small factors are trained; a fault on the way
repeats one step. Runs on a GPU, or without one on the CPU; needs PyTorch.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Device, GpuRef, open_device, train
from atomr_accel.testing import kill_host

WIDTH, RANK, ROWS, STEPS = 64, 4, 64, 60
rng = np.random.default_rng(0)
BASE = [(rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32) for _ in range(2)]
FACTORS = [
    {
        "a": (rng.standard_normal((WIDTH, RANK)) / WIDTH**0.5).astype(np.float32),
        "b": np.zeros((RANK, WIDTH), np.float32),  # so that the model is unchanged at first
    }
    for _ in BASE
]
SHIFT = rng.standard_normal((WIDTH, 2)) @ rng.standard_normal((2, WIDTH)) / WIDTH


def tensor(array: Any) -> Any:
    """Return a buffer as a tensor that shares its memory."""
    import torch

    if isinstance(array, np.ndarray):  # of the CPU backend
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that sealed memory is read-only is the point
            return torch.from_numpy(array)
    return torch.as_tensor(array, device="cuda")


def gradients(base: list[Any], factors: list[Any], x: Any, y: Any, out: list[Any]) -> None:
    """Compute the loss and the gradients of the factors in the device's host."""
    import torch

    leaves = [tensor(each[name]).requires_grad_() for each in factors for name in ("a", "b")]
    hidden = tensor(x)
    for at, weight in enumerate(base):
        a, b = leaves[2 * at : 2 * at + 2]
        hidden = torch.tanh(hidden @ tensor(weight) + (hidden @ a) @ b)
    loss = torch.nn.functional.mse_loss(hidden, tensor(y))
    loss.backward()
    for there, made in zip(out, [loss.detach(), *(leaf.grad for leaf in leaves)], strict=True):
        tensor(there).copy_(made)


class LoraStep:
    """A trainer's step; each device gets the frozen weights once."""

    def __init__(self) -> None:
        self.base: dict[Device, list[GpuRef]] = {}

    async def __call__(self, device: Device, factors: Any, batch: Any) -> tuple[GpuRef, Any]:
        """Return the loss of a shard and the gradients."""
        if device not in self.base:
            self.base[device] = [await device.put(each, sealed=True) for each in BASE]
        loss = await device.empty((), np.float32)
        grads = [
            {name: await device.empty(ref.shape, ref.dtype) for name, ref in each.items()}
            for each in factors
        ]
        out = [loss, *(each[name] for each in grads for name in ("a", "b"))]
        await device.run(gradients, self.base[device], factors, batch["x"], batch["y"], out)
        return loss, grads


def batches() -> list[dict[str, Any]]:
    """Make inputs, and outputs of a model whose first layer has moved."""
    made = []
    for _ in range(STEPS):
        x = rng.standard_normal((ROWS, WIDTH)).astype(np.float32)
        y = np.tanh(np.tanh(x @ (BASE[0] + SHIFT)) @ BASE[1]).astype(np.float32)
        made.append({"x": x, "y": y})
    return made


async def main() -> None:
    """Fine-tune through a fault."""
    async with open_device(0) as device:
        adamw = train.AdamW(lr=0.02, weight_decay=0.0)
        async with train.open_data_parallel([device], LoraStep(), FACTORS, adamw) as trainer:
            losses = []
            async for made in trainer.run(batches()):
                losses.append(made.loss)
                if made.number == STEPS // 2:
                    await kill_host(device)
            assert trainer.statistics().steps == STEPS
    assert losses[-1] < losses[0] / 2
    trained = sum(each.size for layer in FACTORS for each in layer.values())
    total = sum(each.size for each in BASE)
    print(f"{trained} parameters beside {total} frozen ones, through a fault")
    print(f"loss {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        print("This example fine-tunes a PyTorch model, and PyTorch is not here: pip install torch")
        sys.exit()
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
