"""Vector indexes against what a program would write by hand: torch, faiss, usearch, NumPy.

Queries per second, and recall against exact products in float64 of a sample. On CUDA there are a
million float16 vectors of 768 numbers and 10,000 queries; without a GPU a few thousand. Vectors lie
around 250 points, as embeddings of texts do around topics. A second table has single queries
of many tasks, which share products, and inserts that wait for the disk; a third has approximate
search with as few probes as reach a recall of 0.95 and 0.99.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import trio
from side_by_side import ROUNDS, open_first, there

from atomr_accel.agents import InvertedLists, NeighborGraph, open_vector_index

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from numpy.typing import NDArray

    from atomr_accel import Device
    from atomr_accel.agents import VectorIndex

    Search = Callable[[], Awaitable[NDArray[np.int64]]]

K = 10
SAMPLE = 200
"""Queries that recall is measured on."""
RECALLS = (0.95, 0.99)
PIECE = 1 << 14
"""Vectors that a thread works on at a time."""


def in_pieces(work: Callable[[int], object], count: int) -> list[Any]:
    """Do work for pieces of vectors, by their first rows, on all cores: NumPy lets others run."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [*pool.map(work, range(0, count, PIECE))]


def numbers(count: int, dimension: int, dtype: Any, seed: int) -> NDArray[Any]:
    """Return unit vectors."""
    topics = np.random.default_rng(0).standard_normal((250, dimension), dtype=np.float32)
    made = np.empty((count, dimension), dtype)

    def make(start: int) -> None:
        rng = np.random.default_rng([seed, start])
        rows = rng.standard_normal((min(PIECE, count - start), dimension), dtype=np.float32)
        rows += 2 * topics[rng.integers(0, len(topics), len(rows))]
        made[start : start + PIECE] = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    in_pieces(make, count)
    return made


def farthest(vectors: NDArray[Any], queries: NDArray[Any]) -> NDArray[np.float64]:
    """Return the product of the last of the nearest vectors, for each query of the sample."""
    some = queries[:SAMPLE].astype(np.float64)

    def best_of(start: int) -> NDArray[np.float64]:
        products = some @ vectors[start : start + PIECE].astype(np.float64).T
        best: NDArray[np.float64] = np.partition(products, -K, axis=1)[:, -K:]
        return best

    best = np.concatenate(in_pieces(best_of, len(vectors)), axis=1)
    last: NDArray[np.float64] = np.partition(best, -K, axis=1)[:, -K]
    return last


def recall(
    vectors: NDArray[Any],
    queries: NDArray[Any],
    found: NDArray[np.int64],
    last: NDArray[np.float64],
) -> float:
    """Return the part of the found vectors that are among the nearest. Equal products count."""
    hits = 0
    for query, ids, worst in zip(queries, found, last, strict=False):
        products = vectors[ids[ids >= 0]].astype(np.float64) @ query.astype(np.float64)
        hits += int((products >= worst - 1e-6).sum())
    return hits / (len(last) * K)


def by_numpy(vectors: NDArray[Any], queries: NDArray[Any]) -> Search:
    """A product, a partition, and a sort of the rest."""
    wide = vectors.astype(np.float32)

    async def search() -> NDArray[np.int64]:
        found = []
        for start in range(0, len(queries), 256):
            scores = queries[start : start + 256].astype(np.float32) @ wide.T
            near = np.argpartition(-scores, K, axis=1)[:, :K]
            order = np.argsort(-np.take_along_axis(scores, near, 1), axis=1)
            found.append(np.take_along_axis(near, order, 1))
        await trio.lowlevel.checkpoint()
        return np.concatenate(found).astype(np.int64)

    return search


def by_usearch(vectors: NDArray[Any], queries: NDArray[Any]) -> Search:
    """The exact search of usearch, on all cores."""
    from usearch.index import MetricKind, search  # type: ignore[attr-defined]

    async def exact() -> NDArray[np.int64]:
        await trio.lowlevel.checkpoint()
        found = search(vectors, queries, K, MetricKind.IP, exact=True)
        return np.asarray(found.keys).astype(np.int64).reshape(len(queries), K)

    return exact


def by_faiss(vectors: NDArray[Any], queries: NDArray[Any]) -> Search:
    """The flat index of faiss, on all cores."""
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors.astype(np.float32))

    async def flat() -> NDArray[np.int64]:
        await trio.lowlevel.checkpoint()
        found: NDArray[np.int64] = index.search(queries.astype(np.float32), K)[1]
        return found

    return flat


def by_torch(vectors: NDArray[Any], queries: NDArray[Any], step: int) -> Search:
    """A product and torch.topk for as many queries at a time as ours takes."""
    import torch

    there_ = torch.from_numpy(vectors).cuda()

    async def search() -> NDArray[np.int64]:
        found = []
        asked = torch.from_numpy(queries).cuda()
        for start in range(0, len(asked), step):
            scores = asked[start : start + step] @ there_.T
            found.append(torch.topk(scores, K, dim=1).indices)
        made: NDArray[np.int64] = torch.cat(found).cpu().numpy()
        await trio.lowlevel.checkpoint()
        return made

    return search


