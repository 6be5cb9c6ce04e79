"""RNG on CUDA: Philox and distributions in kernels, further generators in cuRAND."""

from __future__ import annotations

import contextlib
import math
import struct
from ctypes import byref, c_void_p
from functools import cache
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...._errors import LibraryError, Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import KernelArguments, Kernels, preload_compiler
from ....executors.vendor import VendorLibrary
from ....wire.recent import Recent
from ..wire._distributions import BLOCK, DISTRIBUTIONS, KINDS
from ..wire._messages import Draw, Pick, Points, Take, UploadTable
from ._prototypes import GENERATORS, ORDERINGS, PROTOTYPES, SKIPS, STATUS_NAMES, VECTORS
from ._source import ROWS, SOURCE, parameters, type_of

if TYPE_CHECKING:
    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ..wire._messages import Distribution

_MOST_SEQUENCES: Final = {"mtgp32": 64, "mt19937": 16}
"""Number of sequences of a kind that keep their position; 8 of other kinds. Kinds that cannot skip
would have to draw all earlier numbers again. They take about 0.3 and 20 MB each."""

_BURNT: Final = 1 << 20
"""Words that are drawn at a time to be skipped."""


@cache
def _library() -> VendorLibrary:
    return VendorLibrary("curand", PROTOTYPES, STATUS_NAMES)


