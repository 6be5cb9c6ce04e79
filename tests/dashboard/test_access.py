"""Access: the token, the host name of a request, and the use of answers."""

from __future__ import annotations

import random
import re
from contextlib import AsyncExitStack, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import trio
from hypercorn.trio.tcp_server import TCPServer

from atomr_accel.actors import Actor, open_actor_system
from atomr_accel.dashboard import _connections, open_dashboard
from atomr_accel.telemetry.host_header import is_here

from .client import ask, looking, place

PUBLIC = {"/": "index.html", "/style.css": "style.css", "/page.js": "page.js"}
SECRET = ("/state", "/events", "/nothing", "//state", "/state/", "/../state", "/%2e/style.css")


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime directory of the test's own."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def test_only_who_has_the_token_is_told_anything() -> None:
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        assert len(page.token) >= 32
        for path in SECRET:
            for token in (
                None,
                "",
                "wrong",
                page.token[:-1],
                page.token + "a",
                "é",
                page.token.lower(),
            ):
                answer = await ask(page, path, token=token)
                assert answer.status == 401
                assert page.token.encode() not in answer.body
        assert (await ask(page, "/state", token=page.token)).status == 200
        assert (await ask(page, f"/state?token={page.token}")).status == 200
        assert (await ask(page, f"/state?token={page.token}", token="wrong")).status == 401
        assert (await ask(page, "/nothing", token=page.token)).status == 404


async def test_two_dashboards_do_not_share_a_token() -> None:
    async with (
        open_actor_system("s") as system,
        open_dashboard(system) as one,
        open_dashboard(system) as two,
    ):
        assert (await ask(two, "/state", token=one.token)).status == 401


async def test_the_page_itself_is_no_secret() -> None:
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        for path, name in PUBLIC.items():
            answer = await ask(page, path)
            assert answer.status == 200
            assert answer.body == (files("atomr_accel.dashboard") / "page" / name).read_bytes()


async def test_the_token_is_where_browsers_keep_it_to_themselves() -> None:
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        assert page.url == f"{page.address}#{page.token}"
        assert page.token not in repr(page)


async def test_dashboard_changes_nothing() -> None:
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "HEAD"):
            for path in ("/", "/state"):
                answer = await ask(page, path, token=page.token, method=method)
                assert answer.status == 405
                assert answer.headers["allow"] == "GET"


async def test_all_answers_tell_browsers_to_keep_them_to_themselves() -> None:
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        for path, token, host in (
            ("/", None, "localhost"),
            ("/state", page.token, "localhost"),
            ("/state", None, "localhost"),
            ("/nothing", page.token, "localhost"),
            ("/", None, "rebound.example"),
        ):
            origin = {"Host": host, "Origin": "http://elsewhere.example"}
            headers = (await ask(page, path, token=token, headers=origin)).headers
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert not {name for name in headers if name.startswith("access-control")}
            assert "set-cookie" not in headers


async def test_wrong_options_are_refused() -> None:
    wrong: Any
    async with open_actor_system("s") as system:
        for wrong, match in (
            ({"names": "gpu-box"}, "names must be a list"),
            ({"names": [3]}, "a host name must be text"),
            ({"patterns": 3}, "patterns must be an instance of Mapping"),
            ({"nvml": 3}, "nvml must be what open_nvml gives"),
            ({"public": "no"}, "public must be True or False"),
            ({"announce": "no"}, "announce must be True or False"),
        ):
            with pytest.raises(TypeError, match=match):
                async with open_dashboard(system, **wrong):
                    pass


async def test_a_name_that_may_lead_anywhere_is_refused() -> None:
    async with (
        open_actor_system("s") as system,
        open_dashboard(system, names=["gpu.Example"], announce=False) as page,
    ):
        for host, status in (
            ("rebound.example", 421),
            ("localhost.example", 421),
            ("127.0.0.1.example", 421),
            ("LOCALHOST", 200),
            ("gpu.example:80", 200),
            ("127.0.0.1:1", 200),
        ):
            for path in ("/", "/state"):
                answer = await ask(page, path, token=page.token, headers={"Host": host})
                assert answer.status == status, host


