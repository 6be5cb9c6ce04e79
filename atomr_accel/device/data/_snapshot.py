"""Snapshots: the content of several buffers at one point of the program's order, kept elsewhere.

All copies of a snapshot are submitted at once, without awaiting in between, and read their buffers
as any op does. They wait for earlier ops, and later ops wait for them. A snapshot is therefore
consistent without a second copy on the device, and takes only the time of the transfer.
"""

from __future__ import annotations

import math
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final

import numpy as np
import trio

from ..._errors import DeviceLost, Unsupported
from ...arrays import GpuRef
from ...lanes import END_SECONDS, uninterrupted
from ...libraries.digests.wire.digest import digests_of
from ...libraries.digests.wire.messages import Digest
from ...memory import Hold, differing, told
from ...ops import require_readable, require_writable
from ...wire import SLAB_SHIFT, Copy
from ..core import MEMORY_LANE
from ._snapshot_file import read_arrays, write_arrays
from .arrays import check_like
from .durable import within
from .transfer import ENDED, in_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from os import PathLike

    from ...lanes import Bytes, HostHandle, Op, Piece, Port
    from ...memory import Block
    from ..core import DeviceCore
    from ..interop._windows import Window
    from ..parts import PinnedArrays

_CHUNK: Final = 64 << 20
"""Bytes that one op moves, so that other transfers get their turns."""

_ALIGNED: Final = 256

Layout = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class SnapshotStatistics:
    """A snapshot at one moment.

    Attributes:
        state: ``"moving"``, while its copies are in flight; ``"complete"``; ``"failed"``; or
            ``"closed"``.
        place: its place: ``"host"``, or the name of a device.
        nbytes: its size in bytes.
        moved: number of bytes that have arrived.
        seconds: time since it was taken, until its last copy ended.
    """

    state: Literal["moving", "complete", "failed", "closed"]
    place: str
    nbytes: int
    moved: int
    seconds: float


def _nothing() -> None:
    """Do nothing more once a copy, or all of them, have arrived."""


@final
@uninterrupted
class _Moves:
    """Copies in flight that belong together.

    Args:
        then: called when all have arrived. It returns an error if their data is unusable.
    """

    def __init__(self, then: Callable[[], Exception | None] = _nothing) -> None:
        self._then = then
        self._left = 1  # until ``all``
        self._touched = 1  # likewise
        self._untouched: Final = trio.Event()
        self._begun: Final = trio.current_time()
        self._ended: float | None = None
        self._over: Final = trio.Event()
        self._failed: Op | None = None
        self._error: Exception | None = None
        self.moved: int = 0

    def add(
        self, core: DeviceCore, host: HostHandle, op: Op, nbytes: int, release: Callable[[], None]
    ) -> None:
        """Add a submitted op, and call ``release`` once its memory is not accessed any more."""
        self._left += 1
        self._touched += 1
        op.when_answered(partial(self._answered, core, host, op, nbytes, release))

    def all(self) -> None:
        """End the list of copies: no more are added."""
        self._settle()
        self._release()

    def _answered(
        self,
        core: DeviceCore,
        host: HostHandle,
        op: Op,
        nbytes: int,
        release: Callable[[], None],
    ) -> None:
        error = op.error
        if isinstance(error, ENDED):  # the host may still be moving data
            core.reaper.quarantine(host, partial(self._release, release))
        else:
            self._release(release)
        if error is None:
            self.moved += nbytes
        elif self._failed is None:
            self._failed = op
        self._settle()

    def _release(self, release: Callable[[], None] = _nothing) -> None:
        release()
        self._touched -= 1
        if not self._touched:
            self._untouched.set()

    def _settle(self) -> None:
        self._left -= 1
        if not self._left:
            self._ended = trio.current_time()
            then, self._then = self._then, _nothing  # which holds what it is about
            if self._failed is None:
                self._error = then()
            self._over.set()

    @property
    def over(self) -> bool:
        """True if all copies have ended."""
        return self._over.is_set()

    @property
    def touching(self) -> bool:
        """True if an op, or a killed host, may still access their memory."""
        return not self._untouched.is_set()

    @property
    def failed(self) -> bool:
        """True if one of the copies has failed."""
        return self._failed is not None or self._error is not None

    @property
    def seconds(self) -> float:
        """Seconds from the first copy until now, or to the last end."""
        return (trio.current_time() if self._ended is None else self._ended) - self._begun

    async def wait_untouched(self) -> None:
        """Wait until their memory is not accessed any more."""
        await self._untouched.wait()

    async def wait(self) -> None:
        """Wait for all of them; raises what one has failed with."""
        await self._over.wait()
        if self._failed is not None:
            await self._failed.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)  # at each access


