"""Journals of any values: calls behave as they do without one, and reading is safe."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.replay import JournalError, open_journal, read_journal
from atomr_accel.replay._checks import check
from atomr_accel.replay._describe import Describer, ObjectNumbers, message_of, refs_in
from atomr_accel.replay._entries import (
    ArrayValue,
    CallEntry,
    DoneEntry,
    DType,
    Entry,
    Fields,
    Formula,
    FormulaStep,
    FunctionValue,
    Header,
    Items,
    NumberValue,
    Opaque,
    Pairs,
    Partial,
    Ref,
    decode,
    encode,
    encoder,
)
from atomr_accel.replay._restore import Restorer
from atomr_accel.replay._storage import START, Record, digest_of
from atomr_accel.replay._text import text_of

from ..harness import opened


def described(value: Any) -> Any:
    return Describer(ObjectNumbers(), lambda *_: None, lambda *_: None).argument(value)


def written(value: Any) -> CallEntry:
    """Return a call with one argument, read back from a journal."""
    call = decode(encode(CallEntry(1, "device", "run", (described(value),))))
    assert isinstance(call, CallEntry)
    check(call)
    return call


class Silent:
    """An object that cannot be described."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def ring() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def tree() -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["parent"] = [made]
    return made


def doubled(times: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(times):
        made = [made, made]
    return made


def nested(levels: int) -> tuple[Any, ...]:
    made: tuple[Any, ...] = ()
    for _ in range(levels):
        made = (made,)
    return made


WITHOUT_END = [
    ring(),
    tree(),
    doubled(60),
    nested(5000),
    functools.partial(print, ring()),
    {Silent(): 1},
    [Silent()],
]


@pytest.mark.parametrize("value", WITHOUT_END, ids=lambda value: type(value).__name__)
def test_a_value_that_has_no_end_is_kept_as_text(value: Any) -> None:
    call = written(value)
    assert len(text_of(call)) < 1000
    assert list(refs_in(value, "args[0]")) == []


def test_a_value_that_is_there_twice_is_described_twice() -> None:
    shared = [1, 2]
    assert described([shared, shared]) == Items("list", (Items("list", (1, 2)),) * 2)


def test_an_error_without_a_message_is_one() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert message_of(Mute()) == ""


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(10**40), max_value=10**40),
    st.integers(15_000, 20_000).map(lambda bits: -1 << bits),  # too many decimal digits
    st.sampled_from([2**63, -(2**63) - 1]),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False, allow_infinity=False),
    st.binary(max_size=8),
    st.text(st.characters(exclude_categories=()), max_size=8),
    st.sampled_from(["\udce9.npy", "\x1b[31m", "one\ntwo", "\u202e"]),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(PLAIN, inner, max_size=4),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=12,
)


@given(VALUES)
def test_a_plain_value_comes_back_as_it_was(value: Any) -> None:
    (kept,) = written(value).args
    assert text_of(CallEntry(1, "device", "run", (kept,))).isprintable()

    async def without_arrays(_: ArrayValue) -> None:
        raise NotImplementedError

    restorer = Restorer(without_arrays, {})

    async def restored() -> Any:
        return await restorer.value(kept)

    with pytest.raises(StopIteration) as stopped:
        restored().send(None)  # nothing has to be waited for
    assert repr_of(stopped.value.value) == repr_of(value)


def repr_of(value: Any) -> str:
    """Return a repr that tells -0.0 from 0.0 and 1 from True, with ints in hexadecimal."""
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(repr_of, value))})"
    if isinstance(value, dict):
        return f"dict({', '.join(f'{repr_of(a)}: {repr_of(b)}' for a, b in value.items())})"
    if isinstance(value, slice):
        return f"slice({', '.join(map(repr_of, (value.start, value.stop, value.step)))})"
    return hex(value) if type(value) is int else repr(value)


NAMES = st.sampled_from(["a", "\udce9", "\ud800b", "\x1b]0;title\x07"])


@given(NAMES, NAMES, NAMES)
def test_text_that_utf_8_lacks_is_escaped_wherever_it_is(one: str, two: str, three: str) -> None:
    entries: list[Entry] = [
        CallEntry(1, one, "run", (Opaque(two),), {three: 1}),
        DoneEntry(1, "error", None, (one, two)),
        Header(1, one, two, three, False, False, "drop", (one, two)),
    ]
    for entry in entries:
        assert type(decode(encode(entry))) is type(entry)
    plain = CallEntry(1, "device", "run", (Opaque("b"),), {"a": 1})
    assert encode(plain) == encoder.encode(plain)


async def test_calls_do_the_same_with_a_journal_whatever_they_are_given(tmp_path: Path) -> None:
    values = [ring(), tree(), 10**6000, os.fsdecode(b"caf\xe9.npy"), {"\udce9": 1}]
    async with (
        opened(isolation="thread") as device,
        open_journal(device, tmp_path / "journal", results=True) as journal,
    ):
        for value in values:
            assert await device.run(type, value) is type(value)
        await device.put(np.ones(3))
        await journal.flush()
    lines = await read_journal(tmp_path / "journal")
    assert len(lines) == len(values) + 1
    assert all(line.isprintable() for line in lines)


