"""A model of vector indexes in NumPy, which their tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atomr_accel.agents import open_vector_index

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from atomr_accel import Device
    from atomr_accel.agents import VectorIndex

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
