"""An LSTM that learns to remember: forward, backward and steps downhill, all on the device."""

import warnings
from typing import Any

import numpy as np
import trio
from scipy.special import expit

from atomr_accel import CpuFallbackWarning, Device, GpuRef, open_device

STEPS, BATCH, HIDDEN, SHORTEST = 6, 64, 32, 3
RATE, ROUNDS = 0.5, 150


def lengths_of(rng: np.random.Generator) -> list[int]:
    """Sequences of different lengths, the longest one as long as can be."""
    lengths = rng.integers(SHORTEST, STEPS + 1, BATCH)
    lengths[0] = STEPS
    return lengths.tolist()  # type: ignore[no-any-return]


async def main() -> None:
    """Learn to say, at the end of a sequence, what its first number was."""
    rng = np.random.default_rng(0)
    async with open_device(0) as device:
        lstm = device.dnn.rnn("lstm", 1, HIDDEN)
        scale = 1 / np.sqrt(HIDDEN)
        hosts = [rng.uniform(-scale, scale, shape) for shape in lstm.parameter_shapes]
        hosts[2][HIDDEN : 2 * HIDDEN] = 2.0  # gates that remember, to begin with
        weights = await lstm.pack([await device.put(host.astype(np.float32)) for host in hosts])
        readout = rng.uniform(-scale, scale, HIDDEN).astype(np.float32)
        losses = []
        for _ in range(ROUNDS):
            x = rng.uniform(-1, 1, (STEPS, BATCH, 1)).astype(np.float32)
            sequences = await device.put(x)
            lengths = lengths_of(rng)
            run = await lstm.forward(sequences, weights, lengths=lengths, training=True)
            last = (await device.get(run.hn))[0]
            error = last @ readout - x[0, :, 0]
            losses.append(float((error**2).mean()))
            # The gradient by the last states; nothing else counts.
            slope = 2 * error / BATCH
            dhn = await device.put((slope[:, None] * readout)[None].astype(np.float32))
            nothing = await device.zeros(run.y.shape, np.float32)
            found = await lstm.forward_grad(nothing, run.tape, dhn)
            readout -= np.float32(RATE) * (slope @ last).astype(np.float32)
            # weights -= rate * gradient, where both are
            await device.blas.axpy(found.dweights, weights, a=-RATE)
        await check(device, lstm, weights)
    first, final = np.mean(losses[:5]), np.mean(losses[-5:])
    print(
        f"an LSTM on {device.backend}: squared error {first:.3f} at first, {final:.3f} in the end"
    )
    assert final < 0.5 * first


async def check(device: Device, lstm: Any, weights: GpuRef) -> None:
    """One step of one sequence, by hand."""
    w_ih, w_hh, b_ih, b_hh = [await device.get(each) for each in await lstm.unpack(weights)]
    x, h, c = np.full(1, 0.3), np.full(HIDDEN, 0.1), np.full(HIDDEN, -0.2)
    i, f, g, o = np.split(w_ih @ x + b_ih + w_hh @ h + b_hh, 4)
    cell = expit(f) * c + expit(i) * np.tanh(g)
    expected = expit(o) * np.tanh(cell)
    refs = [await device.put(each.astype(np.float32).reshape(1, 1, -1)) for each in (x, h, c)]
    run = await lstm.forward(refs[0], weights, *refs[1:])
    np.testing.assert_allclose((await device.get(run.y)).ravel(), expected, atol=1e-5)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
