"""Writes to memory of a device behind the program's back, as a wild kernel would."""

from __future__ import annotations

import os
from typing import Any, Final, final

import numpy as np

from atomr_accel import Device, GpuRef, Kernel
from atomr_accel.wire import OFFSET_MASK

_SOURCE: Final = """
extern "C" __global__ void scribble(
    const unsigned char* data, const unsigned char* source, long long start, long long size
) {
    // To the program this only reads, so no digest follows.
    unsigned char* target = const_cast<unsigned char*>(data) + start;
    for (long long at = threadIdx.x; at < size; at += blockDim.x) target[at] = source[at];
}
"""


def scribble(ref: GpuRef, start: int, data: bytes) -> None:
    """Write to the shared memory of a buffer of the CPU backend."""
    block = ref.block
    slab = block.memory.slab_of(block)
    os.pwrite(slab.fd, data, (block.address & OFFSET_MASK) + start)


@final
class Scribbler:
    """Scribbles over buffers of a device of either backend."""

    def __init__(self, device: Device) -> None:
        self._device: Final = device
        self._kernel: Kernel[Any] | None = None

    async def __call__(self, ref: GpuRef, start: int, data: bytes) -> None:
        """Write bytes to a buffer from an offset on."""
        device = self._device
        if device.backend == "cpu":
            scribble(ref, start, data)
            return
        if self._kernel is None:
            self._kernel = await device.nvrtc.compile(_SOURCE, "scribble")
        source = await device.put(np.frombuffer(data, np.uint8))
        target = ref.reshape(-1).view(np.uint8)
        sizes = np.int64(start), np.int64(len(data))
        await self._kernel.launch(1, 256, target, source, *sizes)
