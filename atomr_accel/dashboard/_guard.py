"""Access rules of pages, and the files that need no token.

All programs on this machine, and all pages in the user's browser, can send requests here. Requests
for facts about the program therefore need the token. A request must also name this machine by an
address or as ``localhost``, which keeps out pages that have their own name resolved to it (DNS
rebinding). Other pages may neither read an answer nor show it in a frame, nor open a WebSocket. The
page uses no cookies, because a browser would send them to every other port of this machine too.
"""

from __future__ import annotations

import hmac
from contextlib import nullcontext
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from ..telemetry.host_header import MISDIRECTED, REFUSAL, is_here
from ._connections import telling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import Message, Receive, Scope, Send

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


def _file(package: str, name: str, media_type: str) -> Response:
    # A response is an ASGI application: the same one does for all requests.
    return Response((files(package) / "page" / name).read_bytes(), media_type=media_type)


class Guard:
    """Refuses invalid requests, and adds security headers to all answers.

    Requests may use addresses, ``localhost`` and ``names`` as host names.
    """

    def __init__(
        self, package: str, routes: Sequence[BaseRoute], token: str, names: frozenset[str]
    ) -> None:
        pages = [Route(at, _file(package, *file), methods=["GET"]) for at, file in _FILES.items()]
        self._app = Starlette(routes=[*pages, *routes])
        self._token = token.encode("ascii")
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
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

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")  # all browsers send it
        if (
            len(scope["query_string"]) > _LONGEST_QUERY
            or not is_here(headers.getlist("host"), self._names)
            or (origin is not None and origin != f"http://{headers['host']}")
            or not self._has_token(scope, headers)
        ):
            await receive()
            await send({"type": "websocket.close", "code": 1008})  # an answer of status 403
            return
        with telling():
            await self._app(scope, receive, send)

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
