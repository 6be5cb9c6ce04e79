"""A program with one of each in one tree: each fails, and the others go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import Standby, open_system
from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorRestarted,
    ActorTree,
    Backoff,
    Call,
    GetStatistics,
    Instrument,
    Message,
    Strategy,
    Supervision,
    handler,
)
from atomr_accel.patterns import Batcher, open_batcher
from atomr_accel.replay import JournalError, SqliteStorage, open_journal, replay_journal
from atomr_accel.testing import poison
from atomr_accel.worlds import open_world
from atomr_accel.worlds._engine import Engine

from ..harness import AT_ONCE, cpu_only
from .standbys import standby_of

pytestmark = [cpu_only, pytest.mark.slow]

EYE = np.eye(4)
ROW = np.arange(4.0)


class Reports(Instrument):
    """Records reports of actors."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []

    def take(self) -> list[tuple[str, str, str]]:
        seen, self.seen = self.seen, []
        return seen

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        self.seen.append(("restarting", ref.path, type(cause).__name__))

    def actor_stopped(self, ref: ActorRef, cause: BaseException | None) -> None:
        self.seen.append(("stopped", ref.path, type(cause).__name__))

    def dead_letter(self, ref: ActorRef, message: Message[Any], reason: str) -> None:
        self.seen.append(("dead letter", ref.path, reason.partition(":")[0]))


def restarts(tree: ActorTree) -> dict[str, int]:
    """All that were restarted, by path, but for the libraries, which show their device's."""
    todo = [*tree.children]
    for node in todo:
        todo += node.children
    return {node.path: node.restarts for node in todo if node.restarts and "Lib" not in node.kind}


