"""Lengths, caches of keys and values, and dropout on CUDA: kernels of our own."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import KernelArguments, Kernels
from ....executors.device_code import C_TYPES, CudaSource
from ..wire._routine_messages import Dropout
from ..wire.sequence_messages import (
    Append,
    Attend,
    Blank,
    Clean,
    Clear,
    ClearAll,
    Derived,
    Grow,
    SequenceUpload,
    Trial,
    decode_derived,
)
from .philox import threshold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ....backends.cuda.host.context import CudaContext, CudaStream

MOST_DERIVED: Final = 10
"""Number of lists of integers that one launch can make."""

SOURCE: Final = CudaSource(__package__, "sequences.cu", LISTS=MOST_DERIVED)

_PIECE: Final = 1 << 16
"""Uploads of up to this size return before the stream comes to them."""

_DERIVED: Final = "<QQqqqqii"
"""A list of the kernel ``derive``, which begins with its addresses."""

_DERIVED_BYTES: Final = struct.calcsize(_DERIVED)
_MOST_PACKED: Final = 1024

_PIECES: Final = {16: "uint4", 8: "unsigned long long", 4: "unsigned", 2: "unsigned short"}
"""Type that a thread copies at a time, by its bytes."""

_WORDS: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned"}
"""Type of the words that overwrite elements, by the bytes of an element."""


def pack_derived(lists: tuple[Derived, ...]) -> tuple[int, KernelArguments]:
    """Threads and arguments of the kernel ``derive``, without addresses."""
    longest = max(each.count for each in lists)
    data = b""
    for each in lists:
        numbers = (each.multiplier, each.addend, each.count, each.ceiling)
        data += struct.pack(_DERIVED, 0, 0, *numbers, each.differences, each.wide)
    data += bytes(_DERIVED_BYTES * (MOST_DERIVED - len(lists)))
    threads = longest * len(lists)
    return threads, KernelArguments(data + struct.pack("<QQ", longest, threads))


def piece_of(nbytes: int) -> int:
    """The largest piece of which a size, or a place, is a multiple."""
    return next((size for size in _PIECES if nbytes % size == 0), 1)


@final
class CudaSequences:
    """Executes the messages of ``_sequence_messages``."""

    def __init__(
        self,
        context: CudaContext,
        stream: CudaStream,
        handlers: Mapping[type, Callable[[Any], Any]],
    ) -> None:
        self._pointer: Final = context.pointer
        self._stream: Final = stream
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self._others: Final = handlers
        self._packed: dict[bytes, tuple[int, KernelArguments]] = {}
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            Attend: self._attend,
            Grow: self._attend,
            Trial: self._attend,
            Clear: self._clear,
            ClearAll: self._clear_all,
            Dropout: self._dropout,
        }

    def close(self) -> None:
        """Unload the kernels."""
        self._kernels.close()

    def _attend(self, message: Attend) -> Any:
        for upload in message.uploads:
            self._upload(upload)
        if message.append is not None:
            self.append(message.append)
        if message.places:
            self._derive(message.derived, message.places)
        for clean in message.clean:
            self._clean(clean)
        for blank in message.before:
            self._blank(blank)
        answer = None if message.run is None else self._others[type(message.run)](message.run)
        for blank in message.after:
            self._blank(blank)
        return answer

    def _derive(self, encoded: bytes, places: tuple[int, ...]) -> None:
        packed = self._packed.get(encoded)
        if packed is None:
            if len(self._packed) >= _MOST_PACKED:
                self._packed.clear()
            packed = self._packed[encoded] = pack_derived(decode_derived(encoded))
        threads, arguments = packed
        pointer, pointers = self._pointer, arguments.pointers
        words = _DERIVED_BYTES // 8
        for at, place in enumerate(places):
            pointers[at // 2 * words + at % 2] = pointer(place) if place else 0
        self._kernels.launch(self._kernels.function("derive"), threads, arguments)

    def append(self, message: Append) -> None:
        """Write new rows to a cache."""
        pointer, page = self._pointer, message.page
        for base, size in (
            (message.k_layers, message.k_bytes),
            (message.v_layers, message.v_bytes),
        ):
            for source, target in message.copies:
                for layer in range(message.layers):
                    first = pointer(base) + layer * message.pages * page * size
                    self._copy(
                        first + target * page * size, first + source * page * size, page * size
                    )
        if not message.batch or not message.new:
            return
        lengths = pointer(message.lengths)
        table = pointer(message.table) if message.table else 0
        for rows, cache, size in (
            (message.k, message.k_cache, message.k_bytes),
            (message.v, message.v_cache, message.v_bytes),
        ):
            places = (pointer(cache), pointer(rows), lengths, table)
            piece = piece_of(size | places[0] | places[1])
            width = size // piece
            count = message.batch * message.new * width
            name = f"append<{_PIECES.get(piece, 'unsigned char')}>"
            shape = (count, width, message.new, page, message.columns, message.pages)
            self._launch(name, count, struct.pack("<10Qq", *places, *shape, message.shift))

    def _clean(self, message: Clean) -> None:
        pointer = self._pointer
        places = [pointer(each) for each in (message.target, message.source, message.lengths)]
        places.append(pointer(message.table) if message.page else 0)
        piece = piece_of(message.row_bytes | places[0] | places[1])
        width = message.row_bytes // piece
        block = message.rows * width
        count = message.batch * message.groups * block
        name = f"clean<{_PIECES.get(piece, 'unsigned char')}>"
        numbers = (count, block, message.groups, width, message.page)
        last = (message.columns, message.pages)
        self._launch(name, count, struct.pack("<11Q", *places, *numbers, *last))

    def _blank(self, message: Blank) -> None:
        pointer = self._pointer
        if message.nbytes:
            self._copy(pointer(message.target), pointer(message.source), message.nbytes)
        places = (message.target, message.lengths_q, message.lengths_k, message.offsets)
        pointers = [pointer(each) if each else 0 for each in (*places, message.sinks)]
        count = message.batch * message.heads * message.rows
        sizes = (message.heads, message.rows, message.keys)
        steps = (message.by_batch, message.by_head, message.by_row, message.width)
        mask = (message.left, message.right, message.top_left, message.value)
        arguments = struct.pack("<6Q11q", *pointers, count, *sizes, *steps, *mask)
        self._launch(f"blank<{_WORDS[message.itemsize]}>", count, arguments)

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        check(
            "cuMemcpyDtoDAsync",
            driver.cuMemcpyDtoDAsync(target, source, nbytes, self._stream.handle),
        )

    def _upload(self, message: SequenceUpload) -> None:
        stream = self._stream.handle
        if int(check("cuStreamIsCapturing", driver.cuStreamIsCapturing(stream))):
            raise Unsupported(
                "a PagedKVCache cannot be recorded, because its page tables change; record "
                "flash_attention_with_kvcache with a block_table of your own"
            )
        host = np.frombuffer(message.data, np.uint8)
        pointer, address = self._pointer(message.target), host.ctypes.data
        for start in range(0, host.nbytes, _PIECE):
            size = min(_PIECE, host.nbytes - start)
            check(
                "cuMemcpyHtoDAsync",
                driver.cuMemcpyHtoDAsync(pointer + start, address + start, size, stream),
            )

    def _clear(self, message: Clear) -> None:
        if not message.nbytes:
            return
        target, stream = self._pointer(message.target), self._stream.handle
        check(
            "cuMemsetD8Async",
            driver.cuMemsetD8Async(target, message.byte, message.nbytes, stream),
        )

    def _clear_all(self, message: ClearAll) -> None:
        for part in message.parts:
            self._clear(part)

    def _dropout(self, message: Dropout) -> None:
        count, position = message.count, message.offset
        if not count:
            return
        wide = DTYPES[message.dtype].itemsize == 8
        blocks = (position + count - 1) // 4 - position // 4 + 1
        where = (self._pointer(message.y), self._pointer(message.x))
        numbers = (count, message.seed, position, threshold(message.p))
        scale = 1 / (1 - message.p)
        last = struct.pack("<dQ" if wide else "<f4xQ", scale, blocks)
        name = f"dropout<{C_TYPES[message.dtype]}, {'double' if wide else 'float'}>"
        self._launch(name, blocks, struct.pack("<6Q", *where, *numbers) + last)

    def _launch(self, name: str, items: int, arguments: bytes) -> None:
        self._kernels.launch(self._kernels.function(name), items, KernelArguments(arguments))
