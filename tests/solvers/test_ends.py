"""Solvers without a solution: their stops, their reports, and refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import ContextPoisoned, Device, GpuRef
from atomr_accel.solvers import bicgstab, cg, gmres, lobpcg, minres
from atomr_accel.solvers._iterating import iterate

from .. import seeds

SOLVERS: dict[str, Callable[..., Any]] = {
    "cg": cg,
    "bicgstab": bicgstab,
    "minres": minres,
    "gmres": gmres,
}
N = 6
each_solver = pytest.mark.parametrize("name", SOLVERS)


@pytest.fixture(autouse=True)
def quiet() -> Any:
    """The CPU backend's NumPy warns of NaN and infinity, which are what this is about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.mark.parametrize("where", ["b", "x0", "A", "M"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@each_solver
async def test_infinite_residual_is_no_solution(
    device: Device, name: str, value: float, where: str
) -> None:
    given = {"A": np.diag(np.arange(1.0, 1 + N)), "M": np.eye(N), "b": np.ones(N), "x0": np.ones(N)}
    given[where].flat[0] = value
    refs = {key: await device.put(array) for key, array in given.items()}
    _, info = await SOLVERS[name](device, **refs, maxiter=9)
    assert info == 9


@each_solver
async def test_a_residual_that_grows_without_end_is_no_solution(device: Device, name: str) -> None:
    a = await device.put(np.full((N, N), 1e308))
    _, info = await SOLVERS[name](device, a, await device.put(np.full(N, 1e155)), maxiter=5)
    assert info == 5


@each_solver
async def test_without_iterations_only_what_is_small_enough_is_a_solution(
    device: Device, name: str
) -> None:
    a, b = await device.put(np.eye(N)), await device.put(np.ones(N))
    assert (await SOLVERS[name](device, a, b, maxiter=0))[1] == 1
    assert (await SOLVERS[name](device, a, b, b, maxiter=0))[1] == 0
    assert (await SOLVERS[name](device, a, b, atol=100, maxiter=0))[1] == 0


@each_solver
async def test_zeros_solve_for_zeros_wherever_it_begins(device: Device, name: str) -> None:
    a, b = await device.put(np.eye(N) * 3), await device.put(np.zeros(N))
    start = await device.put(seeds.rng().standard_normal(N))
    x, info = await SOLVERS[name](device, a, b, start)
    assert info == 0
    assert not (await device.get(x)).any()


@each_solver
async def test_a_matrix_of_zeros_solves_nothing_else(device: Device, name: str) -> None:
    a, b = await device.put(np.zeros((N, N))), await device.put(np.ones(N))
    assert (await SOLVERS[name](device, a, b, maxiter=4))[1] == 4


async def test_norms_do_not_overflow_in_single_precision(device: Device) -> None:
    a = await device.put(np.eye(N, dtype=np.float32))
    b = await device.put(np.full(N, 1e25, np.float32))
    _, info = await gmres(device, a, b)
    assert info == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
async def test_eigenvalues_of_what_is_not_finite_are_an_error(device: Device, value: float) -> None:
    a = np.eye(N)
    a[0, 0] = value
    x = await device.put(seeds.rng().standard_normal((N, 1)))
    with pytest.raises(np.linalg.LinAlgError, match="products of A, M and X hold NaN or infinity"):
        await lobpcg(device, await device.put(a), x)


async def test_a_fault_of_both_the_look_and_the_steps_is_told_once() -> None:
    cause = RuntimeError("the fault itself")

    class Poisoned:
        status = tolerance = most = None

        async def get(self, ref: object = None) -> None:
            await trio.lowlevel.checkpoint()
            raise ContextPoisoned("it", generation=1, status=0, status_name="", op="") from cause

        replay = get

    given: Any = Poisoned()
    with pytest.raises(ContextPoisoned) as caught:
        await iterate(given, given, given, None)
    assert caught.value.__cause__ is cause


async def test_errors_say_what_is_wrong_with_operators(device: Device) -> None:
    a, b = await device.put(np.eye(N)), await device.put(np.ones(N))

    async def late(recording: Any, x: GpuRef) -> GpuRef:
        raise AssertionError("nobody awaits it")

    wrong: list[tuple[Any, type[Exception], str]] = [
        (None, TypeError, "A must be a SparseRef, a GpuRef or a function"),
        (lambda _, x: None, TypeError, "must give a ref, .* not NoneType"),
        (late, TypeError, "late must give a ref, .* not coroutine"),
        (lambda _, x: x[:2], ValueError, r"gives shape \(2,\) for a vector of shape \(6,\)"),
        (
            lambda recording, x: recording.evaluate(x > 0),
            TypeError,
            "gives bool for a vector of float",
        ),
    ]
    for operator, kind, message in wrong:
        with pytest.raises(kind, match=message):
            await cg(device, operator, b)
    with pytest.raises(TypeError, match="must give a ref"):
        await cg(device, a, b, M=lambda _, x: None)  # type: ignore[arg-type]


async def test_errors_say_what_is_wrong_with_vectors_and_options(device: Device) -> None:
    a, b = await device.put(np.eye(N)), await device.put(np.ones(N))
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (await device.put(np.ones(N, int)), {}, "b must be a ref of float32, .*, not of int64"),
        (b + 1, {}, "evaluate it first"),
        (np.ones(N), {}, "put it on the device first"),
        (b, {"x0": np.ones(N)}, "x0 must be a GpuRef"),
        (b, {"rtol": "x"}, "rtol must be a real number"),
        (b, {"atol": None}, "atol must be a real number"),
        (b, {"callback": 3}, "callback must be a function, not int"),
    ]
    for solver in SOLVERS.values():
        for right, options, message in wrong:
            with pytest.raises(TypeError, match=message):
                await solver(device, a, right, **options)
        with pytest.raises(ValueError, match="rtol must be at least 0, not nan"):
            await solver(device, a, b, rtol=np.nan)
    x = await device.put(seeds.rng().standard_normal((N, 1)))
    for options, message in (
        ({"tol": "x"}, "tol must be a real number"),
        ({"callback": 3}, "callback must be a function"),
        ({"largest": "no"}, "largest must be True or False"),
    ):
        with pytest.raises(TypeError, match=message):
            await lobpcg(device, a, x, **options)
