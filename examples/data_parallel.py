"""One model on several devices: each has a part of the batch, and a fault changes no bit.

One of the devices loses its host on the way. Its model comes back from the other one, and the step
is repeated.
"""

import warnings
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device, train
from atomr_accel.testing import kill_host

rng = np.random.default_rng(0)
PARAMS = {"w": rng.standard_normal((8, 32)) / 3, "out": rng.standard_normal((32, 1)) / 6}
X = rng.standard_normal((64, 8))
BATCH = {"x": X, "y": np.sin(X.sum(1, keepdims=True))}


def model_loss(tape: train.Tape, p: dict[str, Any], batch: dict[str, Any]) -> train.TapeValue:
    """Mean squared error of two layers."""
    hidden = tape.dnn.gelu(tape.blas.gemm(batch["x"], p["w"]))
    loss: train.TapeValue = train.mse(tape.blas.gemm(hidden, p["out"]), batch["y"])
    return loss


async def losses(*, kill: bool) -> list[float]:
    """Train for some steps."""
    made = []
    async with open_device(0) as one, open_device(0) as other:
        step = train.gradient_step(model_loss)
        adamw = train.AdamW(lr=0.02)
        async with train.open_data_parallel([one, other], step, PARAMS, adamw) as trainer:
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
