"""The CUDA executor of direct solvers on a cuDSS of SciPy, through the vendor's prototypes."""

from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, LibraryMissing, LinAlgError, Unsupported
from atomr_accel.executors.vendor import VendorLibrary
from atomr_accel.libraries.sparse.direct import DIRECT as LANE
from atomr_accel.libraries.sparse.host import _direct_cuda, _prototypes_dss

from ...fakes.cudss import FakeCudaDirect, FakeDss
from ..conformance import conform, on_cuda
from .direct_rows import DIRECT, MATRIX

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> FakeDss:
    fake = FakeDss()
    monkeypatch.setattr(_direct_cuda, "load_cudss", lambda: fake)
    FakeCudaDirect.install(monkeypatch, LANE)
    return fake


test_conforms = conform(DIRECT, take=4, of="the executor of direct solvers")


async def test_a_structure_is_analysed_once(device: Device, library: FakeDss) -> None:
    a, b = await device.sparse.put(MATRIX), await device.put(np.ones(3))
    lu = await device.sparse.splu(a, refinement=2)
    await lu.refactorize(a)
    await lu.solve(b)
    await lu.solve(b)
    assert library.phases == [
        *("ANALYSIS", "FACTORIZATION", "REFACTORIZATION"),
        *("SOLVE", "SOLVE"),
    ]


async def test_factors_are_dropped_with_their_object(device: Device, library: FakeDss) -> None:
    a, b = await device.sparse.put(MATRIX), await device.put(np.ones(3))
    kept = await device.sparse.splu(a)
    held = len(library.things)
    for _ in range(3):
        await device.sparse.spsolve(a, b)
    await kept.solve(b)  # sends the lane the pending message, too
    await kept.solve(b)
    assert len(library.things) == held


async def test_options_reach_the_library(device: Device, library: FakeDss) -> None:
    lu = await device.sparse.splu(
        await device.sparse.put(MATRIX),
        reordering="amd",
        pivoting="local_block",
        pivot_threshold=0.5,
        pivot_epsilon=1e-9,
        refinement=3,
    )
    (config,) = [each for each in library.things.values() if hasattr(each, "options")]
    enums = _prototypes_dss.ENUMS
    assert config.options == {
        "DETERMINISTIC_MODE": 0,
        "IR_N_STEPS": 3,
        "PIVOT_EPSILON": 1e-9,
        "PIVOT_THRESHOLD": 0.5,
        "PIVOT_TYPE": enums["CUDSS_PIVOT_LOCAL_BLOCK"],
        "REORDERING_ALG": enums["CUDSS_REORDERING_ALG_AMD"],
        "SOLVE_MODE": 0,
    }
    await lu.solve(await device.put(np.ones(3)), "T")
    assert config.options["SOLVE_MODE"] == 1


@pytest.mark.parametrize(
    ("dtype", "kind", "name", "modes"),
    [
        ("float64", "general", "GENERAL", (0, 1, 1)),
        ("complex128", "general", "GENERAL", (0, 1, 2)),
        ("float64", "spd", "SPD", (0, 0, 0)),
        ("complex64", "spd", "HPD", (0, 1, 0)),
        ("float64", "hermitian", "SYMMETRIC", (0, 0, 0)),
        ("complex64", "hermitian", "HERMITIAN", (0, 1, 0)),
        ("complex64", "symmetric", "SYMMETRIC", (0, 0, 2)),
    ],
)
def test_transposes_that_are_the_matrix_itself_are_none(
    dtype: str, kind: Any, name: str, modes: tuple[int, ...]
) -> None:
    from atomr_accel.libraries.sparse.wire._direct import SparseSystem
    from atomr_accel.libraries.sparse.wire._messages import Matrix

    matrix = Matrix("csr", (3, 3), 5, "int32", dtype)
    system = SparseSystem(
        matrix, kind, "full", "default", "auto", None, None, 0, deterministic=False
    )
    assert _direct_cuda.matrix_type(system) == name
    assert tuple(_direct_cuda.effective(system, trans) for trans in range(3)) == modes


async def test_direct_executor_reports_refusals_of_the_library(
    device: Device, library: FakeDss
) -> None:
    a, b = await device.sparse.put(MATRIX), await device.put(np.ones(3))
    lu = await device.sparse.splu(a)
    held = len(library.things)
    library.refused = {"SOLVE"}
    with pytest.raises(Unsupported, match="cudssExecute"):
        await lu.solve(b, "T")
    library.functions["cudssExecute"] = lambda *_: 6
    with pytest.raises(LibraryError) as caught:
        await lu.solve(b)
    assert (caught.value.library, caught.value.status) == ("cudss", 6)
    assert len(library.things) == held


async def test_without_the_library(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise LibraryMissing("the vendor library cudss is not installed", library="cudss")

    monkeypatch.setattr(_direct_cuda, "load_cudss", load)
    a = await device.sparse.put(MATRIX)
    with pytest.raises(LibraryMissing, match="the vendor library cudss is not installed"):
        await device.sparse.splu(a)


@pytest.mark.headers
def test_options_have_the_sizes_that_the_library_says() -> None:
    try:
        library = VendorLibrary("cudss", _prototypes_dss.PROTOTYPES, _prototypes_dss.STATUS_NAMES)
    except LibraryMissing as missing:
        pytest.skip(str(missing))
    config, size = ctypes.c_void_p(), ctypes.c_size_t()
    library.call("cudssConfigCreate", byref(config))
    for name, kind in _prototypes_dss.OPTIONS.items():
        option = _prototypes_dss.ENUMS[f"CUDSS_CONFIG_{name}"]
        library.call("cudssConfigGet", config.value, option, None, 0, byref(size))
        assert size.value == {"int": 4, "double": 8}[kind], name
    library.call("cudssConfigDestroy", config.value)


async def test_factors_that_could_not_be_made_anew_solve_nothing(
    device: Device, library: FakeDss
) -> None:
    a, b = await device.sparse.put(MATRIX), await device.put(np.ones(3))
    lu = await device.sparse.splu(a)
    library.refused.add("REFACTORIZATION")
    with pytest.raises((LibraryError, Unsupported)):
        await lu.refactorize(a)
    with pytest.raises(LinAlgError, match="there are no factors"):
        await lu.solve(b)
    library.refused.clear()
    await lu.refactorize(a)
    await lu.solve(b)
