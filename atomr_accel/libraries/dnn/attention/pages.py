"""Durable pages of keys and values, for programs that give out the pages themselves."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._errors import GpuRefStale, Unsupported
from ....ops import (
    Collected,
    D,
    Facade,
    Pending,
    Request,
    Submission,
    op,
    require_readable,
    require_writable,
)
from ...digests.lane import DIGESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from ....arrays import GpuRef
    from ....ops import DeviceView, Preparer
    from .durable_rows import CacheDigests, CacheScan


@final
class DurablePages(Facade[D]):
    """Keys and values in pages, which survive faults row by row. Made by ``durable_pages``.

    Unlike `PagedKVCache` it has no sequences: the program says which rows are written, and
    how many rows of each page are in use. A row is one token in one layer, of keys or of values.

    Attributes:
        k, v: memory, (layers, pages, page_size, kv_heads, size).
    """

    def __init__(self, device: DeviceView, k: GpuRef, v: GpuRef, digests: CacheDigests) -> None:
        self.home = device
        self.k: Final = k
        self.v: Final = v
        self._digests: Final = digests

    def on(self, device: DeviceView) -> Any:
        """Return a copy whose ops go to ``device``.

        Raises:
            Unsupported: ``device`` is a batch or a recording.
        """
        if device.call_mode is Collected:
            raise Unsupported("durable pages cannot recover in a batch or a recording; await it")
        return super().on(device)

    @property
    def recovered(self) -> bool:
        """``False`` after a fault, until ``recover`` has compared the rows."""
        return self._digests.epoch is self.home.memory.epoch

    @contextmanager
    def writing(self, slots: npt.ArrayLike) -> Iterator[None]:
        """Let ops of the block write rows, in all layers: those of batches, recordings, functions.

        The ops get ``k``, ``v`` or views of them, and must write these rows alone. The rows are
        proven if all ops of the block that write to the pages have succeeded.

        Args:
            slots: numbers of the rows in a layer, page times ``page_size`` plus place; different.

        Raises:
            TypeError: numbers that are not integers.
            ValueError: a number is not in the pages, or comes twice.
            GpuRefStale: the pages have to recover first, or are of an older generation; or the
                device was rebuilt during the block.
        """
        _, pages, size = self.k.shape[:3]
        rows = _integers(slots, "slots").ravel()
        if ((rows < 0) | (rows >= pages * size)).any() or len(np.unique(rows)) < len(rows):
            raise ValueError(
                f"slots must be different numbers from 0 to {pages * size - 1}, not {rows}"
            )
        memory = self.home.memory
        for ref in (self.k, self.v):
            require_writable(ref, memory, "the pages")
        if not self.recovered:
            raise GpuRefStale(
                "the device was rebuilt, and the pages do not know yet which rows are lost; call: "
                "await pages.recover(filled)"
            )
        epoch = memory.epoch
        declared = self._digests.in_layers(rows)
        self._digests.declare(declared)
        try:
            yield
            if memory.epoch is not epoch:
                raise GpuRefStale("the device was rebuilt while rows were being written")
        finally:
            self._digests.withdraw(declared)

    @op
    def recover(self, filled: npt.ArrayLike) -> Request[npt.NDArray[np.int64]]:
        """Compare rows with their digests. After a fault this has to come before the next write.

        Args:
            filled: int (pages,): rows that are in use, from the beginning of each page.

        Returns:
            int64 (pages,): how many of them come before the first one that is not proven in all
            layers, because its write was in flight, or because its bytes have changed.

        Raises:
            TypeError: numbers that are not integers.
            ValueError: ``filled`` has another shape, or numbers that are no numbers of rows.
            GpuRefStale: an earlier host has not ended, and may still write to the pages.
            ContextPoisoned: the device has failed meanwhile; call it again.
        """
        _, pages, size = self.k.shape[:3]
        wanted = _integers(filled, "filled")
        if wanted.shape != (pages,) or ((wanted < 0) | (wanted > size)).any():
            raise ValueError(
                f"filled must be {pages} numbers from 0 to {size}, not {wanted} of shape "
                f"{wanted.shape}"
            )
        digests = self._digests
        scan: CacheScan | None = None

        def prepare(preparer: Preparer) -> Submission[npt.NDArray[np.int64]]:
            nonlocal scan
            for ref in (self.k, self.v):
                require_readable(ref, preparer.memory, "the pages")
            if DIGESTS.name not in preparer.home.ports:
                raise Pending(DIGESTS)  # before the work of comparing, which would be done twice
            if scan is None or scan.epoch is not preparer.memory.epoch:
                scan = digests.scan_pages(preparer.memory, wanted)
            for request in scan.requests():
                preparer.perform(request)
            done = scan

            def finish(_: object) -> npt.NDArray[np.int64]:
                digests.epoch = done.epoch
                kept: npt.NDArray[np.int64] = np.minimum(done.first_lost(), wanted)
                return kept

            return Submission(None, (), (), finish=finish)

        return Request(DIGESTS, "dnn.pages_recover", prepare)


def _integers(given: npt.ArrayLike, name: str) -> npt.NDArray[np.int64]:
    """Return a copy as int64."""
    array = np.array(given)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {array.dtype}")
    return array.astype(np.int64)
