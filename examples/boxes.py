"""Every box of a program is an actor in one tree: a device, its parts, and what uses it."""

import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trio

from atomr_accel import CpuFallbackWarning, Standby, open_system
from atomr_accel.actors import ActorTree, Call, GetStatistics
from atomr_accel.patterns import open_batcher, open_replica_pool
from atomr_accel.replay import open_journal
from atomr_accel.worlds import open_world

Rows = list[np.ndarray]


def nodes(tree: ActorTree) -> dict[str, ActorTree]:
    """All actors below the root, by path."""
    todo = [*tree.children]
    for node in todo:
        todo += node.children
    return {node.path: node for node in todo}


async def main() -> None:
    """Open one of each, use it, and draw the tree."""
    async with open_system("boxes") as system:
        device = await system.spawn_device(0, standby=Standby(warm=1))
        ranks = [
            await system.spawn_device(number, backend="cpu", name=f"rank-{number}")
            for number in range(2)
        ]
        weights = await device.put(np.eye(4), sealed=True)

        async def multiply(rows: Rows) -> Rows:
            products = await device.blas.gemm(await device.put(np.stack(rows)), weights)
            return [*await device.get(products)]

        @asynccontextmanager
        async def replica() -> AsyncIterator[Callable[[Rows], Awaitable[Rows]]]:
            yield multiply

        with tempfile.TemporaryDirectory() as folder:
            async with (
                open_journal(device, Path(folder) / "calls"),
                open_replica_pool([replica, replica], system=system, name="pool") as pool,
                open_batcher(pool, max_size=8, system=system, name="multiply") as batcher,
                open_world(ranks) as world,
            ):
                # Who holds an object calls its methods; others ask its actor.
                row = np.arange(4.0)
                np.testing.assert_array_equal(await batcher(row), row)
                np.testing.assert_array_equal(await batcher.ref.ask(Call(row)), row)

                parts = [await rank.full((4,), 1.0 + number) for number, rank in enumerate(ranks)]
                sums = await world.all_reduce(parts)
                np.testing.assert_array_equal(await ranks[1].get(sums[1]), np.full(4, 3.0))

                async with device.record(weights) as recording:
                    recording.blas.gemm(weights, weights)
                await recording.replay()

                async with device.pinned.array((4,)):
                    print(system.tree())
                    shown = nodes(system.tree())

                for path in (
                    batcher.ref.path,
                    world.ref.path,
                    recording.ref.path,
                    "/device-0/pinned",
                ):
                    answer = await system.find(path).ask(GetStatistics())
                    print(f"\n{path}: {answer}")
                    assert type(answer) is type(shown[path].service)

    for path in ("context/blas", "standby", "blas", "pinned", recording.ref.name):
        assert f"/device-0/{path}" in shown
    assert {"/rank-0", "/rank-1", "/journal-1", "/multiply", "/pool", "/world-1"} < shown.keys()
    assert all(node.state.value in ("running", "starting") for node in shown.values())


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
