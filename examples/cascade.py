"""A small model answers easy requests, in batches; a large one answers the others."""

import numpy as np
import trio

from atomr_accel.patterns import CascadeStage, open_batcher, open_cascade

Answer = tuple[bool, float]
"""An answer, true if the point is inside the circle, and its confidence."""


def inside(points: list[complex], samples: int, seed: int) -> list[Answer]:
    """Stands in for a model: with more samples, its answers are better."""
    rng = np.random.default_rng(seed)
    radii = 1 + rng.standard_normal(samples) / 4
    return [
        (bool(share > 0.5), float(max(share, 1 - share)))
        for share in (np.mean(abs(point) < radii) for point in points)
    ]


async def small(points: list[complex]) -> list[Answer]:
    """Quick, and unsure near the edge."""
    await trio.sleep(0.001)
    return inside(points, 16, 1)


async def large(point: complex) -> Answer:
    """Slow, and sure."""
    await trio.sleep(0.005)
    (answer,) = inside([point], 4096, 2)
    return answer


async def main() -> None:
    """Ask for many points at once."""
    rng = np.random.default_rng(3)
    points = [complex(*xy) for xy in rng.uniform(-2, 2, (200, 2))]
    right = 0

    async with (
        open_batcher(small, max_size=32) as batched,
        open_cascade(
            CascadeStage(batched, threshold=0.95, cost=1, name="small"),
            CascadeStage(large, cost=50),
            confidence=lambda answer: answer[1],
        ) as cascade,
    ):

        async def client(point: complex) -> None:
            nonlocal right
            answer, _ = await cascade(point)
            right += answer == (abs(point) < 1)

        async with trio.open_nursery() as nursery:
            for point in points:
                nursery.start_soon(client, point)
        first, second = cascade.statistics().stages

        # Who has little time, or little to spend, gets the best answer there is.
        hard = next(point for point in points if 0.95 < abs(point) < 1.05)
        with trio.fail_after(1):
            assert (await cascade.ask(hard, budget=10)).stage == "small"

    assert first.asked == len(points)
    assert second.asked < len(points) / 2
    assert right > 0.9 * len(points)
    print(f"{right} of {len(points)} right; the large model was asked for {second.asked} of them")


if __name__ == "__main__":
    trio.run(main)
