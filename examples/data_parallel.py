"""Data parallel training in ten lines. A device dies on the way, and the loss has the same bits."""

import warnings
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device, train
from atomr_accel.testing import kill_host

rng = np.random.default_rng(0)
X = rng.standard_normal((64, 8))
BATCH = {"x": X, "y": np.sin(X.sum(1, keepdims=True))}
PARAMS = {"w": rng.standard_normal((8, 32)) / 3, "out": rng.standard_normal((32, 1)) / 6}


def model_loss(tape: train.Tape, p: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Mean squared error of two layers."""
    hidden = tape.dnn.gelu(tape.blas.gemm(batch["x"], p["w"]))
    return train.mse(tape.blas.gemm(hidden, p["out"]), batch["y"])


async def losses(*, kill: bool) -> list[float]:
    """Train on two devices."""
    step, adamw, made = train.gradient_step(model_loss), train.AdamW(lr=0.02), []
    async with (
        open_device(0) as one,
        open_device(0) as other,
        train.open_data_parallel([one, other], step, PARAMS, adamw) as trainer,
    ):
        async for each in trainer.run([BATCH] * 12):
            made.append(each.loss)
            if kill and each.number == 5:
                await kill_host(other)
    return made


async def main() -> None:
    """Train without a fault, and with one."""
    calm, hurt = await losses(kill=False), await losses(kill=True)
    assert calm == hurt  # to the last bit
    assert calm[-1] < calm[0]
    print(f"loss {calm[0]:.4f} to {calm[-1]:.4f}, the same with a device that was killed")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
