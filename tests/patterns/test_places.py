"""Patterns with a place in the tree of actors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
import trio.testing

from atomr_accel.actors import ActorRestarted, Call, open_system
from atomr_accel.patterns import Batcher, Closed, open_batcher

if TYPE_CHECKING:
    import pytest


async def test_in_a_system_a_batcher_is_an_actor_and_restarts(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = trio.Event()

    async def slow(items: list[int]) -> list[int]:
        await release.wait()
        return [item + 1 for item in items]

    async with (
        open_system("test") as system,
        open_batcher(slow, max_size=1, system=system, name="generate") as batcher,
        trio.open_nursery() as nursery,
    ):
        got: dict[int, object] = {}

        async def ask(item: int) -> None:
            try:
                got[item] = await batcher.ref.ask(Call(item)) if item % 2 else await batcher(item)
            except (Closed, ActorRestarted) as error:
                got[item] = error

        for item in range(4):
            nursery.start_soon(ask, item)
            await trio.testing.wait_all_tasks_blocked()
        node = system.tree().children[0]
        assert (node.path, node.kind, node.depth) == ("/generate", "Batcher", 4)
        with monkeypatch.context() as patch:
            patch.setattr(Batcher, "_next", {}.pop)
            batcher.tune(max_in_flight=2)  # wakes the task that forms batches
            await trio.testing.wait_all_tasks_blocked()
        release.set()
        await trio.testing.wait_all_tasks_blocked()
        assert system.tree().children[0].restarts >= 1
        await trio.sleep(10)
        # The batch that ran has failed, as have the asks through the actor; the queue waited.
        assert isinstance(got[0], Closed)
        assert isinstance(got[0].__cause__, KeyError)
        assert got[2] == 3
        assert all(isinstance(got[item], ActorRestarted) for item in (1, 3))
        assert await batcher.ref.ask(Call(7)) == 8
