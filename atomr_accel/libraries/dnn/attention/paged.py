"""Caches of ``device.dnn.kv_cache``: keys and values of growing sequences, in pages of memory.

Which pages a sequence has is known here, in the program; a call sends the tables along. So
a page is given out and taken back without asking the device, and sequences that begin
alike share pages until one of them writes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Unpack, final

import numpy as np

from ...._dtypes import as_dtype
from ...._errors import GpuRefStale, OutOfMemory, Unsupported
from ....arrays import GpuRef
from ....ops import (
    Collected,
    D,
    Pending,
    Request,
    Submission,
    op,
    op_family,
    require_no_alias,
    require_readable,
    require_writable,
)
from ....wire import Copy
from ....wire.options import whole
from ...digests.lane import DIGESTS
from ..graph._run import LANE
from ..wire.sequence_messages import NOTHING, Grow, SequenceUpload
from .call import (
    ARGUMENTS,
    CACHES,
    Appending,
    AttentionCall,
    AttentionPart,
    AttentionWork,
    DerivedInput,
    alike,
    mask_of,
    require,
    scored,
)
from .checked import NOT_CACHED, forward
from .durable_rows import CacheDigests, CacheRows, CacheScan, RecoveredSequence, say_rows
from .graph import AttentionSpec
from .options import BUFFERS, AttentionOptions, checked
from .sequences import CacheGrowth, HeldPage, KVCacheStatistics, PagedSequence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ....memory import Rows
    from ....ops import DeviceView, Preparer
    from ..graph._run import DnnPlanCache

_INT32: Final = as_dtype("int32")


@final
class PagedKVCache(AttentionPart[D]):
    """Keys and values in pages, for sequences that grow, fork and end. Made by ``kv_cache``.

    All layers of a model share the pages' numbers, and each has its own length, so layers
    are written one after the other. After a rebuild of the device the content is gone, and
    calls raise ``GpuRefStale``: make a new cache then, or call ``recover`` if it is durable. Await
    all calls, even inside a batch's block. They cannot be part of a batch or a recording, because
    the program keeps the lengths of sequences, and rows must be written before another call reads
    them. In a block of ``growing``, batches, recordings and functions can write rows.

    All methods raise:
        ValueError: a sequence or layer that does not exist; a sequence that is shorter than asked
            for, repeats, or is in a block of ``growing``; shapes and options that do not fit.
        TypeError: dtypes that do not fit.
        GpuRefStale: the cache is of an older generation, or has to recover first; the device was
            rebuilt during a block; a ref that may not be read.
        OutOfMemory: there are not enough free pages, or no room for the result; nothing has
            happened.
        Unsupported: cuDNN does not have this combination; a batch or a recording in ``on``.

    Attributes:
        k, v: memory, (layers, pages, page_size, kv_heads, size).
        page_size: rows of a page.
    """

    def __init__(
        self,
        device: DeviceView,
        plans: DnnPlanCache,
        k: GpuRef,
        v: GpuRef,
        digests: CacheDigests | None = None,
    ) -> None:
        super().__init__(device, plans)
        self.k: Final = k
        self.v: Final = v
        self.page_size: Final[int] = k.shape[2]
        self._layers: Final[int] = k.shape[0]
        self._free: list[int] = list(reversed(range(k.shape[1])))
        self._users: Counter[int] = Counter()
        self._sequences: dict[int, PagedSequence] = {}
        self._numbers: Final = itertools.count()
        self._copied: Final[Counter[int]] = Counter()
        self._digests: Final = digests
        self._held: list[HeldPage] = []
        self._longest: dict[int, int] = {}

    @property
    def durable(self) -> bool:
        """``True`` if sequences continue after a fault."""
        return self._digests is not None

    def on(self, device: DeviceView) -> Any:
        """Return a copy whose ops go to ``device``."""
        if device.call_mode is Collected:
            raise Unsupported(
                "a cache's calls cannot be in a batch or a recording; await them, which may be "
                "inside a batch's block"
            )
        return super().on(device)

    # --- sequences ------------------------------------------------------------------------

    def new(self) -> int:
        """Begin an empty sequence; its number."""
        return self._add(PagedSequence([], [0] * self._layers))

    def fork(self, sequence: int) -> int:
        """Begin a sequence as a copy of another one, and return its number.

        Nothing is copied: pages are shared, and one that is written later is copied then.
        """
        self._require_recovered()
        old = self._idle(sequence)
        self._users.update(old.pages)
        return self._add(PagedSequence(list(old.pages), list(old.lengths)))

    def free(self, sequence: int) -> None:
        """End a sequence. Pages that it shares with no other sequence are free at once."""
        self._release(self._idle(sequence).pages)
        del self._sequences[sequence]

    def trim(self, sequence: int, length: int) -> None:
        """Drop all rows after the first ``length``, in all layers."""
        found = self._idle(sequence)
        if not 0 <= whole(length, "length") <= min(found.lengths):
            raise ValueError(
                f"sequence {sequence} has {min(found.lengths)} rows in all layers; it cannot be "
                f"cut to {length}"
            )
        found.lengths[:] = [length] * self._layers
        self._fit(found)

    def length(self, sequence: int, layer: int = 0) -> int:
        """Return the number of rows of a sequence in a layer."""
        return self._get(sequence).lengths[self._layer(layer)]

    def pages(self, sequence: int) -> tuple[int, ...]:
        """Return the pages of a sequence, in order."""
        return tuple(self._get(sequence).pages)

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._sequences

    def statistics(self) -> KVCacheStatistics:
        """A snapshot."""
        pages = self.k.shape[1]
        self._let_go()
        return KVCacheStatistics(
            sequences=len(self._sequences),
            tokens=sum(max(each.lengths) for each in self._sequences.values()),
            pages=pages,
            used=pages - len(self._free),
            shared=sum(users > 1 for users in self._users.values()),
            copied=self._copied.total(),
            nbytes=self.k.nbytes + self.v.nbytes,
        )

    # --- faults ---------------------------------------------------------------------------

    @op
    def recover(self) -> Request[dict[int, RecoveredSequence]]:
        """Compare all rows of a durable cache with their digests, and cut sequences to what holds.

        After a fault the cache has to recover before its next use. Each sequence is cut before its
        first token of which a row in any layer is not proven: its write was in flight, or its
        bytes have changed. Layers that were shorter stay so. Without a fault, only changed bytes
        cut a sequence.

        Returns:
            What each sequence has kept and lost.

        Raises:
            GpuRefStale: an earlier host has not ended, and may still write to the cache.
            ContextPoisoned: the device has failed meanwhile; call it again.
        """
        digests = self._digests
        if digests is None:
            raise ValueError("the cache must be durable to recover; make it with durable=True")
        scan: CacheScan | None = None

        def prepare(preparer: Preparer) -> Submission[dict[int, RecoveredSequence]]:
            nonlocal scan
            memory = preparer.memory
            for ref in (self.k, self.v):
                require_readable(ref, memory, "the cache")
            if DIGESTS.name not in preparer.home.ports:
                raise Pending(DIGESTS)  # before the work of comparing, which would be done twice
            if digests.epoch is not memory.epoch:
                for number, sequence in self._sequences.items():
                    self._longest.setdefault(number, max(sequence.lengths))
                self._take_back()
            if scan is None or scan.epoch is not memory.epoch:
                scan = digests.scan(memory, self._sequences)
            for request in scan.requests():
                preparer.perform(request)
            done = scan
            return Submission(None, (), (), finish=lambda _: self._recovered(digests, done))

        return Request(DIGESTS, "dnn.kv_recover", prepare)

    def _recovered(self, digests: CacheDigests, scan: CacheScan) -> dict[int, RecoveredSequence]:
        told = {}
        for number in scan.held:
            sequence = self._sequences.get(number)
            if sequence is None:
                continue
            before = self._longest.get(number, max(sequence.lengths))
            first, changed = scan.kept(number)
            if first is not None:
                sequence.lengths[:] = [min(length, first) for length in sequence.lengths]
                if not sequence.growing:
                    self._fit(sequence)
            now = max(sequence.lengths)
            told[number] = RecoveredSequence(now, before - now, changed)
        digests.epoch = scan.epoch
        self._longest.clear()
        return told

    def _require_recovered(self) -> None:
        digests = self._digests
        if digests is not None and digests.epoch is not self.home.memory.epoch:
            require_readable(self.k, self.home.memory, "the cache")
            raise GpuRefStale(
                "the device was rebuilt, and the cache does not know yet what its sequences have "
                "lost; call: await cache.recover()"
            )

    # --- rows -----------------------------------------------------------------------------

    @contextmanager
    def growing(
        self,
        sequences: Sequence[int],
        new: int = 1,
        *,
        layer: int | None = None,
        columns: int | None = None,
    ) -> Iterator[CacheRows]:
        """Let any ops of the block write new rows: those of batches, recordings and functions.

        It takes pages for the rows. The ops get ``k``, ``v`` or views of them, such as
        ``flash_attention_with_kvcache`` does, and must write these rows alone. At the end of the
        block the sequences are longer; if it ends with an error, they are as before. In a durable
        cache the rows are proven if all ops of the block that write to the cache have succeeded.

        Args:
            sequences: different ones, of this cache.
            new: number of rows for each.
            layer: number of the layer; by default all, in which lengths must be equal.
            columns: columns of the table; by default a power of two. A recording needs the same
                number each time.

        Yields:
            The lengths before, and the table of pages, as arrays of the program.
        """
        memory, digests = self.home.memory, self._digests
        layers = range(self._layers) if layer is None else (self._layer(layer),)
        for ref in (self.k, self.v):
            require_writable(ref, memory, "the cache")
        growth = self._grown(sequences, whole(new, "new", 1), layers[0])
        for number, length in growth.lengths.items():
            lengths = self._sequences[number].lengths
            if any(lengths[at] != length for at in layers):
                raise ValueError(
                    f"sequence {number} has layers of different lengths, {lengths}; give the layer"
                )
        table = self._table(growth.pages.values())
        wide = table.shape[1] if columns is None else whole(columns, "columns", 1)
        most = max(map(len, growth.pages.values()))
        if wide < most:
            raise ValueError(
                f"columns must be at least {most}, the pages of a sequence, not {wide}"
            )
        table = np.pad(table[:, :wide], ((0, 0), (0, max(0, wide - table.shape[1]))))
        before = np.array([*growth.lengths.values()], np.int32)
        epoch = memory.epoch
        rows = None if digests is None else digests.new_rows(layers, before, new, table)
        self._copy_pages(growth)
        self._take(growth, rows)
        grown = [self._sequences[number] for number in growth.pages]
        for sequence in grown:
            sequence.growing = True
        if digests is not None and rows is not None:
            digests.declare(rows)
        try:
            yield CacheRows(before, table)
            if memory.epoch is not epoch:
                raise GpuRefStale("the device was rebuilt while rows were being written")
            for sequence in grown:
                for at in layers:
                    sequence.lengths[at] += new
        finally:
            if digests is not None and rows is not None:
                digests.withdraw(rows)
            for sequence in grown:
                sequence.growing = False
                self._fit(sequence)

    @op
    def append(
        self, sequences: Sequence[int], k: GpuRef, v: GpuRef, *, layer: int = 0
    ) -> Request[None]:
        """Write keys and values behind those of sequences in a layer.

        Args:
            sequences: different ones, of this cache.
            k: shape (sequences, new, kv_heads, size), of the cache's dtype.
            v: shape (sequences, new, kv_heads, value_size), of the cache's dtype.
            layer: number of the layer.
        """

        def prepare(preparer: Preparer) -> Submission[Any]:
            growth, appending = self._growing(sequences, k, v, layer)
            table, after = self._table(growth.pages.values()), self._after(growth)
            scratch = preparer.output((after.size + table.size,), _INT32)
            lengths, rows = scratch.block, scratch[after.size :].block
            data = np.concatenate([after, table.ravel()]).tobytes()
            append = appending.message(lengths.address, rows.address)
            message = Grow((SequenceUpload(lengths.address, data),), append, NOTHING, (), None)
            written = self._say_rows(growth, table, appending.k_cache, appending.v_cache)
            reads, writes = appending.blocks(self.home.memory)
            require_no_alias(
                "append",
                [("the cache's k", self.k), ("the cache's v", self.v)],
                [("k", k), ("v", v)],
            )

            def sent() -> None:
                self._commit(growth, written)

            return Submission(message, reads, [*writes, lengths], sent=sent)

        return Request(LANE, "dnn.kv_append", prepare)

    @op_family
    def attend(
        self,
        _name: str,
        q: GpuRef,
        sequences: Sequence[int],
        k: GpuRef | None = None,
        v: GpuRef | None = None,
        *,
        layer: int = 0,
        out: GpuRef | None = None,
        **options: Unpack[AttentionOptions],
    ) -> Request[GpuRef]:
        """Attention of queries to the rows of sequences in a layer, after writing new rows.

        As ``flash_attention_with_kvcache``, in one message.

        Args:
            q: shape (sequences, queries, heads, size): the last ones of each sequence.
            sequences: different ones, of this cache.
            k: new keys to append, shape (sequences, new, kv_heads, size).
            v: new values, shape (sequences, new, kv_heads, value_size). Both or none.
            layer: number of the layer.
            out: where to put the result. Made if absent.
            **options: see ``AttentionOptions``; no ``bias`` and no dropout.

        Returns:
            Shape (sequences, queries, heads, value_size).
        """
        chosen = checked(_name, options, without=NOT_CACHED)
        if (k is None) != (v is None):
            raise ValueError("k and v belong together: new keys and new values")
        memory = self.home.memory
        growing: list[tuple[CacheGrowth, Rows | None]] = []

        def make() -> AttentionCall:
            require(q, memory, "q", (self.k.dtype,))
            appending = None
            growing.clear()
            if k is not None and v is not None:
                growth, appending = self._growing(sequences, k, v, layer)
            else:
                growth = self._grown(sequences, 0, layer)
            after = self._after(growth)
            if after.min() < 1:
                raise ValueError("there is a sequence without any rows to attend to")
            table = self._table(growth.pages.values())
            if appending is not None:
                growing.append((growth, self._say_rows(growth, table, reads["k"], reads["v"])))
            call = self._call(q, table, after, growth.layer)
            call.appending = appending
            spec = scored(call, chosen, memory, batch=len(after), backward=False).spec
            spec = spec._replace(scale=chosen.scale(spec.size))
            call.spec = mask_of(spec, chosen, same=False, bounded=False)
            shape = (*q.shape[:3], self.v.shape[-1])
            return forward(call, shape, lse=_name == "attend_with_lse")

        def sent() -> None:
            for growth, rows in growing:
                self._commit(growth, rows)

        at = self._layer(layer)
        scores = {each: getattr(chosen, each) for each in BUFFERS}
        buffers = {each: ref for each, ref in scores.items() if not isinstance(ref, bool)}
        reads: dict[str, Any] = {
            "q": q,
            "k": self.k[at],
            "v": self.v[at],
            "new_k": k,
            "new_v": v,
            **buffers,
        }
        called = {**ARGUMENTS, **CACHES}
        work = AttentionWork("dnn.kv_attend", None, reads, (out,), make, chosen.autotune, called)
        return self._attend(work, sent=sent)

    attend_with_lse: Final = attend.like(
        """``attend`` with the logarithms of the sums of exponentials of scores.

        Returns:
            The result, and float32 (sequences, heads, queries).
        """,
        returns=tuple[GpuRef, GpuRef],
    )

    def _call(self, q: GpuRef, table: Any, after: Any, layer: int) -> AttentionCall:
        if len(q.shape) != 4 or 0 in q.shape or q.shape[0] != len(after):
            raise ValueError(
                f"q must have shape ({len(after)}, queries, heads, size) without zeros, "
                f"not {q.shape}"
            )
        batch, queries, heads, size = q.shape
        k, v = self.k[layer], self.v[layer]
        if size != k.shape[-1] or heads % k.shape[2]:
            raise ValueError(
                f"q must have heads of the cache's size {k.shape[-1]}, a multiple of "
                f"its {k.shape[2]} heads, not {heads} heads of size {size}"
            )
        spec = AttentionSpec(
            *(q.dtype.name, batch, heads, k.shape[2], queries, table.shape[1] * self.page_size),
            *(size, v.shape[-1]),
            page=self.page_size,
            pages=k.shape[0],
            columns=table.shape[1],
            lengths=True,
        )
        call = AttentionCall(spec, {"q": q, "k": k, "v": v})
        call.derived["seq_len_q"] = alike(batch, queries)
        call.derived["seq_len_kv"] = DerivedInput("", batch, data=after.tobytes())
        call.derived["table"] = DerivedInput("", table.size, data=table.tobytes())
        return call

    # --- bookkeeping ----------------------------------------------------------------------

    def _growing(
        self, sequences: Sequence[int], k: GpuRef, v: GpuRef, layer: int
    ) -> tuple[CacheGrowth, Appending]:
        """Check new rows, and return the changes that they need and how to write them."""
        memory, dtype = self.home.memory, (self.k.dtype,)
        new = k.shape[1] if len(getattr(k, "shape", ())) == 4 else 1
        growth = self._grown(sequences, max(1, new), layer)
        rows = (len(growth.lengths), max(1, new))
        require(k, memory, "k", dtype, (*rows, *self.k.shape[3:]))
        require(v, memory, "v", dtype, (*rows, *self.v.shape[3:]))
        appending = Appending(
            k,
            v,
            self.k[growth.layer],
            self.v[growth.layer],
            columns=_columns(growth.pages.values()),
            copies=tuple(growth.copies),
            k_layers=self.k,
            v_layers=self.v,
        )
        return growth, appending

    def _grown(self, sequences: Sequence[int], new: int, layer: int) -> CacheGrowth:
        """Return the changes that new rows need, without applying them."""
        self._require_recovered()
        self._let_go()
        at = self._layer(layer)
        found = [(self._idle if new else self._get)(each) for each in sequences]
        if not found or len(set(sequences)) != len(found):
            raise ValueError(f"sequences must be different ones, and at least one, not {sequences}")
        free = list(self._free)
        pages: dict[int, list[int]] = {}
        copies: list[tuple[int, int]] = []
        users = Counter(self._users)
        short = 0
        for number, sequence in zip(sequences, found, strict=True):
            own = pages[number] = list(sequence.pages)
            length = sequence.lengths[at]
            end = -(-(length + new) // self.page_size) if new else 0
            for place in range(length // self.page_size, end):
                shared = place < len(own) and users[own[place]] > 1
                if place < len(own) and not shared:
                    continue
                if not free:
                    short += 1
                elif shared:
                    users[own[place]] -= 1
                    copies.append((own[place], free[-1]))
                    own[place] = free.pop()
                else:
                    own.append(free.pop())
        if short:
            raise self._full(short)
        lengths = {number: each.lengths[at] for number, each in zip(sequences, found, strict=True)}
        return CacheGrowth(at, new, lengths, pages, copies, len(self._free) - len(free))

    def _full(self, short: int) -> OutOfMemory:
        pages, free = self.k.shape[1], len(self._free)
        nbytes = (self.k.nbytes + self.v.nbytes) // pages
        return OutOfMemory(
            f"the cache has {free} of its {pages} pages free, which is {short} too few; free or "
            "trim sequences first",
            requested=(short + free) * nbytes,
            free=free * nbytes,
            in_use=(pages - free) * nbytes,
            largest_free=free * nbytes,
        )

    def _commit(self, growth: CacheGrowth, rows: Rows | None) -> None:
        """Apply the changes that ``_grown`` has found, because its message is being sent."""
        self._take(growth, rows)
        for number in growth.pages:
            self._sequences[number].lengths[growth.layer] += growth.new

    def _take(self, growth: CacheGrowth, rows: Rows | None) -> None:
        """Take the pages that new rows need; ``rows`` are those, if the cache is durable."""
        del self._free[len(self._free) - growth.taken :]
        for number, pages in growth.pages.items():
            sequence = self._sequences[number]
            self._users.update(pages)
            if rows is not None and growth.copies:
                self._hold(number, pages, rows)
            self._release(sequence.pages)
            sequence.pages = pages
        self._copied[growth.layer] += len(growth.copies)
        if self._digests is not None and growth.copies:
            self._digests.copied(growth.copies)

    def _hold(self, number: int, pages: list[int], rows: Rows) -> None:
        """Keep the pages that a sequence replaces by copies."""
        sequence = self._sequences[number]
        for place, (old, new) in enumerate(zip(sequence.pages, pages, strict=False)):
            if old != new:
                self._users[old] += 1
                lengths = tuple(sequence.lengths)
                self._held.append(HeldPage(number, place, old, new, lengths, rows))

    def _let_go(self) -> None:
        """Release pages whose copies are proven, or not needed any more."""
        if self._digests is None or not self._held:
            return
        left = []
        for held in self._held:
            if held.number in self._sequences and not self._digests.proven(held.rows).all():
                left.append(held)
            else:
                self._release([held.old])
        self._held = left

    def _take_back(self) -> None:
        """Return to pages of which a copy was in flight at a fault."""
        self._let_go()
        for held in reversed(self._held):
            sequence = self._sequences[held.number]
            if sequence.pages[held.place : held.place + 1] == [held.new]:
                sequence.pages[held.place] = held.old
                pairs = zip(sequence.lengths, held.lengths, strict=True)
                sequence.lengths[:] = [min(pair) for pair in pairs]
                self._release([held.new])
            else:
                self._release([held.old])
        self._held = []

    def _say_rows(self, growth: CacheGrowth, table: Any, *caches: GpuRef) -> Rows | None:
        """Note which rows an op writes by its views of a durable cache, and return them."""
        digests = self._digests
        if digests is None:
            return None
        rows = digests.new_rows((growth.layer,), [*growth.lengths.values()], growth.new, table)
        if growth.copies:
            rows = np.union1d(rows, digests.doubtful(growth.copies))
        say_rows(caches, rows)
        return rows

    def _copy_pages(self, growth: CacheGrowth) -> None:
        """Copy shared pages that are going to be written."""
        lane, digests = self.home.memory_lane.name, self._digests
        rows: Rows | None = None
        if digests is not None and growth.copies:
            rows = digests.doubtful(growth.copies)
        for ref in (self.k, self.v) if growth.copies else ():
            for layer, (source, target) in itertools.product(range(self._layers), growth.copies):
                view, old = ref[layer, target], ref[layer, source]
                if rows is not None:
                    say_rows([view], rows)
                message = Copy(view.block.address, old.block.address, view.nbytes)
                blocks = (old.block,), (view.block,)
                self.home.submit(self.home.ports[lane], "dnn.kv_copy", message, *blocks)

    def _table(self, pages: Iterable[list[int]]) -> Any:
        lists = list(pages)
        table = np.zeros((len(lists), _columns(lists)), np.int32)
        for row, each in zip(table, lists, strict=True):
            row[: len(each)] = each
        return table

    @staticmethod
    def _after(growth: CacheGrowth) -> Any:
        """The lengths of sequences with their new rows."""
        return np.array([*growth.lengths.values()], np.int32) + np.int32(growth.new)

    def _fit(self, sequence: PagedSequence) -> None:
        """Release the pages behind the rows of a sequence."""
        keep = -(-max(sequence.lengths) // self.page_size)
        self._release(sequence.pages[keep:])
        del sequence.pages[keep:]

    def _release(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._users[page] -= 1
            if not self._users[page]:
                del self._users[page]
                self._free.append(page)

    def _add(self, sequence: PagedSequence) -> int:
        number = next(self._numbers)
        self._sequences[number] = sequence
        return number

    def _get(self, sequence: int) -> PagedSequence:
        found = self._sequences.get(sequence)
        if found is None:
            raise ValueError(f"there is no sequence {sequence!r} in this cache; it has {len(self)}")
        return found

    def _idle(self, sequence: int) -> PagedSequence:
        found = self._get(sequence)
        if found.growing:
            raise ValueError(
                f"sequence {sequence} is in a block of cache.growing; call this after the block"
            )
        return found

    def _layer(self, layer: int) -> int:
        if not 0 <= whole(layer, "layer") < self._layers:
            raise ValueError(f"there is no layer {layer}; the cache has {self._layers}")
        return layer


def _columns(pages: Iterable[list[int]]) -> int:
    """Columns of a table: a power of two, so that growing needs few plans."""
    most = max(1, *(len(each) for each in pages), 1)
    return 1 << (most - 1).bit_length()
