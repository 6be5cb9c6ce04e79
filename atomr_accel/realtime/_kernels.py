"""Compiled kernels by name, with one thread for each element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .. import Batch, Recording
from .._errors import said_of

if TYPE_CHECKING:
    from .. import Device, Kernel
    from .wire.kernels import KernelSource

THREADS: Final = 256
"""Threads of a block."""


def check_collector(on: object) -> None:
    """Raise unless ops can be collected on it."""
    if not isinstance(on, (Batch, Recording)):
        raise TypeError(
            f"on must be a batch or a recording, not {said_of(on)}; "
            "write `async with device.batch() as batch:`"
        )


class KernelSet:
    """The kernels of a source, compiled for a device. They are good for all its generations."""

    def __init__(self, kernels: dict[str, Kernel[Any]]) -> None:
        self._kernels: Final = kernels

    @classmethod
    async def load(cls, device: Device, source: KernelSource) -> KernelSet:
        """Compile a source, or find it compiled."""
        module = await device.nvrtc.compile_module(
            source.source, [*source.twins], cpu=source.twins, headers=source.headers
        )
        return cls({name: await module.kernel(name) for name in source.twins})

    def launch(self, on: Batch | Recording, name: str, elements: int, *args: Any) -> None:
        """Launch a kernel in a batch or a recording, with a thread for each element."""
        on.launch(self._kernels[name], None, THREADS, *args, elements=elements)
