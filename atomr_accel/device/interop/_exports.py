"""Buffers in the program's own process, for NumPy, CuPy, PyTorch and JAX there.

A buffer is a part of a descriptor's memory, which this process can map like the host. On the CPU
backend it maps into the process's memory. On CUDA it maps into the device's primary context, which
those libraries use. The first export loads the vendor's driver.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np
import trio

from ..._errors import LibraryError, Unsupported, said_of
from ...arrays import GpuRef, repeats
from ...lanes import HostDied, uninterrupted
from ...memory import SLICE, AtEnd, Block, Hold, Slab, part_of
from ...ops import BLOCK_ALIGNMENT, require_readable
from ...wire import SLAB_SHIFT, Copy, MapPointer, StickyFault, StreamPlan, numpy_at
from ...wire.control import find_class
from ...wire.interop import (
    CPU,
    CUDA,
    ON_GPU,
    ON_HOST,
    Borrowed,
    DeviceArray,
    NotForNumpy,
    borrow,
    contiguous,
    device_type,
    in_elements,
    lend,
)
from .._failures import short_of
from ..core import MEMORY_LANE
from ..data.durable import refuse_durable
from ..data.transfer import as_host_array, in_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...wire.interface import HostContext
    from ..core import DeviceCore

_T = TypeVar("_T")

_left: Final[deque[tuple[_DeviceMappings, int]]] = deque()
"""Leases that have outlived their device and ended: their views and numbers. The next call in any
thread takes them out and frees their mappings."""

_lease_numbers: Final = itertools.count()


@final
class _Lease:
    """Objects that an exported array keeps alive: the buffer's memory, and its mapping here."""

    __slots__ = ("__weakref__", "_at_end", "_number", "block", "slab", "view")

    def __init__(self, view: _DeviceMappings, slab: int, block: Block) -> None:
        self.view: Final = view
        self.slab: Final = slab
        self.block: Block | None = block.base
        self._number: Final = next(_lease_numbers)
        self._at_end: Final = AtEnd(view.returned, (self._number, Hold(block)))
        view.leased[self._number] = slab
        view.leases.add(self)

    def outlive(self) -> None:
        """Drop the block and the hold, because the device is closed and only the mapping is needed.

        The garbage collector does not see objects that NumPy arrays keep alive, so a reference to
        the device could be part of a cycle that is never freed.
        """
        self.block = None
        self._at_end.queue, self._at_end.entry = _left, (self.view, self._number)


@final
class _DeviceMappings:
    """The mappings of one device in this process, for as long as their arrays are held.

    Calls of the driver run in worker threads, one at a time. They belong to no trio run, so a view
    may outlive the run in which it was made.

    Attributes:
        mapped: the addresses of the mapped slabs.
        leases: objects that exported arrays keep alive.
        leased: the slabs of leases that are not known to have ended, by their numbers.
        returned: numbers of leases that have ended, with holds to keep until the work that their
            arrays' libraries have queued is done.
        closed: whether the device is closed, so that further slabs are not mapped.
    """

    def __init__(self, context: str, index: int) -> None:
        self._context = context
        self._index = index
        self._host: HostContext | None = None
        self._lock = threading.Lock()
        self.mapped: dict[int, int] = {}
        self.leases: weakref.WeakSet[_Lease] = weakref.WeakSet()
        self.leased: Final[dict[int, int]] = {}
        self.returned: Final[deque[tuple[int, Hold]]] = deque()
        self.closed = False

    @property
    def opened(self) -> bool:
        """True if the device is open in this process."""
        return self._host is not None

    def unused(self) -> list[int]:
        """Return the slabs without exports."""
        leased = set(self.leased.values())
        return [slab for slab in list(self.mapped) if slab not in leased]

    def map(self, slab: Slab, fd: int) -> None:
        """Map a slab, if it is not mapped yet."""
        with self._lock:
            if slab.id not in self.mapped:
                host = self._current()
                host.map_slab(slab.id, fd, slab.nbytes, sealed=slab.sealed)
                self.mapped[slab.id] = host.pointer(slab.id << SLAB_SHIFT)

    def unmap(self, slabs: list[int]) -> None:
        """Unmap slabs; the last one of a closed device lets go of that."""
        with self._lock:
            gone = [slab for slab in slabs if self.mapped.pop(slab, None) is not None]
            host = self._current()
            # Work on the dropped arrays may still be queued.
            host.synchronize()
            for slab in gone:
                host.unmap_slab(slab)
            if self.closed and not self.mapped:
                self._host = None
                host.close()

    def take(self, address: int, borrowed: Borrowed) -> None:
        """Copy an array of this process to a buffer."""
        with self._lock:
            host = self._current()
        if borrowed.stream is not None:
            host.synchronize()
        host.take(address, borrowed.pointer, borrowed.nbytes)

    def synchronize(self) -> None:
        """Wait for all that this process has queued."""
        with self._lock:
            host = self._current()
        host.synchronize()

    def _current(self) -> HostContext:
        if self._host is None:
            kind = find_class("the backend's context", self._context, "this program")
            self._host = kind(self._index, StreamPlan())
        self._host.make_current()
        return self._host


