"""Matrices that have no such factorization, and calls that are none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_accel import AccelError, Device, LinAlgError, Unsupported

from ..conformance import MARKS, on_cuda

pytestmark = MARKS

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "inv": lambda linalg, a: linalg.inv(a),
    "solve": lambda linalg, a: linalg.solve(a, a),
    "solve, refined": lambda linalg, a: linalg.solve(a, a, refine="float16"),
    "cholesky": lambda linalg, a: linalg.cholesky(a),
    "matrix_power": lambda linalg, a: linalg.matrix_power(a, -2),
}


def stack_with_a_zero(at: int) -> np.ndarray[Any, Any]:
    stack = np.broadcast_to(2 * np.eye(3), (4, 3, 3)).copy()
    stack[at, 1, 1] = 0
    return stack


@pytest.mark.parametrize("name", CALLS)
async def test_the_index_is_told_and_the_lane_goes_on(device: Device, name: str) -> None:
    bad = await device.put(stack_with_a_zero(2))
    for _ in range(3):  # the last one goes by a template
        with pytest.raises(LinAlgError) as caught:
            await CALLS[name](device.linalg, bad)
        assert (caught.value.index, caught.value.info > 0) == (2, True)
        assert isinstance(caught.value, (AccelError, np.linalg.LinAlgError, ValueError))
        assert await device.get(await device.linalg.det(bad[0])) == 8
    async with device.batch() as batch:
        made = CALLS[name](batch.linalg, bad[:2])
    assert np.isfinite(await device.get(made)).all()


async def test_a_batch_raises_as_its_block_is_left(device: Device) -> None:
    bad = await device.put(stack_with_a_zero(1))
    with pytest.raises(LinAlgError, match="Singular") as caught:
        async with device.batch() as batch:
            batch.linalg.inv(bad)
    assert caught.value.index == 1


async def test_a_recording_gives_nan_for_what_failed_and_all_else(device: Device) -> None:
    good = stack_with_a_zero(3)
    good[3, 1, 1] = 2
    a = await device.put(good)
    async with device.record(a) as recording:
        made = recording.linalg.inv(a)
    for at in (0, 3, 1):
        await recording.replay(await device.put(stack_with_a_zero(at)))
        failed = np.isnan(await device.get(made)).all((-2, -1))
        np.testing.assert_array_equal(failed, np.arange(4) == at)


async def test_a_failure_among_others_in_flight_is_its_own(device: Device) -> None:
    import trio

    bad, good = await device.put(np.zeros((5, 5))), await device.put(2 * np.eye(5))
    outcomes: list[object] = []

    async def invert(ref: Any) -> None:
        try:
            outcomes.append((await device.get(await device.linalg.inv(ref)))[0, 0])
        except LinAlgError as error:
            outcomes.append(error.info)

    async with trio.open_nursery() as nursery:
        for at in range(12):
            nursery.start_soon(invert, bad if at % 3 == 0 else good)
    assert sorted(map(float, outcomes)) == [0.5] * 8 + [1.0] * 4  # type: ignore[arg-type]


WRONG: dict[str, tuple[type[Exception], Callable[[Any, Any], Any]]] = {
    "not square": (np.linalg.LinAlgError, lambda linalg, a: linalg.inv(a[:, :2])),
    "one dimension": (np.linalg.LinAlgError, lambda linalg, a: linalg.svd(a[0])),
    "sides that do not fit": (ValueError, lambda linalg, a: linalg.solve(a, a[:2])),
    "a mode": (ValueError, lambda linalg, a: linalg.qr(a, "full")),
    "an algorithm": (ValueError, lambda linalg, a: linalg.svd(a, algorithm="gesdd")),
    "no k": (ValueError, lambda linalg, a: linalg.svd(a, algorithm="gesvdr")),
    "k out of range": (ValueError, lambda linalg, a: linalg.svd(a, algorithm="gesvda", k=4)),
    "no lower precision": (ValueError, lambda linalg, a: linalg.solve(a, a, refine="float64")),
    "trans": (ValueError, lambda linalg, a: linalg.solve_triangular(a, a, trans=3)),
    "a subset": (ValueError, lambda linalg, a: linalg.eigh(a, subset_by_index=(1, 3))),
    "pivots": (TypeError, lambda linalg, a: linalg.lu_solve((a, a[0]), a)),
    "pivots of the program's": (TypeError, lambda linalg, a: linalg.lu_solve((a, [0, 1, 2]), a)),
    "which triangle": (TypeError, lambda linalg, a: linalg.cho_solve((a, "x"), a)),
    "an axis": (TypeError, lambda linalg, a: linalg.norm(a, axis=1.5)),
    "several rcond": (TypeError, lambda linalg, a: linalg.pinv(a, rcond=np.ones(2))),
    "several tol": (TypeError, lambda linalg, a: linalg.matrix_rank(a, tol=np.ones(2))),
    "both rcond and rtol": (ValueError, lambda linalg, a: linalg.pinv(a, 0.1, rtol=0.1)),
    "both tol and rtol": (ValueError, lambda linalg, a: linalg.matrix_rank(a, 0.1, rtol=0.1)),
    "a tol that is none": (ValueError, lambda linalg, a: linalg.matrix_rank(a, tol=np.nan)),
    "an rcond that is none": (ValueError, lambda linalg, a: linalg.pinv(a, rcond=np.nan)),
    "an order": (ValueError, lambda linalg, a: linalg.norm(a, 3)),
    "no array": (TypeError, lambda linalg, a: linalg.det([[1.0]])),
}


@pytest.mark.parametrize("name", WRONG)
async def test_wrong_calls_raise_at_once(device: Device, name: str) -> None:
    error, call = WRONG[name]
    a = await device.put(np.eye(3))
    with pytest.raises(error):
        await call(device.linalg, a)


@pytest.mark.parametrize("power", [1.5, True, "2"])
async def test_non_integer_argument_is_named(device: Device, power: Any) -> None:
    a = await device.put(np.eye(3))
    with pytest.raises(TypeError, match="n must be a whole number"):
        await device.linalg.matrix_power(a, power)
    with pytest.raises(TypeError, match="k must be a whole number"):
        await device.linalg.svd(a, algorithm="gesvdr", k=power)


async def test_half_precision_is_refused(device: Device) -> None:
    with pytest.raises(TypeError, match="float16 is unsupported in linalg"):
        await device.linalg.inv(await device.put(np.eye(2, dtype=np.float16)))


async def test_whole_numbers_are_double_and_arguments_may_be_expressions(device: Device) -> None:
    a = await device.put(np.array([[2, 1], [1, 3]]))
    assert abs(await device.get(await device.linalg.det(a + a)) - 20) < 1e-12
    assert (await device.linalg.inv(a)).dtype == np.float64


async def test_op_that_needs_an_answer_is_refused_in_batches(device: Device) -> None:
    a = await device.put(np.eye(2))
    with pytest.raises(Unsupported, match=r"linalg\.expm .* squarings="):
        async with device.batch() as batch:
            batch.linalg.expm(a)
    async with device.batch() as batch:
        made = batch.linalg.expm(a, squarings=2)
    np.testing.assert_allclose(await device.get(made), np.e * np.eye(2), atol=1e-12)


ITERATED: dict[str, Callable[[Any, Any], Any]] = {
    "svd": lambda linalg, a: linalg.svd(a, full_matrices=False),
    "svdvals": lambda linalg, a: linalg.svdvals(a),
    "polar": lambda linalg, a: linalg.polar(a),
    "pinv": lambda linalg, a: linalg.pinv(a),
    "lstsq": lambda linalg, a: linalg.lstsq(a, a),
    "eigh": lambda linalg, a: linalg.eigh(a),
    "eigh, some": lambda linalg, a: linalg.eigh(a, subset_by_index=(0, 1)),
    "eigh, two": lambda linalg, a: linalg.eigh(abs(a), a + a),
    "eigvals": lambda linalg, a: linalg.eigvals(a),
    "ldl": lambda linalg, a: linalg.ldl(a),
}


@pytest.mark.skipif(on_cuda(), reason="what the vendor makes of that is the vendor's business")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ITERATED)
async def test_infinite_input_fails_before_iterating(
    device: Device, name: str, value: float
) -> None:
    stack = stack_with_a_zero(3)[:3]
    stack[1, 2, 2] = value
    a = await device.put(stack)
    with pytest.raises(LinAlgError, match="matrix 1 of 3 holds NaN or infinity") as caught:
        await ITERATED[name](device.linalg, a)
    assert caught.value.index == 1
    async with device.record() as recording:
        made = ITERATED[name](recording.linalg, a)
    await recording.replay()
    first = await device.get(made[0] if isinstance(made, tuple) else made)
    np.testing.assert_array_equal(np.isnan(first.reshape(3, -1)).all(1), [False, True, False])


@pytest.mark.skipif(on_cuda(), reason="what the vendor makes of that is the vendor's business")
async def test_other_triangle_of_a_symmetric_matrix_may_hold_anything(device: Device) -> None:
    given = np.diag([1.0, 2, 3])
    a = await device.put(given + np.triu(np.full((3, 3), np.nan), 1))
    np.testing.assert_allclose(await device.get(await device.linalg.eigvalsh(a)), [1, 2, 3])
    np.testing.assert_allclose(await device.get((await device.linalg.ldl(a))[1]), given)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("row", [-1, 3, 10**6, 2**32])
async def test_rows_that_are_not_there_are_not_exchanged(
    device: Device, row: int, count: int
) -> None:
    pivots = np.tile(np.arange(3), (count, 1))
    pivots[-1, 1] = row
    lu = await device.put(np.broadcast_to(2 * np.eye(3), (count, 3, 3)).copy())
    piv, b = await device.put(pivots), await device.put(np.ones((count, 3, 2)))
    for _ in range(3):
        with pytest.raises(LinAlgError, match="that are not there") as caught:
            await device.linalg.lu_solve((lu, piv), b)
        assert (caught.value.index, caught.value.info) == (count - 1, 1)
    async with device.record() as recording:
        x = recording.linalg.lu_solve((lu, piv), b)
    await recording.replay()
    failed = np.isnan(await device.get(x)).all((-2, -1))
    np.testing.assert_array_equal(failed, np.arange(count) == count - 1)


async def test_right_hand_side_errors_name_b(device: Device) -> None:
    a, b = await device.put(np.eye(2)), await device.put(-np.eye(2))
    with pytest.raises(LinAlgError, match="b is not positive definite"):
        await device.linalg.eigh(a, b)


FAR: list[Any] = [
    np.repeat([1e3, 1e-3], 20).astype(np.float32),
    np.repeat([1e-3, 1e3], 20).astype(np.float32),
    np.repeat([1e200, -1e-200], 3),
    np.repeat([1e-200, 1e200j], 3),
    np.full(3, -1e200),
    np.array([[0, 1e200 + 1e200j, 0], [1e200, 0, 0], [0, 0, 1]]),
    np.full(3, 1e-200),
    np.array([2.0, 0, 1e300]),
    np.array([np.inf, -1]),
    np.array([np.nan, 1]),
]


@pytest.mark.parametrize("at", range(len(FAR)))
async def test_determinants_do_not_overflow_on_the_way(device: Device, at: int) -> None:
    given = FAR[at] if FAR[at].ndim == 2 else np.diag(FAR[at])
    with np.errstate(all="ignore"):
        expected = np.linalg.det(given)
    found = await device.get(await device.linalg.det(await device.put(given)))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


async def test_determinants_of_whole_numbers_are_whole(device: Device) -> None:
    a = await device.put(np.diag(np.arange(1, 9)))
    assert await device.get(await device.linalg.det(a)) == 40320


async def test_norms_of_nothing_and_ranks_of_vectors_are_numpys(device: Device) -> None:
    linalg = device.linalg
    for shape, axis in (((0, 3), 0), ((2, 0, 3), (1, 2)), ((2, 3, 0), (1, 2))):
        given = np.zeros(shape)
        a = await device.put(given)
        for order in (np.inf,) if isinstance(axis, int) else (np.inf, 1, 2):
            found = await device.get(await linalg.norm(a, order, axis))
            np.testing.assert_array_equal(found, np.linalg.norm(given, order, axis))
    for vector in (np.zeros(3), np.ones(3), np.zeros(0), np.array(2.0)):
        found = await device.get(await linalg.matrix_rank(await device.put(vector)))
        assert found == np.linalg.matrix_rank(vector)
    given = np.diag([4.0, 1.0, 0.5, 1e-3])
    a = await device.put(given)
    for least in (0.01, 0.2, 0.4):
        numpys: Any = np.linalg
        rank = numpys.matrix_rank(given, rtol=least)
        assert await device.get(await linalg.matrix_rank(a, rtol=least)) == rank
        found = await device.get(await linalg.pinv(a, rtol=least))
        np.testing.assert_allclose(found, numpys.pinv(given, rtol=least), atol=1e-12)
    upper = await device.put(np.triu(np.ones((2, 2))))
    np.testing.assert_allclose(
        await device.get(await linalg.eigvalsh(upper, lower=False)), [0, 2], atol=1e-12
    )