@pytest.mark.parametrize(
    ("hosts", "here"),
    [
        (["localhost"], True),
        (["localhost:8000"], True),  # a tunnel has a port of its own
        (["[::1]:80"], True),
        (["[::1]"], True),
        (["10.0.0.7"], True),  # an address leads where it says
        (["a.b:80"], True),
        (["a.b.c"], False),
        (["localhost@evil"], False),
        (["localhost:80:80"], False),
        ([""], False),
        ([":80"], False),
        ([], False),
        (["localhost", "localhost"], False),
    ],
)
def test_dashboard_url_leads_to_the_page(hosts: list[str], here: bool) -> None:
    assert is_here(hosts, frozenset({"a.b"})) == here


async def test_other_machines_are_let_in_only_if_somebody_says_so() -> None:
    async with open_actor_system("s") as system:
        for host in ("0.0.0.0", "::", "192.0.2.1"):
            with pytest.raises(ValueError, match="public=True"):
                async with open_dashboard(system, host=host):
                    pass
        with pytest.raises(ValueError, match="an address of this machine"):
            async with open_dashboard(system, host="gpu.example"):
                pass
        async with open_dashboard(system, host="0.0.0.0", public=True) as page:
            assert page.address.startswith("http://0.0.0.0:")
        async with open_dashboard(system, host="localhost") as page:
            assert (await ask(page, "/")).status == 200


async def test_a_port_that_is_taken_is_an_error_of_the_caller() -> None:
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        port = int(page.address.rstrip("/").rpartition(":")[2])
        with pytest.raises(OSError, match="Address already in use"):
            async with open_dashboard(system, port=port):
                pass


async def test_no_more_than_some_look_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.dashboard._feed.MOST_LOOKERS", 2)
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        async with looking(page) as one, looking(page) as other:
            assert {await one.next(), await other.next()} == {"state"}
            refused = await ask(page, "/events", token=page.token)
            assert refused.status == 503
        while True:  # until the server has seen that they have gone
            async with looking(page) as late:
                if await late.next() == "state":
                    break
            await trio.sleep(0.01)


async def test_simultaneous_connections_keep_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atomr_accel.dashboard._feed.MOST_LOOKERS", 3)
    said: list[str] = []
    async with open_actor_system("s") as system, open_dashboard(system) as page:

        async def come() -> None:
            async with looking(page) as one:
                said.append(await one.next() or "refused")
                if len(said) == 12:
                    all_have_come.set()
                await all_have_come.wait()

        all_have_come = trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(come)
    assert sorted(said) == ["refused"] * 9 + ["state"] * 3


def test_the_page_has_nothing_from_elsewhere() -> None:
    """All it is made of is in the package, and no text becomes markup or code."""
    for name in PUBLIC.values():
        text = (files("atomr_accel.dashboard") / "page" / name).read_text(encoding="utf-8")
        addresses = set(re.findall(r"(?:https?:)?//[\w.]+[^\s'\"]*", re.sub(r"// .*", "", text)))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|@import"
        assert not re.search(markup, text), name
        if name.endswith(".html"):
            assert not re.search(r"<[^>]*\s(?:style|on\w+)=", text)
            assert not re.search(r"<(?:script|style)[^>]*>[^<]", text)


