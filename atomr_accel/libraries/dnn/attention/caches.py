"""``device.dnn.kv_cache``: makes paged caches of keys and values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ...._dtypes import as_dtype
from ...._errors import Unsupported
from ....arrays import GpuRef
from ....ops import Collected, D, DurableRoom, Pending, Request, Submission, op
from ....wire import Fill
from ....wire.options import flag, whole
from ...digests.lane import DIGESTS
from ..graph._run import LANE
from ..wire.sequence_messages import Clear
from ._facade import DnnFlashAttention
from .call import HALF
from .durable_rows import CacheDigests
from .paged import PagedKVCache
from .pages import DurablePages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from ....ops import DeviceView, Preparer


class Caches(DnnFlashAttention[D]):
    """Caches of keys and values."""

    @op
    def kv_cache(
        self,
        pages: int,
        page_size: int,
        kv_heads: int,
        size: int,
        *,
        value_size: int | None = None,
        layers: int = 1,
        dtype: DTypeLike = "bfloat16",
        durable: bool = False,
    ) -> Request[PagedKVCache[D]]:
        """Memory for keys and values of many sequences, in pages.

        Args:
            pages: number of pages.
            page_size: rows of a page; a power of two, for cuDNN.
            kv_heads: heads of keys and values.
            size: size of a key.
            value_size: size of a value; by default that of a key.
            layers: number of layers of the model that uses it.
            dtype: float16 or bfloat16.
            durable: let sequences continue after a fault, with all tokens that digests prove;
                see ``PagedKVCache.recover``.

        Returns:
            An empty cache; its memory is filled with zeros.

        Raises:
            ValueError: sizes that are not positive, or no power of two; ``durable`` is set, and
                rows are not of a multiple of 8 bytes.
            Unsupported: ``durable`` is set in a batch or a recording, or the platform cannot export
                device memory.
        """
        values = size if value_size is None else value_size
        sizes = {
            "pages": pages,
            "page_size": page_size,
            "kv_heads": kv_heads,
            "size": size,
            "value_size": values,
            "layers": layers,
        }
        for name, number in sizes.items():
            whole(number, name, 1)
        if page_size & (page_size - 1):
            raise ValueError(f"page_size must be a power of two, not {page_size}")
        kind = as_dtype(dtype)
        if kind not in HALF:
            raise TypeError(f"dtype must be float16 or bfloat16, not {kind.name}")
        device, plans = self.home, self.plans
        lasting = flag(durable, "durable")
        if lasting:
            _check_durable(device, kv_heads, (size, values), kind)

        def zeros(preparer: Preparer, width: int) -> tuple[Clear, GpuRef]:
            shape = (layers, pages, page_size, kv_heads, width)
            ref = _room(device, shape, kind) if lasting else preparer.output(shape, kind)
            return Clear(ref.block.address, ref.nbytes), ref

        def prepare_k(preparer: Preparer) -> Submission[GpuRef]:
            message, k = zeros(preparer, size)
            return Submission(message, (), (k.block,), k)

        def prepare(preparer: Preparer) -> Submission[PagedKVCache[D]]:
            if lasting and DIGESTS.name not in device.ports:
                raise Pending(DIGESTS)
            k = preparer.perform(Request(LANE, "dnn.kv_cache", prepare_k))
            message, v = zeros(preparer, values)

            def finish(_answer: object) -> PagedKVCache[D]:
                assert k is not None  # only in a batch, where nothing is finished
                digests = CacheDigests(device.memory, k, v) if lasting else None
                return PagedKVCache(device, plans, k, v, digests)

            return Submission(message, (), (v.block,), finish=finish)

        return Request(LANE, "dnn.kv_cache", prepare)

    @op
    def durable_pages(
        self,
        pages: int,
        page_size: int,
        kv_heads: int,
        size: int,
        *,
        layers: int = 1,
        dtype: DTypeLike = "bfloat16",
    ) -> Request[DurablePages[D]]:
        """Durable memory for keys and values in pages that the program gives out itself.

        For ops of one's own, as a language model has. ``kv_cache`` gives out pages by itself.

        Args:
            pages: number of pages.
            page_size: rows of a page.
            kv_heads: heads of keys and values.
            size: size of a key, and of a value.
            layers: number of layers.
            dtype: float32, float16 or bfloat16.

        Returns:
            Pages that are filled with zeros, no row of which is proven.

        Raises:
            ValueError: sizes that are not positive; rows are not of a multiple of 8 bytes.
            Unsupported: it is called in a batch or a recording, or the platform cannot export
                device memory.
        """
        sizes = {"page_size": page_size, "kv_heads": kv_heads, "size": size, "layers": layers}
        for name, number in {"pages": pages, **sizes}.items():
            whole(number, name, 1)
        kind = as_dtype(dtype)
        if kind not in (*HALF, as_dtype("float32")):
            raise TypeError(f"dtype must be float32, float16 or bfloat16, not {kind.name}")
        device = self.home
        _check_durable(device, kv_heads, (size,), kind)
        shape = (layers, pages, page_size, kv_heads, size)

        def filled(name: str) -> Request[GpuRef]:
            def prepare(_preparer: Preparer) -> Submission[GpuRef]:
                ref = _room(device, shape, kind)
                message = Fill(ref.block.address, ref.nbytes, bytes(kind.itemsize))
                return Submission(message, (), (ref.block,), ref)

            return Request(device.memory_lane, name, prepare)

        def prepare(preparer: Preparer) -> Submission[DurablePages[D]]:
            if DIGESTS.name not in device.ports:
                raise Pending(DIGESTS)
            k = preparer.perform(filled("dnn.pages_k"))
            v = preparer.perform(filled("dnn.pages_v"))
            assert k is not None  # only in a batch, where nothing is finished
            assert v is not None
            digests = CacheDigests(device.memory, k, v)
            return Submission(None, (), (), DurablePages(device, k, v, digests))

        return Request(DIGESTS, "dnn.durable_pages", prepare)


def _check_durable(
    device: DeviceView, kv_heads: int, sizes: tuple[int, ...], dtype: np.dtype[Any]
) -> None:
    if any(kv_heads * size * dtype.itemsize % 8 for size in sizes):
        raise ValueError(
            "rows of a durable cache must have a multiple of 8 bytes, not "
            f"{kv_heads} heads of sizes {' and '.join(map(str, sizes))} in {dtype.name}"
        )
    if device.call_mode is Collected:
        raise Unsupported("a batch or a recording makes no durable cache; make it before")


def _room(device: DeviceView, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
    """Return an uninitialised buffer in memory that survives."""
    nbytes = math.prod(shape) * dtype.itemsize
    block = device.memory.allocate(nbytes, durable=True)
    if block is None:
        raise Pending(DurableRoom(nbytes))
    return GpuRef(block, shape, dtype, nbytes)
