"""A classifier of pictures, trained by gradient descent."""

import warnings

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, open_device

CLASSES, SIDE, PLACES, STEPS = 4, 30, 4, 60
RATE = 4.0


def pictures(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise, with a bright quarter that says which class it is."""
    which = rng.integers(0, CLASSES, count)
    images = rng.standard_normal((count, 1, SIDE, SIDE)).astype(np.float32)
    half = SIDE // 2
    for image, quarter in zip(images, which, strict=True):
        row, column = divmod(int(quarter), 2)
        image[0, row * half : (row + 1) * half, column * half : (column + 1) * half] += 0.4
    return images, which


async def main() -> None:
    """Train on one set of pictures, and look at another."""
    rng = np.random.default_rng()
    images, classes = pictures(rng, 256)
    unseen, answers = pictures(rng, 256)
    features = PLACES * PLACES
    weights = np.zeros((features, CLASSES), np.float32)

    async with open_device(0) as device:
        dnn, blas = device.dnn, device.blas
        small = await dnn.adaptive_avg_pool(await device.put(images), PLACES)
        x, target = small.reshape(len(images), features), await device.put(classes)
        w, one = await device.put(weights), await device.put(np.float32(1.0))
        losses = []
        for _ in range(STEPS):
            async with device.batch() as batch:
                scores = batch.blas.gemm(x, w)
                loss = batch.dnn.cross_entropy(scores, target, label_smoothing=0.05)
                slopes = batch.dnn.cross_entropy_grad(one, scores, target, label_smoothing=0.05)
                # In place: w - RATE * x.T @ slopes
                batch.blas.gemm(x.T, slopes, alpha=-RATE, beta=1.0, out=w)
            losses.append(float(await device.get(loss)))
        others = await dnn.adaptive_avg_pool(await device.put(unseen), PLACES)
        guesses = await device.get(await blas.gemm(others.reshape(len(unseen), features), w))

    right = float((guesses.argmax(1) == answers).mean())
    print(f"loss {losses[0]:.3f}, then {losses[-1]:.3f}; {right:.0%} of others are right")
    assert abs(losses[0] - np.log(CLASSES)) < 1e-3
    assert losses[-1] < losses[0] / 2
    assert right > 0.9


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
