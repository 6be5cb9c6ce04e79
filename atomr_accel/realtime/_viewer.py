"""A page in the browser that shows a simulation, and changes its parameters."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from .. import AccelError
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..dashboard.site import open_site
from .simulation import Simulation

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from .simulation import Picture

_MOST: Final = 16
"""Pages that may look at a time: each has its own copy of the picture."""

_LONGEST: Final = 400
"""Characters of an error's message."""

_TOO_MANY: Final = 1013
_MALFORMED: Final = 1007
_OVER: Final = 1001
"""Codes by which a WebSocket is closed (RFC 6455)."""


@dataclass(frozen=True, slots=True)
class ViewerStatistics:
    """A viewer at one moment.

    Attributes:
        pages: pages that look at present.
        frames: pictures that were sent to pages.
        changes: changes of parameters that pages have made.
        refused: messages of pages that were refused.
    """

    pages: int
    frames: int
    changes: int
    refused: int


class Viewer(metaclass=NoPublicConstructor):
    """A viewer that is open; `open_viewer` makes one.

    Attributes:
        url: the page's address, with the token. The token is in the fragment, which browsers do not
            send, so it does not get into logs.
        address: the same without the token.
        token: the token.
    """

    _made_by = "open_viewer(scene)"

    def __init__(self, scene: Simulation, title: str) -> None:
        self._scene: Final = scene
        self._title: Final = title
        self.address: str = ""
        self.token: str = ""
        self.url: str = ""
        self._left: Final = trio.Event()
        self._pages = self._frames = self._changes = self._refused = 0

    def __repr__(self) -> str:
        return f"<Viewer {self.address}>"  # tokens do not belong in logs

    def statistics(self) -> ViewerStatistics:
        """Return numbers of the viewer so far."""
        return ViewerStatistics(self._pages, self._frames, self._changes, self._refused)

    def _begin(self, address: str, token: str) -> None:
        self.address, self.token, self.url = address, token, f"{address}#{token}"

    async def _serve(self, page: WebSocket) -> None:
        if self._pages >= _MOST:
            await page.close(_TOO_MANY)
            return
        self._pages += 1
        try:
            await page.accept()
            await _Looking(self, page).run()
        finally:
            self._pages -= 1


class _Looking:
    """A page that looks. It gets another picture when it has drawn the last one."""

    def __init__(self, viewer: Viewer, page: WebSocket) -> None:
        self._viewer: Final = viewer
        self._scene: Final = viewer._scene
        self._page: Final = page
        self._lock: Final = trio.Lock()  # messages go one by one
        self._drawn = trio.Event()

    async def run(self) -> None:
        code, reason = _OVER, "the viewer was closed"
        try:
            async with PlainNursery() as nursery:
                nursery.start_soon(self._until_left, nursery.cancel_scope)
                nursery.start_soon(self._listen)
                await self._tell(self._about())
                await self._show()
        except _PageGone:
            return
        except _MessageMalformed as error:
            self._viewer._refused += 1
            code, reason = _MALFORMED, str(error)
        except (AccelError, RuntimeError) as error:  # of the scene, which is over
            await self._tell(
                {"kind": "over", "text": f"{type(error).__name__}: {error}"[:_LONGEST]}
            )
            reason = "the scene is over"
        with trio.CancelScope(shield=True), trio.move_on_after(1):
            await self._page.close(code, reason)

    async def _until_left(self, scope: trio.CancelScope) -> None:
        await self._viewer._left.wait()
        scope.cancel()

    async def _tell(self, message: dict[str, Any]) -> None:
        async with self._lock:
            await self._page.send_text(json.dumps(message, allow_nan=False))

    # --- to the page -----------------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        settings = self._scene.statistics().parameters
        parameters = [
            {
                "name": name,
                "unit": each.unit,
                "low": None if each.low == -math.inf else each.low,
                "high": None if each.high == math.inf else each.high,
                "from": max(each.low, -reach if each.low < 0 else 0.0),
                "to": min(each.high, reach),
            }
            for name, each in self._scene.parameters.items()
            for reach in (max(1.0, 4 * abs(settings[name])),)
        ]
        return {"kind": "scene", "title": self._viewer._title, "parameters": parameters}

    async def _show(self) -> None:
        async with self._scene.frames() as pictures:
            await self._send(await self._scene.snapshot())
            async for picture in pictures:
                await self._send(picture)

    async def _send(self, picture: Picture) -> None:
        self._drawn = trio.Event()
        await self._tell_state()
        height, width = picture.shape[:2]
        async with self._lock:
            head = struct.pack("<II", width, height)
            await self._page.send_bytes(head + picture.tobytes())
        self._viewer._frames += 1
        await self._drawn.wait()

    async def _tell_state(self) -> None:
        now = self._scene.statistics()
        await self._tell(
            {
                "kind": "state",
                "steps": now.steps,
                "time": now.time,
                "faults": now.faults,
                "lost": now.lost_steps,
                "late": now.late_steps,
                "parameters": dict(now.parameters),
            }
        )

    # --- from the page ---------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            event = await self._page.receive()
            if event["type"] == "websocket.disconnect":
                raise _PageGone
            message = _message(event.get("text"))
            if message["kind"] == "drawn":
                self._drawn.set()
            else:
                await self._change(message["name"], message["value"])

    async def _change(self, name: str, value: float) -> None:
        try:
            self._scene.update(**{name: value})
        except (TypeError, ValueError) as error:
            self._viewer._refused += 1
            await self._tell({"kind": "refused", "text": str(error)[:_LONGEST]})
        else:
            self._viewer._changes += 1
        await self._tell_state()


