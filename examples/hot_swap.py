"""New weights take over on the same device while clients ask; bad ones before them do not."""

import random
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import numpy as np
import trio
from numpy.typing import NDArray

from atomr_accel import CpuFallbackWarning, Device, open_device
from atomr_accel.patterns import Gate, RolledBack, Shadow, open_batcher, open_hot_swap

Row = NDArray[np.float32]
Version = Callable[[], AbstractAsyncContextManager[Callable[[Row], Awaitable[Row]]]]


def version(device: Device, weights: Row) -> Version:
    """Return a version: its block uploads the weights, and frees them at the end."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Callable[[Row], Awaitable[Row]]]:
        sealed = await device.put(weights, sealed=True)

        async def forward(rows: list[Row]) -> Row:
            x = await device.put(np.stack(rows))
            return await device.get(await device.blas.gemm(x, sealed))

        async with open_batcher(forward, max_size=16) as batcher:
            yield batcher
        await device.free(sealed)  # no request needs it any more

    return opened


def agree(_row: Row, one: Row, other: Row) -> bool:
    """Return whether the answers of two versions are close enough."""
    return float(np.linalg.norm(one - other)) < 0.1 * float(np.linalg.norm(one))


async def main() -> None:
    """Load two versions under the eyes of a gate."""
    rng = np.random.default_rng(7)
    first = rng.standard_normal((128, 16), dtype=np.float32)
    wrong, better = -first, first * np.float32(1.01)
    rows = rng.standard_normal((20, 128), dtype=np.float32)
    answers: Counter[str] = Counter()
    enough = trio.Event()
    gate = Gate(minimum=20, latency_ratio=20.0)

    async with (
        open_device(0) as device,
        open_hot_swap(version(device, first), rng=random.Random(1)) as swap,
        trio.open_nursery() as nursery,
    ):
        one_model = device.statistics().memory.sealed

        async def client(number: int) -> None:
            row = rows[number]
            ratio = row @ first
            while True:
                answer = await swap.ask(row, key=f"client-{number}")
                seen = float(answer @ ratio / (ratio @ ratio))  # the factor of the weights
                answers[f"{seen:.2f}"] += 1
                if answers["1.01"] == 200:
                    enough.set()

        for number in range(20):
            nursery.start_soon(client, number)

        try:
            shadow = Shadow(agree)
            await swap.load(version(device, wrong), shadow=shadow, canary=[0.1], gate=gate)
        except RolledBack as error:
            print(error)
        assert swap.version == "v1"
        assert set(answers) == {"1.00"}  # clients have seen no answer of it

        await swap.load(version(device, better), shadow=shadow, canary=[0.1, 0.5], gate=gate)
        assert swap.version == "v3"
        before = answers["1.00"]
        await enough.wait()
        assert answers["1.00"] == before
        assert device.statistics().memory.sealed == one_model  # the others' weights are freed
        nursery.cancel_scope.cancel()

    assert swap.statistics().failed == 0
    assert set(answers) == {"1.00", "1.01"}
    print(f"v3 has taken over after {before} answers of v1, and none was lost")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
