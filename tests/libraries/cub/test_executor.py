"""The CUDA executor against stand-ins for the bindings, and against NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import Device, LibraryError, OutOfMemory, Unsupported, open_device
from atomr_accel.libraries.cub import _operators
from atomr_accel.libraries.cub.call import BUILDER, LANE, WAITING
from atomr_accel.libraries.cub.host import _algorithms, _bindings, _builds
from atomr_accel.libraries.cub.host import cuda as _cuda
from atomr_accel.libraries.cub.wire._spec import CubSpec, encode
from atomr_accel.libraries.cub.wire.messages import BuildCub, RunCub
from atomr_accel.wire import StickyFault

from ...fakes import cub as fakes
from ...fakes.driver import FakeDriver
from ..conformance import on_cuda
from ..host_kernels import needs_compiler

pytestmark = [needs_compiler, pytest.mark.skipif(on_cuda(), reason="the real one is there")]

Array = np.ndarray[Any, Any]
RNG: Final = np.random.default_rng(5)
X: Final = RNG.integers(-5, 6, 23).astype(np.float32)
X[[3, 17]] = np.nan, -0.0
I: Final = RNG.integers(-5, 6, 23).astype(np.int32)  # noqa: E741
C: Final = (RNG.integers(-5, 6, 23) + 1j * RNG.integers(-5, 6, 23)).astype(np.complex64)
W: Final = np.arange(23) - 1j * np.arange(23)
B: Final = I > 0
AT: Final = np.asarray([0, 4, 4, 9, 23], np.int32)
EMPTY: Final = np.empty(0, np.float32)
SOURCE: Final = """
#include <cmath>
__device__ float helper(float a) { return std::fabs(a); }
__device__ float f(float a, float b) { return helper(a) + helper(b); }
"""

CALLS: Final[dict[str, tuple[tuple[Array, ...], Callable[..., Any]]]] = {
    "sum": ((I,), lambda cub, x: cub.reduce(x)),
    "wide sum": ((I,), lambda cub, x: cub.reduce(x, dtype="int64", init=7)),
    "sum of nothing": ((EMPTY,), lambda cub, x: cub.reduce(x)),
    "product of no halves": ((EMPTY.astype(np.float16),), lambda cub, x: cub.reduce(x, "prod")),
    "all of nothing": ((EMPTY,), lambda cub, x: cub.reduce(x, "logical_and", dtype="int32")),
    "complex product of nothing": ((C[:0],), lambda cub, x: cub.reduce(x, "prod")),
    "sum of halves": ((X.astype(np.float16),), lambda cub, x: cub.reduce(x, init=0.5)),
    "product of halves": ((I[:3].astype(np.float16),), lambda cub, x: cub.reduce(x, "prod")),
    "all, as numbers": ((I,), lambda cub, x: cub.reduce(x, "logical_and", dtype="int32")),
    "any, from a number": (
        (I[:0],),
        lambda cub, x: cub.reduce(x, "logical_or", init=2, dtype="int32"),
    ),
    "loose sum": ((I.astype(np.float64),), lambda cub, x: cub.reduce(x, deterministic=False)),
    "complex sum": ((C,), lambda cub, x: cub.reduce(x)),
    "complex product": ((C[:5],), lambda cub, x: cub.reduce(x, "prod")),
    "sum of truths": ((B,), lambda cub, x: cub.reduce(x)),
    "minimum": ((X,), lambda cub, x: cub.reduce(x, "min")),
    "maximum": ((I,), lambda cub, x: cub.reduce(x, "max")),
    "all": ((X,), lambda cub, x: cub.reduce(x, "logical_and")),
    "own": ((I,), lambda cub, x: cub.reduce(x, lambda a, b: min(b, a))),
    "own in C++": (
        (X[5:9],),
        lambda cub, x: cub.reduce(x, cub.operator(SOURCE, "f", cpu=lambda a, b: abs(a) + abs(b))),
    ),
    "argmin": ((X,), lambda cub, x: cub.argmin(x)),
    "argmax": ((I,), lambda cub, x: cub.argmax(x)),
    "argmin of numbers": ((I,), lambda cub, x: cub.argmin(x)),
    "scan": ((I,), lambda cub, x: cub.inclusive_scan(x)),
    "scan of halves": ((X.astype(np.float16),), lambda cub, x: cub.inclusive_scan(x)),
    "complex products so far": ((C[:5],), lambda cub, x: cub.inclusive_scan(x, "multiplies")),
    "scan from": ((I,), lambda cub, x: cub.inclusive_scan(x, init=3)),
    "scan before": ((X,), lambda cub, x: cub.exclusive_scan(x, "max", init=0)),
    "complex scan": ((C,), lambda cub, x: cub.exclusive_scan(x)),
    "scan of nothing": ((EMPTY,), lambda cub, x: cub.inclusive_scan(x)),
    "segments": ((I, AT), lambda cub, x, at: cub.segmented_reduce(x, at[:-1], at[1:])),
    "smallest": ((X, AT), lambda cub, x, at: cub.segmented_reduce(x, at[:-1], at[1:], "min")),
    "products of segments": (
        (I.astype(np.float16), AT),
        lambda cub, x, at: cub.segmented_reduce(x, at[:-1], at[1:], "prod"),
    ),
    "whether all of segments": (
        (I, AT),
        lambda cub, x, at: cub.segmented_reduce(x, at[:-1], at[1:], "logical_and", dtype="float64"),
    ),
    "whether any of segments": (
        (I, AT),
        lambda cub, x, at: cub.segmented_reduce(x, at[:-1], at[1:], "logical_or", dtype="int32"),
    ),
    "sort": ((X,), lambda cub, x: cub.sort(x)),
    "sort down": ((I,), lambda cub, x: cub.sort(x, descending=True)),
    "sort nothing": ((EMPTY,), lambda cub, x: cub.sort(x)),
    "sort truths": ((B,), lambda cub, x: cub.sort(x)),
    "sort pairs": ((I, C), lambda cub, x, y: cub.sort_pairs(x, y)),
    "sort wide pairs": ((I, W), lambda cub, x, y: cub.sort_pairs(x, y)),
    "sort wide pairs down": ((B, W), lambda cub, x, y: cub.sort_pairs(x, y, descending=True)),
    "sort wide nothing": ((EMPTY, W[:0]), lambda cub, x, y: cub.sort_pairs(x, y)),
    "merge wide pairs": ((I, W), lambda cub, x, y: cub.sort_pairs(x, y, op="greater")),
    "merge": ((I,), lambda cub, x: cub.sort(x, op="greater")),
    "merge pairs": ((I, X), lambda cub, x, y: cub.sort_pairs(x, y, op=lambda a, b: b < a)),
    "argsort": ((X,), lambda cub, x: cub.argsort(x, descending=True)),
    "sort segments": ((X, AT), lambda cub, x, at: cub.segmented_sort(x, at[:-1], at[1:])),
    "sort segments down": (
        (I, C, AT),
        lambda cub, x, y, at: cub.segmented_sort_pairs(x, y, at[:-1], at[1:], descending=True),
    ),
    "sort segments of halves": (
        (X.astype(np.float16), I, AT),
        lambda cub, x, y, at: cub.segmented_sort_pairs(x, y, at[:-1], at[1:]),
    ),
    "sort segments of wide": (
        (I, W, AT),
        lambda cub, x, y, at: cub.segmented_sort_pairs(x, y, at[:-1], at[1:]),
    ),
    "sort some segments": (
        (X, W, AT, X.copy(), W.copy()),
        lambda cub, x, y, at, *out: cub.segmented_sort_pairs(x, y, at[2:-1], at[3:], out=out),
    ),
    "sort some segments alone": (
        (X, AT, X.copy()),
        lambda cub, x, at, out: cub.segmented_sort(x, at[:2], at[1:3], out=out),
    ),
    "lower": ((np.sort(X), X), lambda cub, x, y: cub.lower_bound(x, y)),
    "upper": ((np.sort(I), I), lambda cub, x, y: cub.upper_bound(x, y)),
    "lower of nothing": ((EMPTY, X), lambda cub, x, y: cub.lower_bound(x, y)),
    "lower down": (
        (np.sort(I)[::-1].copy(), I),
        lambda cub, x, y: cub.lower_bound(x, y, op="greater"),
    ),
    "select": ((X,), lambda cub, x: cub.select(x, lambda a: a > 1)),
    "select nothing": ((EMPTY,), lambda cub, x: cub.select(x, lambda a: a > 1)),
    "flagged": ((C, B), lambda cub, x, y: cub.select_flagged(x, y)),
    "partition": ((I,), lambda cub, x: cub.partition(x, lambda a: a > 1)),
    "three ways": (
        (I,),
        lambda cub, x: cub.three_way_partition(x, lambda a: a > 1, lambda a: a < -1),
    ),
    "unique": ((np.sort(I),), lambda cub, x: cub.unique(x)),
    "unique of nothing": ((EMPTY,), lambda cub, x: cub.unique(x)),
    "unique by key": ((np.sort(I), C), lambda cub, x, y: cub.unique_by_key(x, y)),
    "unique wide by key": ((np.sort(I), W), lambda cub, x, y: cub.unique_by_key(x, y)),
    "unique wide nothing": ((EMPTY, W[:0]), lambda cub, x, y: cub.unique_by_key(x, y)),
    "histogram": ((X,), lambda cub, x: cub.histogram_even(x, 5, -5, 5)),
    "histogram of numbers": ((I,), lambda cub, x: cub.histogram_even(x, 3, -2, 4, dtype="int32")),
    "histogram of nothing": ((EMPTY,), lambda cub, x: cub.histogram_even(x, 5, -5, 5)),
    "negate": ((C,), lambda cub, x: cub.unary_transform(x, "negate")),
    "cast": ((I,), lambda cub, x: cub.unary_transform(x, lambda a: a * 2, dtype="float64")),
    "divide": ((C, C + 7), lambda cub, x, y: cub.binary_transform(x, y, "divides")),
    "compare": ((I, I[::-1].copy()), lambda cub, x, y: cub.binary_transform(x, y, "less")),
}
SCANS: Final = ("scan", "scan of halves", "complex products so far", "scan of nothing")


@pytest.fixture
def linker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: FakeDriver) -> fakes.Linker:
    """Install fake bindings, with an empty cache on disk."""
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))
    linker = fakes.Linker(tmp_path)
    cub = fakes.fake_cub(linker)
    for module in (_builds, _cuda):
        monkeypatch.setattr(module, "load_cub", lambda: cub)
    monkeypatch.setattr(_builds, "compile_linkable", linker.link)
    nvrtc: Any = type("Nvrtc", (), {"nvrtcVersion": staticmethod(lambda: (0, 12, 9))})
    monkeypatch.setattr(_builds, "load_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(_cuda, "Kernels", fakes.FakeKernels)
    return linker


@pytest.fixture
def on_fake(linker: fakes.Linker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU backend runs the executor for CUDA, and its programs send C++."""
    fakes.FakeCudaCub.install(monkeypatch, LANE, BUILDER, WAITING)
    # Where kernels are Python functions, no source is sent.
    monkeypatch.setattr(_operators, "_in_python", lambda _device: False)


