"""The CUDA executor against a stand-in for cuFFT, with its kernels compiled for the host.

The stand-in takes its arguments through the very prototypes that the real library gets, so
what this cannot show is only what cuFFT itself does with them.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atomr_accel import LibraryError, Unsupported
from atomr_accel.executors.vendor import TYPES
from atomr_accel.libraries.fft._arguments import FAMILIES, resolve
from atomr_accel.libraries.fft.host._prototypes import PROTOTYPES
from atomr_accel.libraries.fft.host._source import ELEMENTS, SOURCE, move_name
from atomr_accel.libraries.fft.wire._messages import ForgetPlan, Hook, Prepare, RunTransform
from atomr_accel.libraries.fft.wire._plan import Move, plan

from ... import seeds
from ...fakes.driver import FakeDriver
from ..conformance import dtype_of
from ..host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from .machine import reference, sample
from .stand_in import STREAM, StandIn, executor, room

pytestmark = needs_compiler


def cases() -> list[tuple[str, str, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]:
    return [
        (family, dtype, shape, axes, sizes)
        for family in FAMILIES
        for dtype in ("float32", "float64", "int32", "complex64", "complex128")
        if not (FAMILIES[family].kind == "r2c" and dtype.startswith("complex"))
        for shape, axes, sizes in [
            ((3, 8), (1,), (8,)),
            ((3, 8), (1,), (5,)),
            ((3, 8), (0,), (4,)),
            ((18, 4, 18), (1,), (4,)),
            ((2, 3, 4, 5), (3, 1, 0), (2, 4, 5)),
            ((2, 3, 4, 2), (0, 1, 2, 3), (2, 3, 4, 2)),
        ]
        if len(axes) == 1 or "h" not in family
    ]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    members: dict[str, str] = {}
    for family, dtype, shape, axes, sizes in cases():
        spec = resolve(
            family, family, shape, dtype_of(dtype), axes, sizes, "ortho", half=False
        ).spec
        for step in plan(spec).steps:
            if isinstance(step, Move):
                s, t = ELEMENTS[step.source_type], ELEMENTS[step.target_type]
                members[move_name(step, 1)] = f"{t}* target; {s}* source; u64 count; Moving moving"
    folder: Path = tmp_path_factory.mktemp("executor")
    return compile_kernels(on_host(SOURCE), members, folder)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, compiled: Any) -> StandIn:
    from atomr_accel.libraries.fft.host import _cuda

    stand_in = StandIn()
    monkeypatch.setattr(_cuda, "_library", lambda: stand_in)
    monkeypatch.setattr(_cuda, "Kernels", lambda *_: HostKernels(compiled))
    return stand_in


def test_transforms(library: StandIn) -> None:
    fft = executor()
    rng = seeds.rng()
    for number, (family, dtype, shape, axes, sizes) in enumerate(cases(), 1):
        source = sample(rng, shape, dtype)
        call = resolve(family, family, shape, source.dtype, axes, sizes, "ortho", half=False)
        work = fft.handlers[Prepare](Prepare(number, call.encoded))
        assert work == 1024
        memory = room(source.nbytes)
        memory[: source.nbytes] = np.frombuffer(source.tobytes(), np.uint8)
        nbytes = int(np.prod(call.shape)) * call.dtype.itemsize
        target, workspace = room(nbytes), room(call.scratch + work)
        at = memory.ctypes.data, target.ctypes.data, workspace.ctypes.data
        fft.handlers[RunTransform](RunTransform(number, call.encoded, *at, work))
        got = target[:nbytes].view(call.dtype).reshape(call.shape)
        wide = source.astype("complex128" if source.dtype.kind == "c" else "float64")
        expected = reference(family, wide, (axes, sizes, "ortho"))
        tolerance = 1e-5 if call.spec.precision == "float32" else 1e-13
        tolerance *= np.abs(expected).max()
        what = f"{family} {dtype}{shape} {axes} {sizes}"
        np.testing.assert_allclose(got, expected, atol=tolerance, rtol=0, err_msg=what)
        assert set(library.work.values()) == {at[2] + call.scratch}, what
        assert (memory[: source.nbytes] == np.frombuffer(source.tobytes(), np.uint8)).all()
        handles = [*library.layouts]
        assert [(*entry[:1], *entry[2:]) for entry in library.log] == [
            ("automatic", 0),
            ("stream", STREAM),
        ] * len(handles)
        library.log.clear()
        fft.handlers[ForgetPlan](ForgetPlan(number))
        assert library.log == [("destroy", handle) for handle in handles]
        library.log.clear()
        library.work.clear()


def test_a_plan_that_was_dropped_is_made_again(library: StandIn) -> None:
    fft = executor()
    call = resolve("fft", "fft", (4,), np.dtype("complex64"), (0,), (4,), None, half=False)
    source, target, work = room(32), room(32), room(1024)
    source[:32] = np.ones(4, "complex64").view(np.uint8)
    message = RunTransform(
        1, call.encoded, source.ctypes.data, target.ctypes.data, work.ctypes.data, 1024
    )
    fft.handlers[RunTransform](message)
    assert target[:32].view("complex64").tolist() == [4, 0, 0, 0]
    fft.close()
    assert not library.layouts
    fft.handlers[RunTransform](message)
    assert len(library.layouts) == 1


def test_callbacks_are_linked_before_the_plan_is_made(
    library: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.fft.host import _hooks

    monkeypatch.setattr(_hooks, "compile_linkable", lambda *_: b"image")
    monkeypatch.setattr(_hooks, "load_nvjitlink", lambda: None)
    told: list[tuple[str, int, bytes, int]] = []

    def set_callback(handle: int, name: bytes, *rest: Any) -> int:
        told.append(("linked", handle, name, rest[2]))
        return 0

    def make(handle: int, *rest: Any) -> int:
        told.append(("made", handle, b"", 0))
        return library.cufftXtMakePlanMany(handle, *rest)

    for function, stand_in in (
        ("__cufftXtSetJITCallback_12_7", set_callback),
        ("cufftXtMakePlanMany", make),
    ):
        kinds = [TYPES[word] for word in PROTOTYPES[function].split()]
        library.functions[function] = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(stand_in)
    fft = executor()
    fft._context.compute_capability = (9, 0)
    hooks = Hook("window", "source", b""), Hook("halved", "source", b"")
    complex64 = np.dtype("complex64")
    call = resolve("fft", "fft", (4,), complex64, (0,), (4,), None, half=False, hooks=hooks)
    assert fft.handlers[Prepare](Prepare(1, call.encoded)) == 1024
    handle = told[0][1]
    assert told == [
        ("linked", handle, b"atomr_load", 0),
        ("linked", handle, b"atomr_store", 4),
        ("made", handle, b"", 0),
    ]
    fft.close()


def test_a_plan_stays_as_long_as_a_graph_has_it(library: StandIn) -> None:
    kept: list[Any] = []
    fft = executor(kept)
    source, target, work = room(64), room(64), room(1024)
    source[:64] = 0
    calls = [
        resolve("fft", "fft", (n,), np.dtype("complex64"), (0,), (n,), None, half=False)
        for n in (4, 8)
    ]
    for number, call in ((1, calls[0]), (2, calls[1]), (1, calls[0])):
        assert fft.handlers[Prepare](Prepare(number, call.encoded)) == 1024
        at = source.ctypes.data, target.ctypes.data, work.ctypes.data
        fft.handlers[RunTransform](RunTransform(number, call.encoded, *at, 1024))
    left = [2]
    for _, give_back in kept:
        give_back()
        left.append(len(library.layouts))
    assert left == [2, 2, 1, 0]


def test_a_plan_whose_work_area_is_not_known_has_its_own(
    library: StandIn, driver: FakeDriver
) -> None:
    fft = executor()
    call = resolve("fft", "fft", (4,), np.dtype("complex64"), (0,), (4,), None, half=False)
    source, target, work = room(32), room(32), room(1024)
    source[:32] = 0
    at = source.ctypes.data, target.ctypes.data
    for _ in range(2):
        fft.handlers[RunTransform](RunTransform(1, call.encoded, *at, 0, 0))
        [area] = library.work.values()
        assert len(driver.held[area]) == 1024
    fft.handlers[RunTransform](RunTransform(1, call.encoded, *at, work.ctypes.data, 1024))
    assert [*library.work.values()] == [work.ctypes.data]
    fft.close()
    assert not driver.held


@pytest.mark.parametrize(("status", "error"), [(8, LibraryError), (16, Unsupported)])
def test_a_plan_that_fails_leaves_no_handle(
    library: StandIn, status: int, error: type[Exception]
) -> None:
    kind = type(library.functions["cufftXtMakePlanMany"])

    def ref_error(handle: int, *_: Any) -> int:
        library.layouts[handle] = None  # type: ignore[assignment]
        return status

    library.functions["cufftXtMakePlanMany"] = kind(ref_error)
    call = resolve("fft", "fft", (4,), np.dtype("complex64"), (0,), (4,), None, half=False)
    with pytest.raises(error, match="cufftXtMakePlanMany"):
        executor().handlers[Prepare](Prepare(1, call.encoded))
    assert not library.layouts


def test_a_transform_that_fails_is_an_error(library: StandIn) -> None:
    kind = type(library.functions["cufftXtExec"])
    library.functions["cufftXtExec"] = kind(lambda *_: 6)
    call = resolve("fft", "fft", (4,), np.dtype("complex64"), (0,), (4,), None, half=False)
    source, target, work = room(32), room(32), room(1024)
    at = source.ctypes.data, target.ctypes.data, work.ctypes.data
    with pytest.raises(LibraryError, match="cufftXtExec") as caught:
        executor().handlers[RunTransform](RunTransform(1, call.encoded, *at, 1024))
    assert caught.value.status == 6
