"""Three nodes of a cluster, killed and stopped all the time, while clients ask.

``python -m tests.soak.nodes --harms 200`` runs each node in a process of its own, on a store of
PostgreSQL. 64 clients add numbers to entities. A node is killed by SIGKILL, or stopped by SIGSTOP
until others have its entities, and goes on then with leases that are over. One that was killed is
started again. With ``--store sqlite`` nodes are only killed: one that is stopped while it writes
keeps the file's lock. With ``--ray`` Ray starts the nodes, and `open_ray_cluster` starts again
those that were killed, or stopped for too long.

In the end no addition that was acknowledged may be missing, at another position, or there twice.
Each harm also has a time: until all entities of that node answer again.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from atomr_accel.actors import ActorStopped
from atomr_accel.cluster import (
    Cluster,
    ConnectionLost,
    Credentials,
    FencingStore,
    RayNodes,
    StoreUnavailable,
    make_certificates,
    open_postgres_store,
    open_ray_cluster,
    open_sqlite_store,
)
from tests.cluster.processes import KEYS, Clients, listener_on, running, until_alive
from tests.cluster.simulated import PROGRAM, Log, Read
from tests.harness import ROOT, stop_process
from tests.replay.servers import postgres_server

PATIENCE = 60
"""Seconds after which entities count as lost."""


@dataclass
class NodesReport:
    """Outcome of a soak.

    Attributes:
        acknowledged: additions that were acknowledged.
        sent: additions that were sent.
        killed: seconds until all entities of a node answered again, for each kill.
        stopped: likewise, for each stop.
        wrong: faults that were found.
    """

    acknowledged: int = 0
    sent: int = 0
    killed: list[float] = field(default_factory=list)
    stopped: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} of {self.sent} additions acknowledged; entities back after "
            f"{_summary(self.killed)} of kills, {_summary(self.stopped)} of stops; "
            f"{len(self.wrong)} wrong: {self.wrong}"
        )


def _summary(times: list[float]) -> str:
    ordered = sorted(times) or [0.0]
    late = sum(each > 2 for each in ordered)
    middle = ordered[len(ordered) // 2]
    return f"{middle:.2f} s (median), {ordered[-1]:.2f} s (most), {late} of {len(times)} over 2 s"


async def _until_back(cluster: Cluster, keys: list[str]) -> float:
    began = trio.current_time()

    async def read(key: str) -> None:
        while True:
            try:
                await cluster.entity(Log, key).ask(Read())
                return
            except (ConnectionLost, ActorStopped, StoreUnavailable):
                await trio.sleep(0.01)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(read, key)
    return trio.current_time() - began


class _Machine:
    """Processes of nodes, by name."""

    names = ("node-1", "node-2", "node-3")

    def __init__(self, folder: Path, store: str, stack: ExitStack) -> None:
        self.folder = folder
        self.store = store
        self.stack = stack
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        """Start a node, and return when it has joined."""
        if name in self.processes:
            self.processes[name].wait()
        self.processes[name] = self.stack.enter_context(running(self.folder, name, self.store))

    async def join(self, stack: AsyncExitStack) -> Cluster:
        """Start all nodes, and join them."""
        make_certificates(self.folder, [*self.names, "client"])
        for node in self.names:
            await trio.to_thread.run_sync(self.start, node)
        credentials = Credentials.in_folder(self.folder, "client")
        opening: AbstractAsyncContextManager[FencingStore] = (
            open_postgres_store(self.store)
            if "://" in self.store
            else open_sqlite_store(self.store)
        )
        fencing = await stack.enter_async_context(opening)
        joining = PROGRAM.open("client", fencing, credentials, holds=False)
        return await stack.enter_async_context(joining)

    def process(self, name: str, cluster: Cluster) -> int:
        """The number of a node's process."""
        return self.processes[name].pid

    async def again(self, name: str) -> None:
        """Have a node that was killed be there again."""
        await trio.to_thread.run_sync(self.start, name)

    def spares(self, chance: random.Random) -> bool:
        """Return whether a stopped node goes on; otherwise it is replaced."""
        return True


class _RayMachine(_Machine):
    """Nodes on Ray, which is this machine alone."""

    names = ("ray-1", "ray-2", "ray-3")

    async def join(self, stack: AsyncExitStack) -> Cluster:
        return await stack.enter_async_context(
            open_ray_cluster(
                "tests.cluster.simulated:PROGRAM",
                store=self.store,
                nodes=RayNodes(count=len(self.names), patience=2.0),
                node="client",
            )
        )

    def process(self, name: str, cluster: Cluster) -> int:
        return listener_on(int(cluster.nodes[name].address.rpartition(":")[2]))

    async def again(self, name: str) -> None:
        await trio.lowlevel.checkpoint()

    def spares(self, chance: random.Random) -> bool:
        return chance.random() < 0.5


async def _harm(
    machine: _Machine, cluster: Cluster, chance: random.Random, harms: int, report: NodesReport
) -> None:
    for _ in range(harms):
        name = chance.choice(machine.names)
        life = cluster.nodes[name].life
        process = machine.process(name, cluster)
        keys = [key for key in KEYS if cluster.place_of(Log, key) == name]
        kill = chance.random() < 0.5 or "://" not in machine.store
        if kill:
            os.kill(process, signal.SIGKILL)
        else:
            stop_process(process)
        (report.killed if kill else report.stopped).append(await _until_back(cluster, keys))
        if kill:
            await machine.again(name)
        elif machine.spares(chance):
            await trio.sleep(chance.uniform(0.0, 1.0))
            os.kill(process, signal.SIGCONT)
            life = ""
        with trio.fail_after(PATIENCE):
            await until_alive(cluster, name, life)
            await cluster.wait_for(len(machine.names) + 1)
            # Not while shards move, so that the place of an entity is the one that is harmed.
            await _until_back(cluster, KEYS)
        await trio.sleep(chance.uniform(0.0, 0.5))


async def soak(harms: int, clients: int, seed: int, store: str, *, ray: bool) -> NodesReport:
    """Harm nodes under load, and return what came of it.

    Args:
        harms: number of kills and stops.
        clients: tasks that add numbers.
        seed: of the choices.
        store: ``"sqlite"`` or ``"postgres"``.
        ray: whether Ray starts the nodes.
    """
    report = NodesReport()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        text = str(folder / "store")
        if store == "postgres":
            words = stack.enter_context(postgres_server()).split()
            text = f"postgresql:///?{'&'.join(words)}"
        machine = (_RayMachine if ray else _Machine)(folder, text, stack)
        async with AsyncExitStack() as blocks:
            cluster = await machine.join(blocks)
            await cluster.wait_for(len(machine.names) + 1)
            asking = Clients(cluster, seed)
            async with trio.open_nursery() as nursery:
                for _ in range(clients):
                    nursery.start_soon(asking.ask)
                await asking.more(clients)
                await _harm(machine, cluster, random.Random(seed), harms, report)
                await asking.more(clients)
                nursery.cancel_scope.cancel()
            await _until_back(cluster, KEYS)
            try:
                await asking.check()
            except AssertionError as error:
                report.wrong.append(f"an effect is lost or doubled: {error}")
            report.acknowledged, report.sent = asking.count, asking.numbers
    return report


def main() -> int:
    """Run it, print what came of it, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--harms", type=int, default=200)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--ray", action="store_true", help="Ray starts the nodes")
    args = parser.parse_args()
    if args.ray:
        import ray

        here = {"env_vars": {"PYTHONPATH": str(ROOT)}}
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env=here)
    report = trio.run(partial(soak, ray=args.ray), args.harms, args.clients, args.seed, args.store)
    print(report)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