async def results(device: Device, name: str) -> list[Array]:
    arrays, call = CALLS[name]
    refs = [await device.put(array) for array in arrays]
    answer = await call(device.cub, *refs)
    outs = answer if isinstance(answer, tuple) else (answer,)
    return [await device.get(out) for out in outs]


def counted(name: str, got: list[Array]) -> list[Array]:
    """The parts that were written."""
    if name.startswith(("select", "flagged", "unique")):
        return [*(each[: int(got[-1])] for each in got[:-1]), got[-1]]
    if name == "partition":
        count = int(got[-1])
        return [got[0][:count], got[1][: len(got[1]) - count], got[-1]]
    if name == "three ways":
        one, other = got[-1].tolist()
        return [got[0][:one], got[1][:other], got[2][: len(got[2]) - one - other], got[-1]]
    return got


@pytest.mark.parametrize("name", CALLS)
async def test_both_executors_give_the_same(
    name: str, linker: fakes.Linker, request: pytest.FixtureRequest
) -> None:
    async with open_device(0, backend="cpu", isolation="thread") as device:
        expected = counted(name, await results(device, name))
    request.getfixturevalue("on_fake")
    builds = 0 if name.startswith(("argmin", "argmax")) or name in SCANS else 1  # kernels of ours
    async with open_device(0, backend="cpu", isolation="thread") as device:
        got = counted(name, await results(device, name))
        statistics = device.cub.statistics()
        assert (statistics.builds, statistics.loaded) == (builds, 0)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        again = counted(name, await results(device, name))
        statistics = device.cub.statistics()
        assert (statistics.builds, statistics.loaded) == (0, builds)
    for one, other, third in zip(got, expected, again, strict=True):
        np.testing.assert_array_equal(one, third)
        if name == "divide":  # of which there are several ways
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


