"""The memory lane on CUDA: copies and fills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._errors import LibraryError
from ....wire import SLAB_SHIFT, Advise, Attach, Copy, Fill, Prefetch, Probe, Protect, Unprotect
from .driver import check, driver, failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from .context import CudaContext, CudaStream

_ADVICE: Final = {
    "read_mostly": "CU_MEM_ADVISE_SET_READ_MOSTLY",
    "unset_read_mostly": "CU_MEM_ADVISE_UNSET_READ_MOSTLY",
    "prefer": "CU_MEM_ADVISE_SET_PREFERRED_LOCATION",
    "unset_prefer": "CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION",
    "accessed_by": "CU_MEM_ADVISE_SET_ACCESSED_BY",
    "unset_accessed_by": "CU_MEM_ADVISE_UNSET_ACCESSED_BY",
}
_ATTACH: Final = {
    "global": "CU_MEM_ATTACH_GLOBAL",
    "host": "CU_MEM_ATTACH_HOST",
    "single": "CU_MEM_ATTACH_SINGLE",
}


@final
class CudaMemory:
    """Executes the memory lane's messages with the driver's asynchronous copies."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._copy_async: Final = driver.cuMemcpyAsync
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Copy: self._copy,
            Fill: self._fill,
            Unprotect: self._unprotect,
            Protect: self._protect,
            Probe: self._probe,
            Prefetch: self._prefetch,
            Advise: self._advise,
            Attach: self._attach,
        }

    def close(self) -> None:
        """Do nothing."""

    def _copy(self, message: Copy) -> None:
        if not message.nbytes:
            return
        # All pointers are of one address space, so the driver knows where they lead.
        (status,) = self._copy_async(
            self._context.writable_pointer(message.to),
            self._context.pointer(message.source),
            message.nbytes,
            self._stream.handle,
        )
        if status:
            raise failure("cuMemcpyAsync", status)

    def _fill(self, message: Fill) -> None:
        pointer, nbytes = self._context.writable_pointer(message.address), message.nbytes
        element, stream = message.element, self._stream.handle
        if not nbytes:
            return
        if len(set(element)) == 1:
            check("cuMemsetD8Async", driver.cuMemsetD8Async(pointer, element[0], nbytes, stream))
        elif len(element) == 2:
            value = int.from_bytes(element, "little")
            check("cuMemsetD16Async", driver.cuMemsetD16Async(pointer, value, nbytes // 2, stream))
        elif len(element) == 4:
            value = int.from_bytes(element, "little")
            check("cuMemsetD32Async", driver.cuMemsetD32Async(pointer, value, nbytes // 4, stream))
        else:
            # No memset is this wide: set each 4-byte column as a strip of a 2-D array.
            width = len(element)
            for column in range(0, width, 4):
                value = int.from_bytes(element[column : column + 4], "little")
                check(
                    "cuMemsetD2D32Async",
                    driver.cuMemsetD2D32Async(
                        pointer + column, width, value, 1, nbytes // width, stream
                    ),
                )

    def _prefetch(self, message: Prefetch) -> None:
        self._context.prefetch(
            message.address, message.nbytes, self._stream.handle, on_device=message.to_device
        )

    def _advise(self, message: Advise) -> None:
        name, _, where = message.advice.partition(":")
        if where == "host":
            self._context.may_leave(message.address >> SLAB_SHIFT)
        # CUDA 13 has dropped the suffix, with the older function.
        advise = getattr(driver, "cuMemAdvise_v2", None) or driver.cuMemAdvise
        check(
            "cuMemAdvise",
            advise(
                self._context.pointer(message.address),
                message.nbytes,
                getattr(driver.CUmem_advise, _ADVICE[name]),
                self._context.location(on_device=where != "host"),
            ),
        )

    def _attach(self, message: Attach) -> None:
        if message.to == "host":
            self._context.may_leave(message.address >> SLAB_SHIFT)
        check(
            "cuStreamAttachMemAsync",
            driver.cuStreamAttachMemAsync(
                self._stream.handle,
                self._context.pointer(message.address),
                0,  # all of it
                getattr(driver.CUmemAttach_flags, _ATTACH[message.to]),
            ),
        )

    def _unprotect(self, message: Unprotect) -> None:
        self._context.unprotect(message.slab)

    def _protect(self, message: Protect) -> None:
        # The mapping goes away, so the copies through it must be done.
        self._stream.synchronize()
        self._context.protect(message.slab)

    def _probe(self, message: Probe) -> bytes:
        """A round trip through fresh device memory, compared by the program."""
        pattern = np.frombuffer(message.pattern, dtype=np.uint8)
        back = np.zeros_like(pattern)
        device = check("cuMemAlloc", driver.cuMemAlloc(len(pattern)))
        stream = self._stream.handle
        try:
            check(
                "cuMemcpyHtoDAsync",
                driver.cuMemcpyHtoDAsync(device, pattern.ctypes.data, len(pattern), stream),
            )
            check(
                "cuMemcpyDtoHAsync",
                driver.cuMemcpyDtoHAsync(back.ctypes.data, device, len(back), stream),
            )
            self._stream.synchronize()
        finally:
            check("cuMemFree", driver.cuMemFree(device))
        if bytes(back) != message.pattern:
            raise LibraryError(
                "a pattern did not come back from the device as it was sent",
                library="cuda",
                call="cuMemcpyDtoHAsync",
                status=0,
                status_name="CORRUPT",
            )
        return bytes(back)
