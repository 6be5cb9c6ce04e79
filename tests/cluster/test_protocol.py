"""The protocol between nodes, without I/O."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import RemoteError
from atomr_accel.actors import Message, UnhandledMessage
from atomr_accel.cluster import PeerRefused, ProtocolViolated
from atomr_accel.cluster._codec import MessageTable
from atomr_accel.cluster._frames import (
    HEADER,
    AskFrame,
    CancelFrame,
    CreditFrame,
    FailedFrame,
    HelloFrame,
    NodeConnection,
    PingFrame,
    ReplyFrame,
    TellFrame,
)

from .simulated import Add, Read


def hello(node: str, **options: Any) -> HelloFrame:
    given = {"cluster": "c", "messages": {"Add": "1"}, "window": 4, **options}
    return HelloFrame(node=node, life=f"{node}#1", **given)


def pair(**options: Any) -> tuple[NodeConnection, NodeConnection]:
    """Return both sides of a connection after their greetings."""
    asks, answers = (
        NodeConnection(hello("a"), asks=True),
        NodeConnection(hello("b"), asks=False, **options),
    )
    answers.receive(asks.greeting())
    asks.receive(answers.greeting())
    return asks, answers


ASKED = st.one_of(
    st.builds(
        AskFrame, st.integers(0, 2), st.text(), st.none() | st.text(), st.text(), st.binary()
    ),
    st.builds(TellFrame, st.text(), st.text(), st.binary()),
    st.builds(CancelFrame, st.integers(0, 9)),
    st.builds(PingFrame),
)


@given(st.lists(ASKED, max_size=4, unique_by=lambda f: getattr(f, "id", object())), st.data())
def test_frames_arrive_whole_however_bytes_are_cut(frames: list[Any], data: st.DataObject) -> None:
    asks, answers = pair()
    sent = b"".join(map(asks.send, frames))
    received = []
    while sent:
        size = data.draw(st.integers(1, len(sent)))
        received += answers.receive(sent[:size])
        sent = sent[size:]
    assert received == frames
    waiting = sum(isinstance(frame, (AskFrame, TellFrame)) for frame in frames)
    assert asks.room == 4 - waiting


@given(
    st.lists(ASKED, min_size=2, max_size=4, unique_by=lambda f: getattr(f, "id", object())),
    st.data(),
)
def test_a_lost_or_reordered_frame_ends_the_connection(
    frames: list[Any], data: st.DataObject
) -> None:
    asks, answers = pair()
    sent = [*map(asks.send, frames)]
    at = data.draw(st.integers(0, len(sent) - 2))
    if data.draw(st.booleans()):
        del sent[at]
    else:
        sent[at], sent[at + 1] = sent[at + 1], sent[at]
    with pytest.raises(ProtocolViolated, match="came in place of frame"):
        answers.receive(b"".join(sent))
    with pytest.raises(ProtocolViolated, match="has ended"):
        answers.receive(b"")


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_refused_or_understood(noise: bytes, headed: bool) -> None:
    _, answers = pair()
    data = HEADER.pack(len(noise), 1, 1) + noise if headed else noise
    try:
        for frame in answers.receive(data):
            assert isinstance(frame, (AskFrame, TellFrame, CancelFrame, PingFrame))
    except (ProtocolViolated, PeerRefused):
        assert answers.broken


def test_windows_hold_and_open_again() -> None:
    asks, answers = pair()
    sent = [asks.send(AskFrame(n, "/x", None, "Add", b"")) for n in range(3)]
    answers.receive(b"".join([*sent, asks.send(TellFrame("/x", "Add", b""))]))
    assert asks.room == 0
    asks.receive(answers.send(ReplyFrame(1, b"")) + answers.send(CreditFrame(1)))
    assert asks.room == 2
    for number in (4, 5):
        answers.receive(asks.send(AskFrame(number, "/x", None, "Add", b"")))
    with pytest.raises(ProtocolViolated, match="more than 4 messages"):
        answers.receive(asks.send(AskFrame(6, "/x", None, "Add", b"")))


def test_watches_take_no_room() -> None:
    asks, answers = pair()
    for number in range(9):
        answers.receive(asks.send(AskFrame(number, "watch:x", None, "", b"")))
    assert asks.room == 4
    asks.receive(answers.send(ReplyFrame(3, b"")))


@pytest.mark.parametrize(
    "frame", [ReplyFrame(1, b""), CreditFrame(1), FailedFrame(7, "E", "", {}), hello("a")]
)
def test_frames_of_the_other_side_are_refused(frame: Any) -> None:
    asks, answers = pair()
    with pytest.raises(ProtocolViolated):
        answers.receive(asks.send(frame))


@pytest.mark.parametrize("frame", [ReplyFrame(1, b""), CreditFrame(1), CreditFrame(-1)])
def test_answers_to_nothing_are_refused(frame: Any) -> None:
    asks, answers = pair()
    with pytest.raises(ProtocolViolated):
        asks.receive(answers.send(frame))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (hello("b", cluster="d"), "of cluster 'd'"),
        (hello("a"), "two nodes have the name"),
        (hello("b", messages={"Add": "2"}), "Add has other fields"),
    ],
)
def test_strangers_are_refused(other: HelloFrame, said: str) -> None:
    greeting = NodeConnection(other, asks=False).greeting()
    with pytest.raises(PeerRefused, match=said):
        NodeConnection(hello("a"), asks=True).receive(greeting)


def test_another_version_and_too_large_frames_are_refused() -> None:
    connection = NodeConnection(hello("a"), asks=True, limit=200)
    with pytest.raises(PeerRefused, match="speaks version 9"):
        connection.receive(HEADER.pack(5, 9, 0))
    connection = NodeConnection(hello("a"), asks=True, limit=200)
    with pytest.raises(ProtocolViolated, match="a frame of 201 bytes"):
        connection.receive(HEADER.pack(201, 1, 0))
    connection = NodeConnection(hello("a"), asks=True, limit=200)
    with pytest.raises(ValueError, match="at most 200 bytes"):
        connection.send(TellFrame("/x", "Add", bytes(201)))
    connection.receive(NodeConnection(hello("b"), asks=False).greeting())  # numbers have no gap


class Odd(Message[object]):
    """A message whose field msgspec cannot encode."""

    thing: Any


class Other(Message[int]):
    """A message that is not declared."""


@given(st.integers(-(2**63), 2**63 - 1))
def test_messages_and_answers_keep_their_values(number: int) -> None:
    table = MessageTable([Add, Read])
    assert table.decode(*table.encode(Add(number))) == Add(number)
    assert table.decode_reply(Read, table.encode_reply(Read, [number])) == [number]


def test_bad_messages_are_refused_in_the_caller() -> None:
    table = MessageTable([Add, Read, Odd])
    with pytest.raises(TypeError, match="must be one of Add, Read, Odd, not a Other"):
        table.encode(Other())
    with pytest.raises(TypeError):
        table.encode(Odd(object()))
    with pytest.raises(TypeError, match="must be of its reply type"):
        table.encode_reply(Add, "three")
    with pytest.raises(TypeError, match="subclasses of Message"):
        MessageTable([int])  # type: ignore[list-item]
    with pytest.raises(UnhandledMessage):
        table.decode("Unknown", b"")
    with pytest.raises(ValueError, match="Add cannot be read"):
        table.decode("Add", b"\x93")


def test_errors_cross_with_their_attributes() -> None:
    table = MessageTable([])
    back = table.error(table.failure(1, UnhandledMessage("why", path="/x")))
    assert (type(back), str(back), getattr(back, "path", "")) == (UnhandledMessage, "why", "/x")
    assert type(table.error(table.failure(1, ValueError("v")))) is ValueError
    unknown = table.error(FailedFrame(1, "NotHere", "text", {}))
    assert isinstance(unknown, RemoteError)
    assert unknown.type_name == "NotHere"
