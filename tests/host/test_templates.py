"""Templates of messages: filled in they are the messages they were made of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.host.templates import HostTemplate, Malformed, Templates
from atomr_accel.wire import (
    MOST_TEMPLATES,
    PLACE,
    Address,
    CallByTemplate,
    CallWithTemplate,
    Message,
    ProtocolViolation,
    encoder,
)


class Part(msgspec.Struct, frozen=True, array_like=True):
    """A part of a message."""

    address: Address
    size: int


class Whole(Message, frozen=True):
    """A message with addresses, and with numbers that may look like them."""

    first: Address
    text: str
    some: tuple[Address, ...]
    parts: list[Part]
    by_name: dict[str, int]
    seed: int
    data: bytes


decode = msgspec.msgpack.Decoder(Whole).decode
numbers = st.integers(0, 2**62 - 1)
wholes = st.builds(
    Whole,
    numbers,
    st.text(max_size=5),
    st.lists(numbers, max_size=4).map(tuple),
    st.lists(st.builds(Part, numbers, numbers), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(0, 2**64 - 1), max_size=2),
    st.integers(2**62 + 2**16, 2**64 - 1),
    st.binary(max_size=20),
)


def with_places(message: Whole, chosen: list[bool]) -> tuple[Whole, tuple[int, ...]]:
    """A message with places for those of its numbers that are chosen, and these."""
    addresses: list[int] = []

    def number(value: int) -> int:
        if not chosen or not chosen[len(addresses) % len(chosen)]:
            return value
        addresses.append(value)
        return PLACE | (len(addresses) - 1)

    made = Whole(
        number(message.first),
        message.text,
        tuple([number(each) for each in message.some]),
        [Part(number(each.address), each.size) for each in message.parts],
        message.by_name,
        message.seed,
        message.data,
    )
    return made, tuple(addresses)


@given(message=wholes, chosen=st.lists(st.booleans(), max_size=3))
def test_filled_in_it_is_the_message(message: Whole, chosen: list[bool]) -> None:
    made, addresses = with_places(message, chosen)
    template = HostTemplate(encoder.encode(made), decode)
    assert template.kind is Whole
    assert template.count == len(addresses)
    assert template.filled(addresses) == message
    if addresses:
        assert template.filled([0] * len(addresses)) != message or not any(addresses)


def whole(first: int, *some: int, seed: Any = 0, data: bytes = b"") -> bytes:
    return encoder.encode(Whole(first, "", some, [], {}, seed, data))


@pytest.mark.parametrize(
    "encoded",
    [
        b"\xc1",
        whole(PLACE, PLACE),
        whole(PLACE | 1),
        whole(PLACE | 1, PLACE),
        whole(PLACE, seed=PLACE),
        whole(PLACE, data=b"\xcf" + PLACE.to_bytes(8, "big")),
    ],
)
def test_template_refuses_calls_that_no_program_sends(encoded: bytes) -> None:
    with pytest.raises(ProtocolViolation, match="a template"):
        HostTemplate(encoded, decode)


@pytest.mark.parametrize(
    "encoded", [encoder.encode(["Other"]), whole(PLACE, seed="text")], ids=["unknown", "wrong"]
)
def test_template_that_no_executor_can_read_is_kept_and_refused(encoded: bytes) -> None:
    """A message of that kind is refused as well when it comes without a template."""
    templates = Templates(decode)
    request = CallWithTemplate(7, msgspec.Raw(encoded), (3,))
    assert templates.add(request) is None
    found = templates.find(request)
    assert found.kind is Malformed
    assert found.filled((3,)) is found.message


def test_calls_name_what_is_there() -> None:
    templates = Templates(decode)

    def bring(number: int, encoded: bytes, *addresses: int) -> Any:
        request = CallWithTemplate(number, msgspec.Raw(encoded), addresses)
        return templates.add(request), templates.find(request)

    former, one = bring(7, whole(PLACE, 5), 9)
    assert former is None
    assert one.filled((9,)) == Whole(9, "", (5,), [], {}, 0, b"")
    assert templates.find(CallByTemplate(7, (1,))) is one
    former, other = bring(7, whole(PLACE, PLACE | 1), 1, 2)
    assert former is one
    assert templates.find(CallByTemplate(7, (1, 2))) is other
    for number, addresses in ((7, (1,)), (8, (1, 2)), (-1, ())):
        with pytest.raises(ProtocolViolation, match="no template"):
            templates.find(CallByTemplate(number, addresses))
    for number in (-1, MOST_TEMPLATES):
        with pytest.raises(ProtocolViolation, match="has the number"):
            bring(number, whole(0))
