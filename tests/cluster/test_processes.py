"""Three nodes in processes of their own: killed, stopped and drained while clients ask."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from atomr_accel.actors import ActorStopped
from atomr_accel.cluster import (
    Cluster,
    ConnectionLost,
    Credentials,
    StoreUnavailable,
    make_certificates,
    open_sqlite_store,
)
from tests import seeds
from tests.harness import ROOT, program, sized, stop_process

from .simulated import PROGRAM, Add, Log, Read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop", "drain"])
def test_no_acknowledged_effect_is_lost_or_doubled(how: str, tmp_path: Path) -> None:
    make_certificates(tmp_path, ["node-1", "node-2", "node-3", "client"])
    with (
        running(tmp_path, "node-1") as first,
        running(tmp_path, "node-2"),
        running(tmp_path, "node-3"),
    ):
        _ask_and_break(tmp_path, first, how)


@program
async def _ask_and_break(folder: Path, first: subprocess.Popen[str], how: str) -> None:
    credentials = Credentials.in_folder(folder, "client")
    async with (
        open_sqlite_store(folder / "store") as store,
        PROGRAM.open("client", store, credentials, holds=False) as cluster,
        trio.open_nursery() as nursery,
    ):
        await cluster.wait_for(4)
        clients = Clients(cluster, seeds.draw())
        for _ in range(sized(16, 64)):
            nursery.start_soon(clients.ask)
        await clients.more(100)
        _break(first, how)
        while "node-1" in cluster.nodes:  # noqa: ASYNC110 (processes have no events)
            await trio.sleep(0.01)
        await clients.more(200)
        if how == "stop":
            first.send_signal(signal.SIGCONT)  # it believes in leases that are over
            await clients.more(200)
        nursery.cancel_scope.cancel()
    async with (
        open_sqlite_store(folder / "store") as store,
        PROGRAM.open("client", store, credentials, holds=False) as cluster,
    ):
        clients.cluster = cluster
        await clients.check()
        assert clients.count >= 300


def _break(process: subprocess.Popen[Any], how: str) -> None:
    if how == "kill":
        process.kill()
    elif how == "stop":
        stop_process(process.pid)
    else:
        process.terminate()
