"""The CUDA executor on a cuSOLVER of LAPACK: the same rows, the vendor's conventions."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, LinAlgError, Unsupported
from atomr_accel.libraries.linalg._facade import LANE
from atomr_accel.libraries.linalg.host import _cuda
from atomr_accel.libraries.linalg.host._sizes import WorkspaceSizes

from ... import seeds
from ...fakes.cublas import FakeLibrary
from ...fakes.cusolver import FakeCudaSolver, FakeKernels, FakeSolverLibrary, array_on_the_cpu
from ...fakes.driver import FakeDriver
from ...fakes.lapack import integers, memory
from ...fakes.vendor import FakeContext
from ..conformance import conform, on_cuda
from .rows import OPERATIONS

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> FakeSolverLibrary:
    from atomr_accel.libraries.blas.host import cuda_handle as _cuda_handle

    blas, solver = FakeLibrary(), FakeSolverLibrary()
    monkeypatch.setattr(_cuda_handle, "load_cublas", lambda: blas)
    monkeypatch.setattr(_cuda, "load_cusolver", lambda: solver)
    monkeypatch.setattr(_cuda, "CudaArrayExecutor", array_on_the_cpu)
    monkeypatch.setattr(_cuda, "Kernels", FakeKernels)
    monkeypatch.setattr(FakeKernels, "launched", solver.called)
    FakeCudaSolver.install(monkeypatch, LANE)
    return solver


test_conforms = conform(
    [row for row in OPERATIONS if row.name != "linalg.ldl"], take=24, of="the executor of linalg"
)


async def test_options_that_scipy_alone_has_are_refused(device: Device) -> None:
    a = await device.put(np.eye(3))
    with pytest.raises(Unsupported, match="no ldl"):
        await device.linalg.ldl(a)


async def test_rows_that_are_not_there_are_told(device: Device) -> None:
    a, b = await device.put(np.eye(3)), await device.put(np.ones(3))
    with pytest.raises(LinAlgError, match="that are not there"):
        await device.linalg.lu_solve((a, await device.put(np.array([0, 1, 7]))), b)


SMALL, MIDDLE, LARGE = (4, 16, 16), (2, 40, 40), (3, 130, 130)
FUNCTIONS = [
    ("solve", SMALL, {"gesv<double, 16>"}),
    ("solve", MIDDLE, set()),  # cuBLAS's
    ("solve", LARGE, {"Xgetrf", "Xgetrs"}),
    ("cholesky", SMALL, {"potrf<double, 16>"}),
    ("cholesky", MIDDLE, {"DpotrfBatched"}),
    ("cholesky", LARGE, {"Xpotrf"}),
    ("lu_factor", (2, 5, 5), {"getrf<double, 8>"}),
    ("qr", SMALL, {"geqrf<double, 16>", "orgqr<double, 16>"}),
    ("qr", (2, 130, 20), {"Xgeqrf", "Dorgqr"}),
    ("svdvals", SMALL, {"DgesvdjBatched"}),
    ("svdvals", SMALL[1:], {"Xgesvd"}),
    ("eigvalsh", SMALL, {"DsyevjBatched"}),
    ("eigvalsh", LARGE, {"Xsyevd"}),
]


@pytest.mark.parametrize(("name", "shape", "functions"), FUNCTIONS)
async def test_stacks_of_small_matrices_go_at_once(
    device: Device,
    library: FakeSolverLibrary,
    name: str,
    shape: tuple[int, ...],
    functions: set[str],
) -> None:
    a = await device.put(np.broadcast_to(np.eye(shape[-2], shape[-1]), shape).copy())
    library.called.clear()
    call: Callable[..., Any] = getattr(device.linalg, name)
    await call(a, *([a] if name == "solve" else []))
    used = {each for each in library.called if not each.endswith("_bufferSize")}
    assert {each for each in used if each[0] in "XD" or "<" in each} - {
        "DestroyParams"
    } == functions


async def test_workspace_is_asked_for_once(device: Device, library: FakeSolverLibrary) -> None:
    a = await device.put(np.eye(5))
    for _ in range(3):
        await device.linalg.cholesky(a)
    assert library.called.count("Xpotrf_bufferSize") == 1
    async with device.batch() as batch:  # which has no answers, and a workspace that is the host's
        made = batch.linalg.cholesky(await device.put(4 * np.eye(6)))
    np.testing.assert_array_equal(await device.get(made), 2 * np.eye(6))


async def test_a_failure_is_told_by_what_the_device_says(device: Device) -> None:
    stack = np.broadcast_to(np.eye(3), (5, 3, 3)).copy()
    stack[2, 1, 1] = stack[4, 0, 0] = -1
    a = await device.put(stack)
    for _ in range(3):
        with pytest.raises(LinAlgError, match=r"matrix 2 of 5 .*and 1 more") as caught:
            await device.linalg.cholesky(a)
        assert (caught.value.index, caught.value.info) == (2, 2)


async def test_statuses_become_errors(device: Device, library: FakeSolverLibrary) -> None:
    a = await device.put(np.eye(4))
    library.functions["cusolverDnXpotrf"] = lambda *_: 7
    with pytest.raises(LibraryError, match="INTERNAL_ERROR") as caught:
        await device.linalg.cholesky(a)
    assert (caught.value.library, caught.value.call) == ("cusolver", "cusolverDnXpotrf")
    library.functions["cusolverDnXgesvd"] = lambda *_: 9
    with pytest.raises(Unsupported, match="cusolverDnXgesvd"):
        await device.linalg.svdvals(a)
    assert await device.get(await device.linalg.det(a)) == 1, "the lane goes on"


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("wrong", ["moved", "info"])
async def test_singular_values_that_a_polar_decomposition_moves_are_computed_again(
    device: Device, library: FakeSolverLibrary, dtype: str, wrong: str
) -> None:
    polar = library.functions["cusolverDnXgesvdp"]

    def moves(*args: Any) -> int:
        polar(*args)
        if wrong == "moved":
            args[-1]._obj.value = 1e-7
        else:
            integers(args[-2], 1)[0] = 3
        for pointer in filter(None, (args[7], args[10], args[12], args[15])):
            memory(pointer, 3)[:] = 0xEE
        return 0

    library.functions["cusolverDnXgesvdp"] = moves
    given = seeds.rng().standard_normal((2, 7, 4)).astype(dtype)
    if dtype == "complex128":
        given *= 1j * given[:, ::-1]
    a = await device.put(given)
    for full in (False, True):
        u, s, vh = await device.linalg.svd(a, full, algorithm="gesvdp")
        left, values = (await device.get(u))[..., :4], await device.get(s)
        found = left * values[:, None, :] @ await device.get(vh)
        np.testing.assert_allclose(found, given, atol=1e-5)
    found = await device.get(await device.linalg.svdvals(a, algorithm="gesvdp"))
    np.testing.assert_allclose(found, values, rtol=1e-5)
    assert library.called.count("Xgesvdp") == library.called.count("Xgesvd") == 6


async def test_singular_values_alone_have_room_for_vectors_that_are_written_all_the_same(
    device: Device, library: FakeSolverLibrary
) -> None:
    given = seeds.rng().standard_normal((3, 5, 9)).astype(np.float32)
    a, beside = await device.put(given), await device.full((4096,), 7.0, np.float32)
    found = await device.get(await device.linalg.svdvals(a, algorithm="gesvdp"))
    np.testing.assert_allclose(found, np.linalg.svdvals(given), rtol=1e-5)
    assert (await device.get(beside) == 7).all()
    assert library.called.count("Xgesvdp") == 3


async def test_large_matrices_go_to_a_polar_decomposition(
    device: Device, library: FakeSolverLibrary
) -> None:
    for shape, full, expected in (
        ((128, 128), True, "Xgesvdp"),
        ((128, 130), False, "Xgesvdp"),
        ((128, 130), True, "Xgesvd"),
        ((127, 200), False, "Xgesvd"),
    ):
        library.called.clear()
        a = await device.put(np.eye(*shape))
        await device.linalg.svd(a, full_matrices=full)
        assert {each for each in library.called if each[0] == "X" and "_" not in each} == {expected}


@pytest.mark.parametrize("size", [1e-42, 1e-30, 5e37])
async def test_solver_receives_numbers_whose_squares_are_finite(
    device: Device, size: float
) -> None:
    given = np.float32(size) * np.array([[1, 2, 0.5], [0, 3, 0]], np.float32)
    a = await device.put(given)
    found = await device.get(await device.linalg.svdvals(a, algorithm="gesvdp"))
    expected = np.linalg.svdvals(given.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-2 if size < 1e-40 else 1e-6)


async def test_solver_receives_no_input_that_may_not_converge(
    device: Device, library: FakeSolverLibrary
) -> None:
    stack = np.stack([np.full((3, 2), value) for value in (2, 0, np.nan, 1, np.inf)])
    a = await device.put(stack)
    for again in range(3):
        with pytest.raises(LinAlgError, match=r"matrix 2 of 5 holds NaN .* and 1 more") as caught:
            await device.linalg.svd(a, full_matrices=False, algorithm="gesvdp")
        assert caught.value.index == 2, again
    good = await device.put(stack[[0, 1, 3]])
    u, s, vh = await device.linalg.svd(good, full_matrices=False, algorithm="gesvdp")
    left, values = await device.get(u), await device.get(s)
    found = left * values[:, None] @ await device.get(vh)
    np.testing.assert_allclose(found, stack[[0, 1, 3]], atol=1e-14)
    np.testing.assert_allclose(left.mT @ left, np.broadcast_to(np.eye(2), (3, 2, 2)), atol=1e-14)
    assert library.called.count("Xgesvdp") == 18


async def test_a_singular_system_that_is_refined_is_told_by_the_status(
    device: Device, library: FakeSolverLibrary
) -> None:
    a = await device.put(np.eye(4))
    library.functions["cusolverDnDHgesv"] = lambda *_: 30
    with pytest.raises(LinAlgError, match="Singular"):
        await device.linalg.solve(a, a, refine="float16")


async def test_a_singular_system_that_is_refined_is_told_by_what_comes_out(device: Device) -> None:
    a, lost = await device.put(np.diag([1.0, 0, 1])), await device.put(np.full((3, 3), np.nan))
    with pytest.raises(LinAlgError, match="Singular"):
        await device.linalg.solve(a, a, refine="float16")
    assert np.isnan(await device.get(await device.linalg.solve(lost, a, refine="float16"))).all()


async def test_in_a_graph_what_waits_is_refused_and_failures_are_nan(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    stream = SimpleNamespace(
        handle=0, pointer=0, captures=True, keep=lambda *each: kept.append(each)
    )
    monkeypatch.setattr(FakeCudaSolver, "stream", stream)
    bad = await device.put(-np.eye(4))
    assert np.isnan(await device.get(await device.linalg.cholesky(bad))).any()
    for call in (device.linalg.svdvals, device.linalg.eigvals, device.linalg.eigvalsh):
        with pytest.raises(Unsupported, match="recording"):
            await call(bad)


@pytest.mark.parametrize(("deterministic", "mode"), [(True, 1), (False, 2)])
async def test_the_mode_is_the_devices(
    device: Device,
    library: FakeSolverLibrary,
    monkeypatch: pytest.MonkeyPatch,
    deterministic: bool,
    mode: int,
) -> None:
    monkeypatch.setattr(FakeContext, "deterministic", deterministic)
    modes: list[int] = []

    def set_mode(_handle: int, chosen: int) -> int:
        modes.append(chosen)
        return 0

    library.functions["cusolverDnSetDeterministicMode"] = set_mode
    await device.linalg.det(await device.put(np.eye(2)))
    assert modes == [mode]


async def test_plans_are_dropped_with_their_memory_but_for_what_a_graph_has(
    device: Device, library: FakeSolverLibrary, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda, "_MOST_PLANS", 2)
    held = []
    for size in (6, 7, 8, 9, 6):
        a = await device.put(4 * np.eye(size))
        async with device.batch() as batch:
            made = batch.linalg.cholesky(a)
        np.testing.assert_array_equal(await device.get(made), 2 * np.eye(size))
        held.append(len(driver.held))
    assert held[1:] == [held[1]] * 4
    assert library.called.count("Xpotrf_bufferSize") == 5


def test_memory_of_a_plan_outlives_it_in_graphs(driver: FakeDriver) -> None:
    plan = _cuda._SolverPlan(None, WorkspaceSizes(256))  # type: ignore[arg-type]
    plan.graphs = 2
    plan.work(0)
    plan.close()
    plan.leave()
    assert driver.held
    plan.leave()
    assert not driver.held


async def test_handles_and_memory_are_given_back(
    device: Device, library: FakeSolverLibrary, driver: FakeDriver
) -> None:
    before = len(driver.held)
    a = await device.put(seeds.rng().standard_normal((3, 40, 40)))
    await device.linalg.inv(a)
    assert library.made == 4
    assert len(driver.held) > before
