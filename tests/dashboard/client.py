"""A client of the dashboard that does no more than a test says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import trio

from atomr_accel.dashboard import Dashboard


@dataclass
class Answer:
    """An answer to a request: all of it."""

    status: int
    headers: dict[str, str]
    body: bytes


def place(page: Dashboard) -> tuple[str, int]:
    """Return the host and the port of a dashboard."""
    host, _, port = page.address.removeprefix("http://").rstrip("/").rpartition(":")
    return host.strip("[]"), int(port)


async def ask(
    page: Dashboard,
    path: str,
    *,
    token: str | None = None,
    method: str = "GET",
    headers: dict[str, str] | None = None,
) -> Answer:
    """Send a request, and read until the end."""
    stream = await trio.open_tcp_stream(*place(page))
    lines = {"Host": "localhost", "Connection": "close", **(headers or {})}
    if token is not None:
        lines["Authorization"] = f"Bearer {token}"
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    async with stream:
        await stream.send_all(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode())
        received = b"".join([part async for part in stream])
    first, *rest = received.partition(b"\r\n\r\n")[0].decode().split("\r\n")
    fields = dict(line.split(": ", 1) for line in rest)
    body = received.partition(b"\r\n\r\n")[2]
    return Answer(
        int(first.split()[1]), {name.lower(): text for name, text in fields.items()}, body
    )


def merged(target: Any, patch: Any) -> Any:
    """A state with a patch merged into it (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged(target.get(key), value)
    return target


class Looker:
    """A client of a page.

    Attributes:
        state: the state that the client has.
        events: how many messages there were, by kind.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._lines: AsyncIterator[str] = self._read()
        self.state: dict[str, Any] = {}
        self.events: dict[str, int] = {}

    async def _read(self) -> AsyncIterator[str]:
        # Lines of the body: of chunks, the sizes have lines of their own, which are no fields.
        rest = b""
        async for part in self._stream:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line.decode().rstrip("\r")

    async def next(self) -> str | None:
        """Take one message in; its kind, or None at the end."""
        kind = ""
        async for line in self._lines:
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                if kind == "state":
                    self.state = data
                elif kind == "change":
                    self.state = merged(self.state, data)
                self.events[kind] = self.events.get(kind, 0) + 1
                return kind
        return None

    async def until(self, condition: Any) -> None:
        """Take messages in until a condition of the state holds."""
        while not (self.state and condition(self.state)):
            assert await self.next() is not None


@asynccontextmanager
async def looking(page: Dashboard) -> AsyncIterator[Looker]:
    """Look at a page for the length of a block."""
    async with await trio.open_tcp_stream(*place(page)) as stream:
        headers = "Host: localhost\r\nConnection: close\r\n"  # a refusal is the end of it
        request = f"GET /events?token={page.token} HTTP/1.1\r\n{headers}\r\n"
        await stream.send_all(request.encode())
        yield Looker(stream)
