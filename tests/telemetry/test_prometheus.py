"""The page that Prometheus scrapes: its answers to each client, and Prometheus itself."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import shutil
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import h11
import numpy as np
import pytest
import trio
import trio.testing
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)

from atomr_accel import LibraryMissing
from atomr_accel.patterns import CircuitBreaker
from atomr_accel.telemetry import (
    Metrics,
    PrometheusCollector,
    _prometheus,
    export_to_opentelemetry,
    serve_prometheus,
)

from ..harness import cpu_only, opened
from ..seeds import draw
from .scraping import samples

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Callable[[], Awaitable[Client]]]:
    """A page with something on it, as a function that connects to it."""
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        stack.enter_context(metrics.observe(CircuitBreaker()))
        port = await stack.enter_async_context(serve_prometheus(metrics, **options))

        async def connect() -> Client:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            return Client(await stack.enter_async_context(stream))

        yield connect


class Client:
    """Sends bytes, and reads answers."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.connection = h11.Connection(h11.CLIENT)

    async def ask(
        self, method: str, target: str, **headers: str
    ) -> tuple[int, dict[str, str], str]:
        fields = [*({"Host": "localhost"} | headers).items()]
        request = h11.Request(method=method, target=target, headers=fields)
        sent = self.connection.send(request) + self.connection.send(h11.EndOfMessage())
        await self.stream.send_all(sent)
        return await self.answer()

    async def answer(self) -> tuple[int, dict[str, str], str]:
        status, headers, body = 0, {}, b""
        while True:
            event = self.connection.next_event()
            if event is h11.NEED_DATA:
                self.connection.receive_data(await self.stream.receive_some())
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += event.data
            else:
                if self.connection.our_state is self.connection.their_state is h11.DONE:
                    self.connection.start_next_cycle()
                return status, headers, body.decode()


async def test_a_scrape_and_another_over_the_same_connection() -> None:
    async with served() as connect:
        client = await connect()
        for _ in range(2):
            status, headers, text = await client.ask("GET", "/metrics")
            assert status == 200
            assert headers["content-type"].startswith("text/plain; version=")
            assert samples(text)
        status, headers, text = await client.ask("HEAD", "/metrics?x=1")
        assert (status, text) == (200, "")
        assert int(headers["content-length"]) > 0


async def test_openmetrics_where_that_is_asked_for() -> None:
    async with served() as connect:
        client = await connect()
        accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
        status, headers, text = await client.ask("GET", "/metrics", Accept=accept)
    assert status == 200
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert list(openmetrics_families(text))


async def test_invalid_scrape_is_refused() -> None:
    async with served() as connect:
        client = await connect()
        assert (await client.ask("GET", "/"))[0] == 404
        status, headers, _ = await client.ask("POST", "/metrics")
        assert (status, headers["allow"]) == (405, "GET, HEAD")
        for nonsense in (
            b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
            b"GET /metrics HTTP/1.1\r\n\r\n",
            b"A" * 100_000,
        ):
            client = await connect()
            await client.stream.send_all(nonsense)
            answer = await client.stream.receive_some()
            assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
        assert (await (await connect()).ask("GET", "/metrics"))[0] == 200


async def test_no_bytes_whatever_end_it() -> None:
    rng = random.Random(draw())
    accept = b"Accept: application/openmetrics-text;version=x;escaping=y,*/*;q=z\r\n\r\n"
    good = [GET, GET[:-2] + accept, b"HEAD /metrics HTTP/1.0\r\n\r\n", b"\r\n" * 3 + GET]
    async with served() as connect:
        for _ in range(60):
            sent = bytearray(rng.choice(good) * rng.randrange(1, 3))
            for _ in range(rng.randrange(4)):
                at = rng.randrange(len(sent))
                sent[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
            client = await connect()
            with contextlib.suppress(trio.BrokenResourceError):
                await client.stream.send_all(sent)
                await client.stream.send_eof()
                while await client.stream.receive_some():
                    pass
        assert (await (await connect()).ask("GET", "/metrics"))[0] == 200


async def test_broken_client_disturbs_no_other() -> None:
    async with served() as connect:
        slow = await connect()
        await slow.stream.send_all(GET[:20])
        gone = await connect()
        await gone.stream.send_all(GET[:20])
        await trio.aclose_forcefully(gone.stream)
        ended = await connect()
        await ended.stream.send_all(GET)
        await ended.stream.send_eof()
        assert (await ended.answer())[0] == 200
        assert (await (await connect()).ask("GET", "/metrics"))[0] == 200
        await slow.stream.send_all(GET[20:])
        assert (await slow.answer())[0] == 200


async def test_connections_are_not_without_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_prometheus, "_MOST_CONNECTIONS", 2)
    async with served() as connect:

        async def ask(client: Client) -> Client:
            assert (await client.ask("GET", "/metrics"))[0] == 200
            await trio.testing.wait_all_tasks_blocked()
            return client

        first = await ask(await connect())
        second = await ask(await connect())
        await ask(first)
        await ask(await connect())
        with pytest.raises((h11.RemoteProtocolError, trio.BrokenResourceError)):
            await ask(second)  # it had waited for longest, and has given way
        await ask(first)


async def test_idle_connections_keep_no_scraper_out() -> None:
    async with served() as connect:
        for _ in range(_prometheus._MOST_CONNECTIONS + 10):
            await connect()
        assert (await (await connect()).ask("GET", "/metrics"))[0] == 200


