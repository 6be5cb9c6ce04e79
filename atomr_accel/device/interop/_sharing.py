"""Buffers across devices, generations and processes: copied, salvaged, shared."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast, final

import msgspec
import numpy as np
import trio

from ..._dtypes import DTYPES
from ..._errors import DeviceLost, GpuRefStale, LibraryError, Unsupported
from ...arrays import GpuRef, ref_error, span
from ...memory import Block, Hold, Slab, block_at, part_of
from ...ops import perform, require_readable
from ...wire import (
    OFFSET_MASK,
    SLAB_SHIFT,
    Copy,
    Fill,
    make_read_only,
)
from ..core import MEMORY_LANE
from ..data.arrays import copying
from ..data.transfer import Rebuilt, after, download, filling, in_chunks, in_worker, receive, send
from .mapping import mapped, unmap

if TYPE_CHECKING:
    from ...lanes import Op
    from ..core import DeviceCore
    from ._windows import Window

_DIRECT: Final = 1 << 20
"""Least size in bytes of a copy that maps a slab. Smaller copies are faster through the host."""


def lives_here(core: DeviceCore, ref: object) -> bool:
    """Return True if ``ref`` is a ref of this device, even a stale one."""
    return isinstance(ref, GpuRef) and ref.block.memory is core.memory


def lives_elsewhere(core: DeviceCore, ref: object) -> bool:
    """Return True if ``ref`` is a ref of another device, even a stale one."""
    return isinstance(ref, GpuRef) and ref.block.memory is not core.memory


# --- between devices ---------------------------------------------------------------------


async def copy_here(core: DeviceCore, src: GpuRef, *, sealed: bool = False) -> GpuRef:
    """A new buffer, perhaps a sealed one, with the content of one of another device."""
    there = cast("DeviceCore", src.block.memory.owner)
    require_readable(src, there.memory, "src", strided=True)
    if not src.contiguous:
        src = await perform(there, copying(there, src, None))
    while True:
        ref = None
        if src.nbytes and not sealed:
            ref = core.try_empty(src.shape, src.dtype, src.nbytes)
        if ref is None:
            ref = await core.empty(src.shape, src.dtype, sealed=sealed)
        try:
            async with filling(core, ref.block):
                if not await _directly(there, src, core, ref):
                    await _by_way_of_the_host(there, src, core, ref)
        except Rebuilt:
            continue
        if sealed and there.memory.unmapped:
            with suppress(DeviceLost):
                await there.growth.unmap()
        if not ref.is_stale:
            return ref


async def _directly(there: DeviceCore, src: GpuRef, core: DeviceCore, ref: GpuRef) -> bool:
    """Have the other device's host write to this device's memory; return False if it cannot."""
    if there.backend != core.backend or ref.is_stale or not src.nbytes:
        return False
    block = ref.block
    slab = core.memory.slab_of(block)
    if slab.fd < 0:
        return False
    hold = Hold(block)
    window: Window | None = None
    op: Op | None = None
    try:
        window = there.windows.find(core, slab)
        if window is None:
            if src.nbytes < _DIRECT:
                return False
            window = await there.windows.open(core, slab)
        serving = there.context
        if window is None or serving is None or window.context is not serving:
            return False
        # The code from here to the op awaits nothing, so if the window is open, the op is ordered
        # in the source's order when it is called.
        source = require_readable(src, there.memory, "src")
        to = window.number << SLAB_SHIFT | (block.address - (slab.id << SLAB_SHIFT))
        message = Copy(to, source.address, src.nbytes)
        op = there.submit(there.ports[MEMORY_LANE], "copy", message, (source,), ())
        window.hold()

        def over() -> None:
            hold.release()
            window.release()

        # Until then the block is held and the window stays open, even if the caller does not wait.
        after(there, serving.host, op, over)
        await op.wait()
    finally:
        if op is None:
            hold.release()
        if window is not None and slab.sealed:
            window.close()
    return True


async def _by_way_of_the_host(
    there: DeviceCore, src: GpuRef, core: DeviceCore, ref: GpuRef
) -> None:
    block = ref.block

    def check() -> None:
        if block.epoch is not core.memory.epoch:
            raise Rebuilt

    async def move(start: int, length: int) -> None:
        # All tasks take two pieces in the same order, so that no two wait for each other.
        first, second = sorted((there, core), key=id)
        pieces = {first: await first.staging.acquire(length)}
        try:
            pieces[second] = await second.staging.acquire(length)
        except BaseException:
            pieces[first].release()
            raise
        try:
            await receive(there, pieces[there], src, start, length)
        except BaseException:
            pieces[core].release()
            raise
        try:
            await in_worker(np.copyto, pieces[core].view(length), pieces[there].view(length))
        except BaseException:
            pieces[core].release()
            raise
        finally:
            pieces[there].release()
        await send(core, pieces[core], ref, start, length, check)

    await in_chunks(src.nbytes, move)


# --- from a generation that is over -------------------------------------------------------


async def salvage(core: DeviceCore, ref: GpuRef) -> np.ndarray[Any, Any]:
    """Implement ``Device.salvage``."""
    if not lives_here(core, ref):
        raise ref_error(ref, core.memory, "ref")
    block = ref.block
    if not ref.contiguous:
        low, high = span(ref.shape, ref.strides, ref.dtype.itemsize)
        around = GpuRef(part_of(block, low), (high - low,), DTYPES["uint8"], high - low)
        data = await salvage(core, around)
        return np.ndarray(ref.shape, ref.dtype, data, -low, ref.strides).copy()
    host = np.empty(ref.shape, ref.dtype)
    if block.epoch is None:
        raise ref_error(ref, core.memory, "ref")
    if core.memory.current(block.epoch):
        await download(core, ref, host)
        return host
    if not isinstance(block.address, int):
        raise GpuRefStale("this ref was made in a batch and never had any memory")
    if not core.memory.has_slab(block.address >> SLAB_SHIFT):
        raise GpuRefStale("the memory of this ref was given up for other buffers: nothing is left")
    slab = core.memory.slab_of(block)
    if slab.fd < 0:
        raise Unsupported("memory must have a descriptor to outlive its host")
    offset = block.address - (slab.id << SLAB_SHIFT)
    hold = Hold(block)
    fd = core.growth.another(slab.fd, slab.nbytes)
    try:
        for terminating in list(core.reaper.terminating):  # which may still write there
            await terminating.close()
        while True:
            context, number = await mapped(core, fd, slab.nbytes, sealed=True)
            stand_in = block_at(core.memory, number << SLAB_SHIFT | offset, 0)
            try:
                await download(core, GpuRef(stand_in, ref.shape, ref.dtype, ref.nbytes), host)
            except GpuRefStale:
                continue  # another rebuild
            finally:
                await unmap(core, context, number)
            return host
    finally:
        os.close(fd)
        hold.release()


# --- between processes ---------------------------------------------------------------------


class _Description(msgspec.Struct, frozen=True, array_like=True):
    backend: str
    uuid: str
    slab_bytes: int
    offset: int
    shape: tuple[int, ...]
    dtype: str
    sealed: bool


@final
class SharedBuffer:
    """A buffer that other processes can open: a descriptor, and a description of its content.

    Send both over a Unix socket, ``socket.send_fds(sock, [shared.description], [shared.fd])``, and
    make a ``SharedBuffer(fd, description)`` of them there, for ``device.adopt``. The descriptor is
    of this buffer's memory only. On the CPU backend it allows no writing. A GPU's driver lets any
    process with the descriptor map the memory for writing.

    Attributes:
        fd: the descriptor; closed with ``close``, or with this object.
        description: bytes to send along.

    Raises:
        ValueError: the description is invalid.
    """

    def __init__(self, fd: int, description: bytes, *, block: Block | None = None) -> None:
        self.fd: int = -1  # until it is known to be ours: a constructor that raises takes nothing
        self._block = block
        self.description: Final = description
        self._content = _decoded(description)
        self.fd = fd

    @property
    def shape(self) -> tuple[int, ...]:
        """The buffer's shape."""
        return self._content.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The buffer's dtype."""
        return DTYPES[self._content.dtype]

    @property
    def sealed(self) -> bool:
        """True if the buffer is read-only, and shared for good rather than copied."""
        return self._content.sealed

    def close(self) -> None:
        """Close the descriptor. Processes that have adopted the buffer keep it."""
        fd, self.fd = self.fd, -1
        self._block = None
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> SharedBuffer:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(OSError):  # it was not open, or is closed already
            self.close()