async def measured(name: str, search: Any, queries: int) -> tuple[str, float, NDArray[np.int64]]:
    """Return the rate of a search, as the median of some rounds after a first one."""
    found = await search()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        found = await search()
        seconds.append(time.perf_counter() - start)
    return name, queries / statistics.median(seconds), found


async def many(
    device: Device,
    index: VectorIndex,
    vectors: NDArray[Any],
    queries: NDArray[Any],
    last: NDArray[np.float64],
    workspace: int,
) -> None:
    """Compare one call with many queries."""

    async def ours() -> NDArray[np.int64]:
        return (await index.search_many(queries, K)).ids

    sides: dict[str, Any] = {"ours": ours}
    if device.backend == "cuda":
        if there("torch"):
            sides["torch"] = by_torch(vectors, queries, max(1, workspace // (4 * len(vectors))))
    else:
        sides["NumPy"] = by_numpy(vectors, queries)
        if there("faiss"):
            sides["faiss flat"] = by_faiss(vectors, queries)
        if there("usearch"):
            sides["usearch"] = by_usearch(vectors, queries)
    base = 0.0
    for name, search in sides.items():
        _, rate, found = await measured(name, search, len(queries))
        base = base or rate
        print(
            f"{name:10} {rate:12.0f} queries/s  recall {recall(vectors, queries, found, last):.4f}"
            f"  ours / theirs {base / rate:6.2f}",
            flush=True,
        )


async def singly(index: VectorIndex, queries: NDArray[Any], dimension: int) -> None:
    """Measure queries and inserts of many tasks."""

    async def all_of(call: Callable[[int], Awaitable[object]], count: int) -> float:
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for at in range(count):
                nursery.start_soon(call, at)
        return count / (time.perf_counter() - start)

    async def search(at: int) -> None:
        await index.search(queries[at % len(queries)], K)

    await all_of(search, 64)
    print(f"{'1000 tasks':10} {await all_of(search, 1000):12.0f} queries/s, one by one", flush=True)
    rows = numbers(1000, dimension, index.dtype, 9)

    async def insert(at: int) -> None:
        await index.insert(10**9 + at, rows[at])

    before = index.statistics().syncs
    rate = await all_of(insert, 1000)
    syncs = index.statistics().syncs - before
    print(f"{'1000 tasks':10} {rate:12.0f} inserts/s, {syncs} syncs", flush=True)


async def approximately(
    name: str,
    index: VectorIndex,
    vectors: NDArray[Any],
    queries: NDArray[Any],
    last: NDArray[np.float64],
) -> None:
    """Measure searches with as few probes as reach the recalls."""
    start = time.perf_counter()
    await index.search(queries[0], K)
    print(f"{name:13} made in {time.perf_counter() - start:.1f} s", flush=True)
    probes = 1
    for wanted in RECALLS:
        while True:
            found = (await index.search_many(queries[:SAMPLE], K, probes=probes)).ids
            reached = recall(vectors, queries, found, last)
            if reached >= wanted or probes >= 512:
                break
            probes += max(1, probes // 4)

        async def ours(probes: int = probes) -> NDArray[np.int64]:
            return (await index.search_many(queries, K, probes=probes)).ids

        _, rate, _ = await measured(name, ours, len(queries))
        print(
            f"{name:13} {rate:12.0f} queries/s  recall {reached:.4f} (wanted: {wanted}), "
            f"{probes} probes",
            flush=True,
        )


async def run() -> None:
    """Measure and print."""
    async with open_first() as device:
        gpu = device.backend == "cuda"
        count, dimension, asked = (1_000_000, 768, 10_000) if gpu else (20_000, 128, 500)
        dtype, workspace = (np.float16, 8 << 30) if gpu else (np.float32, 1 << 28)
        vectors, queries = numbers(count, dimension, dtype, 1), numbers(asked, dimension, dtype, 2)
        print(f"{count} x {dimension} {np.dtype(dtype)}, {asked} queries, k = {K}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            async with open_vector_index(
                device, Path(folder), dimension=dimension, metric="dot", dtype=dtype,
                workspace=workspace,
            ) as index:  # fmt: skip
                start = time.perf_counter()
                await index.insert(np.arange(count), vectors)
                print(f"inserted at once in {time.perf_counter() - start:.1f} s", flush=True)
                last = farthest(vectors, queries)
                await many(device, index, vectors, queries, last, workspace)
                await singly(index, queries, dimension)
                await index.delete(np.arange(10**9, 10**9 + 1000))
                await index.compact()  # lists and graphs are of segments
            ways: dict[str, Any] = {"lists": InvertedLists(lists=1024 if gpu else 128)}
            if not gpu and there("usearch"):
                ways["graph"] = NeighborGraph()
            for name, approximate in ways.items():
                async with open_vector_index(
                    device, Path(folder), dimension=dimension, metric="dot", dtype=dtype,
                    workspace=workspace, approximate=approximate,
                ) as index:  # fmt: skip
                    await approximately(name, index, vectors, queries, last)


if __name__ == "__main__":
    trio.run(run)
