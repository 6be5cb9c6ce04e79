"""Moving arrays between the program and the device, through staging memory.

Large arrays go in pieces: while one is on the bus the next is being copied, in a worker
thread where the copy is long enough to hold the trio thread up.
"""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import trio

from .._dtypes import as_dtype
from ..host import Copy, Download, Protect, Unprotect, Upload
from ..lanes import CHUNK, Op
from ..libraries import usable
from ..memory import GpuRef, refuse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ..lanes import Piece
    from ..memory import Block
    from ._core import DeviceCore

_DEPTH: Final = 4
"""Pieces in flight for one transfer."""

_INLINE: Final = 1 << 19
"""Copies up to this many bytes (some 50 us) are done in the trio thread."""

_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Rebuilt(Exception):
    """The context was rebuilt before anything was sent: start over."""


def as_host_array(array: Any) -> np.ndarray[Any, Any]:
    """What ``put`` will send: C-contiguous, native byte order, a dtype devices have.

    Raises:
        TypeError: objects, strings and the like.
    """
    host = np.asarray(array)
    if host.dtype.byteorder not in "=|" and not host.dtype.isnative:
        host = host.astype(host.dtype.newbyteorder("="))
    dtype = as_dtype(host.dtype)
    return np.asarray(host, dtype=dtype, order="C")


def _bytes_of(array: np.ndarray[Any, Any]) -> _Bytes:
    return np.asarray(array).reshape(-1).view(np.uint8)  # a matrix would stay 2-d


async def _copy(target: _Bytes, source: _Bytes) -> None:
    if len(source) <= _INLINE:
        np.copyto(target, source)
    else:
        await trio.to_thread.run_sync(np.copyto, target, source)


@asynccontextmanager
async def filling(core: DeviceCore, block: Block) -> AsyncIterator[None]:
    """Let the memory lane write a new block; if it lies in a sealed slab, seal it after.

    Raises:
        Rebuilt: the block became stale before anything was sent.
    """
    if not block.sealed:
        yield
        return
    if core.memory.epoch is not block.epoch:
        raise Rebuilt
    slab = core.memory.slab_of(block).id
    # All of these write the block, so none overtakes another, whatever happens.
    core.submit(core.ports["memory"], "unprotect", Unprotect(slab), (), (block,))
    try:
        yield
    except BaseException:
        if core.memory.epoch is block.epoch:
            core.submit(core.ports["memory"], "protect", Protect(slab), (), (block,))
        raise
    if core.memory.epoch is not block.epoch:
        raise Rebuilt
    await core.submit(core.ports["memory"], "protect", Protect(slab), (), (block,)).wait()
    core.memory.seal(block)


async def upload(core: DeviceCore, host: np.ndarray[Any, Any], block: Block) -> None:
    """Copy an array into a block, piece by piece.

    Raises:
        Rebuilt: the block became stale before anything was sent.
    """
    data = _bytes_of(host)
    ops: deque[Op] = deque()
    for start in range(0, len(data), CHUNK):
        part = data[start : start + CHUNK]
        piece = await core.staging.acquire(len(part))
        try:
            await _copy(piece.view(len(part)), part)
            if core.memory.epoch is not block.epoch:
                raise Rebuilt
        except BaseException:
            piece.release()
            raise
        port = core.ports["memory"]
        message = Upload(block.address + start, piece.offset, len(part))
        op = core.submit(port, "put", message, (), (block,))
        op.when_answered(piece.release)
        ops.append(op)
        if len(ops) >= _DEPTH:
            await ops.popleft().wait()
    while ops:
        await ops.popleft().wait()


async def download(core: DeviceCore, ref: GpuRef, host: np.ndarray[Any, Any]) -> None:
    """Copy a buffer into an array, piece by piece."""
    data = _bytes_of(host)
    pending: deque[tuple[Op, Piece, _Bytes]] = deque()
    try:
        for start in range(0, len(data), CHUNK):
            part = data[start : start + CHUNK]
            piece = core.staging.try_acquire(len(part))
            while piece is None and pending:
                # Never wait for a piece while holding one: so do others.
                await _receive(pending)
                piece = core.staging.try_acquire(len(part))
            if piece is None:
                piece = await core.staging.acquire(len(part))
            try:
                # A rebuild may have come between the pieces; a sealed buffer survives it.
                while (port := core.ports.get("memory")) is None:
                    await core.ready()
                block = usable(ref, core.memory, "ref")
            except BaseException:
                piece.release()
                raise
            message = Download(block.address + start, piece.offset, len(part))
            op = core.submit(port, "get", message, (block,), ())
            pending.append((op, piece, part))
            if len(pending) >= _DEPTH:
                await _receive(pending)
        while pending:
            await _receive(pending)
    finally:
        for op, piece, _ in pending:
            op.when_answered(piece.release)


async def _receive(pending: deque[tuple[Op, Piece, _Bytes]]) -> None:
    op, piece, part = pending[0]
    await op.wait()
    await _copy(part, piece.view(len(part)))
    pending.popleft()
    piece.release()


async def seal(core: DeviceCore, ref: GpuRef) -> None:
    """Move a buffer into a sealed slab; its handle and all views of it stay the same."""
    # One at a time: two that seal the same buffer would undo each other's work.
    async with core.sealing:
        source = usable(ref, core.memory, "ref")
        if source.epoch is core.memory.sealed_epoch:
            return
        target = (await core.empty(ref.nbytes, np.uint8, sealed=True))._block
        usable(ref, core.memory, "ref")
        source.sealed = True  # refuses writers from here on; what is in flight comes first
        try:
            async with filling(core, target):
                message = Copy(target.address, source.address, ref.nbytes)
                port = core.ports["memory"]
                await core.submit(port, "seal", message, (source,), (target,)).wait()
            usable(ref, core.memory, "ref")  # not freed meanwhile
        except BaseException as error:
            source.sealed = False
            if isinstance(error, Rebuilt):
                raise refuse(ref, core.memory, "ref") from None
            raise
        core.memory.rebind(source, target)
