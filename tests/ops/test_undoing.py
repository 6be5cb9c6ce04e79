"""Undoing after a failed call: whichever call fails, all objects made before it are destroyed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import pytest

from atomr_accel import LibraryError, OutOfMemory, Unsupported
from atomr_accel.libraries.blaslt.wire._messages import BlasLtSpec, Heuristic, MatrixLayout
from atomr_accel.libraries.dnn.wire._graph import DnnTensor
from atomr_accel.libraries.dnn.wire._routine_messages import (
    Normalize,
    Pool,
    RnnData,
    RnnPack,
    RnnSizes,
    RnnSpec,
    Softmax,
)

from ..fakes.driver import FakeDriver


class Making:
    """A library and a driver, of which one call fails, with the objects that still exist.

    Args:
        failing: which call, counted from 1.
    """

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.alive: dict[int, str] = {}
        self.calls = 0
        self.handles = itertools.count(1)
        self.functions = self

    def __getitem__(self, function: str) -> Callable[..., int]:
        def call(*args: Any) -> int:
            if "Destroy" in function:
                assert self.alive.pop(args[0])
                return 0
            self.calls += 1
            if self.calls == self.failing:
                return 1
            if "Create" in function:
                handle = next(self.handles)
                self.alive[handle] = function
                args[0]._obj.value = handle
            return 0

        return call

    def call(self, function: str, *args: Any) -> None:
        if status := self[function](*args):
            raise self.error(function, status)

    def error(self, function: str, status: int) -> LibraryError:
        return LibraryError(
            function, library="", call=function, status=status, status_name="FAILED"
        )

    def allocate(self, nbytes: int) -> tuple[int, int]:
        self.calls += 1
        if self.calls == self.failing:
            return 2, 0
        pointer = next(self.handles)
        self.alive[pointer] = f"{nbytes} bytes"
        return 0, pointer

    def free(self, pointer: int) -> tuple[int]:
        assert self.alive.pop(pointer)
        return (0,)

    def events(self, *_: Any) -> tuple[int, int]:
        return self.allocate(0)


SPEC: Final = RnnSpec("lstm", 2, 3, 0, 1, False, True, 0.5, "float32")
IMAGE: Final = DnnTensor("float32", (1, 2, 4, 4), (32, 16, 4, 1))
OPERAND: Final = MatrixLayout(4, 4, 4, 16, "float32")
PRODUCT: Final = BlasLtSpec(
    *(4, 4, 4, 2, OPERAND, OPERAND, OPERAND, OPERAND, 0, 0, "32F", "float32", "relu_bias"),
    *("float32", 4, 0, 256, 256, "", False, False, False, False, False),
)


def a_network(library: Making, message: Any) -> Callable[[], None]:
    from atomr_accel.libraries.dnn.host._cuda_rnn import CudaRnn
    from atomr_accel.libraries.dnn.host._cuda_routines import CudaDnnRoutines, Descriptors

    descriptors = Descriptors(1)
    network = CudaRnn(descriptors, lambda address: address, SimpleNamespace(handle=0))  # type: ignore[arg-type]
    routines = CudaDnnRoutines(descriptors, lambda address: address)
    handlers = {**network.handlers, **routines.handlers}
    library.alive.clear()

    def close() -> None:
        network.close()
        descriptors.close()

    try:
        handlers[type(message)](message)
    except BaseException:
        close()
        raise
    return close


def a_product(_library: Making) -> Callable[[], None]:
    from atomr_accel.libraries.blaslt.host._cuda import CudaBlasLt

    context: Any = SimpleNamespace(pointer=int, compute_capability=(9, 0))
    executor = CudaBlasLt(context, SimpleNamespace(handle=0, pointer=0))  # type: ignore[arg-type]
    try:
        executor.handlers[Heuristic](Heuristic(msgspec.msgpack.encode(PRODUCT), 0, 1))
    except Unsupported:
        pass  # of all that this library does, it finds no algorithm
    except BaseException:
        executor.close()
        raise
    return executor.close


def a_handle(_library: Making) -> Callable[[], None]:
    from atomr_accel.libraries.blas.host.cuda_handle import CublasHandle

    stream: Any = SimpleNamespace(handle=0, pointer=0, captures=True)
    return CublasHandle(SimpleNamespace(pointer=int), stream).close  # type: ignore[arg-type]


def a_pair_of_events(_library: Making) -> Callable[[], None]:
    from atomr_accel.executors.timing import timing_events

    with timing_events():
        return lambda: None


MESSAGES: Final = (
    RnnSizes(SPEC, RnnData("time", 2, (2, 1)), training=True),
    RnnPack(SPEC, (1, 2, 3, 4), 1, 100, out=True),
    Pool("max", (2, 2), (0, 0), (2, 2), IMAGE, IMAGE, 1, 2),
    Softmax(False, (2, 3, 4), "float32", 1, 2),
    Normalize(3, 1e-4, 0.75, 1.0, IMAGE, 1, 2),
)
THINGS: Final[dict[str, Callable[[Making], Callable[[], None]]]] = {
    **{type(message).__name__: partial(a_network, message=message) for message in MESSAGES},
    "product": a_product,
    "handle": a_handle,
    "events": a_pair_of_events,
}


@pytest.mark.parametrize("thing", THINGS)
def test_failed_construction_leaves_nothing(
    thing: str, monkeypatch: pytest.MonkeyPatch, driver: FakeDriver
) -> None:
    """Whichever call failed."""
    from atomr_accel.libraries.blas.host import cuda_handle as _cuda_handle
    from atomr_accel.libraries.blaslt.host import _cuda as blaslt
    from atomr_accel.libraries.dnn.host import _cuda_routines

    for failing in itertools.count(1):
        library = Making(failing)
        driver.change(cuMemAlloc=library.allocate, cuMemFree=library.free)
        driver.change(cuEventCreate=library.events, cuEventDestroy=library.free)
        driver.change(cuMemcpyDtoDAsync=lambda *_: (0,))
        monkeypatch.setattr(_cuda_handle, "load_cublas", lambda made=library: made)
        monkeypatch.setattr(blaslt, "load_cublaslt", lambda made=library: made)
        monkeypatch.setattr(_cuda_routines, "load_cudnn", lambda made=library: made)
        library.prepare = lambda *_: int  # type: ignore[attr-defined]
        try:
            close = THINGS[thing](library)
        except (LibraryError, OutOfMemory):
            assert not library.alive, f"call {failing} failed"
            continue
        close()
        assert not library.alive
        assert failing > 2
        break
