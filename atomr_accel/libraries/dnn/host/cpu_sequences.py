"""Lengths, caches of keys and values, and dropout on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ....executors.indices import require_within
from ..wire._routine_messages import Dropout
from ..wire.sequence_messages import (
    Append,
    Attend,
    Blank,
    Clean,
    Clear,
    ClearAll,
    Derived,
    Grow,
    Trial,
    decode_derived,
)
from .philox import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ....backends.cpu.host.context import CpuContext

Array = np.ndarray[Any, Any]

_INT32: Final = DTYPES["int32"]
_INT64: Final = DTYPES["int64"]


def table_name(columns: int) -> str:
    """Return the argument name of a table. One column may stand for a cache without pages."""
    return "block_table" if columns > 1 else "block_table or cache_batch_idx"


@final
class CpuSequences:
    """Executes the messages of ``_sequence_messages``."""

    def __init__(self, context: CpuContext, handlers: Mapping[type, Callable[[Any], Any]]) -> None:
        self._context: Final = context
        self._others: Final = handlers
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Attend: self._attend,
            Grow: self._attend,
            Trial: self._attend,
            Clear: self._clear,
            ClearAll: self._clear_all,
            Dropout: self._dropout,
        }

    def _attend(self, message: Attend) -> Any:
        self._context.check()
        for upload in message.uploads:
            data = np.frombuffer(upload.data, np.uint8)
            self._context.bytes_at(upload.target, len(data))[...] = data
        places = iter(message.places)
        for derived in decode_derived(message.derived):
            self._derive(derived, next(places), next(places))
        if message.append is not None:  # after lengths were looked at
            self.append(message.append)
        for clean in message.clean:
            self._clean(clean)
        for blank in message.before:
            self._blank(blank)
        answer = None if message.run is None else self._others[type(message.run)](message.run)
        for blank in message.after:
            self._blank(blank)
        return answer

    def _derive(self, derived: Derived, target: int, source: int) -> None:
        count = derived.count
        values = np.arange(count, dtype=np.int64)
        if source:
            read = self._context.array(source, (count + derived.differences,), _INT32)
            values = read.astype(np.int64)
            name = derived.name
            if derived.differences:
                values, name = np.diff(values), f"length of sequences by {name}, "
            if derived.most >= 0:
                require_within(values, 0, derived.most, name)
        made = self._context.array(target, (count,), _INT64 if derived.wide else _INT32)
        values = values * derived.multiplier + derived.addend
        made[...] = np.minimum(values, derived.ceiling)

    def append(self, message: Append) -> None:
        """Write new rows to a cache."""
        context = self._context
        page, pages = message.page, message.pages
        for source, target in message.copies:
            for base, size in (
                (message.k_layers, message.k_bytes),
                (message.v_layers, message.v_bytes),
            ):
                shape = (message.layers, pages, page * size)
                cache = context.array(base, shape, DTYPES["uint8"])
                cache[:, target] = cache[:, source]
        if not message.batch or not message.new:
            return
        lengths = context.array(message.lengths, (message.batch, 1), _INT32).astype(np.int64)
        first = lengths + message.shift
        require_within(first[:, 0], 0, page * message.columns, "cache_seqlens")
        place = first + np.arange(message.new)
        rows, fits = self._rows(message, place, place >= 0)
        rows = rows[fits]
        for source, cache_at, size in (
            (message.k, message.k_cache, message.k_bytes),
            (message.v, message.v_cache, message.v_bytes),
        ):
            fresh = context.array(source, (*place.shape, size), DTYPES["uint8"])
            context.array(cache_at, (pages * page, size), DTYPES["uint8"])[rows] = fresh[fits]

    def _rows(self, message: Append | Clean, place: Array, used: Array) -> tuple[Array, Array]:
        """Return the positions of rows among those of all pages, and whether each fits.

        Raises:
            ValueError: a row that is used is in a page that does not exist.
        """
        page = message.page
        fits = (place >= 0) & (place < page * message.columns)
        found = np.broadcast_to(np.arange(message.batch)[:, None], place.shape)
        if message.table:
            shape = (message.batch, message.columns)
            table = self._context.array(message.table, shape, _INT32)
            found = np.take_along_axis(table, np.where(fits, place // page, 0), axis=1)
            # Those before the rows, too, before anything is written: attention reads them.
            lasts = np.where(used, place, -1).max(axis=1, keepdims=True)
            entries = np.arange(message.columns) <= lasts // page
            name = table_name(message.columns)
            require_within(np.where(entries, table, 0), 0, message.pages - 1, name)
        fits &= (found >= 0) & (found < message.pages)
        return found.astype(np.int64) * page + place % page, fits

    def _clean(self, message: Clean) -> None:
        shape = (message.batch, message.groups, message.rows, message.row_bytes)
        lengths = self._context.array(message.lengths, (message.batch, 1, 1, 1), _INT32)
        counts = np.arange(message.rows)[:, None] < lengths
        if message.page:
            place = np.broadcast_to(np.arange(message.rows), (message.batch, message.rows))
            rows, fits = self._rows(message, place, place < lengths[:, :, 0, 0])
            there = (message.pages * message.page, message.row_bytes)
            pages = self._context.array(message.source, there, DTYPES["uint8"])
            source = pages[np.where(fits, rows, 0)][:, None]
            counts = counts & fits[:, None, :, None]
        else:
            source = self._context.array(message.source, shape, DTYPES["uint8"])
        target = self._context.array(message.target, shape, DTYPES["uint8"])
        target[...] = np.where(counts, source, 0)

    def _blank(self, message: Blank) -> None:
        array, batch = self._context.array, message.batch
        if message.nbytes:
            source = self._context.bytes_at(message.source, message.nbytes)
            self._context.bytes_at(message.target, message.nbytes)[...] = source
        queries, keys = np.full((batch, 1), message.rows), np.full((batch, 1), message.keys)
        if message.lengths_q:
            queries = array(message.lengths_q, (batch, 1), _INT32)
            keys = array(message.lengths_k, (batch, 1), _INT32)
        row = np.arange(message.rows)
        moved = row if message.top_left else row + keys - queries
        first = np.zeros_like(moved) if message.left < 0 else np.maximum(moved - message.left, 0)
        end = keys if message.right < 0 else np.minimum(moved + message.right + 1, keys)
        sequence, row = np.nonzero((first >= end) & (row < queries))
        if not len(row):
            return
        begin = np.arange(batch) * message.by_batch
        if message.offsets:
            begin = array(message.offsets, (batch,), _INT64)
        head = np.arange(message.heads)[:, None, None]
        places = (begin[sequence] + row * message.by_row)[:, None] + np.arange(message.width)
        places = head * message.by_head + places
        dtype = DTYPES[f"uint{8 * message.itemsize}"]
        value: Any = message.value
        if message.sinks:
            value = array(message.sinks, head.shape, DTYPES["float32"]).view(dtype)
        array(message.target, (int(places.max()) + 1,), dtype)[places] = value

    def _clear(self, message: Clear) -> None:
        self._context.check()
        self._context.bytes_at(message.target, message.nbytes)[...] = message.byte

    def _clear_all(self, message: ClearAll) -> None:
        for part in message.parts:
            self._clear(part)

    def _dropout(self, message: Dropout) -> None:
        self._context.check()
        dtype, count = DTYPES[message.dtype], message.count
        x = self._context.array(message.x, (count,), dtype)
        y = self._context.array(message.y, (count,), dtype)
        keep = kept(message.seed, message.offset, count, message.p)
        wide = DTYPES["float64" if dtype.itemsize == 8 else "float32"]
        scaled = x.astype(wide) * wide.type(1 / (1 - message.p))
        y[...] = np.where(keep, scaled, 0).astype(dtype)
