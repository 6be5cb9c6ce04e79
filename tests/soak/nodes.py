"""Three nodes of a cluster, killed and stopped all the time, while clients ask.

``python -m tests.soak.nodes --harms 200`` runs each node in a process of its own, on a store of
PostgreSQL. 64 clients add numbers to entities. A node is killed by SIGKILL, or stopped by SIGSTOP
until others have its entities, and goes on then with leases that are over. One that was killed is
started again. With ``--store sqlite`` nodes are only killed: one that is stopped while it writes
keeps the file's lock.

In the end no addition that was acknowledged may be missing, at another position, or there twice.
Each harm also has a time: until all entities of that node answer again.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from atomr_accel.actors import ActorStopped
from atomr_accel.cluster import (
    Cluster,
    ConnectionLost,
    Credentials,
    FencingStore,
    StoreUnavailable,
    make_certificates,
    open_postgres_store,
    open_sqlite_store,
)
from tests.cluster.processes import KEYS, Clients, running
from tests.cluster.simulated import PROGRAM, Log, Read
from tests.harness import stop_process
from tests.replay.servers import postgres_server

if TYPE_CHECKING:
    import subprocess
    from contextlib import AbstractAsyncContextManager

NODES = ("node-1", "node-2", "node-3")

PATIENCE = 60
"""Seconds after which entities count as lost."""


@dataclass
class NodesReport:
    """Outcome of a soak.

    Attributes:
        kills: nodes that were killed.
        stops: nodes that were stopped.
        acknowledged: additions that were acknowledged.
        sent: additions that were sent.
        back: seconds until all entities of a node answered again, for each harm.
        wrong: faults that were found.
    """

    kills: int = 0
    stops: int = 0
    acknowledged: int = 0
    sent: int = 0
    back: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        times = sorted(self.back) or [0.0]
        return (
            f"kills {self.kills}, stops {self.stops}, {self.acknowledged} of {self.sent} additions "
            f"acknowledged; entities back after {times[len(times) // 2]:.2f} s (median), "
            f"{times[-1]:.2f} s (most), {sum(each > 2 for each in times)} later than 2 s; "
            f"{len(self.wrong)} wrong: {self.wrong}"
        )


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

    def __init__(self, folder: Path, store: str, stack: ExitStack) -> None:
        self.folder = folder
        self.store = store
        self.stack = stack
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str) -> None:
        """Start a node, and return when it has joined."""
        self.processes[name] = self.stack.enter_context(running(self.folder, name, self.store))


async def _harm(
    machine: _Machine, cluster: Cluster, chance: random.Random, harms: int, report: NodesReport
) -> None:
    for _ in range(harms):
        name = chance.choice(NODES)
        process = machine.processes[name]
        keys = [key for key in KEYS if cluster.place_of(Log, key) == name]
        kill = chance.random() < 0.5 or "://" not in machine.store
        if kill:
            process.kill()
            report.kills += 1
        else:
            stop_process(process.pid)
            report.stops += 1
        report.back.append(await _until_back(cluster, keys))
        if kill:
            await trio.to_thread.run_sync(process.wait)
            await trio.to_thread.run_sync(machine.start, name)
        else:
            await trio.sleep(chance.uniform(0.0, 1.0))
            process.send_signal(signal.SIGCONT)
        with trio.fail_after(PATIENCE):
            await cluster.wait_for(len(NODES) + 1)
            # Not while shards move, so that the place of an entity is the one that is harmed.
            await _until_back(cluster, KEYS)
        await trio.sleep(chance.uniform(0.0, 0.5))


async def soak(harms: int, clients: int, seed: int, store: str) -> NodesReport:
    """Harm nodes under load, and return what came of it.

    Args:
        harms: number of kills and stops.
        clients: tasks that add numbers.
        seed: of the choices.
        store: ``"sqlite"`` or ``"postgres"``.
    """
    report = NodesReport()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        make_certificates(folder, [*NODES, "client"])
        text = str(folder / "store")
        opening: AbstractAsyncContextManager[FencingStore]
        if store == "sqlite":
            opening = open_sqlite_store(text)
        else:
            words = stack.enter_context(postgres_server()).split()
            text = f"postgresql:///?{'&'.join(words)}"
            opening = open_postgres_store(text)
        machine = _Machine(folder, text, stack)
        for node in NODES:
            await trio.to_thread.run_sync(machine.start, node)
        credentials = Credentials.in_folder(folder, "client")
        async with (
            opening as fencing,
            PROGRAM.open("client", fencing, credentials, holds=False) as cluster,
        ):
            await cluster.wait_for(len(NODES) + 1)
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
    args = parser.parse_args()
    report = trio.run(soak, args.harms, args.clients, args.seed, args.store)
    print(report)
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
