"""Servers of databases for tests, each of its own in a folder that is gone afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

READY = "ready to accept connections"
"""Line that both servers print when they are ready."""

POSTGRES_USER = "postgres"
"""User that runs the server if root runs the tests. Debian's package makes the user."""


def program(name: str, *folders: str) -> str:
    """The path of a server's program; the test is skipped if it is not installed."""
    found = shutil.which(name) or next(
        (str(path) for folder in folders for path in sorted(Path("/").glob(f"{folder}/{name}"))),
        None,
    )
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextlib.contextmanager
def running(command: Sequence[str], ready: str, end: int, **options: Any) -> Iterator[None]:
    """A server, from when it has printed that it is ready until the block ends."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdout=pipe, stderr=subprocess.STDOUT, text=True, **options
    ) as server:
        assert server.stdout is not None
        try:
            lines = []
            for line in server.stdout:
                lines.append(line)
                if ready in line:
                    break
            else:
                pytest.fail(f"{command[0]} has ended: {''.join(lines)}")
            yield
        finally:
            server.send_signal(end)
            server.communicate()


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a Redis that keeps nothing on disk."""
    path = program("redis-server")
    with tempfile.TemporaryDirectory() as folder:
        socket = f"{folder}/redis.sock"
        options = ["--port", "0", "--unixsocket", socket, "--dir", folder, "--save", ""]
        with running([path, *options], READY, signal.SIGTERM):
            yield f"unix://{socket}"


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The connection string of a PostgreSQL with a database of its own."""
    where = "usr/lib/postgresql/*/bin"
    initdb, postgres = program("initdb", where), program("postgres", where)
    options: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if os.geteuid() == 0:
            try:
                shutil.chown(folder, POSTGRES_USER)
            except LookupError:
                pytest.skip("PostgreSQL refuses to be run by root")
            options = {"user": POSTGRES_USER, "extra_groups": [], "cwd": folder}
        data = f"{folder}/data"
        made = [initdb, "-D", data, "-U", "us", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        subprocess.run(made, check=True, capture_output=True, **options)
        command = [postgres, "-D", data, "-k", folder, "-h", "", "-F"]
        with running(command, READY, signal.SIGINT, **options):
            yield f"host={folder} user=us dbname=postgres"