def _decoded(description: bytes) -> _Description:
    """Return a checked description of a buffer, because it comes from another process."""
    try:
        content = msgspec.msgpack.decode(description, type=_Description)
    except msgspec.DecodeError as error:
        raise ValueError(f"this describes no shared buffer: {error}") from None
    dtype = DTYPES.get(content.dtype)
    if dtype is None:
        raise ValueError(f"this describes no shared buffer: there is no dtype {content.dtype!r}")
    nbytes = math.prod(content.shape) * dtype.itemsize
    inside = 0 <= content.offset <= content.offset + nbytes <= content.slab_bytes <= OFFSET_MASK
    if min(content.shape, default=0) < 0 or not inside:
        raise ValueError(
            f"this describes no shared buffer: {dtype.name}{list(content.shape)} at "
            f"{content.offset} does not lie in {content.slab_bytes} bytes"
        )
    return content


async def share(core: DeviceCore, ref: GpuRef) -> SharedBuffer:
    """Implement ``Device.share``."""
    require_readable(ref, core.memory, "ref", strided=True)
    if not ref.contiguous:
        ref = await perform(core, copying(core, ref, None))
    await core.growth.tidy()
    sealed = ref.sealed and ref.block.epoch is core.memory.sealed_epoch  # not only about to be
    if sealed:
        block = await _move_alone(core, ref)
        offset = ref.block.offset
    else:
        block = await _copy_alone(core, ref)
        offset = 0
    slab = core.memory.slab_of(block)
    if core.capabilities.host_memory:
        make_read_only(slab.fd)
    assert core.info is not None
    content = _Description(
        core.backend,
        core.info.uuid,
        slab.nbytes,
        offset,
        ref.shape,
        ref.dtype.name,
        sealed,
    )
    fd = core.growth.another(slab.fd, slab.nbytes)
    return SharedBuffer(fd, msgspec.msgpack.encode(content), block=block)


