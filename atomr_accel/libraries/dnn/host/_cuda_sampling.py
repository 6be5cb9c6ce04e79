"""Samples of images and their windows on CUDA: kernels of this package."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any, Final, final

from ....executors.cuda_kernels import KernelArguments, Kernels
from ....executors.device_code import C_TYPES, CudaSource
from ..wire._nodes import wider
from ..wire._sampling_messages import (
    SAMPLE_MODES,
    SAMPLE_PADDINGS,
    AffineGrid,
    MoveWindows,
    SampleGrid,
)
from .fallback._launch import THREADS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._graph import DnnTensor

SOURCE: Final = CudaSource(__package__, "sampling.cu", THREADS=THREADS)


@final
class CudaSampling:
    """Executes samples of images, windows of them, and their gradients."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._pointer: Final = context.pointer
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self.handlers: Final[dict[type, Callable[[Any], None]]] = {
            AffineGrid: self._affine,
            SampleGrid: self._sample,
            MoveWindows: self._windows,
        }

    def close(self) -> None:
        """Unload the kernels."""
        self._kernels.close()

    def _affine(self, message: AffineGrid) -> None:
        dims, places = len(message.places), math.prod(message.places)
        sizes = _three(message.places, 1)
        how = struct.pack("<6q", message.batch, dims, message.aligned, *sizes)
        theta, grid = self._pointer(message.theta), self._pointer(message.grid)
        if message.backward:
            count = message.batch * dims * (dims + 1)
            data = struct.pack("<2Q", theta, grid) + how
            self._launch("affine_back", message.dtype, count * THREADS, data)
        else:
            data = struct.pack("<2Q", grid, theta) + how
            self._launch("affine", message.dtype, message.batch * places * dims, data)

    def _sample(self, message: SampleGrid) -> None:
        image, result, pointer = message.image, message.result, self._pointer
        (batch, channels, *space), places = image.shape, result.shape[2:]
        padding = SAMPLE_PADDINGS.index(message.padding)
        nearest = SAMPLE_MODES.index(message.mode)
        how = struct.pack(
            "<13q",
            *(batch, channels, image.last, len(space), nearest, padding, message.aligned),
            *(*_three(space, 1), *_three(places, 1)),
        )
        how += _steps(image) + _steps(result)
        x, grid, y = pointer(message.x), pointer(message.grid), pointer(message.y)
        dtype, samples = image.dtype, batch * math.prod(places)
        if message.kind == "sample":
            data = struct.pack("<3Q", y, x, grid) + how
            self._launch("sample", dtype, samples * channels, data)
            return
        if message.kind == "grid":
            data = struct.pack("<4Q", pointer(message.dgrid), y, x, grid) + how
            self._launch("steer", dtype, samples, data)
            return
        count = math.prod(image.shape)
        total = pointer(message.scratch) if message.scratch else x
        self._clear(wider(dtype), total, count)
        data = struct.pack("<3Q", total, y, grid) + how + struct.pack("<q", message.ordered)
        items = batch * channels * (1 if message.ordered else math.prod(places))
        self._launch("scatter", dtype, items, data)
        if message.scratch:
            self._launch("convert", dtype, count, struct.pack("<2Qq", x, total, count))

    def _windows(self, message: MoveWindows) -> None:
        image, result, pointer, kind = message.image, message.result, self._pointer, message.kind
        batch, channels, *space = image.shape
        how = struct.pack("<3q", batch, channels, image.last)
        for sizes, other in (
            *((space, 1), (result.shape[2:], 1), (message.window, 1), (message.stride, 1)),
            *((message.padding, 0), (message.dilation, 1)),
        ):
            how += struct.pack("<3q", *_three(sizes, other))
        how += _steps(image) + _steps(result)
        x, y = pointer(message.x), pointer(message.y)
        indices = pointer(message.indices) if message.indices else 0
        if kind == "unpool":
            self._clear(image.dtype, x, math.prod(image.shape))
        pointers = {
            "unfold": (y, x),
            "fold": (x, y),
            "pool": (y, indices, x),
            "unpool": (x, y, indices),
            "pick": (y, x, indices),
        }[kind]
        count = math.prod(image.shape if kind == "fold" else result.shape)
        data = struct.pack(f"<{len(pointers)}Q", *pointers) + how
        self._launch(kind, image.dtype, count, data)

    def _clear(self, dtype: str, at: int, count: int) -> None:
        if count:
            function = self._kernels.function(f"clear<{C_TYPES[dtype]}>")
            self._kernels.launch(function, count, KernelArguments(struct.pack("<Qq", at, count)))

    def _launch(self, kernel: str, dtype: str, items: int, data: bytes) -> None:
        if items:
            function = self._kernels.function(sampling_name(kernel, dtype))
            self._kernels.launch(function, items, KernelArguments(data))


def sampling_name(kernel: str, dtype: str) -> str:
    """A kernel with the types that it computes in, and of its elements."""
    return f"{kernel}<{C_TYPES[wider(dtype)]}, {C_TYPES[dtype]}>"


def _three(numbers: Sequence[int], other: int) -> list[int]:
    """Numbers for three dimensions of space, of which the first may be absent."""
    return [other] * (3 - len(numbers)) + list(numbers)


def _steps(tensor: DnnTensor) -> bytes:
    return struct.pack("<5q", *tensor.strides[:2], *_three(tensor.strides[2:], 0))
