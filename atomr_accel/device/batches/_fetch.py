"""Buffers that a replay fetches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ...arrays import GpuRef, ref_error
from ...lanes import uninterrupted
from ...libraries.recordings.wire.messages import Replay
from ...ops import require_readable
from ...wire import Copy
from ..data.transfer import SMALL, after, bytes_of, room_for

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ...lanes import HostHandle, Op, Piece, Port
    from ...memory import Block
    from ..core import DeviceCore
    from .collector import CollectingDevice


@final
@uninterrupted
class ReplayFetch:
    """Arrays with the content that buffers have after a replay.

    The replay copies small ones to staging memory, so they come with its answer. Others are fetched
    after it.

    Args:
        core: the device.
        get: a ref, a sequence of refs, or None.

    Raises:
        TypeError: ``get`` is or contains something else.
        ValueError: a ref is of another device.
    """

    def __init__(self, core: DeviceCore, get: object) -> None:
        self._core: Final = core
        self._single: Final = isinstance(get, GpuRef)
        given: Any = () if get is None else (get,) if self._single else get
        if not isinstance(given, Sequence):
            raise TypeError(f"get must be a ref or a sequence of refs, not {type(get).__name__}")
        self._refs: Final[tuple[GpuRef, ...]] = tuple(given)
        for at, ref in enumerate(given):
            if not isinstance(ref, GpuRef) or ref.block.memory is not core.memory:
                raise ref_error(ref, core.memory, self._name(at))
        self._arrays: Final = [room_for(ref) for ref in self._refs]
        self._pieces: Final[list[Piece | None]] = []
        self._host: HostHandle | None = None

    def _name(self, at: int) -> str:
        return "get" if self._single else f"get[{at}]"

    def check(self, results: Collection[Block]) -> None:
        """Check that all buffers have content after a replay that writes ``results``."""
        for at, ref in enumerate(self._refs):
            if ref.block.base not in results:
                require_readable(ref, self._core.memory, self._name(at), strided=True)

    def submit(
        self, recording: int, port: Port, reads: Iterable[Block], writes: Iterable[Block]
    ) -> Op:
        """Submit the replay of a recording, with copies to staging memory as far as it has room."""
        core, context = self._core, self._core.context
        assert context is not None  # or the lane's port would be gone
        self._host = context.host
        copies: list[Copy] = []
        blocks: list[Block] = []
        try:
            for ref in self._refs:
                small = ref.contiguous and ref.nbytes <= SMALL
                piece = core.staging.try_acquire(ref.nbytes) if small else None
                self._pieces.append(piece)
                if piece is not None:
                    copies.append(Copy(piece.address, ref.block.address, ref.nbytes))
                    blocks.append(ref.block)
            message = Replay(recording, tuple(copies))
            return core.submit(port, "recording.replay", message, (*reads, *blocks), writes)
        except BaseException:
            for piece in self._pieces:
                if piece is not None:
                    piece.release()
            raise

    async def wait(self, replay: Op) -> None:
        """Wait for the replay, and take what came with its answer."""
        try:
            await replay.wait()
        except BaseException:
            assert self._host is not None
            for piece in self._pieces:
                if piece is not None:
                    after(self._core, self._host, replay, piece.release)
            raise
        for piece, array in zip(self._pieces, self._arrays, strict=True):
            if piece is not None:
                np.copyto(bytes_of(array), piece.view(array.nbytes))
                piece.release()

    async def finish(
        self, device: CollectingDevice
    ) -> np.ndarray[Any, Any] | list[np.ndarray[Any, Any]]:
        """Fetch the buffers that did not come with the answer, and return all."""
        for piece, ref, array in zip(self._pieces, self._refs, self._arrays, strict=True):
            if piece is None:
                await device._download(ref, array)
        return self._arrays[0] if self._single else self._arrays