@final
class _OnHost:
    """Page-locked memory of the program that belongs to a snapshot."""

    def __init__(self, pinned: PinnedArrays, piece: Piece, nbytes: int) -> None:
        self._at_end: Final = pinned.at_end(piece)
        self.pinned: Final = pinned
        self.piece: Final = piece
        self.bytes: Final[Bytes] = piece.array((nbytes,), np.dtype(np.uint8))

    def close(self) -> None:
        """Give it back; otherwise it is given back once this object is gone."""
        self.pinned.drop(self.piece)


@final
class Snapshot:
    """The content of several buffers at one point of the program's order. See ``Device.snapshot``.

    It lasts until it is dropped, also after a fault or loss of its device. ``close`` gives its
    memory back earlier. ``Device.restore`` makes buffers from it, on any device. What reads the
    content waits for it, and raises what ``wait`` raises.

    Attributes:
        place: place of the copies: ``"host"``, or the name of a device.
    """

    def __init__(
        self,
        layouts: Sequence[Layout],
        *,
        memory: _OnHost | None = None,
        arrays: Sequence[np.ndarray[Any, Any]] = (),
        refs: Sequence[GpuRef] = (),
        moves: _Moves | None = None,
        source: DeviceCore | None = None,
        peer: DeviceCore | None = None,
    ) -> None:
        self._layouts: Final = tuple(layouts)
        self._memory = memory
        self._arrays = tuple(arrays)
        self._refs = tuple(refs)
        self._moves = moves
        self._peer: Final = peer  # which has ``refs``
        self._source = source  # has windows to close, once all is there
        self._restores: list[_Moves] = []
        self._digests: list[Op] = []  # of each buffer, if they are known
        self._readers = 0  # calls of ``restore`` and ``save`` that are not over
        self.place: Final[str] = refs[0].device if refs else "host"
        self._closed = False

    def __repr__(self) -> str:
        said = self.statistics()
        return f"<Snapshot of {len(self)} buffers on {said.place}, {said.state}>"

    def __len__(self) -> int:
        """Return the number of buffers."""
        return len(self._layouts)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers together."""
        return sum(_nbytes(layout) for layout in self._layouts)

    async def wait(self) -> None:
        """Wait until the snapshot is complete.

        Raises:
            ContextPoisoned: a device failed before that, so the snapshot is unusable.
            DeviceLost: a device was lost before that, so the snapshot is unusable.
            ValueError: the snapshot was closed.
        """
        self._require_open()
        if self._moves is not None:
            try:
                await self._moves.wait()
            except ENDED:
                # A host that was killed may still write there, until it has ended.
                with trio.move_on_after(END_SECONDS if self._memory is not None else 0):
                    await self._moves.wait_untouched()
                raise
        if self._source is not None and self._source.memory.unmapped:
            with suppress(DeviceLost):
                await self._source.growth.unmap()
        await trio.lowlevel.checkpoint()

    async def arrays(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Return the content as read-only arrays, once it is complete, without a copy.

        The arrays keep the snapshot's memory alive.

        Raises:
            Unsupported: the snapshot is on a device: restore it, then ``get`` the buffers.
        """
        await self.wait()
        if self._refs:
            raise Unsupported(f"this snapshot is on {self.place}, and the host has no array of it")
        found = [array.view() for array in self._arrays]
        for array in found:
            array.flags.writeable = False
        return tuple(found)

    async def verify(self) -> None:
        """Wait until the snapshot is complete, and verify it if it was taken with digests.

        Raises:
            ValueError: bytes have changed since it was taken, and the error says where; or it was
                closed.
            GpuRefStale: the same of a snapshot on a device; or that device is lost.
        """
        await self.wait()
        with self._being_read():
            for at, op in enumerate(self._digests):
                self._require_open()
                if self._refs:
                    assert self._peer is not None
                    await self._peer.durables.check(self._refs[at], op.value)
                    continue
                data = self._arrays[at].reshape(-1).view(np.uint8).data
                changed = differing(op.value, await in_worker(digests_of, data))
                if changed:
                    raise ValueError(
                        f"buffer {at} of the snapshot has changed since it was taken "
                        f"({told(changed, len(op.value) // 8)}); restore an earlier snapshot"
                    )

    async def save(self, path: str | PathLike[str]) -> None:
        """Write the snapshot to a file, once it is complete and, if it has digests, verified.

        The file is replaced atomically: the data is written to a temporary file in the same folder,
        flushed to the disk, and then renamed. Temporary files of killed programs are removed.

        Args:
            path: the file; an existing one is replaced.

        Raises:
            OSError: the file could not be written.
            Unsupported: the snapshot is on a device.
        """
        with self._being_read():
            await self.verify()
            await in_worker(write_arrays, path, await self.arrays())

    @classmethod
    async def load(cls, path: str | PathLike[str]) -> Self:
        """Read a file of ``save`` into ordinary memory, and verify it.

        Args:
            path: the file.

        Returns:
            A snapshot that is complete.

        Raises:
            OSError: the file could not be read.
            ValueError: the file is not a snapshot, was cut off, or has changed since it was
                written.
        """
        arrays = await in_worker(read_arrays, path)
        return cls([(array.shape, array.dtype) for array in arrays], arrays=arrays)

    def close(self) -> None:
        """Give its memory back, now or once its copies have ended. It is of no use any more."""
        self._closed = True
        self._arrays = self._refs = ()
        self._source = None
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def statistics(self) -> SnapshotStatistics:
        """Return the snapshot's progress and size."""
        moves = self._moves
        state: Literal["moving", "complete", "failed", "closed"] = "complete"
        if self._closed:
            state = "closed"
        elif moves is not None and moves.over:
            state = "failed" if moves.failed else "complete"
        elif moves is not None:
            state = "moving"
        return SnapshotStatistics(
            state=state,
            place=self.place,
            nbytes=self.nbytes,
            moved=self.nbytes if moves is None else moves.moved,
            seconds=0.0 if moves is None else moves.seconds,
        )

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("the snapshot was closed")

    @contextmanager
    def _being_read(self) -> Iterator[None]:
        """Refuse to be taken again meanwhile."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1

    def _require_idle(self) -> None:
        """Refuse to be taken again while an op reads or writes it."""
        self._require_open()
        restoring = self._readers or not all(moves.over for moves in self._restores)
        if restoring or (self._moves is not None and self._moves.touching):
            raise ValueError("out is still being taken, saved or restored; wait for that first")
        self._restores.clear()


# --- taking one ----------------------------------------------------------------------------


async def take(
    core: DeviceCore,
    refs: Sequence[GpuRef],
    peer: DeviceCore | None,
    out: Snapshot | None,
    *,
    verified: bool,
) -> Snapshot:
    """Implement ``Device.snapshot``."""
    for at, ref in enumerate(refs):
        require_readable(ref, core.memory, f"ref {at}")
    layouts = [(ref.shape, ref.dtype) for ref in refs]
    if peer is core:
        raise ValueError(f"a snapshot of {core.name} on {core.name} would be lost with it")
    if out is not None:
        out._require_idle()
        if peer is not None or out._memory is None or out._memory.pinned is not core.pinned:
            raise ValueError("out must be a snapshot in host memory that this device has taken")
        if list(out._layouts) != layouts:
            raise ValueError("out is of buffers of other shapes or dtypes")
    if peer is not None and any(_nbytes(layout) for layout in layouts):
        return await _to_peer(core, refs, layouts, peer, verified=verified)
    snapshot = out
    if snapshot is None:
        made = await _host_memory(core, layouts)
        snapshot = Snapshot(layouts, memory=made, arrays=_arrays_in(made, layouts))
    memory = snapshot._memory
    assert memory is not None
    piece = memory.piece
    port = await core.durables.ready() if verified else None
    host = await core.pinned.mapped(piece.address)
    while port is not None and core.ports.get(port.name) is not port:  # there is a new context
        port = await core.durables.ready()
        host = await core.pinned.mapped(piece.address)
    if out is not None:
        out._require_idle()
    # From here on nothing is awaited: all of it is one point of the program's order.
    blocks = [require_readable(ref, core.memory, f"ref {at}") for at, ref in enumerate(refs)]
    moves = snapshot._moves = _Moves()
    for block, start, layout in zip(blocks, _starts(layouts), layouts, strict=True):
        for begin, length in _chunks(_nbytes(layout)):
            message = Copy(piece.address + start + begin, block.address + begin, length)
            op = core.submit(core.ports[MEMORY_LANE], "snapshot", message, (block,), ())
            piece.hold()
            moves.add(core, host, op, length, piece.drop)
    snapshot._digests = _digests(core, host, port, refs, blocks, moves)
    moves.all()
    return snapshot


def _digests(
    core: DeviceCore,
    host: HostHandle,
    port: Port | None,
    refs: Sequence[GpuRef],
    blocks: Sequence[Block],
    moves: _Moves,
) -> list[Op]:
    """Submit an op for the digests of each buffer, after those that copy them."""
    ops: list[Op] = []
    if port is None:
        return ops
    for ref, block in zip(refs, blocks, strict=True):
        message = Digest(((block.address, ref.nbytes),))
        op = core.submit(port, "snapshot.digest", message, (block,), ())
        moves.add(core, host, op, 0, _nothing)
        ops.append(op)
    return ops


async def _host_memory(core: DeviceCore, layouts: Sequence[Layout]) -> _OnHost:
    nbytes = sum(_rounded(layout) for layout in layouts)
    await core.ready()
    return _OnHost(core.pinned, await core.pinned.take(nbytes), nbytes)


async def _to_peer(
    core: DeviceCore,
    refs: Sequence[GpuRef],
    layouts: Sequence[Layout],
    peer: DeviceCore,
    *,
    verified: bool,
) -> Snapshot:
    """Have our host write to sealed memory of a peer, which is sealed when all is there."""
    if peer.backend != core.backend:
        raise Unsupported(f"{core.name} cannot write to the memory of {peer.name}")
    while True:
        copies = [await peer.empty(shape, dtype, sealed=True) for shape, dtype in layouts]
        epoch = peer.memory.epoch
        windows: dict[int, Window] = {}
        port = await core.durables.ready() if verified else None
        try:
            for slab in {peer.memory.slab_of(copy.block) for copy in copies}:
                window = await core.windows.open(peer, slab)
                if window is None:
                    await peer.ready()  # or it is lost
                    raise Unsupported(
                        f"{core.name} cannot write to the memory of {peer.name}; without `to` the "
                        "snapshot is taken to host memory"
                    )
                windows[slab.id] = window
            blocks = [
                require_readable(ref, core.memory, f"ref {at}") for at, ref in enumerate(refs)
            ]
            context = core.context
            good = all(window.context is context for window in windows.values())
            good = good and (port is None or core.ports.get(port.name) is port)
            if context is None or not good or peer.memory.epoch is not epoch:
                continue
            moves = _Moves(partial(_seal_all, peer, copies))
            for block, copy in zip(blocks, copies, strict=True):
                slab = peer.memory.slab_of(copy.block)
                window = windows[slab.id]
                to = window.number << SLAB_SHIFT | (copy.block.address - (slab.id << SLAB_SHIFT))
                for begin, length in _chunks(copy.nbytes):
                    message = Copy(to + begin, block.address + begin, length)
                    op = core.submit(core.ports[MEMORY_LANE], "snapshot", message, (block,), ())
                    window.hold()
                    hold = Hold(copy.block)
                    moves.add(
                        core, context.host, op, length, partial(_release_window, hold, window)
                    )
            digests = _digests(core, context.host, port, refs, blocks, moves)
            moves.all()
            snapshot = Snapshot(layouts, refs=copies, moves=moves, source=core, peer=peer)
            snapshot._digests = digests
            return snapshot
        finally:
            for window in windows.values():
                window.close()


def _release_window(hold: Hold, window: Window) -> None:
    hold.release()
    window.release()


def _seal_all(peer: DeviceCore, copies: Sequence[GpuRef]) -> Exception | None:
    """Seal all buffers after the copies; return an error if the peer has failed meanwhile."""
    memory = peer.memory
    if any(copy.block.epoch is not memory.epoch for copy in copies):
        return peer.lifecycle.why_over("snapshot", copies[0].block.generation)
    for copy in copies:
        memory.seal(copy.block)
    return None


# --- restoring one -------------------------------------------------------------------------


def in_memory_of(core: DeviceCore, snapshot: Snapshot) -> bool:
    """Return True if the snapshot is in page-locked memory that the device's host can reach."""
    memory = snapshot._memory
    return memory is not None and memory.pinned is core.pinned