class _PageGone(Exception):
    """A page was closed."""


class _MessageMalformed(Exception):
    """A page has sent what the page of this package does not send."""


def _message(text: str | None) -> dict[str, Any]:
    try:
        message = json.loads(text or "")
    except ValueError:
        raise _MessageMalformed("a message must be JSON") from None
    match message:
        case {"kind": "drawn"}:
            return {"kind": "drawn"}
        case {"kind": "set", "name": str(name), "value": int() | float() as value}:
            with suppress(OverflowError):
                return {"kind": "set", "name": name, "value": float(value)}
    raise _MessageMalformed("a message must be drawn, or set with a name and a number")


@opens
async def open_viewer(
    scene: Simulation,
    *,
    title: str | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    public: bool = False,
    names: Iterable[str] = (),
) -> AsyncIterator[Viewer]:
    """Serve a page that shows a simulation until the block is left.

    ::

        async with open_viewer(fluid) as viewer:
            print(viewer.url)
            await fluid.run(60)

    The page draws what `Simulation.run` draws, and has a slider for each parameter. Programs with
    its address and token can change them. The rules of access are those of `open_dashboard`. A page
    that is too slow skips pictures, and delays nothing.

    Args:
        scene: the simulation.
        title: the page's title; by default, the name of the scene's class.
        host: the address to listen on. By default, only programs on this machine reach it.
        port: the port; 0 for a free one.
        public: allow a ``host`` that other machines reach. Pictures and the token then cross the
            network without encryption; a tunnel, such as ``ssh -L``, is better.
        names: host names that browsers may use, besides ``localhost`` and addresses.

    Raises:
        LibraryMissing: Starlette or Hypercorn is not installed.
        TypeError, ValueError: an argument of a wrong type or value, or other machines reach
            ``host`` and ``public`` is False.
        OSError: the port is taken.
    """
    check_instance("scene", scene, Simulation)
    if title is not None:
        check_instance("title", title, str)
    viewer = Viewer.construct(scene, title if title is not None else type(scene).__name__)

    def routes(_token: str) -> list[Any]:
        from starlette.routing import WebSocketRoute

        return [WebSocketRoute("/scene", viewer._serve)]

    async with open_site(
        "viewer", __package__, routes, host=host, port=port, public=public, names=names
    ) as site:
        viewer._begin(site.address, site.token)
        try:
            yield viewer
        finally:
            viewer._left.set()
