"""Processes that have ended, and the leases of nodes that lived in them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
import trio.testing

from atomr_accel.cluster import EpochOver, MemoryStore
from atomr_accel.cluster._neighbours import Neighbours
from atomr_accel.cluster._processes import is_neighbour, own_process, process_ended
from tests.harness import ROOT, program

SCRIPT = """
from atomr_accel.cluster._processes import own_process
print(own_process(), flush=True)
input()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not own_process(), reason="the kernel has no descriptors of processes"),
]


@contextmanager
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and its identity."""
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        try:
            assert other.stdout is not None
            yield other, other.stdout.readline().strip()
        finally:
            other.kill()


@program
async def _ended() -> None:
    with process() as (other, identity):
        machine, number, started = identity.split("/")
        assert is_neighbour(identity)
        assert not is_neighbour(own_process())
        assert not is_neighbour("")
        assert not is_neighbour(f"another-machine/{number}/{started}")
        # The number of one that had it before.
        await process_ended(f"{machine}/{number}/{int(started) - 1}")
        with trio.move_on_after(0.05) as waiting:
            await process_ended(identity)
        assert waiting.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(process_ended, identity)
            other.kill()  # and nobody has waited for it yet
        other.wait()
        await process_ended(identity)


def test_the_end_of_a_process_is_told_and_that_of_another_is_not_taken_for_it() -> None:
    _ended()


@program
async def _released() -> None:
    store = MemoryStore()
    keys = ["c/member/n", "c/shard/00000", "c/shard/00001"]
    old = await store.lease(keys[:2], "n#1", 600.0)
    (other,) = await store.lease(keys[2:], "m#1", 600.0)
    async with trio.open_nursery() as nursery:
        neighbours = Neighbours(store, "c", nursery.start_soon)
        with process() as (dying, identity), process() as (gone, second):
            neighbours.see([("n", "n#1", identity), ("x", "m#1", second), ("y", "y#1", "")])
            neighbours.see([("n", "n#1", identity)])  # the others have left
            gone.kill()
            gone.wait()
            await trio.testing.wait_all_tasks_blocked(0.05)
            async with store.watch("c/") as snapshots:
                assert all(entry.holder for entry in await anext(snapshots))
                dying.kill()
                async for entries in snapshots:
                    if [entry.holder for entry in entries] == [None, None, "m#1"]:
                        break
        nursery.cancel_scope.cancel()
    new = await store.lease(keys, "n#2", 600.0)
    assert [lease.holder for lease in new] == ["n#2", "n#2", "m#1"]
    assert [lease.epoch for lease in new[:2]] == [lease.epoch + 1 for lease in old]
    with pytest.raises(EpochOver):
        await store.compare_and_set("c/entity", b"", version=0, fence=old[1])
    assert await store.renew([other], 600.0) == [True]


def test_leases_of_a_process_that_has_ended_are_free_and_their_epochs_over() -> None:
    _released()
