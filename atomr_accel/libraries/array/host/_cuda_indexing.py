"""Gathers, scatters and scans on CUDA: kernels of this package."""

from __future__ import annotations

import ctypes
import struct
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import ArgumentBlocks, KernelArguments, Kernels
from ....wire import PLACE
from ....wire.interface import Later
from ..wire._intervals import require_intervals
from ..wire.indexing import (
    Choose,
    Compact,
    CopyAll,
    CountHistogram,
    CountNumbers,
    Distinct,
    FindAmong,
    FindOutside,
    Interpolate,
    ReadNumbers,
    RequireIntervals,
    RequireOrder,
    ScanRows,
    Top,
    UploadBytes,
)
from ._indexing_source import (
    COMPACTION,
    COUNT_ITEMS,
    DISTINCT,
    ELEMENTS,
    INDEXING,
    MOST_SHARED,
    NUMBERS,
    SCANS,
    SEARCHES,
    UPLOADED,
    binning,
    choosing,
    parts_of,
    scanning,
)
from ._source import THREADS
from ._top_source import TOPS, kernel_types, tops

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....executors.device_code import CudaSource
    from ....host.templates import HostTemplate
    from ....wire.copies import CopyStrided
    from ._indexing_source import Placed

    _Prepared = Callable[[Sequence[int]], None]

_NOWHERE: Final = (1 << 64) - 1


