"""A real browser without a window, driven by the Chrome DevTools protocol over two pipes."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
"""The browser; None if none is installed."""

_START = """if True:
    import os, sys
    for fd, wanted in zip(map(int, sys.argv[1:3]), (3, 4)):
        os.dup2(fd, wanted)
    os.execv(sys.argv[3], sys.argv[3:])
"""
"""The browser reads commands from descriptor 3, and answers on 4."""


class Browser:
    """One page of a browser that has nothing else open."""

    def __init__(self, commands: trio.lowlevel.FdStream, answers: trio.lowlevel.FdStream) -> None:
        self._commands = commands
        self._answers = answers
        self._numbers = itertools.count(1)
        self._waiting: dict[int, trio.MemorySendChannel[Any]] = {}
        self._session = ""
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Take what the browser says."""
        rest = b""
        async for data in self._answers:
            *messages, rest = (rest + data).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._waiting.pop(message["id"]).send_nowait(message)
                else:
                    self._note(message["method"], message.get("params", {}))

    def _note(self, method: str, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(event["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(f"{event['entry']['text']} {event['entry'].get('url')}")

    async def call(self, method: str, **params: Any) -> Any:
        """Send a command, and wait for its result."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        send, receive = trio.open_memory_channel[Any](1)
        self._waiting[number] = send
        await self._commands.send_all(json.dumps(command).encode() + b"\0")
        answer = await receive.receive()
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    async def begin(self) -> None:
        """Open the page, and note its warnings and errors."""
        page = await self.call("Target.createTarget", url="about:blank")
        session = await self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = session["sessionId"]
        for domain in ("Runtime", "Log", "Page"):
            await self.call(f"{domain}.enable")

    async def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        """Have a screen of a size, which is a phone's if it is narrow."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.call("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """Return the value of an expression in the page, after its promise has settled."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until a condition holds; looked at whenever the page is drawn."""
        await self.value(
            f"new Promise((met) => {{ const look = () => ({condition}) ? met() : "
            "requestAnimationFrame(look); look(); })"
        )

    async def press(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key)

    async def hover(self, element: str) -> None:
        """Put the pointer over the middle of an element."""
        x, y = await self.value(
            "(e => { e.scrollIntoView({block: 'center'}); const box = e.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })"
            f"({element})"
        )
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def take_picture(self, path: Path, *, whole: bool = False) -> None:
        """Save the visible part, or the whole page, as a PNG."""
        picture = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        await trio.Path(path).write_bytes(base64.b64decode(picture["data"]))


@asynccontextmanager
async def open_browser(profile: Path) -> AsyncIterator[Browser]:
    """Run the browser for the length of a block.

    Args:
        profile: folder for the browser's files.
    """
    assert PROGRAM is not None
    command = [
        PROGRAM,
        "--headless",
        "--no-sandbox",  # it runs as root, too, and shows nothing but our own page
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
    ]
    to_read, to_write = os.pipe(), os.pipe()
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_read[0], to_write[1])]
    starter = [sys.executable, "-c", _START, *map(str, theirs), *command]
    process = await trio.lowlevel.open_process(
        starter, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for fd in (to_read[0], to_write[1], *theirs):
        os.close(fd)
    commands = trio.lowlevel.FdStream(to_read[1])
    answers = trio.lowlevel.FdStream(to_write[0])
    browser = Browser(commands, answers)
    try:
        async with commands, answers, trio.open_nursery() as nursery:
            nursery.start_soon(browser.listen)
            await browser.begin()
            yield browser
            nursery.cancel_scope.cancel()
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