@pytest.mark.usefixtures("on_fake")
@pytest.mark.parametrize("name", CALLS)
async def test_calls_by_template_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that differ in buffers alone are prepared once."""
    made: list[RunCub] = []
    prepared = _cuda.CudaCub._prepared

    def noted(self: Any, message: RunCub) -> Any:
        made.append(message)
        return prepared(self, message)

    monkeypatch.setattr(_cuda.CudaCub, "_prepared", noted)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        expected = counted(name, await results(device, name))
        for _ in range(4):
            got = counted(name, await results(device, name))
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_array_equal(one, other)
    if name in ("argmax", "scan", "sum of halves", "sort wide pairs", "flagged", "histogram"):
        assert made  # calls without Python functions are by template


@pytest.mark.usefixtures("on_fake")
async def test_a_row_is_scanned_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are too long for one launch have several, in calls by template, too."""
    monkeypatch.setattr(_algorithms, "most_scanned", lambda _dtype: 5)
    async with open_device(0, backend="cpu", isolation="thread") as device:
        for _ in range(4):
            (got,) = await results(device, "scan")
            np.testing.assert_array_equal(got, np.cumsum(I, dtype=np.int32))


@pytest.mark.headers
def test_statuses_become_errors() -> None:
    for message, kind in (
        ("Failed executing reduce, error code: 700", StickyFault),
        ("Failed executing reduce, error code: 2", OutOfMemory),
        ("Failed executing reduce, error code: 1", LibraryError),
        ("Failed to compute unary transform", LibraryError),
    ):
        made = _bindings.refusal("cuda.compute reduce", RuntimeError(message))
        assert isinstance(made, kind)
        assert "reduce" in str(made)


