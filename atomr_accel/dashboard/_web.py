"""The dashboard as an ASGI application: access rules, files and states.

All programs on this machine, and all pages in the user's browser, can send requests here. Requests
for facts about the program therefore need the token. A request must also name this machine by an
address or as ``localhost``, which keeps out pages that have their own name resolved to it (DNS
rebinding). Other pages may neither read an answer nor show it in a frame. The page uses no cookies,
because a browser would send them to every other port of this machine too.
"""

from __future__ import annotations

import hmac
from contextlib import aclosing, nullcontext, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import trio
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..telemetry.host_header import MISDIRECTED, REFUSAL, is_here
from ._connections import telling
from ._patch import encode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from ._feed import Feed
    from ._running import RunningDashboard

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_FILES: Final = {
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""Files that need no token, because they have no facts about the program."""

_LONGEST_QUERY: Final = 1024
"""Bytes; the token is all that a query may have."""


def application(
    feed: Feed,
    token: str,
    names: frozenset[str],
    others: Callable[[], list[RunningDashboard]] | None = None,
) -> ASGIApp:
    """Return the application.

    Args:
        feed: the source of states.
        token: the token that requests for states must carry.
        names: host names that requests may use, besides addresses and ``localhost``.
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

    routes = [
        *(Route(path, _file(*file), methods=["GET"]) for path, file in _FILES.items()),
        Route("/state", state, methods=["GET"]),
        Route("/events", events, methods=["GET"]),
        Route("/programs", programs, methods=["GET"]),
    ]
    return _Guard(Starlette(routes=routes), token, names)


def _file(name: str, media_type: str) -> Response:
    # A response is an ASGI application: the same one does for all requests.
    return Response((files(__package__) / "page" / name).read_bytes(), media_type=media_type)


class _Guard:
    """Refuses invalid requests, and adds security headers to all answers."""

    def __init__(self, app: ASGIApp, token: str, names: frozenset[str]) -> None:
        self._app = app
        self._token = token.encode("ascii")
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # Starlette closes websockets
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        # Requests without a token, and refused ones, may be ended for others.
        told = nullcontext() if refusal or scope["path"] in _FILES else telling()
        with told:
            await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if len(scope["query_string"]) > _LONGEST_QUERY:  # parsing it would hold the program up
            return PlainTextResponse("the query is too long", 414)
        if not is_here(headers.getlist("host"), self._names):
            return PlainTextResponse(REFUSAL, MISDIRECTED)
        if scope["method"] != "GET":
            return PlainTextResponse("there is nothing to change here", 405, {"Allow": "GET"})
        if scope["path"] in _FILES or self._has_token(scope, headers):
            return None
        return PlainTextResponse(
            "this needs the token, which is in the address that the program tells",
            401,
            {"WWW-Authenticate": "Bearer"},
        )

    def _has_token(self, scope: Scope, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = QueryParams(scope["query_string"]).get("token", "")
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)


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
