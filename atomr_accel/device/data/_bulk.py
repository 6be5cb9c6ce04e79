"""Moving large ordinary arrays through staging memory, as fast as threads can copy.

Worker threads copy some chunks while others are on the bus. At tens of GB/s a transfer has
thousands of chunks a second, so chunks have no tasks of their own. A chunk costs the trio thread
one callback when it is copied and one when its op is answered.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, final

import numpy as np
import trio

from ..._errors import AccelError, ContextPoisoned, DeviceLost, OutOfMemory
from ...lanes import CHUNK, HostDied
from ._copiers import COPIERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...lanes import Bytes, HostHandle, Op, Piece
    from ..core import DeviceCore

_LEAST_CHUNK: Final = 4 << 20


@final
class _Chunk:
    """A part of the array in transfer."""

    __slots__ = ("host", "length", "op", "piece", "start")

    host: HostHandle
    op: Op

    def __init__(self, piece: Piece, start: int, length: int) -> None:
        self.piece = piece
        self.start = start
        self.length = length


def chunk_size(nbytes: int) -> int:
    """Return the size of a transfer's chunks, small enough to keep all threads busy."""
    return min(CHUNK, max(_LEAST_CHUNK, -(-nbytes // (2 * COPIERS))))


@final
class Bulk:
    """One transfer. Everything but ``_copy`` happens in the trio thread.

    Args:
        core: the device.
        data: the array's bytes.
        submit: called with a piece, the chunk's offset and its length; submits the op that moves
            the chunk. It returns None to be called again with the next context, and raises if the
            transfer cannot go on.
        upload: whether data goes to the device.
        progress: called with the length of each chunk that has arrived.
    """

    def __init__(
        self,
        core: DeviceCore,
        data: Bytes,
        submit: Callable[[Piece, int, int], Op | None],
        *,
        upload: bool,
        progress: Callable[[int], object] = lambda _length: None,
    ) -> None:
        self._core = core
        self._data = data
        self._submit = submit
        self._upload = upload
        self._progress = progress
        self._size = chunk_size(len(data))
        self._begun = 0
        self._active = 0
        self._copying = 0
        self._waiting = False
        self._stopped = False
        self._sent: set[_Chunk] = set()
        self._failures: list[BaseException] = []
        self._over = trio.Event()

    async def run(self) -> None:
        """Move all chunks.

        When this raises or is cancelled, the array is not accessed any more, and pieces are given
        back as soon as their last access has ended.
        """
        self._token = trio.lowlevel.current_trio_token()
        interrupt: KeyboardInterrupt | None = None
        async with trio.open_nursery() as self._nursery:
            self._pump()
            try:
                await self._over.wait()
            except KeyboardInterrupt as error:
                interrupt = error  # raised after the nursery, which would put it into a group
            finally:
                if not self._over.is_set():
                    self._stop()
                    with trio.CancelScope(shield=True):
                        await self._over.wait()
                if self._nursery.child_tasks:
                    self._nursery.cancel_scope.cancel()
                # A copier may not have quite returned yet; it shall not keep buffers alive.
                del self._submit
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                del interrupt  # its traceback refers to this frame
        if self._failures:
            # The errors of ops in flight say more than later ones.
            raise min(self._failures, key=lambda error: not isinstance(error, ContextPoisoned))

    def _pump(self) -> None:
        """Begin as many chunks as there are pieces for."""
        nbytes, staging = len(self._data), self._core.staging
        while not self._stopped and self._begun < nbytes and self._active < 2 * COPIERS:
            length = min(self._size, nbytes - self._begun)
            try:
                piece = staging.try_acquire(length)
            except AccelError as error:  # the device is closed
                self._fail(error)
                return
            if piece is None:
                if not self._waiting:
                    self._waiting = True
                    self._nursery.start_soon(self._wait_for_piece, length)
                break
            self._begin(piece, length)
        if not self._copying and (self._stopped or (self._begun >= nbytes and not self._active)):
            self._over.set()

    async def _wait_for_piece(self, length: int) -> None:
        """Wait in turn with other transfers for staging memory."""
        try:
            piece = await self._core.staging.acquire(length)
        except AccelError as error:
            self._fail(error)
            return
        finally:
            self._waiting = False
        if self._stopped:
            piece.release()
        else:
            self._begin(piece, length)
        self._pump()

    def _begin(self, piece: Piece, length: int) -> None:
        chunk = _Chunk(piece, self._begun, length)
        self._begun += length
        self._active += 1
        if self._upload:
            self._hand_to_copier(chunk)
        else:
            self._send(chunk)

    def _hand_to_copier(self, chunk: _Chunk) -> None:
        self._copying += 1
        try:
            self._core.copiers.submit(self._copy, chunk)
        except OutOfMemory as error:
            self._copying -= 1
            chunk.piece.release()
            self._fail(error)

    def _copy(self, chunk: _Chunk) -> None:
        """Copy a chunk in a worker thread, without the GIL."""
        error = None
        try:
            part = self._data[chunk.start : chunk.start + chunk.length]
            piece = chunk.piece.view(chunk.length)
            np.copyto(*((piece, part) if self._upload else (part, piece)))
        except BaseException as caught:  # noqa: BLE001 (raised where the transfer is awaited)
            error = caught
        self._token.run_sync_soon(self._copied, chunk, error)

    def _copied(self, chunk: _Chunk, error: BaseException | None) -> None:
        self._copying -= 1
        if error is not None:
            self._fail(error)
        if self._stopped:
            chunk.piece.release()
        elif self._upload:
            self._send(chunk)
        else:
            self._arrived(chunk)
        self._pump()

    def _send(self, chunk: _Chunk) -> None:
        if self._stopped:
            chunk.piece.release()
            return
        try:
            op = self._submit(chunk.piece, chunk.start, chunk.length)
        except Exception as error:  # noqa: BLE001 (raised where the transfer is awaited)
            chunk.piece.release()
            self._fail(error)
            return
        context = self._core.context
        if op is None or context is None:
            self._nursery.start_soon(self._send_when_ready, chunk)
            return
        chunk.op, chunk.host = op, context.host
        self._sent.add(chunk)
        op.when_answered(partial(self._answered, chunk))

    async def _send_when_ready(self, chunk: _Chunk) -> None:
        """Wait for the next context, then send a chunk there."""
        try:
            await self._core.ready()
        except BaseException as error:
            chunk.piece.release()
            if not isinstance(error, AccelError):
                raise
            self._fail(error)
        else:
            self._send(chunk)
        self._pump()

    def _answered(self, chunk: _Chunk) -> None:
        self._sent.discard(chunk)
        error = chunk.op.error
        del chunk.op  # which refers to this chunk
        if error is not None:
            self._fail(error)
        if isinstance(error, (ContextPoisoned, HostDied, DeviceLost)):
            # A host that is being killed may still be moving data.
            self._core.reaper.quarantine(chunk.host, chunk.piece.release)
        elif self._stopped:
            chunk.piece.release()
        elif self._upload:
            self._arrived(chunk)
        else:
            self._hand_to_copier(chunk)
        self._pump()

    def _arrived(self, chunk: _Chunk) -> None:
        chunk.piece.release()
        self._active -= 1
        self._progress(chunk.length)

    def _fail(self, error: BaseException) -> None:
        self._failures.append(error)
        self._stop()

    def _stop(self) -> None:
        """Begin no more chunks, and withdraw ops that are not sent."""
        self._stopped = True
        for chunk in self._sent:
            chunk.op.withdraw()
        self._pump()
