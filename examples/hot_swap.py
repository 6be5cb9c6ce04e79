"""A new version of a model takes over while clients ask; a bad one before it does not."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from atomr_accel.patterns import Gate, RolledBack, Shadow, open_batcher, open_hot_swap

Version = Callable[[], AbstractAsyncContextManager[Callable[[float], Awaitable[float]]]]


def version(bias: float) -> Version:
    """A version is what opens as a function. This one makes batches; it could own a device."""

    async def forward(items: list[float]) -> list[float]:
        await trio.sleep(0.001)
        return [2 * item + bias for item in items]

    @asynccontextmanager
    async def opened() -> AsyncIterator[Callable[[float], Awaitable[float]]]:
        async with open_batcher(forward, max_size=16) as batcher:
            yield batcher

    return opened


def close(item: float, one: float, other: float) -> bool:
    """Return whether two versions agree well enough on an item."""
    return abs(one - other) < 0.01 * max(1, abs(item))


async def main() -> None:
    """Load two versions under the eyes of a gate."""
    answers: Counter[str] = Counter()
    enough = trio.Event()
    gate = Gate(minimum=30, latency_ratio=20.0)

    async with (
        open_hot_swap(version(0.0), rng=random.Random(1)) as swap,
        trio.open_nursery() as nursery,
    ):

        async def client(number: int) -> None:
            while True:
                answer = await swap.ask(float(number), key=f"client-{number}")
                answers[f"{answer - 2 * number:+.3f}"] += 1
                if answers["+0.001"] == 500:
                    enough.set()

        for number in range(20):
            nursery.start_soon(client, number)

        try:
            await swap.load(version(0.5), shadow=Shadow(close), canary=[0.1], gate=gate)
        except RolledBack as error:
            print(error)
        assert swap.version == "v1"
        assert set(answers) == {"+0.000"}  # nobody has seen an answer of it

        await swap.load(version(0.001), shadow=Shadow(close), canary=[0.1, 0.5], gate=gate)
        assert swap.version == "v3"
        before = answers["+0.000"]
        await enough.wait()
        assert answers["+0.000"] == before
        nursery.cancel_scope.cancel()

    assert swap.statistics().failed == 0
    assert set(answers) == {"+0.000", "+0.001"}
    print(f"v3 has taken over after {before} answers of v1, and none was lost")


if __name__ == "__main__":
    trio.run(main)
