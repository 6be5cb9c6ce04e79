"""A small GPT on text that this program makes. Its device loses its host on the way.

The step is repeated and the loss goes on falling. A run that goes on from the middle's file ends
with the same loss, to the last bit.
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device, train
from atomr_accel.testing import kill_host

LENGTH, WIDTH, STEPS = 16, 24, 32
rng = np.random.default_rng(0)
WORDS = ["actors ", "send ", "messages ", "and ", "devices ", "compute. "]
TEXT = "".join(rng.choice(WORDS, 600))
LETTERS = sorted(set(TEXT))
CODES = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
WINDOWS = np.lib.stride_tricks.sliding_window_view(CODES, LENGTH + 1)[: 8 * STEPS]
DATA = train.TrainingData({"x": WINDOWS[:, :-1], "y": WINDOWS[:, 1:]}, rows=8, seed=0)
MASK = np.where(np.tril(np.ones((LENGTH, LENGTH))), 0, -1e9).astype(np.float32)


def normal(*shape: int) -> Any:
    """Return small random weights."""
    return (rng.standard_normal(shape) * 0.1).astype(np.float32)


PARAMS = {
    "letters": normal(len(LETTERS), WIDTH),
    "places": normal(LENGTH, WIDTH),
    "blocks": [
        {
            **{name: normal(WIDTH, WIDTH) for name in ("q", "k", "v", "o")},
            "up": normal(WIDTH, 4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH),
            "norms": [np.ones(WIDTH, np.float32) for _ in range(2)],
        }
        for _ in range(2)
    ],
    "out": normal(WIDTH, len(LETTERS)),
}


def model_loss(tape: train.Tape, p: dict[str, Any], batch: dict[str, Any]) -> Any:
    """Cross entropy of the next letters."""
    mask = tape.put(MASK)
    x = tape.evaluate(tape.array.take(p["letters"], batch["x"], axis=0) + p["places"])
    for block in p["blocks"]:
        h = tape.dnn.rms_norm(x, block["norms"][0])
        q, k, v = (tape.evaluate(h @ block[name]) for name in "qkv")
        scores = tape.evaluate(q @ k.mT * WIDTH**-0.5 + mask)
        x = tape.evaluate(x + (tape.dnn.softmax(scores) @ v) @ block["o"])
        h = tape.dnn.rms_norm(x, block["norms"][1])
        x = tape.evaluate(x + tape.dnn.gelu(tape.evaluate(h @ block["up"])) @ block["down"])
    logits = tape.evaluate(x @ p["out"]).reshape(-1, len(LETTERS))
    return tape.dnn.cross_entropy(logits, batch["y"].reshape(-1))


def curve(losses: list[float], height: int = 8) -> str:
    """Draw losses as text."""
    low, high = min(losses), max(losses)
    levels = [round((loss - low) / (high - low) * (height - 1)) for loss in losses]
    lines = []
    for level in reversed(range(height)):
        value = low + (high - low) * level / (height - 1)
        lines.append(f"{value:6.3f} " + "".join("*" if each == level else " " for each in levels))
    return "\n".join(line.rstrip() for line in lines)


async def main() -> None:
    """Train through a fault, and again from the middle."""
    path = Path(tempfile.mkdtemp()) / "gpt.safetensors"
    step = train.gradient_step(model_loss)
    adamw = train.AdamW(lr=train.cosine(0.01, steps=STEPS, warmup=5))
    async with open_device(0, deterministic=True) as device:
        async with (
            train.open_data_parallel([device], step, PARAMS, adamw, clip=1.0) as trainer,
            train.prefetched(DATA) as batches,
        ):
            losses = []
            async for made in trainer.run(batches):
                losses.append(made.loss)
                if made.number == STEPS // 2:
                    await trainer.save(path, data=DATA)
                    await kill_host(device)
            assert trainer.statistics().restored == 1
        async with train.open_data_parallel([device], step, PARAMS, adamw, clip=1.0) as trainer:
            await trainer.restore(path, data=DATA)
            rest = [made.loss async for made in trainer.run(DATA)]
    assert rest == losses[-len(rest) :]  # to the last bit
    assert losses[-1] < losses[0] / 2
    print(curve(losses))
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, through a fault, and again from a file")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