async def test_a_connection_that_asks_nothing_is_closed_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_prometheus, "_FIRST_SECONDS", 0.0)
    async with served() as connect:
        assert await (await connect()).stream.receive_some() == b""


async def test_an_answer_waits_for_no_body() -> None:
    async with served() as connect:
        client = await connect()
        await client.stream.send_all(
            b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\nx"
        )
        answer = await client.stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 405")
        assert b"Connection: close" in answer
        assert await client.stream.receive_some() == b""


async def test_pages_of_other_names_read_nothing() -> None:
    async with served(names=["Metrics.Example"]) as connect:
        client = await connect()
        for host, status in (
            ("evil.example", 421),
            ("metrics.example:9464", 200),
            ("127.0.0.1:1", 200),
        ):
            assert (await client.ask("GET", "/metrics", Host=host))[0] == status


async def test_server_listens_to_this_machine_only_and_stops_with_its_block() -> None:
    async with served() as connect:
        await connect()
    with pytest.raises(OSError, match="connect"):
        await connect()
    with pytest.raises(TypeError, match="port must be a whole number"):
        async with serve_prometheus(Metrics(), port="9464"):  # type: ignore[arg-type]
            pass


async def test_what_metrics_observe_is_refused_in_their_place() -> None:
    advice = "metrics must be a Metrics, not CircuitBreaker; let one observe it"
    wrong: Any = CircuitBreaker()
    with pytest.raises(TypeError, match=advice):
        async with serve_prometheus(wrong):
            pass
    with pytest.raises(TypeError, match=advice):
        PrometheusCollector(wrong)
    with pytest.raises(TypeError, match=advice):
        export_to_opentelemetry(wrong)
    for names, text in (("gpu-7", "names must be a list"), ([3], "a host name must be")):
        with pytest.raises(TypeError, match=text):
            async with serve_prometheus(Metrics(), names=names):  # type: ignore[arg-type]
                pass


async def test_failed_scrape_is_logged_and_the_program_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_args: object) -> None:
        raise RuntimeError("as asked")

    async with served() as connect:
        monkeypatch.setattr(_prometheus, "_family", fail)
        assert (await (await connect()).ask("GET", "/metrics"))[0] == 500
    assert [record.message for record in caplog.records] == ["metrics cannot be told"]


async def test_without_the_packages_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "h11", None)
    with pytest.raises(LibraryMissing, match=r"h11 is not installed: pip install .*telemetry"):
        async with serve_prometheus(Metrics()):
            pass


# --- Prometheus itself ---------------------------------------------------------------------


@cpu_only
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
async def test_prometheus_scrapes_it(tmp_path: Path) -> None:
    """Debian's package ``prometheus``, or the project's binary."""
    metrics = Metrics()
    async with opened(isolation="thread") as device:
        with metrics.observe(device, name='a "hostile"\nname\\'):
            x = await device.put(np.eye(2))
            for _ in range(5):
                await device.blas.gemm(x, x)
            async with serve_prometheus(metrics) as port, trio.open_nursery() as nursery:
                config = {
                    "global": {"scrape_interval": "100ms", "scrape_timeout": "100ms"},
                    "scrape_configs": [
                        {
                            "job_name": "test",
                            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                        }
                    ],
                }
                (tmp_path / "prometheus.yml").write_text(json.dumps(config))
                listen = free_port()
                command = [
                    "prometheus",
                    f"--config.file={tmp_path / 'prometheus.yml'}",
                    f"--storage.tsdb.path={tmp_path / 'data'}",
                    f"--web.listen-address=127.0.0.1:{listen}",
                ]
                run = functools.partial(
                    trio.run_process, command, stderr=subprocess.DEVNULL, check=False
                )
                process = await nursery.start(run)
                query = 'atomr_accel_ops_total{library="blas",outcome="done"}'
                found = await scraped(listen, query)
                slow = await scraped(
                    listen, "histogram_quantile(0.9, atomr_accel_op_seconds_bucket)"
                )
                process.terminate()
    ((labels, value),) = found
    assert float(value) == 5
    assert labels["system"] == 'a "hostile"\nname\\'
    assert {labels["library"] for labels, _ in slow} >= {"blas", "memory"}


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


async def scraped(port: int, query: str) -> list[tuple[dict[str, str], str]]:
    """Return the result of a query after a scrape, by polling."""
    while True:
        if found := await ask_prometheus(port, query):
            return found
        await trio.sleep(0.05)


async def ask_prometheus(port: int, query: str) -> list[tuple[dict[str, str], str]]:
    """Series and their values; none before it is up."""
    try:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            target = f"/api/v1/query?query={urllib.parse.quote(query)}"
            status, _, text = await Client(stream).ask("GET", target)
    except OSError:
        return []
    if status != 200:
        return []
    answer: Any = json.loads(text)
    return [(one["metric"], one["value"][1]) for one in answer["data"]["result"]]


async def test_errors_come_out_as_they_are() -> None:
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as taken,
        pytest.raises(OSError, match="in use"),
    ):
        async with serve_prometheus(Metrics(), port=taken.getsockname()[1]):
            pass
    with pytest.raises(ZeroDivisionError):
        async with serve_prometheus(Metrics()):
            raise ZeroDivisionError
