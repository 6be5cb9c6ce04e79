"""Three nodes in processes of their own: killed, stopped and drained while clients ask."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import trio

from atomr_accel.cluster import Credentials, make_certificates, open_sqlite_store
from tests import seeds
from tests.harness import program, sized, stop_process

from .processes import Clients, running
from .simulated import PROGRAM


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
        await _break(first, how, folder / "store")
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


async def _break(process: subprocess.Popen[Any], how: str, store: Path) -> None:
    if how == "kill":
        process.kill()
    elif how == "drain":
        process.terminate()
    else:
        stop_process(process.pid)
        # One that is stopped within a transaction would keep SQLite's lock, see the cluster's page.
        while not await trio.to_thread.run_sync(_can_be_written, store):
            process.send_signal(signal.SIGCONT)
            stop_process(process.pid)


def _can_be_written(store: Path) -> bool:
    with closing(sqlite3.connect(store, timeout=2.0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True
