"""Memory for keys and values of a model: plain buffers, or durable pages that survive faults."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import numpy.typing as npt
import trio

from .._errors import ContextPoisoned, GpuRefStale, Unsupported

if TYPE_CHECKING:
    from .. import Device, GpuRef
    from ..libraries.dnn.attention.pages import DurablePages

Ints = npt.NDArray[np.int64]

_RECOVERIES: Final = 3
"""Faults during a recovery after which the content is given up."""


@final
class CacheMemory:
    """Keys and values of all layers, (layers, pages, page_size, kv_heads, size) each.

    Attributes:
        durable: whether the content survives faults.
        lost: how often the content was lost as a whole, and the memory made anew.

    Raises:
        Unsupported: it is to be durable, on a device that no fault leaves usable.
    """

    def __init__(
        self,
        device: Device,
        shape: tuple[int, int, int, int, int],
        dtype: np.dtype[np.generic],
        *,
        durable: bool,
    ) -> None:
        if durable and device.isolation == "thread":
            raise Unsupported(
                'durable must be False with isolation="thread", where the first fault ends the '
                'device; open it with isolation="process"'
            )
        self.durable: Final = durable
        self.lost = 0
        self._device: Final = device
        self._shape: Final = shape
        self._dtype: Final = dtype
        self._pages: DurablePages[Any] | None = None
        self._refs: tuple[GpuRef, GpuRef] | None = None
        self._made = False

    @property
    def refs(self) -> tuple[GpuRef, GpuRef] | None:
        """Keys and values; None before `make`, and after a fault that has taken them."""
        refs = self._refs
        if refs is None or any(each.is_stale for each in refs):
            return None
        if self._pages is not None and not self._pages.recovered:
            raise GpuRefStale(
                "the device was rebuilt, and the model does not know yet which tokens its cache "
                "has kept; call: await model.recover()"
            )
        return refs

    async def make(self) -> tuple[GpuRef, GpuRef]:
        """Make the memory, without content.

        Raises:
            OutOfMemory: no room for it.
            ValueError: it is durable, and rows are not of a multiple of 8 bytes.
            Unsupported: it is durable, and the platform cannot export device memory.
        """
        self.lost += self._made
        self._refs = self._pages = None
        if self.durable:
            layers, *sizes = self._shape
            pages: DurablePages[Any] = await self._device.dnn.durable_pages(
                *sizes, layers=layers, dtype=self._dtype
            )
            self._pages = pages
            self._refs = pages.k, pages.v
        else:
            k = await self._device.zeros(self._shape, self._dtype)
            self._refs = k, await self._device.zeros(self._shape, self._dtype)
        self._made = True
        return self._refs

    def writing(self, slots: Ints) -> AbstractContextManager[None]:
        """Return a block whose ops write rows of the cache, by their numbers in a layer."""
        return nullcontext() if self._pages is None else self._pages.writing(slots)

    async def recover(self, filled: Ints) -> Ints:
        """Return how many rows of each page are left, of those that are filled.

        A fault meanwhile begins it anew, for a few times. Then all content counts as lost.
        """
        for _ in range(_RECOVERIES):
            pages = self._pages
            if pages is None or pages.k.is_stale or pages.v.is_stale:
                break
            try:
                kept: Ints = await pages.recover(filled)
            except (ContextPoisoned, GpuRefStale):
                continue
            return kept
        self._refs = self._pages = None
        await trio.lowlevel.checkpoint()
        return np.zeros_like(filled)