def check_outs(core: DeviceCore, snapshot: Snapshot, out: Sequence[GpuRef]) -> None:
    """Buffers can take what the snapshot has."""
    if len(out) != len(snapshot):
        raise ValueError(f"the snapshot is of {len(snapshot)} buffers, and out has {len(out)}")
    for at, (ref, (shape, dtype)) in enumerate(zip(out, snapshot._layouts, strict=True)):
        require_writable(ref, core.memory, f"out {at}", strided=True)
        check_like(ref, shape, dtype, f"out {at}", "the snapshot's buffer")


async def restore_directly(
    core: DeviceCore, snapshot: Snapshot, out: Sequence[GpuRef] | None
) -> list[GpuRef]:
    """Restore a snapshot from page-locked memory, with all copies at one point."""
    memory = snapshot._memory
    assert memory is not None
    piece, layouts = memory.piece, snapshot._layouts
    while True:
        refs = list(out) if out is not None else [await core.empty(*layout) for layout in layouts]
        host = await core.pinned.mapped(piece.address)
        if out is None and any(ref.is_stale for ref in refs):
            continue  # a rebuild has come between, and nothing was in them
        blocks = [require_writable(ref, core.memory, f"out {at}") for at, ref in enumerate(refs)]
        snapshot._require_open()
        moves = _Moves()
        snapshot._restores.append(moves)
        for block, start, layout in zip(blocks, _starts(layouts), layouts, strict=True):
            for begin, length in _chunks(_nbytes(layout)):
                message = Copy(block.address + begin, piece.address + start + begin, length)
                written = within(block, begin, length)
                op = core.submit(core.ports[MEMORY_LANE], "restore", message, (), (written,))
                piece.hold()
                moves.add(core, host, op, length, piece.drop)
        moves.all()
        try:
            await moves.wait()
            for block in blocks:
                await core.durables.proven(block)
        finally:
            if moves.over and moves in snapshot._restores:
                snapshot._restores.remove(moves)
        return refs


# --- where things are ----------------------------------------------------------------------


def _nbytes(layout: Layout) -> int:
    shape, dtype = layout
    return math.prod(shape) * dtype.itemsize


def _rounded(layout: Layout) -> int:
    return -(-_nbytes(layout) // _ALIGNED) * _ALIGNED


def _starts(layouts: Sequence[Layout]) -> list[int]:
    """Return the offset of each buffer in host memory."""
    starts, end = [], 0
    for layout in layouts:
        starts.append(end)
        end += _rounded(layout)
    return starts


def _arrays_in(memory: _OnHost, layouts: Sequence[Layout]) -> list[np.ndarray[Any, Any]]:
    return [
        memory.bytes[start : start + _nbytes(layout)].view(layout[1]).reshape(layout[0])
        for start, layout in zip(_starts(layouts), layouts, strict=True)
    ]


def _chunks(nbytes: int) -> list[tuple[int, int]]:
    return [(begin, min(_CHUNK, nbytes - begin)) for begin in range(0, nbytes, _CHUNK)]
