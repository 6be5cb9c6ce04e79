"""Iterative solvers against SciPy's direct one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as direct

from atomr_accel import Device, GpuRef
from atomr_accel.solvers import bicgstab, cg, gmres, lobpcg, minres

from .. import seeds

N = 40
sparse: Any = scipy.sparse
SOLVERS: dict[str, Callable[..., Any]] = {
    "cg": cg,
    "bicgstab": bicgstab,
    "minres": minres,
    "gmres": gmres,
}
EPS = {"float32": 1e-4, "float64": 1e-9, "complex64": 1e-4, "complex128": 1e-9}


def matrix(name: str, dtype: str) -> Any:
    """Positive definite for ``cg``, indefinite for ``minres``, of any kind for the others."""
    line = sparse.diags_array(
        [np.full(N - 1, -1.0), np.full(N, 3.0), np.full(N - 1, -1.0)], offsets=[-1, 0, 1]
    )
    skew = sparse.diags_array([np.full(N - 1, -0.5), np.full(N - 1, 0.5)], offsets=[-1, 1])
    made = line
    if name == "minres":
        made = line - sparse.diags_array(np.where(np.arange(N) < 3, 9.0, 0.0))
    if dtype.startswith("complex"):
        made = made.astype(complex) + 1j * skew  # still Hermitian
    elif name in ("bicgstab", "gmres"):
        made = made + skew
    return sparse.csr_array(made.astype(dtype))


async def solve(device: Device, name: str, dtype: str, **options: Any) -> tuple[float, int, GpuRef]:
    """Return the relative residual, the solver's report, and the solution."""
    a = matrix(name, dtype)
    right = seeds.rng().standard_normal(N).astype(dtype)
    b = await device.put(right)
    x, info = await SOLVERS[name](device, await device.sparse.put(a), b, **options)
    left = a @ await device.get(x) - right
    return float(np.linalg.norm(left) / np.linalg.norm(right)), info, x


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", SOLVERS)
async def test_solver_finds_the_solution(device: Device, name: str, dtype: str) -> None:
    error, info, x = await solve(device, name, dtype, rtol=EPS[dtype] / 2)
    assert info == 0
    assert error < EPS[dtype]
    assert x.dtype == dtype


@pytest.mark.parametrize("name", SOLVERS)
async def test_a_preconditioner_is_a_matrix_or_a_function(device: Device, name: str) -> None:
    diagonal = sparse.csr_array(sparse.eye_array(N) / 3)
    given = await device.sparse.put(diagonal)

    def scaled(recording: Any, r: GpuRef) -> GpuRef:
        made: GpuRef = recording.evaluate(r / 3)
        return made

    for m in (given, scaled, await device.put(diagonal.toarray())):
        error, info, _ = await solve(device, name, "float64", M=m, rtol=1e-9)
        assert info == 0
        assert error < 1e-7


@pytest.mark.parametrize("name", ["cg", "bicgstab", "minres"])
async def test_solution_does_not_depend_on_when_the_program_reads_progress(
    device: Device, name: str
) -> None:
    found = []
    for every in (1, 7):
        a = await device.sparse.put(matrix(name, "float64"))
        b = await device.put(np.cos(np.arange(N)))
        seen: list[tuple[int, float]] = []
        x, info = await SOLVERS[name](
            device, a, b, rtol=1e-6, every=every, callback=lambda *each, to=seen: to.append(each)
        )
        assert info == 0
        found.append(((await device.get(x)).tobytes(), seen[-1]))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", SOLVERS)
async def test_solver_gives_up_after_its_limit_of_iterations(device: Device, name: str) -> None:
    options = {"restart": 2} if name == "gmres" else {"every": 4}
    error, info, _ = await solve(device, name, "float64", rtol=1e-12, maxiter=2, **options)
    assert info == 2
    assert error > 1e-12


