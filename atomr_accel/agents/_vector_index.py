"""Vector indexes: exact search on a device, over vectors that files keep."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, final

import numpy as np
import trio

from .._dtypes import is_float
from .._errors import said_of
from ..actors import Place, Service, handler, serving
from ..actors.util import NoPublicConstructor
from ..device.data.in_turn import InTurn
from ..device.data.transfer import in_worker
from ..patterns import Closed, Retry, open_batcher
from ..wire.options import LARGEST, count, real, whole
from ._errors import AgentError, IdTaken, IdUnknown
from ._payloads import Filter, as_filter, encode_payload
from ._store import Metric, VectorChange, VectorStore
from ._vector_messages import (
    DeleteVectors,
    GetVectors,
    InsertVectors,
    Matches,
    SearchVectors,
    UpdateVectors,
    VectorEntry,
    VectorIndexStatistics,
)
from ._vector_search import VectorSearcher

if TYPE_CHECKING:
    import os

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    from .. import Device
    from ..patterns import Batcher
    from ._inverted import InvertedLists
    from ._neighbors import NeighborGraph

_METRICS: Final = ("cosine", "dot", "l2")
_DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float16))
_LONGEST: Final = 2.0**62
"""Length of vectors whose products and squares of distances are finite in float32."""
_LARGEST_K: Final = 2048
_ATTEMPTS: Final = 20
"""Attempts of a search."""
_TOGETHER: Final = 1024
"""Changes that share a synchronization, and queries that share a product."""


@dataclass(frozen=True, slots=True)
class _IndexWrite:
    """A change that waits for its turn; ``new`` says whether its ids must be, or must not be."""

    ids: NDArray[np.int64]
    new: bool | None
    vectors: NDArray[Any] | None = None
    payloads: list[str | None] | None = None


@dataclass(frozen=True, slots=True)
class _IndexQuery:
    vector: NDArray[Any]
    k: int
    where: Filter
    probes: int | None


@final
class VectorIndex(Service, metaclass=NoPublicConstructor):
    """Vectors on a device and in files, as `open_vector_index` returns it.

    Methods raise ``TypeError`` or ``ValueError`` for wrong arguments, `FilesFailed` if the file
    system refuses, and `Closed` once the block was left.
    """

    _made_by = "open_vector_index"

    def __init__(
        self,
        store: VectorStore,
        searcher: VectorSearcher,
        *,
        sync: float,
        seal_at: int,
    ) -> None:
        self._store = store
        self._searcher = searcher
        self._sync = sync
        self._seal_at = seal_at
        self._turns = InTurn()
        self._counts = dict.fromkeys(("searches", "changes", "unsealed"), 0)
        self._waiting = 0
        # A long search may meet many faults of the work of others, and nothing else is lost by it.
        self._retry = Retry(attempts=_ATTEMPTS)
        self._writes: Batcher[_IndexWrite, None] | None = None
        self._queries: Batcher[_IndexQuery, Matches] | None = None
        self._leaving = trio.Event()
        self._left = trio.Event()

    @property
    def dimension(self) -> int:
        """The size of vectors."""
        return self._store.dimension

    @property
    def metric(self) -> Metric:
        """The measure by which vectors are compared."""
        return self._store.metric

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of vectors: float32 or float16."""
        return self._store.dtype

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, key: int) -> bool:
        return key in self._store

    # --- changes ----------------------------------------------------------------------------

    async def insert(
        self,
        ids: int | Sequence[int] | NDArray[np.integer[Any]],
        vectors: ArrayLike,
        payloads: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Add vectors. When this returns, they are in the files for good.

        If you are cancelled, all of them may have been added, or none.

        Args:
            ids: an id from 0 to 2**63 - 1, or (n,) different ones.
            vectors: (d,), or (n, d). They are rounded to the dtype of the index.
            payloads: a JSON object for the vector, or (n,) of them or None.

        Raises:
            ValueError: another size, numbers that are not finite in the dtype of the index, a
                vector longer than ``2**62``, whose products would not be finite, one of zeros with
                the metric ``"cosine"``, an id twice.
            IdTaken: an id is in the index.
        """
        await self._change(self._write(ids, vectors, payloads, new=True))

    async def update(
        self,
        ids: int | Sequence[int] | NDArray[np.integer[Any]],
        vectors: ArrayLike,
        payloads: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
    ) -> None:
        """Replace vectors and their payloads. See `insert`.

        Raises:
            IdUnknown: an id is not in the index.
        """
        await self._change(self._write(ids, vectors, payloads, new=False))

    async def delete(self, ids: int | Sequence[int] | NDArray[np.integer[Any]]) -> None:
        """Delete vectors and their payloads.

        Raises:
            IdUnknown: an id is not in the index.
        """
        await self._change(_IndexWrite(_as_ids(ids), new=False))

    async def compact(self) -> None:
        """Make one segment of all vectors, without rows that were replaced or deleted.

        Searches continue meanwhile, and changes wait. It needs room for a second copy of all
        vectors, in files and on the device.

        Raises:
            FilesFailed: the file system refused, and nothing has changed.
        """
        await self._change(_IndexWrite(np.empty(0, np.int64), new=None))

    def _write(self, ids: Any, vectors: Any, payloads: Any, *, new: bool) -> _IndexWrite:
        numbers = _as_ids(ids)
        rows = self._vectors(vectors, "vectors", len(numbers), one=np.ndim(ids) == 0)
        if payloads is None:
            return _IndexWrite(numbers, new, rows)
        several = [payloads] if np.ndim(ids) == 0 else payloads
        if isinstance(several, Mapping) or not isinstance(several, Iterable):
            raise TypeError(f"payloads must be one for each id, not {payloads!r}")
        texts = [encode_payload(each) for each in several]
        if len(texts) != len(numbers):
            raise ValueError(
                f"payloads must be one for each of the {len(numbers)} ids, not {len(texts)}"
            )
        return _IndexWrite(numbers, new, rows, texts)

    def _vectors(self, given: Any, name: str, n: int | None, *, one: bool) -> NDArray[Any]:
        """Check vectors, and return them as (n, d) in the dtype of the index."""
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise ValueError(f"{name} must be rows of one size, not {said_of(given)}") from error
        if not is_float(array.dtype) and array.dtype.kind not in "iu":
            raise TypeError(f"{name} must be real numbers, not {array.dtype}")
        dimension = self._store.dimension
        rows = array[None] if one else array
        if rows.ndim != 2 or rows.shape[1] != dimension or (n is not None and len(rows) != n):
            wanted = f"({dimension},)" if one else f"({'m' if n is None else n}, {dimension})"
            raise ValueError(f"{name} must be of shape {wanted}, not {array.shape}")
        with np.errstate(over="ignore"):
            made = rows.astype(self._store.dtype)
        if not np.isfinite(made).all():
            raise ValueError(f"{name} must be finite in {made.dtype}, not with NaN or infinity")
        if (
            made.size
            and float(np.abs(made).max()) > _LONGEST / dimension**0.5
            and (np.linalg.norm(made.astype(np.float64), axis=1) > _LONGEST).any()
        ):
            raise ValueError(f"{name} must be of a length up to 2**62, not longer; scale them")
        if self._store.metric == "cosine" and not made.any(axis=1).all():
            raise ValueError(
                f"{name} must be of a length above 0 for cosines, not zeros in {made.dtype}"
            )
        return made

    async def _change(self, write: _IndexWrite) -> None:
        if self._writes is None:
            raise Closed("the index's block was left, or the index is started again")
        self._waiting += 1
        try:
            await self._writes(write)
        finally:
            self._waiting -= 1

    async def _commit(self, writes: list[_IndexWrite]) -> list[Exception | None]:
        """Make changes durable, and then visible. Each has its own error, if any."""
        with trio.CancelScope(shield=True):  # the log and the memory must agree
            results = await self._commit_all(writes)
        return results  # noqa: RET504 (the scope may suppress nothing, as types cannot tell)

    async def _commit_all(self, writes: list[_IndexWrite]) -> list[Exception | None]:
        results: dict[int, Exception | None] = {}
        there: dict[int, bool] = {}  # after the changes that are accepted so far
        accepted: dict[int, _IndexWrite] = {}
        for at, write in enumerate(writes):
            alone = write.new is None or (
                write.new and write.vectors is not None and len(write.ids) >= self._seal_at
            )
            if alone:  # what came before goes first
                results |= await self._log(accepted)
                accepted, there = {}, {}
            results[at] = self._refused(write, there)
            if results[at] is not None:
                continue
            if alone:
                results[at] = await _told(self._bulk if write.new else self._compact, write)
            else:
                accepted[at] = write
                kept = write.vectors is not None
                there.update(dict.fromkeys(write.ids.tolist(), kept))
        results |= await self._log(accepted)
        # Changes are acknowledged without this, so it is tried again after the next ones.
        if self._store.tail.count >= self._seal_at and await _told(self._seal):
            self._counts["unsealed"] += 1
        self._counts["changes"] += [*results.values()].count(None)
        return [results[at] for at in range(len(writes))]

    def _refused(self, write: _IndexWrite, there: dict[int, bool]) -> Exception | None:
        if write.new is None:
            return None
        wrong = [
            key for key in write.ids.tolist() if there.get(key, key in self._store) == write.new
        ][:10]
        if not wrong:
            return None
        if write.new:
            return IdTaken(f"ids must be new, not {wrong}; update replaces vectors", ids=wrong)
        return IdUnknown(f"ids must be in the index, not {wrong}", ids=wrong)

    async def _log(self, writes: Mapping[int, _IndexWrite]) -> dict[int, Exception | None]:
        """Write changes ahead, and do them. Return the error of each, if any."""
        changes = [
            VectorChange(
                write.ids.tolist(),
                None if write.vectors is None else write.vectors.tobytes(),
                write.payloads,
            )
            for write in writes.values()
        ]
        if not changes:
            return {}
        error = await _told(self._turns.run, self._store.write_ahead, changes)
        if error is None:
            self._store.apply(changes)
        return dict.fromkeys(writes, error)

    async def _bulk(self, write: _IndexWrite) -> None:
        """Make a segment of many vectors at once, which the log would only copy."""
        store = self._store
        if store.tail.count:
            await self._seal()
        assert write.vectors is not None
        texts = write.payloads or [None] * len(write.ids)
        payloads = [*zip(write.ids.tolist(), texts, strict=True)]
        await self._turns.run(store.write_payloads, payloads)
        _, _, replaced = store.sealing()
        await self._sealed(write.ids, write.vectors, replaced, alone=False)

    async def _seal(self) -> None:
        await self._sealed(*self._store.sealing(), alone=False)

    async def _compact(self, _: _IndexWrite) -> None:
        ids, places = self._store.compacting()

        def gather() -> NDArray[Any]:
            return np.concatenate([rows.vectors[: rows.count][live] for rows, live in places])

        await self._sealed(ids, await in_worker(gather), (), alone=True)

    async def _sealed(
        self, ids: NDArray[np.int64], vectors: NDArray[Any], replaced: Iterable[int], *, alone: bool
    ) -> None:
        store = self._store

        def write() -> dict[str, NDArray[Any]]:
            return store.load(store.seal(ids, vectors, replaced, alone=alone))

        store.sealed(await self._turns.run(write), alone=alone)
        self._searcher.keep()

    # --- searches ---------------------------------------------------------------------------

    async def search(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        probes: int | None = None,
    ) -> Matches:
        """Find the nearest vectors, among all that were acknowledged before.

        Queries of many tasks share a product. A fault of the device costs time, no answer, up to 19
        of them in a row.

        Args:
            query: (d,).
            k: how many to find, up to 2048.
            where: only vectors whose payload has an allowed value in each of these fields: one
                value, or a list of several. The search is exact.
            probes: for approximate search, in place of those the index was opened with. With all
                lists the search is exact.

        Returns:
            The nearest vectors: k, or all there are. Approximate search may miss some.
        """
        vector = self._vectors(query, "query", None, one=True)[0]
        asked = _IndexQuery(vector, _as_k(k), as_filter(where), self._searcher.as_probes(probes))
        if self._queries is None:
            raise Closed("the index's block was left, or the index is started again")
        self._waiting += 1
        try:
            return await self._queries(asked)
        finally:
            self._waiting -= 1

    async def search_many(
        self,
        queries: ArrayLike,
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        probes: int | None = None,
    ) -> Matches:
        """Find the nearest vectors of many queries at once.

        Args:
            queries: (m, d).
            k: how many to find for each, up to 2048.
            where: as for `search`.
            probes: as for `search`.

        Returns:
            Arrays (m, k). Where fewer were found, the rest of ids is -1, and of scores NaN.
        """
        vectors = self._vectors(queries, "queries", None, one=False)
        wanted, allowed, read = _as_k(k), as_filter(where), self._searcher.as_probes(probes)
        await trio.lowlevel.checkpoint_if_cancelled()
        self._waiting += 1
        try:
            return await self._search(vectors, wanted, allowed, read)
        finally:
            self._waiting -= 1

    async def _answer(
        self, asked: list[_IndexQuery], bucket: tuple[Filter, int | None]
    ) -> list[Matches]:
        """Answer queries with one filter that read as much."""
        found = await self._search(
            np.stack([each.vector for each in asked]), max(each.k for each in asked), *bucket
        )
        answers = []
        for each, ids, scores in zip(asked, found.ids, found.scores, strict=True):
            there = int((ids[: each.k] >= 0).sum())
            answers.append(Matches(ids[:there], scores[:there]))
        return answers

    async def _search(
        self, queries: NDArray[Any], k: int, where: Filter, probes: int | None
    ) -> Matches:
        found = await self._retry(self._try, queries, k, where, probes)
        self._counts["searches"] += len(queries)
        return found

    async def _try(
        self, queries: NDArray[Any], k: int, where: Filter, probes: int | None
    ) -> Matches:
        allowed = await self._turns.run(self._store.payloads.matching, where) if where else None
        return await self._searcher.search(queries, k, allowed, probes)

    async def get(self, ids: int | Sequence[int] | NDArray[np.integer[Any]]) -> list[VectorEntry]:
        """Look vectors and their payloads up.

        Returns:
            An entry for each id.

        Raises:
            IdUnknown: an id is not in the index.
        """
        numbers = _as_ids(ids).tolist()
        places = [(key, self._store.place(key)) for key in numbers]
        missing = [key for key, place in places if place is None][:10]
        if missing:
            raise IdUnknown(f"ids must be in the index, not {missing}", ids=missing)
        vectors = [place[0].vectors[place[1]].copy() for _, place in places if place is not None]
        payloads = await self._turns.run(self._store.payloads.read, numbers)
        return [
            VectorEntry(key, vector, payloads.get(key))
            for key, vector in zip(numbers, vectors, strict=True)
        ]

    # --- the service ------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Commit changes and answer searches until the block is left."""
        try:
            async with (
                open_batcher(
                    self._commit,
                    max_size=_TOGETHER,
                    max_wait=self._sync,
                    retry=Retry(attempts=1),
                    halve=lambda _: False,
                ) as self._writes,
                open_batcher(
                    self._answer,
                    max_size=_TOGETHER,
                    max_in_flight=2,
                    bucket=lambda query: (query.where, query.probes),
                    retry=Retry(attempts=1),
                ) as self._queries,
            ):
                task_status.started()
                await self._leaving.wait()
        finally:
            self._writes = self._queries = None
        self._left.set()
        await trio.sleep_forever()

    async def call(self, item: Any, **options: Any) -> Any:
        """Search for the query of a `Call`, with its options. See `search`."""
        return await self.search(item, **options)

    async def finish(self) -> None:
        """Take no more calls, and wait for those in progress."""
        self._leaving.set()
        await self._left.wait()

    def ended(self, cause: BaseException | None) -> None:  # noqa: ARG002 (the batchers tell it)
        """Take no more calls."""
        self._leaving.set()
        self._left.set()

    def depth(self) -> int:
        """Calls that wait for their answer."""
        return self._waiting

    def statistics(self) -> VectorIndexStatistics:
        """Return the statistics of this moment."""
        store = self._store
        return VectorIndexStatistics(
            vectors=len(store),
            dead=sum(rows.dead for rows in (*store.segments, store.tail)),
            segments=len(store.segments),
            tail=store.tail.count,
            searches=self._counts["searches"],
            changes=self._counts["changes"],
            unsealed=self._counts["unsealed"],
            syncs=store.syncs,
            uploads=self._searcher.uploads,
            trained=self._searcher.trained,
            waiting=self._waiting,
        )

    @handler
    async def _on_insert(self, message: InsertVectors) -> None:
        await self.insert(message.ids, message.vectors, message.payloads)

    @handler
    async def _on_update(self, message: UpdateVectors) -> None:
        await self.update(message.ids, message.vectors, message.payloads)

    @handler
    async def _on_delete(self, message: DeleteVectors) -> None:
        await self.delete(message.ids)

    @handler
    async def _on_search(self, message: SearchVectors) -> Matches:
        return await self.search(
            message.query, message.k, where=message.where, probes=message.probes
        )

    @handler
    async def _on_get(self, message: GetVectors) -> list[VectorEntry]:
        return await self.get(message.ids)


async def _told(function: Callable[..., Awaitable[object]], *args: Any) -> Exception | None:
    """Call a function, and return the error with which files failed, if any."""
    try:
        await function(*args)
    except AgentError as error:
        return error
    return None


def _as_ids(given: Any) -> NDArray[np.int64]:
    array = np.asarray(given)
    if array.size == 0:
        array = array.astype(np.int64)
    if array.dtype == object:  # NumPy has no whole numbers of more than 64 bits
        for each in array.reshape(-1):
            whole(each, "an id", 0, LARGEST)
    if array.dtype.kind not in "iu" or array.ndim > 1:
        raise TypeError(f"ids must be one whole number, or a list of them, not {said_of(given)}")
    wrong = array[(array < 0) | (array >= 2**63)].reshape(-1)
    if wrong.size:
        raise ValueError(f"ids must be from 0 to 2**63 - 1, not {int(wrong[0])}")
    ids = array.astype(np.int64).reshape(-1)
    if len(np.unique(ids)) != len(ids):
        raise ValueError("ids must be different, not one of them twice")
    return ids


def _as_k(k: Any) -> int:
    wanted = count(k, "k")
    if wanted > _LARGEST_K:
        raise ValueError(f"k must be at most {_LARGEST_K}, not {wanted}")
    return wanted


def open_vector_index(
    device: Device,
    path: str | os.PathLike[str],
    *,
    dimension: int,
    metric: Metric = "cosine",
    dtype: DTypeLike = np.float32,
    approximate: InvertedLists | NeighborGraph | None = None,
    sync: float = 0.0,
    seal_at: int = 65536,
    workspace: int = 1 << 30,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[VectorIndex]:
    """Open an index of vectors: search on the device, and files that keep every vector.

    Use ``async with open_vector_index(device, "folder", dimension=768) as index:``.

    **A change is acknowledged** when ``insert``, ``update`` or ``delete`` returns. By then it is in
    a log in the folder, which was synchronized, so that neither a fault of the device nor the end
    of the program or the system loses it. Changes of many tasks share a synchronization. Searches
    find every acknowledged vector.

    Args:
        device: the device that searches.
        path: the folder of the index, made if it is missing. One block at a time may have it open.
        dimension: the size of vectors.
        metric: how to compare vectors: ``"cosine"``, ``"dot"``, or ``"l2"``, the distance. Which
            distances are the shortest is found by products in float32. So those that differ by less
            than a thousandth of the vectors' lengths may change places: vectors far from zero and
            near each other are better inserted without their mean.
        dtype: what vectors are kept as: float32 or float16. Products are summed in float32.
        approximate: `InvertedLists` for approximate search on the device, or `NeighborGraph` on the
            CPU backend. Files are the same, so that it may be another one each time. Segments that
            are small for it, and the tail, are searched exactly. By default all are.
        sync: seconds that a change waits for others to share its synchronization. With 0 it waits
            only while another synchronization runs.
        seal_at: rows after which the tail becomes a sealed segment.
        workspace: bytes of the device for products, for one batch of queries.
        **place: ``system=``, ``name=`` and ``parent=``, which make the index an actor. It answers
            `SearchVectors`, `InsertVectors`, `UpdateVectors`, `DeleteVectors` and `GetVectors`.

    Raises:
        TypeError, ValueError: an argument is wrong, or does not fit the files.
        Unsupported: a `NeighborGraph` on a device that is not of the backend ``"cpu"``.
        ModuleNotFoundError: ``usearch`` is not installed, which a `NeighborGraph` needs; the extra
            ``agents`` has it.
        FilesDamaged: a file does not fit its checksum.
        FilesForeign: the folder has other files.
        FilesInUse: the folder is open elsewhere.
        FilesFailed: the file system refused.
    """
    kind = np.dtype(dtype)
    if kind not in _DTYPES:
        raise TypeError(f"dtype must be float32 or float16, not {kind}")
    if metric not in _METRICS:
        raise ValueError(f"metric must be one of {', '.join(_METRICS)}, not {metric!r}")
    store = VectorStore(Path(path), count(dimension, "dimension"), metric, kind)
    searcher = VectorSearcher(device, store, approximate, count(workspace, "workspace"))
    index = VectorIndex.construct(
        store,
        searcher,
        sync=real(sync, "sync", least=0),
        seal_at=count(seal_at, "seal_at"),
    )
    return _opened(index, store, place)


@asynccontextmanager
async def _opened(
    index: VectorIndex, store: VectorStore, place: Place
) -> AsyncIterator[VectorIndex]:
    turns = index._turns
    await turns.run(store.open)
    try:
        await trio.lowlevel.checkpoint_if_cancelled()  # which threads do not notice
        async with serving(index, **place):
            yield index
    finally:
        with trio.CancelScope(shield=True):
            await turns.run(store.close)