@final
class CudaRng:
    """Executes RNG messages. cuRAND is loaded when a generator of its is first used."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._pointer: Final = context.pointer
        self._stream: Final = stream
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self._sequences: dict[str, Recent[tuple[str, int], _RandomSequence]] = {}
        self._vectors: dict[str, tuple[int, int, int]] = {}
        self._burner = 0
        self._owned: list[int] = []
        self.handlers: Final = {
            Draw: self._draw,
            Points: self._points,
            Pick: self._pick,
            Take: self._take,
            UploadTable: self._table,
        }

    @staticmethod
    def preload() -> None:
        """Load the compiler; cuRAND is not needed for most generators."""
        preload_compiler()

    def close(self) -> None:
        """Destroy cuRAND's generators and free the tables."""
        for sequences in self._sequences.values():
            sequences.clear()
        for pointer in self._owned:
            check("cuMemFree", driver.cuMemFree(pointer))
        self._owned.clear()
        self._kernels.close()

    def _draw(self, message: Draw) -> None:
        count, distribution = message.count, message.distribution
        if not count:
            return
        use = DISTRIBUTIONS[distribution.name]
        blocks = -(-count // use.values(distribution.dtype))
        target = self._pointer(message.target)
        params = self._params(distribution)
        if use.until_accepted:
            head = struct.pack("<4Q", target, count, message.key, message.rejection_offset)
            self._launch(f"draw_each<{type_of(distribution)}>", count, head + params)
            return
        first = message.position // BLOCK
        if KINDS[message.kind].fused:
            head = struct.pack("<4Q", target, count, message.key, first)
            self._launch(f"fill<{type_of(distribution)}>", blocks, head + params)
            return
        words = self._pointer(message.scratch) if message.scratch else target
        self._sequence(message).words(words, blocks * BLOCK, message.position)
        head = struct.pack("<5Q", target, words, count, message.key, first)
        self._launch(f"apply<{type_of(distribution)}>", blocks, head + params)

    def _points(self, message: Points) -> None:
        count = message.count * message.dimensions
        if not count:
            return
        distribution, bits = message.distribution, KINDS[message.kind].bits
        vectors, scramble = self._direction_vectors(message.kind, message.dimensions)
        head = struct.pack(
            "<6Q",
            self._pointer(message.target),
            vectors,
            scramble,
            count,
            message.first,
            message.dimensions,
        )
        name = f"sobol<{type_of(distribution)}, u{bits}>"
        self._launch(name, count, head + self._params(distribution))

    def _pick(self, message: Pick) -> None:
        target = self._pointer(message.target)
        if not message.count:
            return
        if not message.scratch:
            arguments = struct.pack(
                "<5Q", target, message.items, message.count, message.key, message.rejection_offset
            )
            self._launch("permute", message.count, arguments)
            return
        times = self._pointer(message.scratch)
        weights = self._pointer(message.weights) if message.weights else 0
        head = struct.pack("<4Q", times, message.items, message.key, message.rejection_offset)
        race = struct.pack("<2d5Q", 0.0, 0.0, 0, 0, 0, message.items, weights)
        self._launch("draw_each<Race>", message.items, head + race)
        arguments = struct.pack("<4Q", target, times, message.items, message.count)
        self._launch("first_of", message.items, arguments)

    def _take(self, message: Take) -> None:
        nbytes = message.nbytes
        if not message.count or not nbytes:
            return
        # As wide as rows, and views that they may lie in, are aligned for.
        places = math.gcd(nbytes, self._pointer(message.target), self._pointer(message.rows))
        size = next(size for size in ROWS if places % size == 0)
        width = nbytes // size
        arguments = struct.pack(
            "<5Q",
            self._pointer(message.target),
            self._pointer(message.rows),
            self._pointer(message.index),
            message.count * width,
            width,
        )
        self._launch(f"take<{ROWS[size]}>", message.count * width, arguments)

    def _table(self, message: UploadTable) -> None:
        # The data is this message's own and gone afterwards, so this one copy is waited for.
        host = np.frombuffer(message.data, np.uint8)
        check(
            "cuMemcpyHtoDAsync",
            driver.cuMemcpyHtoDAsync(
                self._pointer(message.target), host.ctypes.data, len(host), self._stream.handle
            ),
        )
        self._stream.synchronize()

    def _params(self, distribution: Distribution) -> bytes:
        return parameters(
            distribution, self._pointer(distribution.table) if distribution.table else 0
        )

    def _launch(self, name: str, items: int, arguments: bytes) -> None:
        self._kernels.launch(self._kernels.function(name), items, KernelArguments(arguments))

    # --- cuRAND ---------------------------------------------------------------------------

    def _sequence(self, message: Draw) -> _RandomSequence:
        capturing = check("cuStreamIsCapturing", driver.cuStreamIsCapturing(self._stream.handle))
        if int(capturing):
            raise Unsupported(
                f"draws of {message.kind} cannot be recorded, because a replay would go on in "
                f"its sequence; those of philox4_32_10 can, and repeat"
            )
        kind, key = message.kind, (message.ordering, message.key)
        sequences = self._sequences.get(kind)
        if sequences is None:
            sequences = Recent(_MOST_SEQUENCES.get(kind, 8), _RandomSequence.close)
            self._sequences[kind] = sequences
        sequence = sequences.get(key)
        if sequence is not None and sequence.reaches(message.position):
            return sequence
        if not self._burner and kind not in SKIPS:
            self._burner = self._allocate(_BURNT * 4)
        made = _RandomSequence(_library(), kind, *key, self._stream.pointer, self._burner)
        return sequences.keep(key, made)

    def _direction_vectors(self, kind: str, dimensions: int) -> tuple[int, int]:
        """Return pointers to direction vectors and scramble constants for these dimensions."""
        vectors, scramble, there = self._vectors.get(kind, (0, 0, 0))
        if there >= dimensions:
            return vectors, scramble
        bits, library = KINDS[kind].bits, _library()
        # What is on the device already stays there: a recording may have it.
        cell = c_void_p()
        library.call(f"curandGetDirectionVectors{bits}", byref(cell), VECTORS[kind])
        vectors = self._upload(cell.value, dimensions * bits * bits // 8)
        if kind.startswith("scrambled"):
            library.call(f"curandGetScrambleConstants{bits}", byref(cell))
            scramble = self._upload(cell.value, dimensions * bits // 8)
        self._vectors[kind] = vectors, scramble, dimensions
        return vectors, scramble

    def _upload(self, host: int | None, nbytes: int) -> int:
        pointer = self._allocate(nbytes)
        check("cuMemcpyHtoD", driver.cuMemcpyHtoD(pointer, host, nbytes))
        return pointer

    def _allocate(self, nbytes: int) -> int:
        pointer = int(check("cuMemAlloc", driver.cuMemAlloc(nbytes)))
        self._owned.append(pointer)
        return pointer


@final
class _RandomSequence:
    """One generator of cuRAND at one place of its sequence."""

    def __init__(
        self,
        library: VendorLibrary,
        kind: str,
        ordering: str,
        seed: int,
        stream: int,
        burner: int,
    ) -> None:
        self._library = library
        self._kind = kind
        self._burner = burner
        self._at = 0
        cell = c_void_p()
        library.call("curandCreateGenerator", byref(cell), GENERATORS[kind])
        self._handle: Any = cell.value
        try:
            library.call("curandSetStream", self._handle, stream)
            library.call("curandSetGeneratorOrdering", self._handle, ORDERINGS[ordering])
            library.call("curandSetPseudoRandomGeneratorSeed", self._handle, seed)
        except BaseException:
            self.close()
            raise

    def reaches(self, position: int) -> bool:
        """Return True if it can go to a position."""
        return self._kind in SKIPS or position >= self._at

    def words(self, target: int, count: int, position: int) -> None:
        """The words from ``position`` on."""
        if position != self._at:
            self._go(position)
        self._library.call("curandGenerate", self._handle, target, count)
        self._at = position + count

    def _go(self, position: int) -> None:
        if self._kind in SKIPS:
            self._library.call("curandSetGeneratorOffset", self._handle, position)
            return
        left = position - self._at
        while left:
            words = min(left, _BURNT)
            self._library.call("curandGenerate", self._handle, self._burner, words)
            left -= words

    def close(self) -> None:
        """Destroy the generator."""
        with contextlib.suppress(LibraryError):  # nothing to be done about it
            self._library.call("curandDestroyGenerator", self._handle)
