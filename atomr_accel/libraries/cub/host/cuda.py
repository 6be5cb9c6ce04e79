"""CUB on CUDA: builds of package cuda-cccl, run on one lane's streams."""

from __future__ import annotations

import ctypes
import struct
import threading
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

import numpy as np

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....backends.cuda.host.driver import check, driver
from ....executors.cuda_kernels import (
    ArgumentBlocks,
    KernelArguments,
    Kernels,
    preload_compiler,
)
from ....executors.device_code import CudaSource
from ....wire import PLACE
from ....wire.recent import Recent
from ..wire._spec import decode
from ..wire.messages import BuildCub, Count, RunCub
from ._algorithms import MACROS
from ._bindings import load_cub, refusal
from ._builds import BuildStore
from ._calls import QUERY, SOMEWHERE, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....backends.cuda.host.context import CudaContext, CudaStream
    from ....host.templates import HostTemplate
    from ..wire._spec import CubSpec
    from ._calls import CubCall

_STORES: Final[WeakKeyDictionary[CudaContext, BuildStore]] = WeakKeyDictionary()
_STORES_LOCK: Final = threading.Lock()
SOURCE: Final = CudaSource(__package__, "positions.cu", **MACROS)
_WAITS: Final = frozenset({"segmented_sort"})
"""Algorithms that wait for the device while they run: they cannot be captured into a graph."""

_APART: Final = 48
"""Bits of an offset in a buffer; bits beyond tell stand-ins of pointers apart."""

_MOST_SIZES: Final = 1024
"""Calls that an executor knows the scratch memory of without asking."""

_COUNTS: Final = {
    **dict.fromkeys(("select", "select_flagged", "partition", "three_way_partition"), 16),
    "unique_by_key": 8,
}
"""Bytes of the numbers that an algorithm writes."""


def _store_of(context: CudaContext) -> BuildStore:
    """The builds of a context: every stream of every lane asks for the same."""
    with _STORES_LOCK:
        store = _STORES.get(context)
        if store is None:
            store = _STORES[context] = BuildStore(context.compute_capability)
        return store


def _zeros(spec: CubSpec) -> int:
    """Return the bytes of the last buffer that become zeros if there are no elements."""
    if spec.algorithm == "histogram_even":
        return (spec.levels - 1) * DTYPES[spec.dtypes[1]].itemsize
    return _COUNTS.get(spec.algorithm, 0)


