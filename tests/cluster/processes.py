"""Nodes in processes of their own, and clients that keep what nodes acknowledge."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from atomr_accel.actors import ActorStopped
from atomr_accel.cluster import Cluster, ConnectionLost, StoreUnavailable
from tests.harness import ROOT

from .simulated import Add, Log, Read

KEYS = [f"log {number}" for number in range(12)]


@contextmanager
def running(folder: Path, name: str, store: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """A node in a process of its own, once it has joined; by default, on a store of SQLite."""
    words = ["node", "tests.cluster.simulated:PROGRAM", "--name", name, "--json"]
    where = ["--store", store or str(folder / "store"), "--certificates", str(folder)]
    with subprocess.Popen(
        [sys.executable, "-m", "atomr_accel", *words, *where],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert "has joined" in line, line + process.stderr.read()
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()


def listener_on(port: int) -> int:
    """The number of the process that listens on a port of this machine."""
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    (inode,) = (
        words[9]
        for words in map(str.split, lines)
        if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port
    )
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # one that is another's, or has ended
            for file in (process / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(file) == f"socket:[{inode}]":  # noqa: PTH115 (no path)
                        return int(process.name)
    raise LookupError(f"no process listens on port {port}")


async def until_alive(cluster: Cluster, name: str, before: str) -> None:
    """Wait until a node lives, in another life than before."""
    while name not in cluster.nodes or cluster.nodes[name].life == before:  # noqa: ASYNC110
        await trio.sleep(0.01)  # processes have no events


class Clients:
    """Clients that add numbers, and know which were acknowledged."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.numbers = 0
        self.acknowledged: dict[str, dict[int, int]] = {key: {} for key in KEYS}
        self.longest = 0.0

    async def ask(self) -> None:
        while True:
            self.numbers += 1
            key, number = self.random.choice(KEYS), self.numbers
            began = trio.current_time()
            try:
                place = await self.cluster.entity(Log, key).ask(Add(number))
                self.acknowledged[key][number] = place
            except (ConnectionLost, ActorStopped, StoreUnavailable):
                pass
            self.longest = max(self.longest, trio.current_time() - began)
            await trio.sleep(0.02)

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def more(self, count: int) -> None:
        """Wait until more additions have been acknowledged."""
        wanted = self.count + count
        while self.count < wanted:  # noqa: ASYNC110 (processes have no events)
            await trio.sleep(0.01)

    async def check(self) -> None:
        for key in KEYS:
            log: list[int] = await self.cluster.entity(Log, key).ask(Read())
            assert len(log) == len(set(log))
            for number, place in self.acknowledged[key].items():
                assert log[place - 1] == number
