"""Routes of the dashboard: states, streams of them, and other programs."""

from __future__ import annotations

import hmac
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING

import trio
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ._patch import encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from starlette.types import Receive, Scope, Send

    from ._feed import Feed
    from ._running import RunningDashboard


def routes_of(
    feed: Feed, token: str, others: Callable[[], list[RunningDashboard]] | None
) -> list[BaseRoute]:
    """Return what needs the token.

    Args:
        feed: the source of states.
        token: the token.
        others: lists the dashboards that this user has open, with their tokens. None on a
            dashboard that other machines reach: its token must not open the others.
    """

    async def state(_request: Request) -> Response:
        return Response(encode(await feed.look()), media_type="application/json")

    async def events(_request: Request) -> Response:
        return _Events(feed)

    async def programs(_request: Request) -> Response:
        found = []
        if others is not None:
            with suppress(OSError):  # the directory is not safe to read
                found = await trio.to_thread.run_sync(others)
        listed = [
            {
                "pid": one.pid,
                "system": one.system,
                "command": one.command,
                "url": f"{one.url}#{one.token}",
                "here": hmac.compare_digest(one.token, token),
            }
            for one in found
        ]
        return Response(encode(listed), media_type="application/json")

    return [
        Route("/state", state, methods=["GET"]),
        Route("/events", events, methods=["GET"]),
        Route("/programs", programs, methods=["GET"]),
    ]


class _Events(Response):
    """A stream of server-sent events, until its reader is gone."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._feed.full:
            refusal = PlainTextResponse("too many look already", 503, {"Retry-After": "5"})
            await refusal(scope, receive, send)
            return
        async with aclosing(self._feed.messages()) as messages:
            # Count this page now, so that a request during its first answer sees it.
            await self._stream(await anext(messages), messages, receive, send)

    async def _stream(
        self, first: bytes, others: AsyncGenerator[bytes, None], receive: Receive, send: Send
    ) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )

        async def tell(message: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": message, "more_body": more})

        async with trio.open_nursery() as nursery:

            async def until_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_gone)
            await tell(first)
            async for message in others:
                await tell(message)
            nursery.cancel_scope.cancel()
        # Outside the nursery, where the end of an answer would look like the client's end.
        await tell(b"", more=False)
