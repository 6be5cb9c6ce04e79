"""Actors belong to one trio run: in another thread they refuse to be used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from atomr_accel.actors import ActorRef, ActorSystem, open_actor_system

from .counter import Add, Counter, Get


@pytest.mark.parametrize(
    "use",
    [
        lambda _, ref: ref.ask(Add(1)),
        lambda _, ref: ref.send(Add(1)),
        lambda _, ref: ref.send(Add(1), urgent=True),
        lambda _, ref: ref.stop(),
        lambda _, ref: ref.wait_stopped(),
        lambda system, _: system.spawn(Counter),
        lambda system, ref: system.spawn(Counter, supervisor=ref),
    ],
)
async def test_another_run_is_refused_and_changes_nothing(
    use: Callable[[ActorSystem, ActorRef], Awaitable[object]],
) -> None:
    async with open_actor_system("demo") as system:
        ref = await system.spawn(Counter, name="counter")

        def elsewhere() -> None:
            async def main() -> None:
                await use(system, ref)

            with pytest.raises(RuntimeError, match=r"is used in thread .*trio\.from_thread\.run"):
                trio.run(main)

        await trio.to_thread.run_sync(elsewhere)
        assert await ref.ask(Get()) == 0
        assert [child.path for child in system.tree().children] == ["/counter"]
        assert system.tree().children[0].children == ()


async def test_tell_is_refused_in_another_thread_and_works_by_the_token() -> None:
    async with open_actor_system("demo") as system:
        ref = await system.spawn(Counter)

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match=r"lives in the trio\.run of thread"):
                ref.tell(Add(1))
            trio.from_thread.run_sync(ref.tell, Add(2))
            assert trio.from_thread.run(ref.ask, Get()) == 2

        await trio.to_thread.run_sync(elsewhere)
