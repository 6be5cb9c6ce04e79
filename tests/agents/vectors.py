"""A model of vector indexes in NumPy, which their tests share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from atomr_accel import Device
from atomr_accel.agents import VectorIndex, open_vector_index
from atomr_accel.testing import kill_host, poison

DIMENSION = 8


def index_at(
    device: Device, path: Path, **options: Any
) -> AbstractAsyncContextManager[VectorIndex]:
    """Open a small index."""
    return open_vector_index(device, path, **{"dimension": DIMENSION, **options})


def similarities(metric: str, vectors: NDArray[Any], query: NDArray[Any]) -> NDArray[np.float64]:
    """Return what searches rank by, the larger the nearer, in float64."""
    wide, q = vectors.astype(np.float64), query.astype(np.float64)
    if metric == "l2":
        negative: NDArray[np.float64] = -np.linalg.norm(wide - q, axis=1)
        return negative
    products: NDArray[np.float64] = wide @ q
    if metric == "cosine":
        products /= np.linalg.norm(wide, axis=1) * np.linalg.norm(q)
    return products


def check_found(
    metric: str,
    held: dict[int, NDArray[Any]],
    query: NDArray[Any],
    k: int,
    ids: NDArray[np.int64],
    scores: NDArray[np.float32],
    tolerance: float = 1e-4,
) -> None:
    """Hold what a search found against all vectors; ties and rounding may change places."""
    assert len(ids) == len(scores) == min(k, len(held))
    assert len({*ids.tolist()}) == len(ids)
    if not held:
        return
    keys = [*held]
    all_of_them = similarities(metric, np.stack([held[key] for key in keys]), query)
    expected = np.sort(all_of_them)[::-1][:k]
    by_id = dict(zip(keys, all_of_them, strict=True))
    got = np.array([by_id[one] for one in ids.tolist()])
    np.testing.assert_allclose(got, expected, atol=tolerance, rtol=tolerance)
    sign = -1 if metric == "l2" else 1
    np.testing.assert_allclose(scores, sign * got, atol=tolerance, rtol=tolerance)


async def inserted_under_faults(
    device: Device, path: Path, faults: int, go_on: Callable[[int], bool] = lambda _: True
) -> tuple[dict[int, NDArray[Any]], int]:
    """Insert and search while contexts end, and check every answer.

    Args:
        device: a device that may break as often.
        path: the index's folder.
        faults: how many there are. Each third one kills the host.
        go_on: called with the number of faults so far; says whether there shall be more.

    Returns:
        The vectors that were acknowledged, 40 for each fault, by id; and how many searches were
        answered.
    """
    rows = np.random.default_rng(9).standard_normal((40 * faults, DIMENSION)).astype(np.float16)
    held: dict[int, NDArray[Any]] = {}
    answered = 0
    done = False
    async with index_at(device, path, metric="dot", dtype="f2", seal_at=64) as index:

        async def insert(first: int, last: int) -> None:
            for key in range(first, last):
                await index.insert(key, rows[key])
                held[key] = rows[key]

        async def search(seed: int) -> None:
            nonlocal answered
            random = np.random.default_rng(seed)
            while not done:
                query = random.standard_normal(DIMENSION).astype(np.float16)
                before = {*held}
                found = await index.search(query, 5)
                # What was acknowledged before is found, unless something later is nearer.
                worst = min(found.scores, default=np.float32(-np.inf))
                for key in before - {*found.ids.tolist()}:
                    product = rows[key].astype(np.float32) @ query.astype(np.float32)
                    assert len(found.ids) == 5
                    assert product <= worst + 1e-2
                answered += 1

        async with trio.open_nursery() as nursery:
            for seed in range(3):
                nursery.start_soon(search, seed)
            for fault in range(faults):
                if not go_on(fault):
                    break
                async with trio.open_nursery() as inserts:
                    inserts.start_soon(insert, fault * 40, fault * 40 + 20)
                    inserts.start_soon(insert, fault * 40 + 20, fault * 40 + 40)
                    await (kill_host if fault % 3 == 2 else poison)(device)
            done = True
        query = np.random.default_rng(1).standard_normal(DIMENSION).astype(np.float16)
        found = await index.search(query, 100)
        check_found("dot", held, query, 100, found.ids, found.scores, 5e-3)
    return held, answered


async def check_reopened(device: Device, path: Path, held: dict[int, NDArray[Any]]) -> None:
    """Hold the files of an index against the vectors that were acknowledged."""
    async with index_at(device, path, metric="dot", dtype="f2") as index:
        assert len(index) == len(held)
        for entry in await index.get([*held]):
            np.testing.assert_array_equal(entry.vector, held[entry.id])
