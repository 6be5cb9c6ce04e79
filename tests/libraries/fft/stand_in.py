"""A stand-in for cuFFT, and an executor that uses it."""

from __future__ import annotations

import ctypes
import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from atomr_accel import LibraryError
from atomr_accel.executors.vendor import TYPES
from atomr_accel.libraries.fft.host._prototypes import (
    INVERSE,
    PROTOTYPES,
    STATUS_NAMES,
    TRANSFORM_TYPES,
)
from atomr_accel.libraries.fft.wire import _plan
from atomr_accel.libraries.fft.wire._plan import BufferOffset, CufftLayout, CufftRun

from ..conformance import Array
from .machine import Machine

WORK = 1000
STREAM = 0x5EED
NAMES = {number: name for name, number in TRANSFORM_TYPES.items()}


class StandIn:
    """cuFFT's functions, in NumPy, on the host's memory."""

    name = "cufft"

    def __init__(self) -> None:
        self.functions = {}
        for function, words in PROTOTYPES.items():
            kind = ctypes.CFUNCTYPE(ctypes.c_int, *(TYPES[word] for word in words.split()))
            self.functions[function] = kind(getattr(self, function, lambda *_: 0))
        self.handles = itertools.count(7)
        self.layouts: dict[int, CufftLayout] = {}
        self.log: list[tuple[Any, ...]] = []
        self.work: dict[int, int] = {}

    def call(self, function: str, *args: Any) -> None:
        status = self.functions[function](*args)
        if status:
            raise self.error(function, status)

    def prepare(self, function: str, *args: Any) -> Any:
        return partial(self.functions[function], *args)

    def error(self, function: str, status: int) -> LibraryError:
        return LibraryError(
            function,
            library="cufft",
            call=function,
            status=status,
            status_name=STATUS_NAMES[status],
        )

    def cufftCreate(self, handle: Any) -> int:  # noqa: N802 - the vendor's name
        handle[0] = next(self.handles)
        return 0

    def cufftDestroy(self, handle: int) -> int:  # noqa: N802
        self.log.append(("destroy", handle))
        del self.layouts[handle]
        return 0

    def cufftSetStream(self, handle: int, stream: int) -> int:  # noqa: N802
        self.log.append(("stream", handle, stream))
        return 0

    def cufftSetAutoAllocation(self, handle: int, automatic: int) -> int:  # noqa: N802
        self.log.append(("automatic", handle, automatic))
        return 0

    def cufftSetWorkArea(self, handle: int, work: int) -> int:  # noqa: N802
        self.work[handle] = work
        return 0

    def cufftXtMakePlanMany(  # noqa: N802
        self, handle: int, rank: int, sizes: Any, source_embed: Any, *rest: Any
    ) -> int:
        stride, distance, kind, target_embed, to_stride, to_distance, to_kind, batch = rest[:8]
        work, computed = rest[8:]
        self.layouts[handle] = CufftLayout(
            tuple(sizes[:rank]),
            tuple(source_embed[:rank]),
            stride,
            distance,
            NAMES[kind],
            tuple(target_embed[:rank]),
            to_stride,
            to_distance,
            NAMES[to_kind],
            batch,
        )
        assert NAMES[computed] in {*_plan.COMPLEX.values()}
        work[0] = WORK
        return 0

    def cufftXtExec(self, handle: int, source: int, target: int, direction: int) -> int:  # noqa: N802
        layout = self.layouts[handle]
        machine = object.__new__(Machine)
        memory: Any = (ctypes.c_uint8 * (1 << 16)).from_address
        machine.buffers = {
            0: np.frombuffer(memory(source), np.uint8),
            1: np.frombuffer(memory(target), np.uint8),
        }
        machine.fft(
            CufftRun(layout, direction == INVERSE, BufferOffset(0), BufferOffset(1), ((0, 0),))
        )
        return 0


def executor(kept: list[Any] | None = None) -> Any:
    """An executor; with ``kept``, which takes what graphs need, one whose calls are captured."""
    from atomr_accel.libraries.fft.host._cuda import CudaFft

    def keep(*each: Any) -> None:
        assert kept is not None
        kept.append(each)

    context: Any = SimpleNamespace(pointer=lambda address: address)
    stream: Any = SimpleNamespace(pointer=STREAM, captures=kept is not None, keep=keep)
    return CudaFft(context, stream)


def room(nbytes: int) -> Array:
    """Memory with something behind it, for the stand-in looks at more than it uses."""
    return np.full(nbytes + (1 << 16), 0x7F, np.uint8)
