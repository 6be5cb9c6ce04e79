"""Messages of the DNN lane around attention: lengths, and caches of keys and values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, Final

import msgspec

from ....wire import Address, Message
from ._messages import RunGraph, TuneGraph


class Derived(msgspec.Struct, frozen=True, array_like=True):
    """Integers made from others, or from their own positions: ``multiplier * source + addend``.

    Attributes:
        count: number of integers.
        multiplier, addend: the numbers in the formula.
        differences: whether they are made from differences of neighbours instead.
        wide: whether they are int64, and not int32.
        name: the argument name of the source.
        most: upper limit of the source, or of its differences; -1 for any. The CPU checks it.
        ceiling: upper limit to which results are clipped.
    """

    count: int
    multiplier: int
    addend: int
    differences: bool
    wide: bool
    name: str = ""
    most: int = -1
    ceiling: int = 2**63 - 1


encode_derived: Final = msgspec.msgpack.Encoder().encode
NOTHING: Final = encode_derived(())
"""No integers to make."""

_decoder: Final = msgspec.msgpack.Decoder(tuple[Derived, ...])


@lru_cache
def decode_derived(encoded: bytes) -> tuple[Derived, ...]:
    """Decode the result of ``encode_derived``."""
    return _decoder.decode(encoded)


class Append(Message, frozen=True):
    """Write new keys and values behind the old ones, in place.

    Attributes:
        k, v: addresses of the new rows, (batch, new).
        k_cache, v_cache: addresses of caches, (pages, page) rows.
        lengths: address of int32: position of each sequence's first new row, minus ``shift``.
        table: address of each sequence's pages, int32 (batch, columns).
        batch, new: sizes.
        pages, page, columns: sizes.
        k_bytes, v_bytes: bytes of a row.
        shift: see ``lengths``.
        copies: pages to copy first, from and to, in each of ``layers`` caches that lie one
            after the other.
        layers: number of these caches.
        k_layers, v_layers: addresses of the first of them.
    """

    k: Address
    v: Address
    k_cache: Address
    v_cache: Address
    lengths: Address
    table: Address
    batch: int
    new: int
    pages: int
    page: int
    columns: int
    k_bytes: int
    v_bytes: int
    shift: int = 0
    copies: tuple[tuple[int, int], ...] = ()
    layers: int = 1
    k_layers: Address = 0
    v_layers: Address = 0


class SequenceUpload(msgspec.Struct, frozen=True, array_like=True):
    """A few bytes for the device.

    Attributes:
        target: address of where they go.
        data: the bytes.
    """

    target: Address
    data: bytes


class Clean(msgspec.Struct, frozen=True, array_like=True):
    """A copy of sequences, with zeros behind their ends.

    Attributes:
        target: address of (batch, groups, rows) rows.
        source: likewise, or with ``page`` of (pages, page) rows, for one group.
        lengths: address of int32: how many rows of each sequence count.
        table: address of each sequence's pages, int32 (batch, columns).
        batch, groups, rows: sizes.
        page, columns, pages: sizes; zeros where sequences lie as their copies do.
    """

    target: Address
    source: Address
    lengths: Address
    table: Address
    batch: int
    groups: int
    rows: int
    row_bytes: int
    page: int = 0
    columns: int = 0
    pages: int = 0


class Blank(msgspec.Struct, frozen=True, array_like=True):
    """Rows of the queries that see no key, overwritten.

    Attributes:
        target: address of the rows of (batch, heads, rows) queries.
        source: address of ``nbytes`` to copy to ``target`` first; 0 for none.
        lengths_q, lengths_k: addresses of int32: the queries and the keys of each sequence; 0
            if each has ``rows`` queries and ``keys`` keys.
        offsets: address of int64: the element with which each sequence begins; 0 for
            multiples of ``by_batch``.
        sinks: address of float32: the new value for each head; 0 for ``value``.
        batch, heads, rows, keys: sizes.
        by_batch, by_head, by_row: elements from one to the next.
        width: elements of a row.
        itemsize: bytes of an element.
        left, right: number of keys before and after its own that a query sees; -1 for all.
        top_left: whether the first query is at the first key, and not the last at the last.
        nbytes: see ``source``.
        value: the bits of the new elements.
    """

    target: Address
    source: Address
    lengths_q: Address
    lengths_k: Address
    offsets: Address
    sinks: Address
    batch: int
    heads: int
    rows: int
    keys: int
    by_batch: int
    by_head: int
    by_row: int
    width: int
    itemsize: int
    left: int
    right: int
    top_left: bool
    nbytes: int = 0
    value: int = 0


class Attend(Message, frozen=True):
    """Run a graph of attention, after making its inputs. The answer is that of the run.

    Attributes:
        uploads: data from the program.
        append: rows to write to a cache; None for none.
        derived: integers to make, encoded: the same for all calls with the same signature.
        places: two addresses for each of them: its own, and that of its int32 source, 0 for
            positions.
        run: the graph; None for none.
        clean: buffers to copy before the graph runs, after all else.
        before, after: rows to overwrite before and after the graph runs.
    """

    uploads: tuple[SequenceUpload, ...]
    append: Append | None
    derived: bytes
    places: tuple[Address, ...]
    run: RunGraph | TuneGraph | None
    clean: tuple[Clean, ...] = ()
    before: tuple[Blank, ...] = ()
    after: tuple[Blank, ...] = ()


class Grow(Attend, frozen=True):
    """An ``Attend`` that must run, because the program has already noted new lengths of a cache."""

    required: ClassVar[bool] = True


class Trial(Grow, frozen=True):
    """A ``Grow`` for a graph whose plans are timed."""

    returns: ClassVar[Any] = TuneGraph.returns


class Clear(Message, frozen=True):
    """Fill memory with zeros, or another byte."""

    target: Address
    nbytes: int
    byte: int = 0


class ClearAll(Message, frozen=True):
    """Fill several pieces of memory."""

    parts: tuple[Clear, ...]
