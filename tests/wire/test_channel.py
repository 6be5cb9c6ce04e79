"""Messages of the control socket: whole, bounded, and with the descriptors they announce."""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.testing.garbage import collect_garbage
from atomr_accel.wire.channel import (
    MOST_BYTES,
    MOST_DESCRIPTORS,
    Incoming,
    Outgoing,
    ProtocolError,
    close_all,
    receive,
    send,
)
from tests.harness import descriptors, no_descriptors, sized

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    before = descriptors()
    one, other = socket.socketpair()
    with one, other:
        yield one, other
    assert descriptors() == before


def raw(sock: socket.socket, data: bytes, *fds: int) -> None:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
    sock.sendmsg([data], [rights] if fds else [])


def head(nbytes: int, fds: int) -> bytes:
    return struct.pack("<II", nbytes, fds)


@pytest.mark.slow
@settings(max_examples=sized(30, 100))
@given(
    messages=st.lists(st.tuples(st.binary(max_size=300_000), st.integers(0, 3)), max_size=4),
    room=st.sampled_from([2304, 8192, 200_000]),
)
def test_messages_arrive_whole_with_their_descriptors(
    messages: list[tuple[bytes, int]], room: int
) -> None:
    collect_garbage()  # so that nothing of other tests goes meanwhile
    before = descriptors()
    one, other = socket.socketpair()
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, room)
        for sock in (one, other):
            sock.setblocking(False)
        for body, count in messages:
            outgoing, incoming = Outgoing(body, [one.fileno()] * count), Incoming()
            while not incoming.complete:
                for part, sock in ((outgoing.send, one), (incoming.receive, other)):
                    with suppress(BlockingIOError):
                        part(sock)
            arrived, fds = incoming.take()
            assert arrived == body
            assert [os.path.sameopenfile(fd, one.fileno()) for fd in fds] == [True] * count
            assert not any(os.get_inheritable(fd) for fd in fds)
            close_all(fds)
    assert descriptors() == before


def test_oversized_message_is_refused_before_anything_is_sent(pair: Pair) -> None:
    with pytest.raises(ValueError, match=f"at most {MOST_BYTES} bytes"):
        send(pair[0], bytes(MOST_BYTES + 1))
    send(pair[0], b"x")
    assert receive(pair[1]).take() == (bytearray(b"x"), [])


@pytest.mark.parametrize(
    "announced", [(MOST_BYTES + 1, 0), (2**32 - 1, 0), (0, MOST_DESCRIPTORS + 1)]
)
def test_announced_sizes_are_bounded(pair: Pair, announced: tuple[int, int]) -> None:
    raw(pair[0], head(*announced), pair[0].fileno())
    with pytest.raises(ProtocolError, match="was announced"):
        receive(pair[1])


@pytest.mark.parametrize(("announced", "sent"), [(0, 1), (1, 0), (1, 2), (2, 1), (3, 40)])
def test_missing_and_surplus_descriptors_are_errors(pair: Pair, announced: int, sent: int) -> None:
    raw(pair[0], head(1, announced) + b"x", *[pair[0].fileno()] * sent)
    with pytest.raises(ProtocolError, match=f"announced {announced} descriptors and had"):
        receive(pair[1]).take()


def test_descriptors_that_come_with_the_body_are_surplus(pair: Pair) -> None:
    raw(pair[0], head(2, 0) + b"x")
    raw(pair[0], b"y", pair[0].fileno())
    with pytest.raises(ProtocolError, match="announced 0 descriptors and had 1"):
        receive(pair[1]).take()


@pytest.mark.parametrize("room", [0, 1])
def test_descriptors_for_which_there_is_no_room_are_an_error(pair: Pair, room: int) -> None:
    send(pair[0], b"x", [pair[0].fileno()] * 2)
    send(pair[0], b"y")
    with no_descriptors(room):
        message = receive(pair[1])
        with pytest.raises(OSError, match=f"2 came along .* room for {room}") as info:
            message.take()
    assert info.value.errno == errno.EMFILE
    assert receive(pair[1]).take() == (bytearray(b"y"), [])  # the next message is not touched by it


@pytest.mark.parametrize("data", [b"", head(5, 1), head(5, 1) + b"abc"])
def test_a_message_that_breaks_off_leaves_nothing_open(pair: Pair, data: bytes) -> None:
    if data:
        raw(pair[0], data, pair[0].fileno())
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):
        receive(pair[1])