@pytest.mark.slow
async def test_whatever_is_sent_the_program_and_the_page_go_on() -> None:
    chance = random.Random(1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    upgrade = (
        b"GET /events HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    )
    settings = b"\0\0\0\4\0\0\0\0\0"
    starts = [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET /state HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
        b"GET /" + b"a" * 100_000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        upgrade + b"Upgrade: websocket\r\n\r\n",
        upgrade + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
        upgrade + b"Upgrade: h2c\r\nHTTP2-Settings: !\r\n\r\n",
        preface,
        preface + settings,
        preface + settings + b"\0\0\5\1\5\0\0\0\1\x82\x84\x86\x41\x8a",
    ]
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        for start in starts:
            for size in (0, 1, 30, 3000):
                with suppress(OSError, trio.BrokenResourceError):
                    stream = await trio.open_tcp_stream(*place(page))
                    async with stream:
                        await stream.send_all(start + chance.randbytes(size))
                        if size % 2 == 0:
                            await stream.send_eof()
                        with trio.move_on_after(0.05):
                            async for _ in stream:
                                pass
        assert (await ask(page, "/state", token=page.token)).status == 200


@pytest.mark.slow
async def test_a_server_that_fails_is_started_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = trio.serve_listeners
    failures = iter([ValueError("of the server")])

    async def serve(*args: Any, **options: Any) -> None:
        for failure in failures:
            raise failure
        await served(*args, **options)

    monkeypatch.setattr("trio.serve_listeners", serve)
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        assert (await ask(page, "/state", token=page.token)).status == 200
    assert "of the server" in caplog.text
    assert page.token not in caplog.text


async def test_a_connection_that_fails_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve, failures = TCPServer.run, iter([ValueError("of the connection")])

    async def run(self: Any) -> None:
        for failure in failures:
            raise failure
        await serve(self)

    monkeypatch.setattr(TCPServer, "run", run)
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        async with await trio.open_tcp_stream(*place(page)) as stream:
            await closed(stream)
        assert (await ask(page, "/state", token=page.token)).status == 200
    assert "of the connection" in caplog.text


# --- many connections ----------------------------------------------------------------------


async def closed(stream: trio.SocketStream) -> None:
    """Wait until the server has closed a connection."""
    with suppress(trio.BrokenResourceError):
        async for _ in stream:
            pass


BEGUN = {
    "nothing": b"",
    "half a request": b"GET / HTTP/1.1\r\nHost: loc",
    "a request without the token": b"GET /state HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "many answers that nobody reads": b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}


@pytest.mark.parametrize("sent", BEGUN.values(), ids=BEGUN)
@pytest.mark.slow
async def test_connections_without_the_token_give_way(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(_connections, "MOST_CONNECTIONS", 4)
    async with (
        open_actor_system("s") as system,
        open_dashboard(system) as page,
        looking(page) as looker,
        AsyncExitStack() as stack,
    ):
        assert await looker.next() == "state"
        streams = []
        for _ in range(20):
            stream = await trio.open_tcp_stream(*place(page))
            streams.append(await stack.enter_async_context(stream))
            await stream.send_all(sent)
        for stream in streams[:-4]:
            await closed(stream)
        assert (await ask(page, "/state", token=page.token)).status == 200
        await system.spawn(Actor, name="seen")
        await looker.until(lambda state: "seen" in str(state))


async def test_busy_connection_does_not_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connections, "MOST_CONNECTIONS", 2)
    async with (
        open_actor_system("s") as system,
        open_dashboard(system) as page,
        looking(page) as one,
        looking(page) as other,
    ):
        assert {await one.next(), await other.next()} == {"state"}
        async with await trio.open_tcp_stream(*place(page)) as third:
            await closed(third)
        await system.spawn(Actor, name="seen")
        for looker in (one, other):
            await looker.until(lambda state: "seen" in str(state))


@pytest.mark.parametrize("path", ["/", "/state", "/events"])
async def test_a_query_that_is_too_long_is_not_read(path: str) -> None:
    async with open_actor_system("s") as system, open_dashboard(system) as page:
        for query, status in (("a=1&" * 10_000, 414), ("a" * 2000, 414), ("a=1&" * 10, 200)):
            if status == 200 and path == "/events":
                continue  # it has no end
            answer = await ask(page, f"{path}?{query}", token=page.token)
            assert answer.status == status
