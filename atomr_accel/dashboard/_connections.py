"""The connections of a page, limited in number so that the program keeps its descriptors."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from ..actors.nursery import PlainNursery

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from hypercorn.config import Config

_log: Final = logging.getLogger("atomr_accel.dashboard")

MOST_CONNECTIONS: Final = 64
"""Connections that are open at a time. More than may look, so that one always can give way."""


@final
class _Connection:
    """A connection.

    Attributes:
        telling: how many requests with the token are being answered.
    """

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream: Final = stream
        self.scope: Final = trio.CancelScope()
        self.telling = 0

    def end(self) -> None:
        """Close it now, whatever is being sent: Hypercorn shields that from cancellation."""
        self.scope.cancel()
        self._stream.socket.close()


_CURRENT: Final[ContextVar[_Connection]] = ContextVar("atomr_accel.dashboard.connection")
"""Connection of the current request; tasks inherit it."""


@contextmanager
def telling() -> Iterator[None]:
    """Let this request's connection not give way to another one."""
    connection = _CURRENT.get()
    connection.telling += 1
    try:
        yield
    finally:
        connection.telling -= 1


@final
class Server:
    """Hypercorn for the connections of one listener.

    Hypercorn itself accepts as many as come, with the token or without.
    """

    def __init__(self, app: Any, config: Config) -> None:
        self._app: Final = ASGIWrapper(app)
        self._config: Final = config
        self._context: Final = WorkerContext(None)
        self._open: Final[dict[_Connection, None]] = {}  # the oldest first

    async def run(self, listener: socket.socket, left: trio.Event) -> None:
        """Serve until the block ends, and give current answers some more time."""
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener))]
        async with PlainNursery() as answering:
            async with PlainNursery() as accepting:
                accepting.start_soon(self._accept, listeners, answering)
                await left.wait()
                accepting.cancel_scope.cancel()
            await self._context.terminated.set()
            answering.cancel_scope.deadline = trio.current_time() + self._config.graceful_timeout

    async def _accept(self, listeners: list[trio.SocketListener], answering: trio.Nursery) -> None:
        while True:
            try:
                await trio.serve_listeners(self._serve, listeners, handler_nursery=answering)
            except Exception:  # noqa: BLE001 (logged: the program goes on)
                _log.exception("the dashboard's server has failed, and goes on")
                await trio.sleep(1)

    async def _serve(self, stream: trio.SocketStream) -> None:
        connection = _Connection(stream)
        if not self._make_room():
            await trio.aclose_forcefully(stream)
            return
        self._open[connection] = None
        _CURRENT.set(connection)
        try:
            with connection.scope:
                state = ConnectionState({})
                # Its annotation has streams of TLS alone.
                await TCPServer(self._app, self._config, self._context, state, stream)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 (as above)
            if not connection.scope.cancel_called:
                _log.exception("a connection of the dashboard has failed")
        finally:
            self._open.pop(connection, None)
            await trio.aclose_forcefully(stream)

    def _make_room(self) -> bool:
        """End the oldest connection without a request by token; return True if there is room."""
        if len(self._open) < MOST_CONNECTIONS:
            return True
        oldest = next((each for each in self._open if not each.telling), None)
        if oldest is None:
            return False
        del self._open[oldest]
        oldest.end()
        return True