def test_damaged_build_on_disk_is_built_again(linker: fakes.Linker) -> None:
    spec = CubSpec("radix_sort", ("int32", ""))
    store = _builds.BuildStore((9, 0))
    assert store.find(encode(spec), (5,))[1] == "built"
    assert store.find(encode(spec), (9,))[1] == "memory"
    assert _builds.BuildStore((9, 0)).find(encode(spec), (5,))[1] == "disk"
    fakes.Result.store.clear()
    assert _builds.BuildStore((9, 0)).find(encode(spec), (5,))[1] == "built"


def test_build_of_another_source_is_not_found(
    linker: fakes.Linker, monkeypatch: pytest.MonkeyPatch
) -> None:
    del linker
    spec = encode(CubSpec("radix_sort", ("int32", "complex128")))
    assert _builds.BuildStore((9, 0)).find(spec, (5,))[1] == "built"
    monkeypatch.setattr(_builds, "_FORM", _builds._FORM + 1)
    assert _builds.BuildStore((9, 0)).find(spec, (5,))[1] == "built"


def test_positions_of_wide_values_are_part_of_the_scratch_memory(linker: fakes.Linker) -> None:
    """The scratch memory has room for the positions, wherever it begins."""
    del linker
    stream: Any = SimpleNamespace(handle=0, pointer=0, captures=False)
    kind = type("Context", (), {"compute_capability": (9, 0), "pointer": int})
    executor: Any = _cuda.CudaCub(kind(), stream)
    narrow, wide = (
        executor.handlers[BuildCub](
            BuildCub(encode(CubSpec("radix_sort", ("int32", values))), (1000,))
        )[0]
        for values in ("uint64", "complex128")
    )
    assert wide == narrow + 8192  # whole multiples of what memory is aligned to
    executor.close()


def test_a_recording_cannot_have_what_waits(linker: fakes.Linker) -> None:
    del linker
    stream: Any = SimpleNamespace(handle=0, pointer=0, captures=True)
    kind = type("Context", (), {"compute_capability": (9, 0), "pointer": int})
    context: Any = kind()
    executor: Any = _cuda.CudaCub(context, stream)
    spec = encode(CubSpec("segmented_sort", ("int32", "", "int64")))
    with pytest.raises(Unsupported, match="a recording cannot have it"):
        executor.handlers[RunCub](RunCub(spec, (1, 0, 1, 1, 1, 0), (5, 1), (), 0, 0))
    executor.close()
