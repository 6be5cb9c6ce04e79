"""Nodes in other processes of this machine: their leases are free as soon as they have ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import trio

from ._errors import StoreUnavailable
from ._processes import is_neighbour, process_ended
from ._store import StoreLease, read_entries

if TYPE_CHECKING:
    from ._store import FencingStore

_log = logging.getLogger("atomr_accel.cluster")


class Neighbours:
    """Nodes in other processes of this machine.

    The kernel says when a process has ended. Nothing acts under its leases from then on, and
    this node releases them. Otherwise they expire.

    Args:
        store: the fencing store.
        prefix: first characters of the cluster's keys.
        start: starts a task.
    """

    def __init__(self, store: FencingStore, prefix: str, start: Callable[..., Any]) -> None:
        self._store = store
        self._prefix = prefix
        self._start = start
        self._watched: dict[str, trio.CancelScope] = {}

    def see(self, nodes: Iterable[tuple[str, str, str]]) -> None:
        """Watch the processes of these nodes, and of no others.

        Args:
            nodes: name, life and process of each node that lives.
        """
        there = {life: (name, process) for name, life, process in nodes if is_neighbour(process)}
        for life in self._watched.keys() - there.keys():
            self._watched.pop(life).cancel()
        for life in there.keys() - self._watched.keys():
            self._watched[life] = scope = trio.CancelScope()
            self._start(self._follow, life, *there[life], scope)

    def reset(self) -> None:
        """Forget all: their tasks have ended."""
        self._watched.clear()

    async def _follow(self, life: str, name: str, process: str, scope: trio.CancelScope) -> None:
        with scope:
            await process_ended(process)
            _log.warning("the process of node %s has ended", name)
            try:
                await self._release(name, life)
            except StoreUnavailable as error:
                _log.warning("the leases of node %s expire by themselves: %s", name, error)

    async def _release(self, name: str, life: str) -> None:
        member = f"{self._prefix}/member/{name}"
        entries = await read_entries(self._store, f"{self._prefix}/shard/")
        entries += await read_entries(self._store, member)
        leases = [
            StoreLease(each.key, life, each.epoch, 0.0) for each in entries if each.holder == life
        ]
        await self._store.renew(leases, 0.0)