@final
class CudaIndexing:
    """Executes some of the array lane's messages; its handlers are some of the lane's."""

    def __init__(
        self, context: CudaContext, stream: CudaStream, copy: Callable[[CopyStrided], None]
    ) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._copy: Final = copy
        self._kernels: dict[CudaSource, Kernels] = {}
        self._arguments: Final = ArgumentBlocks()
        self._cells: Final = _AnswerCells(stream)
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            CopyAll: self._copy_all,
            UploadBytes: self._upload,
            Choose: self._choose,
            Compact: self._compact,
            CountNumbers: self._count_numbers,
            Distinct: self._distinct,
            FindOutside: self._find_outside,
            CountHistogram: self._histogram,
            FindAmong: self._find_among,
            Interpolate: self._interpolate,
            ReadNumbers: self._read_numbers,
            RequireIntervals: self._require_intervals,
            RequireOrder: self._require_order,
            ScanRows: self._scan,
            Top: self._top,
        }
        self.preparers: Final[dict[type, Callable[[HostTemplate], _Prepared | None]]] = {
            CountHistogram: self._prepare_histogram,
            ScanRows: self._prepare_scan,
        }

    def close(self) -> None:
        """Unload the modules."""
        for kernels in self._kernels.values():
            kernels.close()
        self._kernels.clear()
        self._cells.close()

    def _of(self, source: CudaSource) -> Kernels:
        """The kernels of one of the sources, of which most programs need few."""
        kernels = self._kernels.get(source)
        if kernels is None:
            kernels = self._kernels[source] = Kernels(self._context, self._stream, source)
        return kernels

    def _launch(self, source: CudaSource, name: str, items: int, packed: bytes) -> None:
        """Launch a kernel of one of the sources."""
        kernels = self._of(source)
        kernels.launch(kernels.function(name), items, self._arguments.having(packed))

    def _prepared(self, source: CudaSource, launches: Sequence[Placed]) -> _Prepared | None:
        """Return a launch on buffers that differ in addresses; None if an address is fixed."""
        if any(0 < at < PLACE for each in launches for at in each.addresses):
            return None
        kernels, all_pointers = self._of(source), self._context.pointers
        steps: list[tuple[Callable[[], None], Any, list[tuple[int, int]]]] = []
        for each in launches:
            name, items, data = each.packed(lambda _address: 0)
            arguments = KernelArguments(data)
            run = kernels.prepare(kernels.function(name), items, arguments)
            places = [(slot, at ^ PLACE) for slot, at in enumerate(each.addresses) if at]
            steps.append((run, arguments.pointers, places))

        def launch(addresses: Sequence[int]) -> None:
            pointers = all_pointers(addresses)
            for run, into, places in steps:
                for slot, at in places:
                    into[slot] = pointers[at]
                run()

        return launch

    def _copy_all(self, message: CopyAll) -> None:
        for each in message.copies:
            self._copy(each)

    def _upload(self, message: UploadBytes) -> None:
        # Among the arguments of kernels: the driver copies these, into a captured graph, too.
        target = self._context.pointer(message.target)
        for start in range(0, len(message.data), UPLOADED):
            data = message.data[start : start + UPLOADED]
            packed = struct.pack(f"<2Q{UPLOADED}s", target + start, len(data), data)
            self._launch(INDEXING, "upload", len(data), packed)

    def _choose(self, message: Choose) -> None:
        self._launch(INDEXING, *choosing(message, self._context.pointer))

    def _compact(self, message: Compact) -> Later | int:
        if not message.count:
            return 0
        pointer = self._context.pointer
        flags, counts = pointer(message.flags), pointer(message.scratch)
        parts, each = parts_of(message.count)
        packed = struct.pack("<5Q", counts, flags, message.count, each, parts)
        self._launch(COMPACTION, "count", parts * THREADS, packed)
        positions = pointer(message.positions)
        packed = struct.pack("<6Q", positions, counts, flags, message.count, each, parts)
        self._launch(COMPACTION, "compact", parts * THREADS, packed)
        return self._cells.fetch([counts + 8 * parts], itemgetter(0))

    def _distinct(self, message: Distinct) -> Later | int:
        if not message.count:
            return 0
        pointer = self._context.pointer
        asked = (message.made, message.places, message.inverse, message.begins)
        made, places, inverse, begins = (pointer(at) if at else 0 for at in asked)
        values, counts = pointer(message.values), pointer(message.scratch)
        order = pointer(message.order) if message.order else 0
        parts, each = parts_of(message.count)
        types, sizes = kernel_types(message.dtype), (message.count, each, parts, message.equal_nan)
        packed = struct.pack("<6Q", counts, values, *sizes)
        self._launch(DISTINCT, f"firsts<{types}>", parts * THREADS, packed)
        pointers = (made, places, inverse, begins, counts, values, order)
        packed = struct.pack("<11Q", *pointers, *sizes)
        self._launch(DISTINCT, f"distinct<{types}>", parts * THREADS, packed)
        total = counts + 8 * parts
        if message.lengths:
            packed = struct.pack("<4Q", pointer(message.lengths), begins, total, message.count)
            self._launch(DISTINCT, "lengths", message.count, packed)
        return self._cells.fetch([total], itemgetter(0))

    def _count_numbers(self, message: CountNumbers) -> None:
        if message.count and message.size:
            pointers = map(self._context.pointer, (message.counts, message.given))
            packed = struct.pack("<4Q", *pointers, message.count, message.size)
            threads = -(-message.count // COUNT_ITEMS)
            self._launch(NUMBERS, f"counted<{ELEMENTS[message.dtype]}>", threads, packed)

    def _find_outside(self, message: FindOutside) -> tuple[bool, int]:
        if not message.count:
            return False, 0
        pointer = self._context.pointer
        found, given = pointer(message.scratch), pointer(message.address)
        self._set(found, 0xFF, 8)
        packed = struct.pack("<3Qq", found, given, message.count, message.extent)
        self._launch(INDEXING, f"outside<{ELEMENTS[message.dtype]}>", message.count, packed)
        at = int.from_bytes(self._read(found, 8), "little")
        if at == _NOWHERE:
            return False, 0
        dtype = DTYPES[message.dtype]
        data = self._read(given + at * dtype.itemsize, dtype.itemsize)
        return True, int(np.frombuffer(data, dtype)[0])

    def _histogram(self, message: CountHistogram) -> None:
        if message.ends:
            self._require_intervals(message)
        pointer = self._context.pointer
        if message.size > MOST_SHARED:
            self._set(pointer(message.counts), 0, 8 * message.size)
        self._launch(NUMBERS, *binning(message).packed(pointer))

    def _prepare_histogram(self, template: HostTemplate) -> _Prepared | None:
        """Return a function that makes histograms on buffers that differ in addresses."""
        message: Any = template.message
        if message.ends:
            return None
        run = self._prepared(NUMBERS, [binning(message)])
        if run is None or message.size <= MOST_SHARED:
            return run
        at, nbytes, pointer = message.counts ^ PLACE, 8 * message.size, self._context.pointer

        def histogram(addresses: Sequence[int]) -> None:
            self._set(pointer(addresses[at]), 0, nbytes)
            run(addresses)

        return histogram

    def _find_among(self, message: FindAmong) -> None:
        pointers = map(self._context.pointer, (message.target, message.given, message.row))
        packed = struct.pack("<6Q", *pointers, message.count, message.size, message.invert)
        self._launch(SEARCHES, f"among<{ELEMENTS[message.dtype]}>", message.count, packed)

    def _interpolate(self, message: Interpolate) -> None:
        parts = DTYPES[message.dtype].itemsize // 8
        places = (message.target, message.given, message.places, message.values)
        pointers = map(self._context.pointer, (*places, message.left, message.right))
        packed = struct.pack("<8Q", *pointers, message.count, message.points)
        name = f"interpolated<{ELEMENTS[message.kind]}, {parts}>"
        self._launch(SEARCHES, name, message.count, packed)

    def _require_intervals(self, message: CountHistogram | RequireIntervals) -> None:
        if not self._stream.captures:  # a recording cannot ask
            low, high = struct.unpack("<2d", self._read(self._context.pointer(message.ends), 16))
            require_intervals(low, high, message.size, message.edge)

    def _require_order(self, message: RequireOrder) -> None:
        if not self._stream.captures:  # a recording cannot ask
            message.check(self._read(self._context.pointer(message.flags), 2))

    def _top(self, message: Top) -> None:
        for zeros, launches in tops(message, self._context.pointer):
            if zeros:
                self._set(self._context.pointer(message.scratch), 0, zeros)
            for launch in launches:
                self._launch(TOPS, *launch)

    def _set(self, pointer: int, value: int, nbytes: int) -> None:
        memset = driver.cuMemsetD8Async(pointer, value, nbytes, self._stream.handle)
        check("cuMemsetD8Async", memset)

    def _read_numbers(self, message: ReadNumbers) -> Later:
        return self._cells.fetch([self._context.pointer(at) for at in message.addresses], tuple)

    def _read(self, pointer: int, nbytes: int) -> bytes:
        """Bytes of the device, once all before it on the stream is done."""
        there = ctypes.create_string_buffer(nbytes)
        stream = self._stream
        address = ctypes.addressof(there)
        copied = driver.cuMemcpyDtoHAsync(address, pointer, nbytes, stream.handle)
        check("cuMemcpyDtoHAsync", copied)
        stream.synchronize()
        return there.raw

    def _scan(self, message: ScanRows) -> None:
        for each in scanning(message):
            self._launch(SCANS, *each.packed(self._context.pointer))

    def _prepare_scan(self, template: HostTemplate) -> _Prepared | None:
        """Return a function that scans buffers that differ in addresses."""
        message: Any = template.message
        launches = scanning(message)
        return self._prepared(SCANS, launches) if len(launches) == 1 else None


@final
class _AnswerCells:
    """Page-locked memory for numbers that answers are made of; each question has some of it."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream: Final = stream
        self._free: list[tuple[int, int]] = []
        self._all: list[int] = []

    def fetch(self, pointers: Sequence[int], answer: Callable[[list[int]], Any]) -> Later:
        """Queue a copy of numbers, int64, after all queued work, to be read when that is done."""
        cell = next((each for each in self._free if each[1] >= len(pointers)), None)
        if cell is None:
            room = max(8, len(pointers))
            cell = int(check("cuMemAllocHost", driver.cuMemAllocHost(8 * room))), room
            self._all.append(cell[0])
        else:
            self._free.remove(cell)
        for at, pointer in enumerate(pointers):
            copied = driver.cuMemcpyDtoHAsync(cell[0] + 8 * at, pointer, 8, self._stream.handle)
            check("cuMemcpyDtoHAsync", copied)
        return Later(partial(self._read, cell, len(pointers), answer))

    def _read(self, cell: tuple[int, int], count: int, answer: Callable[[list[int]], Any]) -> Any:
        found = [*(ctypes.c_int64 * count).from_address(cell[0])]
        self._free.append(cell)
        return answer(found)

    def close(self) -> None:
        """Release all of it."""
        for pointer in self._all:
            check("cuMemFreeHost", driver.cuMemFreeHost(pointer))
        self._all.clear()
        self._free.clear()