# --- what others have written --------------------------------------------------------------


class Crafted:
    """A storage of entries whose digests are right."""

    def __init__(self, *entries: Any) -> None:
        header = Header(1, "0", "cpu", "cpu:0", False, False, "refuse")
        self._records: list[Any] = []
        before = START
        for number, entry in enumerate((header, *entries)):
            data = entry if isinstance(entry, bytes) else encoder.encode(entry)
            digest = digest_of(before, number, data)
            self._records.append(Record(number, before, digest, data))
            before = digest

    @asynccontextmanager
    async def open(self, *, create: bool) -> AsyncIterator[None]:
        await trio.lowlevel.checkpoint()
        yield

    async def append(self, *_: Any) -> None:
        raise NotImplementedError

    async def records(self) -> list[Record]:
        return self._records

    async def content(self, key: bytes) -> bytes | None:
        return None


TEXT = st.sampled_from(
    [
        *("", "float64", "int", "str", "complex", "bytes", "O", "nonsense", "[", "[" * 5000),
        *("[('a', '<f4')]", "[('a', '|O')]", "int32", "list", "ufunc", "operand", "constant"),
        "\x1b[31m",
    ]
)
SHAPES = st.lists(st.integers(-2, 2**40), max_size=4).map(tuple)
FIRST = st.integers(-2, 4)
NUMBERS = st.builds(NumberValue, TEXT, st.binary(max_size=20))
REFS = st.builds(Ref, FIRST, TEXT, SHAPES)
STEPS = st.builds(FormulaStep, TEXT, TEXT, st.lists(FIRST, max_size=2).map(tuple), SHAPES, TEXT)
FUNCTIONS = st.builds(FunctionValue, TEXT, TEXT)
LEAVES = st.one_of(
    NUMBERS,
    REFS,
    FUNCTIONS,
    st.builds(DType, TEXT),
    st.builds(Opaque, TEXT),
    st.builds(ArrayValue, TEXT, SHAPES),
    st.builds(
        Formula,
        st.lists(STEPS, max_size=3).map(tuple),
        st.lists(REFS, max_size=2).map(tuple),
        st.lists(NUMBERS, max_size=2).map(tuple),
        FIRST,
    ),
)
CRAFTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(Items, TEXT, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Pairs, st.lists(st.tuples(inner, inner), max_size=2).map(tuple)),
        st.builds(Partial, inner, st.lists(inner, max_size=2).map(tuple)),
        st.builds(Fields, FUNCTIONS, st.dictionaries(TEXT, inner, max_size=2)),
    ),
    max_leaves=6,
)


def read(*entries: Any) -> list[str]:
    return trio.run(read_journal, Crafted(*entries))


@given(st.lists(CRAFTED, max_size=3), TEXT, FIRST)
def test_a_crafted_entry_is_read_or_is_an_error_of_journals(
    args: list[Any], method: str, number: int
) -> None:
    done = DoneEntry(number, "ok", args[0] if args else None)
    try:
        lines = read(CallEntry(number, "device", method, tuple(args)), done)
    except JournalError:
        return
    assert all(line.isprintable() for line in lines)


@given(st.binary(max_size=40))
def test_bytes_of_any_kind_are_read_or_are_an_error_of_journals(data: bytes) -> None:
    with suppress(JournalError):
        assert read(data) == []


@pytest.mark.parametrize("levels", [10, 100, 103, 200, 3000, 100_000])
def test_an_entry_that_is_too_deep_is_an_error_of_journals(levels: int) -> None:
    """Written as bytes, since msgspec itself does not encode all of these."""
    value = b"\x83\xa4type\xa5items\xa4kind\xa4list\xa5items\x91" * levels + b"\xc0"
    head = b"\x85\xa4type\xa4call\xa6number\x01\xa6target\xa6device\xa6method\xa3put\xa4args\x91"
    if levels <= 100:
        assert len(read(head + value)) == 1
    else:
        with pytest.raises(JournalError):
            read(head + value)


RECORDS: list[Any] = [
    Record("0", START, START, b""),  # type: ignore[arg-type]
    Record(None, START, START, b""),  # type: ignore[arg-type]
    Record(0, "text", START, b""),  # type: ignore[arg-type]
    Record(0, START, START, 5),  # type: ignore[arg-type]
    Record(-1, START, START, b""),
    Record(1 << 70, START, START, b""),
]


@pytest.mark.parametrize("record", RECORDS, ids=str)
async def test_a_record_of_other_types_is_an_error_of_journals(record: Record) -> None:
    storage = Crafted()
    storage._records = [record]
    with pytest.raises(JournalError):
        await read_journal(storage)
