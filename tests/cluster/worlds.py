"""Nodes of one program, on a clock that jumps and a network without faults."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio
import trio.testing

from atomr_accel.cluster import Cluster, ClusterSettings, MemoryStore, open_cluster

from .simulated import Add, Fail, Log, Network, Read

SETTINGS = ClusterSettings(lease=4.0, shards=8, heartbeat=0.5, silence=1.5)


class World:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = MemoryStore()
        self.network = Network(nursery)

    def node(self, name: str, **options: Any) -> AbstractAsyncContextManager[Cluster]:
        made: AbstractAsyncContextManager[Cluster] = open_cluster(
            "test",
            node=name,
            messages=[Add, Read, Fail],
            transport=self.network.transport(name),
            **{"store": self.store, "settings": SETTINGS, "entities": [Log], **options},
        )
        return made


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with trio.open_nursery() as nursery:
        yield World(nursery)
        nursery.cancel_scope.cancel()
