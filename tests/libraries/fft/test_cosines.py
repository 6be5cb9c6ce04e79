"""Cosine and sine transforms on CUDA: their steps, with kernels on the host and no cuFFT."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import scipy.fft

from atomr_accel.libraries.fft.host._source import (
    COSINES,
    ELEMENTS,
    THREADS,
    fold_launch,
    spread_launch,
)
from atomr_accel.libraries.fft.wire._cosines import ODD, Fold, Series, Spread, plan_cosines
from atomr_accel.libraries.fft.wire._messages import (
    Cosines,
    CosineSpec,
    Prepare,
    RunTransform,
    encode,
)
from atomr_accel.libraries.fft.wire._plan import BufferOffset, CufftRun

from ... import seeds
from ..compiling import check_compiles
from ..host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from .machine import sample
from .stand_in import StandIn, executor, room

TYPES = (1, 2, 3, 4, ODD)
DTYPES = ("float32", "float64")


def launches(type_: int, source: str, precision: str, inner: int) -> Iterator[tuple[str, str]]:
    """A fold's and a spread's kernels, and their parameters."""
    series = Series(type_, sine=False, scale=1.0, orthogonal=False, outer=1, inner=inner, **FEW)
    a = ELEMENTS[precision]
    fold = Fold(BufferOffset(0), BufferOffset(1), source, precision, series, 4)
    row = f"Form<{type_}, {a}>"
    rest = "u64 count; Series s"
    yield fold_launch(fold).name, f"{row}::In* target; {ELEMENTS[source]}* source; {rest}"
    spread = Spread(BufferOffset(0), BufferOffset(1), precision, series, 4, 4)
    yield spread_launch(spread).name, f"{a}* target; {row}::Out* source; {rest}"


FEW: dict[str, Any] = {"extent": 4, "points": 4}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    members: dict[str, str] = {}
    for type_, source, inner in itertools.product(TYPES, DTYPES, (1, 8)):
        members |= dict(launches(type_, source, source, inner))
    return compile_kernels(on_host(COSINES), members, tmp_path_factory.mktemp("cosines"), THREADS)


def along(axis: int, points: int, type_: int, *, sine: bool, scale: float = 1.0) -> CosineSpec:
    return CosineSpec(axis, points, type_, sine, scale, orthogonal=type_ < 4)


def expected(spec: Cosines, x: Any) -> Any:
    for each in spec.along:
        function: Any = scipy.fft.dst if each.sine else scipy.fft.dct
        x = function(x, each.type, each.points, each.axis, orthogonalize=each.orthogonal)
        x = x * each.scale
    return x


@pytest.mark.slow  # to compile them takes seconds
@needs_compiler
@pytest.mark.parametrize("type_", [1, 2, 3, 4])
def test_transforms(kernels: Any, type_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from atomr_accel.libraries.fft.host import _cuda

    monkeypatch.setattr(_cuda, "_library", StandIn)
    monkeypatch.setattr(_cuda, "Kernels", lambda *_: HostKernels(kernels))
    fft, rng = executor(), seeds.rng()
    shapes = [((5,), 0), ((3, 8), 1), ((2, 7, 3), 1), ((33, 9), 0), ((2, 6, 40), 1)]
    cases = itertools.product(shapes, (False, True), (0, -2, 3))
    for number, ((shape, axis), sine, grown) in enumerate(cases):
        dtype = str(rng.choice(DTYPES))
        each = along(axis, shape[axis] + grown, type_, sine=sine, scale=0.25)
        others = (along(0, shape[0], type_, sine=not sine),) if axis else ()
        spec = Cosines(dtype, dtype, shape, (each, *others))
        source = sample(rng, shape, dtype)
        wanted = expected(spec, source.astype("float64"))
        work = fft.handlers[Prepare](Prepare(number, encode(spec)))
        precision = np.dtype(spec.precision)
        nbytes = wanted.size * precision.itemsize
        given = room(source.nbytes)
        given[: source.nbytes] = np.frombuffer(source.tobytes(), np.uint8)
        target, scratch = room(nbytes), room(plan_cosines(spec).scratch + work)
        at = given.ctypes.data, target.ctypes.data, scratch.ctypes.data
        fft.handlers[RunTransform](RunTransform(number, encode(spec), *at, work))
        got = target[:nbytes].view(precision).reshape(wanted.shape)
        tolerance = (2e-6 if precision.itemsize == 4 else 1e-14) * np.abs(wanted).max()
        np.testing.assert_allclose(got, wanted, atol=tolerance, rtol=0, err_msg=repr(spec))
        assert (target[nbytes:] == 0x7F).all()
        assert given[: source.nbytes].tobytes() == source.tobytes()


@pytest.mark.slow
@needs_compiler
def test_angles_in_single_precision(kernels: Any) -> None:
    """Spread ones give cosines and sines that are as accurate as single precision allows."""
    n = 4096
    series = Series(
        2, sine=False, scale=0.5, orthogonal=False, outer=1, inner=1, extent=n, points=n
    )
    launch = spread_launch(
        Spread(BufferOffset(0), BufferOffset(1), "float32", series, n // 2 + 1, n // 2 + 1)
    )
    got, ones = np.empty(n, np.float32), np.ones(n // 2 + 1, np.complex64)
    ones.imag = 0
    arguments = got.ctypes.data.to_bytes(8, "little") + ones.ctypes.data.to_bytes(8, "little")
    kernels[launch.name](arguments + launch.arguments[16:])
    k = np.arange(n // 2 + 1)
    angles = k * (np.pi / (2 * n))
    np.testing.assert_allclose(got[: n // 2 + 1], np.cos(angles), rtol=1.2e-7)
    np.testing.assert_allclose(got[: n // 2 : -1], np.sin(angles[1 : n // 2]), rtol=1.2e-7)


@pytest.mark.parametrize(("type_", "size"), [(1, 6), (2, 4), (3, 4), (4, 2)])
def test_an_axis_takes_three_steps(type_: int, size: int) -> None:
    shape = (3, 4, 4)
    axes = tuple(along(axis, 4, type_, sine=False) for axis in (2, 1))
    steps = plan_cosines(Cosines("float32", "float32", shape, axes)).steps
    assert [type(step) for step in steps] == [Fold, CufftRun, Spread] * 2
    for step in steps:
        assert step.source != step.target
        if isinstance(step, CufftRun):
            assert (step.layout.sizes, step.layout.batch) == ((size,), 12)


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    names: dict[str, None] = {}
    sources = itertools.cycle(dtype for dtype in ELEMENTS if "x" not in dtype)
    for type_, precision, inner in itertools.product(TYPES, ("float32", "float64"), (1, 8, 2**31)):
        narrow = 1 if inner > 8 else inner
        for name, _ in launches(type_, next(sources), precision, narrow):
            wide = name.replace("unsigned>", "unsigned long long>") if inner > 8 else name
            names[wide] = None
    check_compiles(COSINES.text, *names, capability=capability)