@final
class CudaCub:
    """Executes CUB's messages."""

    def __init__(self, context: CudaContext, stream: CudaStream) -> None:
        self._context: Final = context
        self._stream: Final = stream
        self._store: Final = _store_of(context)
        self._calls: dict[bytes, CubCall] = {}
        self._scratch: dict[int, int] = {}
        self._needed: Final[Recent[tuple[bytes, tuple[int, ...]], int]] = Recent(_MOST_SIZES)
        self._kernels: Final = Kernels(context, stream, SOURCE)
        self._arguments: Final = ArgumentBlocks()
        self.handlers: Final[dict[type, Callable[[Any], Any]]] = {
            BuildCub: self._build,
            RunCub: self.run,
            Count: self._count,
        }
        self.preparers: Final = {RunCub: self._prepare_run}

    @staticmethod
    def preload() -> None:
        """Load the bindings."""
        load_cub()
        preload_compiler()

    def close(self) -> None:
        """Unload kernels, and free the scratch memory."""
        self._calls.clear()
        self._kernels.close()
        for pointer in self._scratch.values():
            check("cuMemFree", driver.cuMemFree(pointer))
        self._scratch.clear()

    def _build(self, message: BuildCub) -> tuple[int, str, float]:
        built, origin, seconds = self._store.find(message.spec, message.sizes)
        call = self._call(message.spec)
        for name in call.kernels:
            self._kernels.function(name)
        pointers = call.stand_ins()
        values = [bytes(call.number_bytes)] * 2
        try:
            needed = call.run(built, (pointers, message.sizes, values, QUERY, 0))
        except RuntimeError as error:
            raise refusal(f"cuda.compute {call.spec.algorithm}", error) from error
        return needed + whole(call.beside(message.sizes[0])), origin, seconds

    def _call(self, encoded: bytes) -> CubCall:
        call = self._calls.get(encoded)
        if call is None:
            call = self._calls[encoded] = self._store.call(decode(encoded))
        return call

    def run(self, message: RunCub) -> None:
        """Queue an algorithm; the array lane does so, too, among its own steps."""
        built, _, _ = self._store.find(message.spec, message.sizes)
        call = self._call(message.spec)
        algorithm = call.spec.algorithm
        stream = self._stream
        if stream.captures and algorithm in _WAITS:
            raise Unsupported(
                f"{algorithm} waits for the device in the middle of it, so a recording cannot "
                "have it; call it outside, or in a batch"
            )
        pointer = self._context.pointer
        pointers = [pointer(address) if address else 0 for address in message.addresses]
        if not message.sizes[0]:
            self._write_of_nothing(call.spec, pointers[-1], message.values)
            return
        if stream.captures:
            stream.keep(built)  # the graph launches its kernels
        needed = self._needs(call, built, message)
        workspace = pointer(message.workspace) if message.workspace else 0
        self._queue(call, built, message, pointers, needed, workspace)

    def _needs(self, call: CubCall, built: Any, message: RunCub) -> int:
        """Return the bytes of scratch memory that CUB needs."""
        key = message.spec, message.sizes
        needed = self._needed.get(key)
        if needed is None:
            pointers = call.stand_ins()
            try:
                needed = call.run(built, (pointers, message.sizes, message.values, QUERY, 0))
            except RuntimeError as error:
                raise refusal(f"cuda.compute {call.spec.algorithm}", error) from error
            self._needed.keep(key, needed)
        return needed

    def _queue(
        self,
        call: CubCall,
        built: Any,
        message: RunCub,
        pointers: Sequence[int],
        needed: int,
        workspace: int,
    ) -> None:
        """Queue an algorithm, whose buffers and scratch memory are at these pointers."""
        count = message.sizes[0]
        beside = whole(call.beside(count))
        scratch = workspace or SOMEWHERE
        if needed + beside > message.workspace_bytes:
            scratch = self._scratch_of(needed + beside)
        given = call.before(self._launch, pointers, scratch, count)
        place, stream = (scratch + beside, needed), self._stream.pointer
        try:
            call.run(built, (given, message.sizes, message.values, place, stream))
        except RuntimeError as error:
            raise refusal(f"cuda.compute {call.spec.algorithm}", error) from error
        call.after(self._launch, pointers, scratch, count)

    def _prepare_run(self, template: HostTemplate) -> Callable[[Sequence[int]], None] | None:
        """Return a function that runs an algorithm on buffers at other addresses, or None."""
        message: Any = template.message
        addresses = *message.addresses, message.workspace
        if not message.sizes[0] or any(0 < at < PLACE for at in addresses):
            return None
        made: list[Callable[[Sequence[int]], None]] = []

        def run(addresses: Sequence[int]) -> None:
            if not made:  # here, so that an error is that of the call
                made.append(self._prepared(message))
            made[0](addresses)

        return run

    def _prepared(self, message: RunCub) -> Callable[[Sequence[int]], None]:
        """Return what runs an algorithm, given addresses for its places."""
        call = self._call(message.spec)
        if not call.result:
            return self._prepared_kernel(call, message)
        built, _, _ = self._store.find(message.spec, message.sizes)
        needed = self._needs(call, built, message)
        *places, workspace = [
            at ^ PLACE if at else -1 for at in (*message.addresses, message.workspace)
        ]
        all_pointers, queue = self._context.pointers, self._queue

        def run(addresses: Sequence[int]) -> None:
            pointers = [*all_pointers(addresses), 0]  # the last one of a missing buffer
            given = [pointers[at] for at in places]
            queue(call, built, message, given, needed, pointers[workspace])

        return run

    def _prepared_kernel(self, call: CubCall, message: RunCub) -> Callable[[Sequence[int]], None]:
        """Return the same of an algorithm that kernels of ours run alone."""
        launches: list[tuple[Callable[[], None], Any, list[tuple[int, int, int]]]] = []
        buffers = [at ^ PLACE for at in message.addresses]

        def prepare(kernel: str, count: int, *pointers: int, threads: int = 0) -> None:
            arguments = KernelArguments(struct.pack(f"<{len(pointers)}Qq", *pointers, count))
            function = self._kernels.function(kernel)
            launch = self._kernels.prepare(function, threads or count, arguments)
            # Slots of pointers, their buffers, and how far behind their begin they are.
            places = [
                (slot, buffers[(at >> _APART) - 1], at % (1 << _APART))
                for slot, at in enumerate(pointers)
                if at >> _APART
            ]
            launches.append((launch, arguments.pointers, places))

        stand_ins = [number << _APART for number in range(1, len(buffers) + 1)]
        call.after(prepare, stand_ins, 0, message.sizes[0])
        all_pointers = self._context.pointers

        def run(addresses: Sequence[int]) -> None:
            pointers = all_pointers(addresses)
            for launch, into, places in launches:
                for slot, at, offset in places:
                    into[slot] = pointers[at] + offset
                launch()

        return run

    def _write_of_nothing(self, spec: CubSpec, pointer: int, values: Sequence[bytes]) -> None:
        """Write the result of an algorithm without elements."""
        if spec.algorithm == "reduce":
            # CUB would copy the init without a cast, and its dtype may differ.
            _, accumulator, out = spec.dtypes
            first = np.frombuffer(values[0], DTYPES[accumulator], 1).astype(DTYPES[out])
            result = first.view(np.uint8).tolist()
        else:
            result = [0] * _zeros(spec)
        for byte, run in groupby(enumerate(result), itemgetter(1)):
            places = [at for at, _ in run]
            memset = driver.cuMemsetD8Async(
                pointer + places[0], byte, len(places), self._stream.handle
            )
            check("cuMemsetD8Async", memset)

    def _launch(self, kernel: str, count: int, *pointers: int, threads: int = 0) -> None:
        """Launch one of our own kernels, for some elements."""
        arguments = self._arguments.having(struct.pack(f"<{len(pointers)}Qq", *pointers, count))
        self._kernels.launch(self._kernels.function(kernel), threads or count, arguments)

    def _scratch_of(self, nbytes: int) -> int:
        """Return scratch memory for a call that has too little: in a batch, or after a rebuild.

        Kept while the executor lives, because a captured graph may have it.
        """
        size = 1 << (nbytes - 1).bit_length()
        scratch = self._scratch.get(size)
        if scratch is None:
            scratch = self._scratch[size] = int(check("cuMemAlloc", driver.cuMemAlloc(size)))
        return scratch

    def _count(self, message: Count) -> int:
        there = ctypes.c_int64()
        pointer = self._context.pointer(message.address)
        stream = self._stream
        copied = driver.cuMemcpyDtoHAsync(ctypes.addressof(there), pointer, 8, stream.handle)
        check("cuMemcpyDtoHAsync", copied)
        stream.synchronize()
        return there.value
