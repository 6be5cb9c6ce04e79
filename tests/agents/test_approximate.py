"""Approximate search: by lists on the device, and by graphs on the CPU backend."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomr_accel import Device, Unsupported
from atomr_accel.actors import open_actor_system
from atomr_accel.agents import (
    InvertedLists,
    NeighborGraph,
    SearchVectors,
    VectorIndex,
    open_vector_index,
)
from atomr_accel.agents._inverted import windows_of
from atomr_accel.agents._store import VectorRows
from atomr_accel.agents._vector_search import VectorSearcher
from atomr_accel.testing import kill_host, poison

from ..harness import BACKEND, on_shared, opened, sized
from .vectors import DIMENSION, check_found, index_at, similarities

LISTS = InvertedLists(lists=16, probes=4, seed=3)
GRAPH = NeighborGraph(probes=32)
WAYS = [LISTS] if BACKEND == "cuda" else [LISTS, GRAPH]
METRICS = ["cosine", "dot", "l2"]


def clustered(seed: int, n: int, dtype: Any = np.float32) -> NDArray[Any]:
    """Return vectors around a few points, as embeddings are."""
    rng = np.random.default_rng(seed)
    points = np.random.default_rng(0).standard_normal((24, DIMENSION))
    noise = 0.3 * rng.standard_normal((n, DIMENSION))
    return (points[rng.integers(0, 24, n)] + noise).astype(dtype)


def check_rows(
    metric: str, held: dict[int, NDArray[Any]], query: NDArray[Any], found: Any
) -> set[int]:
    """Hold found vectors against the real ones; each counts once, and its score is right."""
    ids = found.ids.tolist()
    assert len({*ids}) == len(ids)
    rows = np.stack([held[key] for key in ids])
    sign = -1 if metric == "l2" else 1
    expected = sign * similarities(metric, rows, query)
    np.testing.assert_allclose(found.scores, expected, atol=1e-2, rtol=1e-2)
    assert (np.diff(sign * found.scores) <= 0).all()
    return {*ids}


async def recall(
    index: VectorIndex, held: dict[int, NDArray[Any]], k: int, **options: Any
) -> float:
    """Return the part of the nearest vectors that searches find."""
    hits, queries = 0, clustered(77, 40)
    keys, rows = np.array([*held]), np.stack([*held.values()])
    found = await index.search_many(queries, k, **options)
    for query, ids in zip(queries, found.ids, strict=True):
        near = similarities(index.metric, rows, query)
        best = keys[np.argsort(-near)[:k]]
        hits += len({*best.tolist()} & {*ids.tolist()})
    return hits / (len(queries) * k)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 11), min_size=1, max_size=400), st.integers(12, 40))
def test_windows_have_each_row_once(labels: list[int], lists: int) -> None:
    ordered = np.sort(np.array(labels))
    made = windows_of(ordered, lists)
    assert made.valid.shape == (len(made.starts), made.width)
    at = made.starts[:, None] + np.arange(made.width)
    assert 0 <= at.min() <= at.max() < len(labels)
    assert sorted(at[made.valid].tolist()) == [*range(len(labels))]
    for number in range(lists):
        some = slice(made.first[number], made.first[number + 1])
        assert (ordered[at[some][made.valid[some]]] == number).all()


@pytest.mark.slow
@settings(max_examples=sized(6, 200))
@given(
    st.sampled_from(METRICS), st.sampled_from(["f4", "f2"]), st.integers(1, 90),
    st.sampled_from([4000, 20000, 1 << 20]), st.integers(0, 9),
)  # fmt: skip
@on_shared
async def test_all_lists_are_what_exact_search_finds(
    device: Device, metric: Any, dtype: str, k: int, workspace: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = clustered(seed, 300, dtype)
    store: Any = SimpleNamespace(
        metric=metric,
        dtype=rows.dtype,
        segments=[
            VectorRows(np.arange(0, 200), rows[:200], count=200),
            VectorRows(np.arange(200, 300), rows[200:], count=100),
        ],
        tail=VectorRows(np.arange(4), rows[:4], count=0),
    )
    for row in rng.integers(0, 200, 20):
        if store.segments[0].live[row]:
            store.segments[0].kill(int(row))
    held = {key: row for key, row in enumerate(rows) if key >= 200 or store.segments[0].live[key]}
    searcher = VectorSearcher(device, store, InvertedLists(lists=9), workspace)
    queries = clustered(seed + 100, 3, dtype)
    found = await searcher.search(queries, k, None, 9)
    for query, ids, scores in zip(queries, found.ids, found.scores, strict=True):
        check_found(metric, held, query, k, ids, scores, 2e-2 if dtype == "f2" else 1e-4)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: type(way).__name__)
@pytest.mark.parametrize("metric", METRICS)
@on_shared
async def test_recall_beside_exact_search(
    device: Device, tmp_path: Path, way: Any, metric: str
) -> None:
    rows = clustered(1, 3000)
    held = dict(enumerate(rows))
    async with index_at(device, tmp_path, metric=metric, approximate=way, seal_at=2000) as index:
        await index.insert(range(2500), rows[:2500])
        await index.insert(range(2500, 3000), rows[2500:])
        statistics = index.statistics()
        assert (statistics.segments, statistics.tail, statistics.trained) == (1, 500, 0)
        few, many = (3, 9) if way is LISTS else (48, 200)
        assert await recall(index, held, 10, probes=few) >= 0.95
        # Threads build a graph, which is a little different each time.
        assert await recall(index, held, 10, probes=many) >= (0.99 if way is LISTS else 0.97)
        assert index.statistics().trained == 1
        # With a filter the search is exact.
        await index.update(range(10), rows[:10], [{"of": 1}] * 10)
        query = clustered(5, 1)[0]
        found = await index.search(query, 10, where={"of": 1})
        check_found(metric, dict(enumerate(rows[:10])), query, 10, found.ids, found.scores)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: type(way).__name__)
@on_shared
async def test_changes_of_listed_vectors_are_seen_at_once(
    device: Device, tmp_path: Path, way: Any
) -> None:
    rows = clustered(2, 1500)
    held = dict(enumerate(rows))
    async with index_at(device, tmp_path, metric="l2", approximate=way, seal_at=1200) as index:
        await index.insert(range(1500), rows)
        for key in range(0, 12, 2):
            assert (await index.search(rows[key], 1)).ids.tolist() == [key]
            await index.delete(key)
            del held[key]
            found = await index.search(rows[key], 5)
            assert key not in check_rows("l2", held, rows[key], found)
            held[key + 1] = clustered(key + 500, 1)[0]
            await index.update(key + 1, held[key + 1])
            assert (await index.search(held[key + 1], 1)).ids.tolist() == [key + 1]
        await index.compact()
        assert await recall(index, held, 10) >= 0.9
        assert index.statistics().dead == 0
    async with index_at(device, tmp_path, metric="l2") as index:  # the files are those of any way
        assert await recall(index, held, 10) == 1.0


@on_shared
async def test_lists_are_those_of_the_seed(device: Device, tmp_path: Path) -> None:
    rows = clustered(3, 1200)
    found = []
    for number, seed in enumerate([5, 5, 6]):
        way = InvertedLists(lists=40, probes=1, seed=seed)
        async with index_at(device, tmp_path / str(number), approximate=way, seal_at=500) as index:
            await index.insert(range(1200), rows)
            found.append((await index.search_many(clustered(8, 60), 20)).ids)
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0] != found[2]).any()


@on_shared
async def test_lists_are_trained_again_when_there_is_much_more(
    device: Device, tmp_path: Path
) -> None:
    way = InvertedLists(lists=8, probes=2)
    rows = clustered(4, 500)
    async with index_at(device, tmp_path, approximate=way, seal_at=100) as index:
        trained = []
        for start in range(0, 500, 100):
            await index.insert(range(start, start + 100), rows[start : start + 100])
            assert (await index.search(rows[start], 1)).ids.tolist() == [start]
            trained.append(index.statistics().trained)
        assert trained == [1, 1, 1, 2, 2]
        assert await recall(index, dict(enumerate(rows)), 5) >= 0.8


@pytest.mark.slow
async def test_lists_come_back_after_a_fault(tmp_path: Path) -> None:
    rows = clustered(6, 800)
    async with (
        opened() as device,
        index_at(device, tmp_path, approximate=LISTS, seal_at=500) as index,
    ):
        await index.insert(range(800), rows)
        before = await index.search_many(rows[:20], 5)
        await poison(device)
        after = await index.search_many(rows[:20], 5)
        np.testing.assert_array_equal(before.ids, after.ids)
        assert index.statistics().trained == 1


@on_shared
async def test_bad_options_of_approximate_search(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make: Any
    for make, error, match in [
        (lambda: InvertedLists(lists=0), ValueError, "lists must be"),
        (lambda: InvertedLists(lists=4, probes=5), ValueError, "probes must be at most 4"),
        (lambda: InvertedLists(lists=9, probes=0), ValueError, "probes must be"),
        (lambda: InvertedLists(lists=9, seed=-1), ValueError, "seed must be"),
        (lambda: InvertedLists(lists=9.5), TypeError, "lists must be"),  # type: ignore[arg-type]
        (lambda: NeighborGraph(links=0), ValueError, "links must be"),
        (lambda: index_at(device, tmp_path, approximate="ivf"), TypeError, "approximate must be"),
    ]:
        with pytest.raises(error, match=match):
            make()
    foreign: Any = SimpleNamespace(backend="cuda")
    with pytest.raises(Unsupported, match="device of backend 'cpu', not 'cuda'"):
        open_vector_index(foreign, tmp_path, dimension=2, approximate=GRAPH)
    if BACKEND == "cpu":
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "usearch.index", None)
            with pytest.raises(ModuleNotFoundError, match="usearch"):
                index_at(device, tmp_path, approximate=GRAPH)
    one = np.ones(DIMENSION)
    probes: Any
    async with index_at(device, tmp_path, approximate=LISTS) as index:
        for probes, error in [(0, ValueError), (17, ValueError), (1.5, TypeError)]:
            with pytest.raises(error, match="probes must be"):
                await index.search(one, probes=probes)
        await index.insert(3, one)
    async with (
        open_actor_system("test") as system,
        index_at(device, tmp_path, approximate=LISTS, system=system, name="near") as index,
    ):
        found = await index.ref.ask(SearchVectors(one, 1, probes=16))
        assert found.ids.tolist() == [3]
    async with index_at(device, tmp_path) as index:
        with pytest.raises(ValueError, match="probes must be None"):
            await index.search_many(one[None], probes=1)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: type(way).__name__)
async def test_faults_during_approximate_searches(tmp_path: Path, way: Any) -> None:
    faults = sized(4, 50)
    rows = clustered(9, 1500 + 40 * faults)
    held = dict(enumerate(rows[:1500]))
    touched: set[int] = set()  # those whose deletion has begun, and those where it is acknowledged
    gone: set[int] = set()
    async with (
        opened(max_restarts=10 * faults) as device,
        index_at(device, tmp_path, metric="l2", approximate=way, seal_at=1024) as index,
    ):
        await index.insert(range(1500), rows[:1500])
        answered = missed = 0
        done = False

        async def change(fault: int) -> None:
            for at in range(40):
                key, old = 1500 + 40 * fault + at, 40 * fault + at
                await index.insert(key, rows[key])
                held[key] = rows[key]
                if at % 4 == 0:
                    touched.add(old)
                    await index.delete(old)
                    del held[old]
                    gone.add(old)

        async def search(seed: int) -> None:
            nonlocal answered, missed
            rng = np.random.default_rng(seed)
            while not done:
                key = int(rng.choice([*held]))
                query, before = held[key], {*gone}
                found = await index.search(query, 5)
                assert len({*found.ids.tolist()}) == 5
                assert not {*found.ids.tolist()} & before
                missed += key not in found.ids and key not in touched
                answered += 1

        with trio.fail_after(900):
            async with trio.open_nursery() as nursery:
                for seed in range(3):
                    nursery.start_soon(search, seed)
                for fault in range(faults):
                    async with trio.open_nursery() as changes:
                        changes.start_soon(change, fault)
                        await (kill_host if fault % 3 == 2 else poison)(device)
                done = True
            assert answered > missed * (20 if way is GRAPH else answered + 1)
            assert len(index) == len(held)
            assert await recall(index, held, 10) >= 0.9
            query = clustered(1, 1)[0]
            check_rows("l2", held, query, await index.search(query, 50))
    async with opened() as device, index_at(device, tmp_path, metric="l2") as index:
        assert await recall(index, held, 10) == 1.0