async def _move_alone(core: DeviceCore, ref: GpuRef) -> Block:
    """Move a sealed block to a slab of its own. Its handles stay the same.

    A process with the descriptor of a slab can access all its content.
    """
    async with core.sealing:
        while True:
            block = require_readable(ref, core.memory, "ref").base
            if core.memory.is_own(block):
                return block
            target = await core.growth.empty_dedicated(block.nbytes)
            try:
                await _fill_alone(core, target, require_readable(ref, core.memory, "ref").base)
            except Rebuilt:
                continue  # a sealed block is still present
            require_readable(ref, core.memory, "ref")  # not freed meanwhile
            core.memory.rebind(block, target)


async def _copy_alone(core: DeviceCore, ref: GpuRef) -> Block:
    """A copy of a buffer in a slab of its own."""
    slab = core.memory.slab_of(require_readable(ref, core.memory, "ref"))
    if slab.fd < 0:
        raise Unsupported("memory must have a descriptor to be opened by another process")
    while True:
        target = await core.growth.empty_dedicated(ref.nbytes)
        source = require_readable(ref, core.memory, "ref")
        with suppress(Rebuilt):
            await _fill_alone(core, target, source)
            require_readable(ref, core.memory, "ref")
            return target


async def _fill_alone(core: DeviceCore, target: Block, source: Block) -> None:
    """Fill a block that is all of its slab, and clear the rest of the slab."""
    nbytes = target.nbytes
    async with filling(core, target):
        port = core.ports[MEMORY_LANE]
        rest = Fill(target.address + nbytes, target.size - nbytes, b"\0")
        filled = core.submit(port, "share", rest, (), (target,))
        message = Copy(target.address, source.address, nbytes)
        await core.submit(port, "share", message, (source,), (target,)).wait()
        await filled.wait()


async def open_shared(core: DeviceCore, shared: SharedBuffer) -> GpuRef:
    """A buffer of what another process shares: the same memory if it is sealed, or a copy."""
    content = shared._content
    if content.backend != core.backend:
        raise ValueError(
            "the device must have the backend of the shared buffer, "
            f"{content.backend!r}, which {core.name} has not"
        )
    await core.growth.tidy()
    if shared.fd < 0:
        raise ValueError("the shared buffer was closed")
    dtype = DTYPES[content.dtype]
    nbytes = math.prod(content.shape) * dtype.itemsize
    fd = core.growth.another(shared.fd, content.slab_bytes)
    try:
        while True:
            try:
                context, number = await mapped(core, fd, content.slab_bytes, sealed=True)
            except LibraryError as error:
                if core.info is None or content.uuid == core.info.uuid:
                    raise
                raise Unsupported(
                    f"the shared buffer is on another GPU, whose memory {core.name} cannot reach"
                ) from error
            if content.sealed:
                slab = Slab(number, content.slab_bytes, fd, sealed=True)
                fd = -1  # the map's from now on
                block = part_of(core.memory.add_dedicated(slab), content.offset)
                return GpuRef(block, content.shape, dtype, nbytes)
            try:
                source = block_at(core.memory, number << SLAB_SHIFT | content.offset, 0)
                ref = await core.empty(content.shape, dtype)
                if context is core.context:
                    message = Copy(ref.block.address, source.address, nbytes)
                    port = core.ports[MEMORY_LANE]
                    op = core.submit(port, "adopt", message, (source,), (ref.block,))
                    with trio.CancelScope(shield=True):  # as long as the mapping is needed
                        await op.wait()
                    return ref
            finally:
                await unmap(core, context, number)
    finally:
        if fd >= 0:
            os.close(fd)