class Export:
    """A buffer as an array in this process. Made by ``device.export``.

    Each access to the array checks the ref first, and raises ``GpuRefStale`` if it is stale. Arrays
    made before that keep their memory.

    Attributes:
        ref: the buffer.
        shape: as in NumPy.
        dtype: as in NumPy.
        nbytes: size in bytes.
        sealed: whether the memory is read-only.
    """

    def __init__(self, ref: GpuRef, pointer: int, lease: _Lease) -> None:
        self.ref: Final = ref
        self.shape: Final = ref.shape
        self.dtype: Final = ref.dtype
        self.nbytes: Final = ref.nbytes
        self.sealed: Final = ref.sealed
        self._strides: Final = ref.own_strides
        # As in NumPy's broadcast_to, elements that share memory must not be written.
        self._read_only = ref.sealed or repeats(ref.shape, ref.strides)
        self._memory = ref.block.memory
        self._pointer = pointer
        self._lease = lease

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.ref!r}>"

    def __len__(self) -> int:
        return len(self.ref)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The buffer's memory as a NumPy array, read-only if it is sealed.

        Raises:
            Unsupported: it is a GPU's memory.
        """
        raise Unsupported(
            "this export is in a GPU's memory, which NumPy cannot see; "
            "fetch the buffer: host = await device.get(ref)"
        )

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        self._check()
        here = self.__dlpack_device__()
        on_cpu = here[0] == CPU
        if dl_device not in (None, here) or copy or (on_cpu and stream is not None):
            raise BufferError(
                "this array is on the CPU, and can be shared but not copied"
                if on_cpu
                else "this array can be shared, but not copied or moved"
            )
        return lend(
            self._pointer,
            self.shape,
            self.dtype,
            here,
            owner=self._lease,
            read_only=self._read_only,
            max_version=max_version,
            strides=self._strides,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        raise NotImplementedError

    def _check(self) -> None:
        require_readable(self.ref, self._memory, "the exported ref", strided=True)


@final
class HostExport(Export):
    """An export of the CPU backend.

    It supports NumPy's ``__array__`` and DLPack, but neither the array interface nor the buffer
    protocol. An array made by one of these would keep the export alive, and with it the device.
    """

    def numpy(self) -> np.ndarray[Any, Any]:
        """The buffer's memory as a NumPy array, read-only if it is sealed."""
        self._check()
        return numpy_at(
            self._pointer,
            self.shape,
            self.dtype,
            owner=self._lease,
            read_only=self._read_only,
            strides=in_elements(self.shape, self.dtype, self._strides),
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(
                    f"a {array.dtype} buffer becomes {np.dtype(dtype)} "
                    "only by a copy; pass copy=None or True"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


@final
class DeviceExport(NotForNumpy, Export):
    """An export of the CUDA backend.

    It speaks DLPack and the CUDA array interface: ``torch.as_tensor(export, device="cuda")``,
    ``cupy.asarray(export)``, ``jax.dlpack.from_dlpack(export)``.
    """

    def _array(self) -> DeviceArray:
        self._check()
        return DeviceArray(
            self._pointer,
            self.shape,
            self.dtype,
            device=self.ref.block.memory.index,
            sealed=self._read_only,
            owner=self._lease,
            strides=self._strides,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self._array().__cuda_array_interface__

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array().__dlpack_device__()


def begins_at(borrowed: Borrowed, multiple: int) -> bool:
    """Return True if an array's address is aligned well enough for a buffer.

    Libraries expect whole buffers to be well aligned, and a GPU faults on a misaligned element.
    """
    return borrowed.device_type == CPU or not borrowed.pointer % multiple


@final
@uninterrupted
class Exports:
    """The buffers of one device that this process has mapped."""

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._view = _DeviceMappings(core.backend_description.context, core.index)

    # --- out ---------------------------------------------------------------------------------

    async def export(self, ref: GpuRef) -> Export:
        """Implement ``Device.export``."""
        core = self._core
        require_readable(ref, core.memory, "ref", strided=True)
        refuse_durable(ref, "exported")
        await self.sweep()
        while True:
            while core.context is None:
                await core.ready()
            # An empty op, ordered after the ops that write the buffer.
            block = require_readable(ref, core.memory, "ref", strided=True)
            message = Copy(block.address, block.address, 0)
            await core.submit(core.ports[MEMORY_LANE], "export", message, (block,), ()).wait()
            block = require_readable(ref, core.memory, "ref", strided=True)
            slab = core.memory.slab_of(block)
            base = self._view.mapped.get(slab.id)
            if base is not None:
                kind = HostExport if core.capabilities.host_memory else DeviceExport
                lease = _Lease(self._view, slab.id, block)
                return kind(ref, base + block.address - (slab.id << SLAB_SHIFT), lease)
            await self._map(slab)

    # --- in ----------------------------------------------------------------------------------

    async def adopt(self, array: Any, put: Callable[[Any], Any]) -> GpuRef:
        """Implement ``Device.adopt``."""
        core = self._core
        if isinstance(array, Export) and array.ref.block.memory is core.memory:
            require_readable(array.ref, core.memory, "array", strided=True)
            await trio.lowlevel.checkpoint()
            return array.ref
        kind = device_type(array)
        if kind in ON_HOST:
            host = as_host_array(array if type(array) is np.ndarray else borrow(array).as_numpy())
            borrowed = _of_numpy(host)
            here = core.capabilities.host_memory
        elif kind in ON_GPU and not core.capabilities.host_memory:
            # Its library orders by the current stream of this thread, so this is called from here.
            borrowed = contiguous(array)
            here = True
        elif kind is None:
            raise TypeError(
                f"adopt takes an array that speaks DLPack or the CUDA array interface, not "
                f"{said_of(array)}; device.put takes what numpy.asarray does"
            )
        else:
            raise ValueError(
                f"the array is in memory that {core.name} cannot read (DLPack's device type "
                f"{kind}): bring it to the CPU first, as in device.adopt(array.cpu())"
            )
        await self.sweep()
        if here and borrowed.nbytes:
            ours = self._find(borrowed) if begins_at(borrowed, borrowed.dtype.itemsize) else None
            if ours is not None:
                return ours
            same = borrowed.device_type == CPU or borrowed.device == core.index
            fits = begins_at(borrowed, BLOCK_ALIGNMENT) and not borrowed.read_only
            if core.isolation == "thread" and same and fits:
                return await self._share(borrowed)
        if kind in ON_HOST:
            ref: GpuRef = await put(host)
            return ref
        return await self._take(borrowed)

    def _find(self, borrowed: Borrowed) -> GpuRef | None:
        """Return the buffer that an array is a view of, if it is a usable one of this device."""
        memory = self._core.memory
        for lease in list(self._view.leases):
            block = lease.block
            base = self._view.mapped.get(lease.slab)
            if base is None or block is None or block.epoch is None:
                continue
            if not memory.current(block.epoch):
                continue
            if block.address >> SLAB_SHIFT != lease.slab:
                continue  # it was moved to be shared
            start = borrowed.pointer - (base + block.address - (lease.slab << SLAB_SHIFT))
            if start >= 0 and start + borrowed.nbytes <= block.size:
                part = part_of(block, start) if start else block
                return GpuRef(part, borrowed.shape, borrowed.dtype, borrowed.nbytes)
        return None

    async def _share(self, borrowed: Borrowed) -> GpuRef:
        """Give an address to memory of this process, which the host's lanes share."""
        core = self._core
        while True:
            context = await core.ready()
            slab = Slab(core.memory.new_slab_id(), borrowed.nbytes, -1, sealed=False)
            if borrowed.device_type == CUDA:
                await self._in_worker(self._view.synchronize)
            try:
                await context.host.request(MapPointer(slab.id, borrowed.pointer, slab.nbytes))
            except (HostDied, StickyFault):
                context.report_dead()
                continue
            if context is core.context:
                block = core.memory.add_dedicated(slab, owner=borrowed)
                return GpuRef(block, borrowed.shape, borrowed.dtype, borrowed.nbytes)

    async def _take(self, borrowed: Borrowed) -> GpuRef:
        """Copy an array into a new buffer, on the device and from this process."""
        core = self._core
        while True:
            ref = await core.empty(borrowed.shape, borrowed.dtype)
            if borrowed.nbytes and not ref.is_stale:
                slab = core.memory.slab_of(ref.block)
                await self._map(slab)
                if not ref.is_stale:
                    # Until it is written, also if a fault ends its generation.
                    lease = _Lease(self._view, slab.id, ref.block)
                    try:
                        await self._in_worker(self._view.take, ref.block.address, borrowed)
                    finally:
                        del lease
                    await self.sweep()
            if not ref.is_stale:
                return ref

    # --- this process's view of the device --------------------------------------------------

    async def _map(self, slab: Slab) -> None:
        if slab.fd < 0:
            raise Unsupported(
                "memory must have a descriptor to be mapped into the program, which "
                "adopted memory and a GPU's managed memory have not"
            )
        fd = self._core.growth.another(
            slab.fd, slab.nbytes
        )  # the map may close its own at any time
        try:
            await self._in_worker(self._view.map, slab, fd)
        finally:
            os.close(fd)

    async def _in_worker(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call a function of the view in a worker thread: the driver may take long."""
        try:
            return await in_worker(function, *args)
        except StickyFault as fault:
            raise LibraryError(
                f"the program's own CUDA context has failed, not the device's: {fault}",
                library="cuda",
                call=function.__name__.strip("_"),
                status=fault.status,
                status_name=fault.status_name,
            ) from fault
        except OSError as error:
            short = short_of(error, "the device's view in this process")
            raise short from short.__cause__

    # --- the end -----------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Reuse the memory of dropped exports, and unmap freed slabs."""
        views = set()
        with suppress(IndexError):  # another call looks, too
            while _left:
                view, number = _left.popleft()
                view.leased.pop(number, None)
                views.add(view)
        for view in views:
            with suppress(LibraryError):  # the program's own context is broken
                await self._unmap(view, view.unused())
        holds = []
        while self._view.returned:
            number, hold = self._view.returned.popleft()
            self._view.leased.pop(number, None)
            holds.append(hold)
        memory = self._core.memory
        unused = [slab for slab in self._view.unused() if not memory.has_slab(slab)]
        if unused or holds:
            await self._unmap(self._view, unused)
        holds.clear()
        memory.collect(SLICE)

    @property
    def returned(self) -> bool:
        """True if arrays are gone whose memory ``sweep`` has to make usable again."""
        return bool(self._view.returned)

    async def close(self) -> None:
        """Unmap slabs without exports. Once all are unmapped, release the device."""
        self._view.closed = True
        for lease in list(self._view.leases):
            lease.outlive()
        with suppress(LibraryError):  # the program's own context is broken: nothing can be unmapped
            await self._unmap(self._view, self._view.unused())

    async def _unmap(self, view: _DeviceMappings, slabs: list[int]) -> None:
        if view.opened:
            with trio.CancelScope(shield=True):
                await self._in_worker(view.unmap, slabs)


def _of_numpy(array: np.ndarray[Any, Any]) -> Borrowed:
    """A C-contiguous array as what ``borrow`` gives: NumPy's DLPack lacks some dtypes."""
    return Borrowed(
        array.__array_interface__["data"][0],
        array.shape,
        array.dtype,
        CPU,
        0,
        contiguous=True,
        strides=None,
        owner=array,
        read_only=not array.flags.writeable,
    )
