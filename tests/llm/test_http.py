"""HTTP by hand: odd, slow or large requests get an answer, and harm no other client."""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.llm import ServerLimits

from .stand_in import ask, chat, parsed, raw, saying, serving

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
POST += b"content-type: application/json\r\n"


async def test_bodies_and_headers_that_are_too_large_are_refused() -> None:
    limits = ServerLimits(body=1000, headers=2000)
    async with serving(saying("a"), limits=limits) as (server, model):
        own = b"x-request-id: mine\r\n"
        reply = await raw(server, POST + own + b"content-length: 1001\r\n\r\n")
        assert (reply.status, reply.headers["connection"]) == (413, "close")
        assert reply.headers["x-request-id"] == "mine"
        assert "1000 bytes" in reply.error["message"]
        chunk = b"400\r\n" + b"a" * 1024 + b"\r\n"
        reply = await raw(server, POST + b"transfer-encoding: chunked\r\n\r\n" + chunk)
        assert reply.status == 413
        reply = await raw(server, POST + b"x: " + b"a" * 3000)
        assert reply.status == 431
        assert reply.headers["x-request-id"].startswith("req_")
        whole = POST + b"x: " + b"a" * 3000 + b"\r\ncontent-length: 0\r\n\r\n"
        reply = await raw(server, whole)  # at once, so that no end is waited for
        assert (reply.status, reply.headers["connection"]) == (431, "close")
        path = b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"
        assert (await raw(server, path)).status == 431
        assert model.asked == []


async def test_compressed_bodies_are_refused() -> None:
    async with serving(saying("a")) as (server, model):
        body = json.dumps(chat()).encode()
        head = b"content-encoding: gzip\r\nconnection: close\r\n"
        reply = await raw(server, POST + head + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert reply.status == 415
        assert "gzip" in reply.error["message"]
        assert model.asked == []


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # without a host
        b"GET / HTTP/9.9\r\n\r\n",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
        POST + b"transfer-encoding: gzip\r\n\r\n",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=repr,
)
async def test_what_is_no_http_is_refused(sent: bytes) -> None:
    async with serving(saying("a")) as (server, _model):
        reply = await raw(server, sent)
        assert reply.status in (400, 501, 505)
        assert reply.error["type"] == "invalid_request_error"
        assert reply.headers["x-request-id"].startswith("req_")
        assert (await ask(server, "/live")).status == 200


@given(st.lists(st.binary(max_size=30), max_size=3))
@settings(max_examples=30)
async def test_any_bytes_leave_the_server_as_it_was(parts: list[bytes]) -> None:
    async with serving(saying("a")) as (server, _model):
        async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
            for part in parts:
                with_end = part + b"\r\n"
                try:
                    await stream.send_all(with_end)
                except trio.BrokenResourceError:
                    break
        assert (await ask(server, "/live")).status == 200


async def test_slow_requests_end_by_408_and_idle_connections_are_closed() -> None:
    limits = ServerLimits(read_seconds=0.05, idle_seconds=0.05)
    async with serving(saying("a"), limits=limits) as (server, _model):
        reply = await raw(server, POST)  # and no more of it
        assert (reply.status, reply.headers["connection"]) == (408, "close")
        reply = await raw(server, POST + b"content-length: 10\r\n\r\n{")
        assert reply.status == 408
        with trio.fail_after(5):
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
                assert await stream.receive_some() == b""


async def test_connections_are_kept_and_requests_may_be_sent_ahead() -> None:
    body = json.dumps(chat()).encode()
    one = POST + f"content-length: {len(body)}\r\n\r\n".encode() + body
    last = b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    async with serving(saying("a")) as (server, model):
        with trio.fail_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
                await stream.send_all(one + one + last)
                answer = b"".join([part async for part in stream])
        assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
        assert len(model.asked) == 2


async def test_a_client_may_ask_before_it_sends_a_body() -> None:
    body = json.dumps(chat()).encode()
    head = POST + f"expect: 100-continue\r\ncontent-length: {len(body)}\r\n".encode()
    async with serving(saying("a")) as (server, _model):
        with trio.fail_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", server.port) as stream:
                await stream.send_all(head + b"connection: close\r\n\r\n")
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
                await stream.send_all(body)
                answer = b"".join([part async for part in stream])
        assert parsed(answer).status == 200


async def test_connections_beyond_the_limit_get_503() -> None:
    async with (
        serving(saying("a"), limits=ServerLimits(connections=1)) as (server, _model),
        await trio.open_tcp_stream("127.0.0.1", server.port),
    ):
        await trio.testing.wait_all_tasks_blocked()
        reply = await raw(server, b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert reply.status == 503
        assert reply.headers["x-request-id"].startswith("req_")


async def test_methods_and_paths_that_are_not_there() -> None:
    async with serving(saying("a")) as (server, _model):
        reply = await ask(server, "/v1/embeddings", {})
        assert reply.status == 404
        assert reply.headers["x-request-id"].startswith("req_")
        assert (await ask(server, "/v1/chat/completions")).status == 405
        assert (await ask(server, "/live", method="DELETE")).status == 405
        reply = await ask(server, "/live", method="HEAD")
        assert (reply.status, reply.body) == (200, b"")
        reply = await ask(server, "/live?x=1", headers={"x-request-id": "mine"})
        assert reply.status == 200
        reply = await ask(server, "/v1/models", headers={"x-request-id": "mine"})
        assert reply.headers["x-request-id"] == "mine"


def test_limits_are_checked() -> None:
    for wrong in ({"requests": 0}, {"body": 0.5}, {"idle_seconds": 0}, {"requests_per_key": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ServerLimits(**wrong)
