"""Digests on CUDA: a block of threads for each chunk, a thread for each leaf, or for each row.

Sums of rows have a block of threads for each sum.
"""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from typing import TYPE_CHECKING, Final, final

from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import ArgumentBlocks, Kernels
from ....executors.device_code import CudaSource
from ....executors.vendor import undone_on_error
from ....wire import CHUNK_BYTES
from ....wire.interface import Later
from ..wire.messages import LEAF_BYTES, SUM_ROWS, Digest

if TYPE_CHECKING:
    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire.messages import RowRange, RowSums

SOURCE: Final = CudaSource(
    __package__,
    "digests.cu",
    CHUNK_BYTES=CHUNK_BYTES,
    LEAF_BYTES=LEAF_BYTES,
    SUM_ROWS=SUM_ROWS,
)
KERNEL: Final = "digest_chunks"
ROW_KERNEL: Final = "digest_rows"
SUM_KERNEL: Final = "sum_rows"
_ROW_THREADS: Final = 64
_LEAST: Final = 64
"""Least number of digests for which an answer has room, so that small answers share memory."""


@final
class CudaDigests:
    """Computes digests with kernels of our own, into page-locked memory."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._kernels: Final = Kernels(context, stream, SOURCE)
        with undone_on_error() as made:
            made.callback(self._kernels.close)
            # A recovery needs them at once; a standby has them ready.
            self._chunk, self._row, self._sum = map(
                self._kernels.function, (KERNEL, ROW_KERNEL, SUM_KERNEL)
            )
        self._arguments: Final = ArgumentBlocks()
        self._row_arguments: Final = ArgumentBlocks()
        self._sum_arguments: Final = ArgumentBlocks()
        self._free: Final[dict[int, list[int]]] = {}
        self._all: Final[list[int]] = []
        self.handlers: Final = {Digest: self._digest}

    def close(self) -> None:
        """Unload the kernels, and release page-locked memory."""
        self._kernels.close()
        for cell in self._all:
            check("cuMemFreeHost", driver.cuMemFreeHost(cell))
        self._all.clear()
        self._free.clear()

    def _digest(self, message: Digest) -> Later:
        counts = [-(-nbytes // CHUNK_BYTES) for _, nbytes in message.ranges]
        rows = sum(len(each.rows) // 4 for each in message.rows)
        masks = sum(len(each.mask) for each in message.sums)
        total = sum(counts) + rows + masks * 8 // SUM_ROWS
        # Behind the answer are the masks, and then the numbers of the rows, of half their size.
        words = total + masks // 8 + -(-rows // 2)
        room = max(_LEAST, 1 << (words - 1).bit_length()) if words else _LEAST
        cell = self._cell(room)
        at = cell
        for (address, nbytes), count in zip(message.ranges, counts, strict=True):
            if count:
                data = struct.pack("<QQQ", self._context.pointer(address), at, nbytes)
                arguments = self._arguments.having(data)
                self._kernels.prepare_blocks(
                    self._chunk, count, CHUNK_BYTES // LEAF_BYTES, 0, arguments
                )()
            at += 8 * count
        numbers = cell + 8 * total + masks
        for each in message.rows:
            self._digest_rows(each, at, numbers)
            at += 2 * len(each.rows)
            numbers += len(each.rows)
        mask = cell + 8 * total
        for part in message.sums:
            self._sum_rows(part, at, mask)
            at += 8 * (len(part.mask) * 8 // SUM_ROWS)
            mask += len(part.mask)
        return Later(partial(self._read, cell, room, 8 * total))

    def _digest_rows(self, part: RowRange, answer: int, numbers: int) -> None:
        """Launch the digests of rows, with their numbers in page-locked memory at ``numbers``."""
        count = len(part.rows) // 4
        if not count:
            return
        ctypes.memmove(numbers, part.rows, len(part.rows))
        data = self._context.pointer(part.address)
        arguments = struct.pack("<QQQQQ", data, answer, numbers, count, part.row_bytes)
        self._kernels.prepare_blocks(
            self._row,
            -(-count // _ROW_THREADS),
            _ROW_THREADS,
            0,
            self._row_arguments.having(arguments),
        )()

    def _sum_rows(self, part: RowSums, answer: int, mask: int) -> None:
        """Launch the sums of rows, with their mask in page-locked memory at ``mask``."""
        count = len(part.mask) * 8 // SUM_ROWS
        if not count:
            return
        ctypes.memmove(mask, part.mask, len(part.mask))
        data = self._context.pointer(part.address)
        arguments = struct.pack("<QQQQ", data, answer, mask, part.row_bytes)
        self._kernels.prepare_blocks(
            self._sum,
            count,
            SUM_ROWS,
            0,
            self._sum_arguments.having(arguments),
        )()

    def _cell(self, room: int) -> int:
        """Return page-locked memory for ``room`` digests, which the device can write to."""
        free = self._free.setdefault(room, [])
        if free:
            return free.pop()
        cell = int(check("cuMemAllocHost", driver.cuMemAllocHost(8 * room)))
        self._all.append(cell)
        return cell

    def _read(self, cell: int, room: int, nbytes: int) -> bytes:
        found = ctypes.string_at(cell, nbytes)
        self._free[room].append(cell)
        return found