def fails_once(function: Callable[..., Any], failed: trio.Event) -> Callable[..., Any]:
    def failing(*args: Any, **kwargs: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise KeyError("as a mistake in the code would")
        return function(*args, **kwargs)

    return failing


async def test_whichever_box_fails_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports()
    async with open_system("boxes", instruments=[reports]) as system, AsyncExitStack() as stack:
        device = await system.spawn_device(
            0, backend="cpu", standby=Standby(warm=1), backoff=AT_ONCE
        )
        ranks = [
            await system.spawn_device(number, backend="cpu", name=f"rank-{number}", backoff=AT_ONCE)
            for number in range(2)
        ]
        weights = await device.put(EYE, sealed=True)

        async def multiply(rows: list[Any]) -> list[Any]:
            products = await device.blas.gemm(await device.put(np.stack(rows)), weights)
            return [*await device.get(products)]

        async def works() -> None:
            """Use every box."""
            np.testing.assert_array_equal(await batcher(ROW), ROW)
            np.testing.assert_array_equal(await batcher.ref.ask(Call(ROW)), ROW)
            parts = [await rank.full((4,), 1.0) for rank in ranks]
            (total, _) = await world.all_reduce(parts)
            np.testing.assert_array_equal(await ranks[0].get(total), np.full(4, 2.0))
            await recording.replay()
            async with device.pinned.array((4,)) as array:
                array[:] = ROW
                await device.put(array)

        # Storage that fails is reported by the journal itself, when its block is left.
        stack.enter_context(pytest.raises(JournalError, match="ended early, at OSError: full"))
        storage = SqliteStorage(tmp_path / "calls")
        journal = await stack.enter_async_context(open_journal(device, storage))
        batcher = await stack.enter_async_context(
            open_batcher(multiply, max_size=4, system=system, name="multiply")
        )
        world = await stack.enter_async_context(open_world(ranks))
        async with device.record(weights) as recording:
            recording.blas.gemm(weights, weights)
        await works()
        assert (reports.take(), restarts(system.tree())) == ([], {})

        # A fault of the device: its context is rebuilt, and what was recorded is prepared again.
        await poison(device)
        await works()
        assert reports.take() == [("restarting", "/device-0/context", "ContextPoisoned")]
        expected = {"/device-0/context": 1, recording.ref.path: 1}
        assert restarts(system.tree()) == expected

        # A rank's fault breaks the epoch of its world, which is not restarted for that.
        async with world.watch() as epochs:
            await poison(ranks[0])
            assert await anext(epochs) == 2
        await works()
        assert reports.take() == [("restarting", "/rank-0/context", "ContextPoisoned")]
        expected |= {"/rank-0/context": 1}
        assert restarts(system.tree()) == expected
        told = await world.ref.ask(GetStatistics())
        assert (told.breaks, told.epoch) == (1, 2)
        assert told.last_break.startswith("rank 0 in epoch 1: ")
        assert "generation 1 of cpu:0" in told.last_break

        # A standby that dies is replaced, and counted.
        await standby_of(device).wait_ready()
        (host,) = standby_of(device).hosts
        assert host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        await host.wait_ended()
        await works()
        await standby_of(device).wait_ready()
        standby = device.statistics().standby
        assert standby is not None
        assert standby.died == 1
        assert reports.take() == []

        # A mistake in the code of a service: it lives again, and what waited is answered.
        failed = trio.Event()
        monkeypatch.setattr(Batcher, "_next", fails_once(Batcher._next, failed))
        np.testing.assert_array_equal(await batcher(ROW), ROW)
        assert failed.is_set()
        assert reports.take() == [("restarting", "/multiply", "KeyError")]
        failed = trio.Event()
        monkeypatch.setattr(Engine, "_do", fails_once(Engine._do, failed))
        async with world.watch() as epochs:
            await poison(ranks[1])  # which the world has something to do about
            await failed.wait()
            assert await anext(epochs) == 3
        await works()
        assert sorted(reports.take()) == [
            ("restarting", "/rank-1/context", "ContextPoisoned"),
            ("restarting", "/world-1", "KeyError"),
        ]
        expected |= {"/multiply": 1, "/rank-1/context": 1, "/world-1": 1}
        assert restarts(system.tree()) == expected

        # A request that fails is the asker's. Without one it is a dead letter, and no failure.
        narrow = await device.put(np.ones((2, 2)))
        for ref in (device.ref, device.blas.ref):
            with pytest.raises(ValueError, match=r"gemm|shapes|shape \("):
                await ref.ask(device.requests.blas.gemm(narrow, weights))
            ref.tell(device.requests.blas.gemm(narrow, weights))
            await ref.ask(device.requests.blas.gemm(weights, weights))
            assert reports.take() == [("dead letter", ref.path, "it failed")]

        # Memory that is not there is the caller's, too.
        with pytest.raises(ValueError, match="pinned_limit"):
            async with device.pinned.array((1 << 40,)):
                pass

        # A journal that cannot be written ends, and the program does not.
        assert journal.statistics().error is None

        async def full(*_: object) -> None:
            raise OSError("full")

        monkeypatch.setattr(storage, "append", full)
        await works()
        with pytest.raises(JournalError):
            await journal.flush()
        await works()
        assert (await journal.ref.ask(GetStatistics())).error == "OSError: full"
        assert (reports.take(), restarts(system.tree())) == ([], expected)
        await stack.aclose()


class Crash(Message[None]):
    """A message that fails."""


class Crashing(Actor):
    """An actor whose siblings are restarted with it."""

    @handler
    async def crash(self, message: Crash) -> None:
        raise KeyError("as asked")


async def test_what_is_restarted_with_its_siblings_loses_nothing(tmp_path: Path) -> None:
    all_at_once = Supervision(strategy=Strategy.ONE_FOR_ALL, backoff=Backoff(initial=0.0, base=0.0))
    async with open_system("group", supervision=all_at_once) as system:
        sibling = await system.spawn(Crashing, name="sibling")
        device = await system.spawn_device(0, backend="cpu", backoff=AT_ONCE)
        x = await device.put(EYE, sealed=True)
        path = tmp_path / "calls"
        async with (
            open_journal(device, path, contents=True) as journal,
            open_world([device]) as world,
        ):
            y = await device.blas.gemm(x, x)
            position = journal.position
            assert position
            async with world.watch() as epochs:
                with suppress(ActorRestarted), pytest.raises(KeyError):
                    await sibling.ask(Crash())
                assert await anext(epochs) == 2
            assert {
                "/sibling": 1,
                "/device-0": 1,
                "/journal-1": 1,
                "/world-1": 1,
            }.items() <= restarts(system.tree()).items()
            assert device.generation == 2
            del y
            z = await device.blas.gemm(x, x)
            (total,) = await world.all_reduce([z])
            np.testing.assert_array_equal(await device.get(total), EYE)
            assert journal.position > position
            assert journal.statistics().error is None
            assert world.statistics().last_break is not None
        # The journal that was written before and after the restart is one.
        report = await replay_journal(path, device)
        assert report.same
        assert report.calls >= 3
