"""Functions that are made of others, in batches and recordings, and their errors."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef, Unsupported

from ...harness import on_shared
from ..conformance import MARKS
from ..refusals import refuses

pytestmark = MARKS


CALLS: dict[str, tuple[Any, Any]] = {
    "outer": (lambda on, x, y: on.outer(x[0], y[0]), np.linalg),
    "tensordot": (lambda on, x, y: on.tensordot(x, y, axes=1), np.linalg),
    "cross": (lambda on, x, y: on.cross(x[:, :3], y[:, :3]), np.linalg),
    "trace": (lambda on, x, y: on.trace(x, offset=1), np.linalg),
    "diagonal": (lambda on, x, y: on.diagonal(x, offset=-1), np.linalg),
    "multi_dot": (lambda on, x, y: on.multi_dot([x[0], y, x, y[:, :2]]), np.linalg),
    "vector_norm": (lambda on, x, y: on.vector_norm(x), np.linalg),
    "matrix_norm": (lambda on, x, y: on.matrix_norm(x, ord="nuc"), np.linalg),
    "tensorsolve": (
        lambda on, x, y: on.tensorsolve(x.reshape(2, 2, 4), y[0].reshape(2, 2)), np.linalg
    ),
    "tensorinv": (lambda on, x, y: on.tensorinv(x.reshape(2, 2, 4)), np.linalg),
    "lu": (lambda on, x, y: on.lu(x[:, :3]), scipy.linalg),
    "lu of rows": (lambda on, x, y: on.lu(x[:3], permute_l=True), scipy.linalg),
    "lu by places": (lambda on, x, y: on.lu(x, p_indices=True), scipy.linalg),
    "block_diag": (lambda on, x, y: on.block_diag(x, y[0]), scipy.linalg),
    "toeplitz": (lambda on, x, y: on.toeplitz(x[0], y[0]), scipy.linalg),
    "pinvh": (lambda on, x, y: on.pinvh(x, rtol=1e-9, return_rank=True), scipy.linalg),
}  # fmt: skip
"""Calls of two matrices, and their reference."""


def each(found: Any) -> list[Any]:
    return [*found] if isinstance(found, tuple) else [found]


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=3)
@given(seed=st.integers(0, 99))
@on_shared
async def test_functions_are_the_same_awaited_in_batches_and_in_recordings(
    device: Device, name: str, seed: int
) -> None:
    call, reference = CALLS[name]
    random = np.random.default_rng(seed)
    one, other = random.uniform(-1, 1, (2, 4, 4)) + 3 * np.eye(4)
    one = one @ one.T if name == "pinvh" else one
    expected = each(call(reference, one, other))
    x, y = await device.put(one), await device.put(other)

    async def check(made: Any) -> None:
        for got, wanted in zip(each(made), expected, strict=True):
            np.testing.assert_allclose(await device.get(got), wanted, 1e-9, 1e-9)

    for _ in range(3):  # by a template, where there is one
        made = call(device.linalg, x, y)
        await check(made if isinstance(made, GpuRef) else await made)
    async with device.batch() as batch:
        made = call(batch.linalg, x, y)
    await check(made)
    if name in ("matrix_norm", "pinvh"):  # which wait for the device
        return
    async with device.record() as recording:
        made = call(recording.linalg, x, y)
    for _ in range(2):
        await recording.replay()
        await check(made)


@on_shared
async def test_the_factor_and_which_triangle_it_is(device: Device) -> None:
    a = await device.put(np.array([[4.0, 2.0], [2.0, 5.0]]))
    async with device.batch() as batch:
        made: Any = batch.linalg.cho_factor(a, lower=True)
        x = batch.linalg.cho_solve(made, a)
    np.testing.assert_allclose(await device.get(x), np.eye(2), atol=1e-12)
    assert (await device.get(made[0])).tolist() == [[2.0, 0.0], [1.0, 2.0]]


@pytest.mark.parametrize("name", ["null_space", "orth"])
@settings(max_examples=4)
@given(seed=st.integers(0, 99), rank=st.integers(0, 3))
@on_shared
async def test_spaces_are_as_large_as_the_rank_says(
    device: Device, name: str, seed: int, rank: int
) -> None:
    random = np.random.default_rng(seed)
    host = random.uniform(-1, 1, (5, rank)) @ random.uniform(-1, 1, (rank, 4))
    a = await device.put(host)
    got = await device.get(await getattr(device.linalg, name)(a, rcond=1e-9))
    expected = getattr(scipy.linalg, name)(host, rcond=1e-9) if rank else np.eye(4)
    expected = expected[:, :0] if name == "orth" and not rank else expected
    assert got.shape[1] == expected.shape[1]
    if got.size:
        np.testing.assert_allclose(got @ got.T, expected @ expected.T, atol=1e-9)
    async with device.batch() as batch:
        with pytest.raises(Unsupported, match="await it before"):
            getattr(batch.linalg, name)(a)


test_bad_arguments = refuses(
    "linalg",
    [
        ("outer(f8_3x3, f8_3x3)", ValueError, "one dimension"),
        ("multi_dot(f8_3x3)", TypeError, "list or tuple of refs"),
        ("multi_dot([f8_3x3])", ValueError, "at least two"),
        ("multi_dot([f8_3x3, f8_3x3[0], f8_3x3])", np.linalg.LinAlgError, "two-dimensional"),
        ("multi_dot([f8_3x3, f8_3x3[:2]])", ValueError, "must have 3 rows"),
        ("tensorsolve(f8_3x3, f8_3x3[:2, 0])", np.linalg.LinAlgError, "as many elements"),
        ("tensorinv(f8_3x3, 0)", ValueError, "ind must be above 0"),
        ("tensorinv(f8_3x3, 2)", np.linalg.LinAlgError, "halves of one size"),
        ("matrix_norm(f8_3x3, ord=7)", ValueError, "Invalid norm order"),
        ("pinvh(f8_3x3[:2])", np.linalg.LinAlgError, "square"),
        ("orth(f8_3x3[0])", np.linalg.LinAlgError, "one matrix"),
        ("toeplitz(f8_3x3)", ValueError, "one dimension"),
        ("block_diag([1, 2])", TypeError, "device.put"),
        ("lu(f8_3x3[0])", np.linalg.LinAlgError, "two-dimensional"),
    ],
)


@on_shared
async def test_the_fastest_order_writes_to_out(device: Device) -> None:
    random = np.random.default_rng(0)
    sizes = [7, 2, 9, 1, 5]
    hosts = [random.normal(size=pair) for pair in itertools.pairwise(sizes)]
    out = await device.zeros((7, 5))
    assert await device.linalg.multi_dot([await device.put(x) for x in hosts], out=out) is out
    np.testing.assert_allclose(await device.get(out), np.linalg.multi_dot(hosts), 1e-12)
