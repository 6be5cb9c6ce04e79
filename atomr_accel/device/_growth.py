"""Growth of a device's memory: making slabs, giving them back, and counting them."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, final

import trio

from .._errors import AccelError, OutOfMemory, Unsupported
from ..lanes import HostDied, uninterrupted
from ..memory import SLICE, Slab, least_slab
from ..wire import (
    OFFSET_MASK,
    SHORTAGES,
    CreateManaged,
    CreateSlab,
    StickyFault,
    UnmapSlabs,
    arrived,
)
from ._failures import lacks_descriptors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ..memory import Block
    from .core import DeviceCore
    from .parts import ServingContext


MOST_UNMAPPED: Final = 1024
"""Slabs that one control message names."""

_AHEAD_SHARE: Final = 16
"""Share of a device's memory, 1/16, up to which slabs that are not sealed are made in advance."""

_PIECES: Final = "of which memory takes pieces of 2 MiB and more"


@final
@uninterrupted
class SlabGrowth:
    """The slabs of a device: one is made, or given back, at a time."""

    def __init__(self, core: DeviceCore) -> None:
        self._core: Final = core
        self._growing: Final = trio.Lock()
        self._asked = trio.Event()
        self._unmapped = trio.Event()  # of the next round
        self._unmapping = False

    async def grow(self, nbytes: int) -> None:
        """Make room for ``nbytes`` in one piece.

        Raises:
            OutOfMemory: the device or its limit has too little room.
        """
        await self.add_slab(await self._core.ready(), nbytes)

    async def grow_ahead(self, nbytes: int) -> None:
        """Make room in advance for ``nbytes`` in many pieces, which their user can do without.

        The room is a small share of the device's memory at most. If memory is short, nothing
        happens.
        """
        async with self._growing:
            context, memory, info = self._core.context, self._core.memory, self._core.info
            if context is None or info is None:
                return
            most = info.total_memory if memory.limit is None else memory.limit
            room = most // _AHEAD_SHARE - memory.plain_capacity
            if room <= 0:
                return
            size = least_slab(min(nbytes, room))
            try:
                slab = await self._create_now(context, memory.affordable([size]))
            except OutOfMemory:
                return
            except (HostDied, StickyFault):
                context.report_dead()
                return
            if slab is not None:
                memory.add_slab(slab)

    async def empty_dedicated(self, nbytes: int) -> Block:
        """An uninitialised sealed block that is all of its slab: what others may have.

        Raises:
            Unsupported: the platform cannot export device memory.
        """
        sizes = partial(self._core.memory.affordable, [least_slab(nbytes)])

        async def create(context: ServingContext) -> Slab | None:
            return await self._create(context, sizes, sealed=True, durable=False)

        return await self._dedicated(nbytes, create)

    async def managed(self, nbytes: int) -> Block:
        """An uninitialised block of managed memory that is all of its slab."""

        async def create(context: ServingContext) -> Slab | None:
            return await self._with_room(context, partial(self._create_managed, context, nbytes))

        return await self._dedicated(nbytes, create)

    async def _dedicated(
        self, nbytes: int, create: Callable[[ServingContext], Awaitable[Slab | None]]
    ) -> Block:
        while True:
            context = await self._core.ready()
            async with self._growing:
                if context is not self._core.context:
                    continue
                try:
                    slab = await create(context)
                except (HostDied, StickyFault):
                    context.report_dead()
                    continue
                except OutOfMemory as error:
                    if error.requested:  # the host has said what there is
                        raise
                    raise self._out_of_memory(nbytes) from error
                if slab is not None:
                    return self._core.memory.add_dedicated(slab, nbytes=nbytes)

    async def add_slab(
        self,
        context: ServingContext,
        nbytes: int,
        *,
        sealed: bool = False,
        durable: bool = False,
    ) -> None:
        """Make room in a context, unless another task has done so meanwhile."""
        async with self._growing:
            if context is not self._core.context:
                return
            block = self._core.memory.allocate(nbytes, sealed=sealed, durable=durable)
            if block is not None:  # another task has grown it while this one waited
                return
            if self._core.memory.dropped or self._core.exports.returned:
                await self._reclaim()
                return
            self.require_possible(nbytes)
            try:
                sizes = partial(self._core.memory.slab_sizes, nbytes)
                slab = await self._create(context, sizes, sealed=sealed, durable=durable)
            except OutOfMemory as error:
                raise self._out_of_memory(nbytes) from error
            except (HostDied, StickyFault):
                # Its lanes notice by themselves, and the caller waits for the next one.
                context.report_dead()
                return
            if slab is not None:
                self._core.memory.add_slab(slab)

    async def trim(self) -> None:
        """Give unused memory back to the device."""
        context = await self._core.ready()
        async with self._growing:
            if context is self._core.context:
                try:
                    await self._trim(context)
                except (HostDied, StickyFault):
                    context.report_dead()

    async def tidy(self) -> None:
        """Give back slabs that went with their only buffer, before others are added."""
        await self._core.exports.sweep()
        self._core.memory.collect(SLICE)
        if self._core.memory.unmapped:
            await self.unmap()

    async def unmap(self) -> None:
        """Wait until the host has unmapped the slabs that are given up by now."""
        await self._core.ready()
        await self.unmap_soon().wait()

    def unmap_soon(self) -> trio.Event:
        """Have the present host unmap the slabs that are given up by now.

        A task of its context sees to it, whatever becomes of the callers, who may belong to other
        devices.

        Returns:
            An event that is set once they are unmapped, or the context has ended.
        """
        self._asked.set()
        return self._unmapped

    @property
    def unmaps(self) -> bool:
        """True if the host still has slabs mapped that are given up."""
        return self._unmapping or bool(self._core.memory.unmapped)

    async def keep_unmapping(self, context: ServingContext) -> None:
        """Have the host of a context unmap slabs, for as long as the context serves."""
        memory = self._core.memory
        while True:
            await self._asked.wait()
            unmapped, self._unmapped = self._unmapped, trio.Event()
            slabs, memory.unmapped = memory.unmapped, []
            self._asked, self._unmapping = trio.Event(), True
            try:
                await self._unmap(context, slabs)
            except (HostDied, StickyFault):
                context.report_dead()
            finally:
                self._unmapping = False
                unmapped.set()

    def end_unmapping(self) -> None:
        """Release the tasks that wait for a context which has ended: its mappings go with it."""
        unmapped, self._unmapped = self._unmapped, trio.Event()
        unmapped.set()

    async def _unmap(self, context: ServingContext, slabs: list[int]) -> None:
        # They are off the map, so the host must unmap them, even if a task is cancelled.
        for start in range(0, len(slabs), MOST_UNMAPPED):
            some = slabs[start : start + MOST_UNMAPPED]
            await context.host.request(UnmapSlabs(some), required=True)

    async def _reclaim(self) -> None:
        """Release all dropped blocks, in slices, so that the loop is not blocked."""
        if self._core.exports.returned:
            await self._core.exports.sweep()
        while self._core.memory.dropped:
            self._core.memory.collect(SLICE)
            await trio.lowlevel.checkpoint()

    async def _trim(self, context: ServingContext) -> None:
        await self._reclaim()
        self._core.memory.trim()
        trimmed = [*self._core.memory.unmapped]
        serves = context is self._core.serving
        unmapped = self.unmap_soon() if serves and self.unmaps else None
        await self._core.windows.close_guests()
        if unmapped is not None:
            await unmapped.wait()
        if trimmed and self._core.standby is not None:
            await self._core.standby.unmap(trimmed)
        await self._core.exports.sweep()

    async def _create(
        self,
        context: ServingContext,
        sizes: Callable[[], list[int]],
        *,
        sealed: bool,
        durable: bool,
    ) -> Slab | None:
        """A new slab of the first of ``sizes`` there is room for; None in another context."""
        lasting = sealed or durable
        if lasting and self._core.info is not None and not self._core.info.exports_memory:
            what = "sealing needs" if sealed else "durable buffers need"
            raise Unsupported(f"this platform cannot export device memory; {what} that")
        if lasting and self._core.original is not None:
            what = "seal anything" if sealed else "make anything durable"
            raise Unsupported(f"what warm_up makes goes with it, so it cannot {what}")

        async def create() -> Slab | None:
            return await self._create_now(context, sizes(), sealed=sealed, durable=durable)

        return await self._with_room(context, create)

    async def _with_room(
        self, context: ServingContext, create: Callable[[], Awaitable[Slab | None]]
    ) -> Slab | None:
        """Return the slab from ``create`` once it has room, or None if the context has changed."""
        try:
            return await create()
        except OutOfMemory:
            await self._trim(context)
        await self._core.windows.close_guests()
        if self._core.reaper.terminating:
            # Memory of killed hosts is free only once they have ended, so try first, then wait.
            with suppress(OutOfMemory):
                return await create()
            await self._core.reaper.make_room()
        try:
            return await create()
        except OutOfMemory as error:
            # The program comes before what only stands by for it.
            standby = self._core.standby
            if standby is None:
                raise
            with standby.aside():
                if not await standby.make_room(descriptors=lacks_descriptors(error)):
                    raise
                return await create()

    async def _create_managed(self, context: ServingContext, nbytes: int) -> Slab | None:
        memory = self._core.memory
        if not memory.affordable([nbytes]):
            raise self._limit_reached()
        number = memory.new_slab_id()
        try:
            _, fd = await context.host.request(CreateManaged(number, nbytes))
        except OSError as error:  # its descriptor may be all that got lost
            await self._unmap(context, [number])
            raise OutOfMemory(str(error), requested=0) from error
        if context is self._core.context:
            return Slab(number, nbytes, fd, sealed=False)
        if fd >= 0:
            os.close(fd)
        return None

    def _limit_reached(self) -> OutOfMemory:
        limit = self._core.memory.limit
        return OutOfMemory(f"the memory_limit of {limit} bytes is reached", requested=0)

    async def _create_now(
        self,
        context: ServingContext,
        sizes: list[int],
        *,
        sealed: bool = False,
        durable: bool = False,
    ) -> Slab | None:
        refusal: Exception | None = None
        try:
            for size in sizes:
                number = self._core.memory.new_slab_id()
                try:
                    _, fd = await context.host.request(CreateSlab(number, size, sealed))
                    if fd < 0 and self._core.info is not None and self._core.info.exports_memory:
                        arrived(fd, "a slab", size)
                except (HostDied, StickyFault):
                    raise
                except (AccelError, OSError) as error:
                    # Its descriptor may be all that got lost: the host may have it all the same.
                    await self._unmap(context, [number])
                    if not isinstance(error, (OutOfMemory, OSError)):
                        raise
                    refusal = error
                    continue
                if context is self._core.context:
                    return Slab(number, size, fd, sealed, durable)
                if fd >= 0:
                    os.close(fd)
                return None
            if refusal is None:
                raise self._limit_reached()
            raise OutOfMemory(str(refusal), requested=0) from refusal
        finally:
            del refusal  # its traceback has this frame in it, and those of waiting tasks

    def require_possible(self, nbytes: int) -> None:
        """Raise if a buffer is too large for any slab.

        Raises:
            OutOfMemory: the buffer is larger than a slab's address range.
        """
        if nbytes > OFFSET_MASK:
            raise self._out_of_memory(nbytes)

    def another(self, fd: int, nbytes: int) -> int:
        """Return another descriptor of ``nbytes`` of memory, which may be closed at any time.

        Raises:
            OutOfMemory: this process has no room for one.
        """
        with self.room_for(nbytes):
            return os.dup(fd)

    @contextmanager
    def room_for(self, nbytes: int) -> Iterator[None]:
        """Make room for a descriptor or a mapping of ``nbytes`` of memory in the block."""
        try:
            yield
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            raise OutOfMemory(
                f"no room for a descriptor or mapping of {nbytes} bytes of {self._core.name}: "
                f"{error}",
                requested=nbytes,
            ) from error

    def _out_of_memory(self, nbytes: int) -> OutOfMemory:
        found = self._core.memory.statistics()
        error = OutOfMemory(
            f"no room for {nbytes} bytes on {self._core.name}: {found.used} bytes are in use, "
            f"{found.free} are free in slabs, at most {found.largest_free} in one piece"
            + ("" if found.limit is None else f"; its memory_limit is {found.limit}, {_PIECES}"),
            requested=nbytes,
            free=found.free,
            in_use=found.used,
            largest_free=found.largest_free,
        )
        self._core.refused_at = trio.current_time()
        if self._core.instruments.active:
            self._core.instruments("out_of_memory", self._core, error)
        return error