@pytest.mark.parametrize("name", SOLVERS)
async def test_solver_starts_at_x0(device: Device, name: str) -> None:
    a = matrix(name, "float64")
    right = np.sin(np.arange(N))
    exact = direct.spsolve(a.tocsc(), right)
    given, b = await device.sparse.put(a), await device.put(right)
    start = await device.put(exact)
    x, info = await SOLVERS[name](device, given, b, start)
    assert info == 0
    assert x is not start
    np.testing.assert_array_equal(await device.get(x), exact)
    near = await device.put(exact + 1e-3)
    x, info = await SOLVERS[name](device, given, b, near, rtol=1e-10)
    np.testing.assert_allclose(await device.get(x), exact, rtol=1e-6, atol=1e-8)


async def test_zeros_solve_for_zeros(device: Device) -> None:
    a = await device.sparse.put(matrix("cg", "float64"))
    for solver in SOLVERS.values():
        x, info = await solver(device, a, await device.full((N,), 0.0, np.float64))
        assert info == 0
        assert not (await device.get(x)).any()


async def test_solver_refuses_mismatched_shapes(device: Device) -> None:
    a = await device.sparse.put(matrix("cg", "float64"))
    b = await device.put(np.ones(N))
    with pytest.raises(
        ValueError, match=r"A must have 3 elements, as vectors have, not shape \(40, 40\)"
    ):
        await cg(device, a, await device.put(np.ones(3)))
    with pytest.raises(TypeError, match="A must have the dtype of vectors, float32, not float64"):
        await cg(device, a, await device.put(np.ones(N, np.float32)))
    with pytest.raises(TypeError, match="M must be"):
        await cg(device, a, b, M=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rtol must be at least 0"):
        await cg(device, a, b, rtol=-1)
    with pytest.raises(ValueError, match="x0 must be of the shape and dtype of b"):
        await cg(device, a, b, await device.put(np.ones(3)))
    with pytest.raises(ValueError, match="one dimension"):
        await cg(device, a, await device.put(np.ones((N, 1))))


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("largest", [True, False])
async def test_eigenpairs_are_those_of_the_dense_matrix(
    device: Device, dtype: str, largest: bool
) -> None:
    a = matrix("cg", dtype)
    start = seeds.rng().standard_normal((N, 3)).astype(dtype)
    x, given = await device.put(start), await device.sparse.put(a)
    tol = 1e-3 if dtype in ("float32", "complex64") else 1e-7
    seen: list[tuple[int, float]] = []
    values, vectors = await lobpcg(
        device,
        given,
        x,
        tol=tol,
        maxiter=100,
        largest=largest,
        callback=lambda *each: seen.append(each),
    )
    full = np.linalg.eigvalsh(a.toarray().astype(np.complex128))
    expected = full[::-1][:3] if largest else full[:3]
    np.testing.assert_allclose(values, expected, atol=tol)
    found = await device.get(vectors)
    assert np.linalg.norm(a @ found - found * values.astype(dtype), axis=0).max() < 3 * tol
    np.testing.assert_allclose(found.conj().T @ found, np.eye(3), atol=1e-4)
    assert seen[-1][1] <= tol
    assert (await device.get(x)).tobytes() == start.tobytes()


async def test_eigenvalues_take_a_preconditioner_and_say_what_is_wrong(device: Device) -> None:
    a = await device.sparse.put(matrix("cg", "float64"))
    inverse = await device.put(np.linalg.inv(matrix("cg", "float64").toarray()))
    x = await device.put(seeds.rng().standard_normal((N, 2)))
    values, _ = await lobpcg(device, a, x, M=inverse, tol=1e-8, largest=False, maxiter=60)
    expected = np.linalg.eigvalsh(matrix("cg", "float64").toarray())[:2]
    np.testing.assert_allclose(values, expected, atol=1e-8)
    with pytest.raises(ValueError, match="5 k < n"):
        await lobpcg(device, a, await device.put(np.ones((N, 8))))
    with pytest.raises(ValueError, match="dependent columns"):
        await lobpcg(device, a, await device.put(np.zeros((N, 2))))
