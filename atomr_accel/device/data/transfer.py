"""Moving arrays between the program and the device.

Ordinary memory goes through staging memory, in chunks if it is large (see ``_bulk``). Arrays of
``device.pinned`` are transferred directly.
"""

from __future__ import annotations

import errno
import threading
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import outcome
import trio

from ..._dtypes import as_dtype, native
from ..._errors import (
    AccelError,
    ContextPoisoned,
    DeviceLost,
    GpuRefStale,
    OutOfMemory,
    Unsupported,
    said_of,
)
from ...actors.nursery import PlainNursery
from ...arrays import GpuRef
from ...lanes import HostDied
from ...memory import Hold, Kept
from ...ops import require_readable, require_writable
from ...wire import Copy, Protect, Unprotect
from .._failures import short_of
from ..core import MEMORY_LANE
from ._bulk import Bulk, chunk_size
from ._copiers import COPIERS
from ._progress import Transfer
from .durable import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from ...lanes import Bytes, HostHandle, Op, Piece
    from ...memory import Block
    from ..core import DeviceCore
    from ..parts import ServingContext

SMALL: Final = 1 << 19
"""Copies up to this many bytes (some 50 us) are done in the trio thread."""

_DIRECT_CHUNK: Final = 32 << 20
"""Bytes of a page-locked array that one op moves, which limits the wait of a cancelled caller."""

_DIRECT_DEPTH: Final = 4
_BACKLOG: Final = 64
"""Number of ops in the memory lane above which ``put`` waits for its own."""

ENDED: Final = (ContextPoisoned, HostDied, DeviceLost)
"""Errors of ops that end with their context."""

_limiter: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("atomr_accel copiers")
_T = TypeVar("_T")


class Rebuilt(Exception):
    """The context was rebuilt before anything was lost: start over."""


def as_host_array(array: Any) -> np.ndarray[Any, Any]:
    """Return the array for ``put``: C-contiguous, in native byte order, of a supported dtype."""
    if isinstance(array, CoroutineType):
        raise TypeError(f"array must be an array, not {said_of(array)}")
    if isinstance(array, GpuRef):
        raise TypeError(
            "array must be in the program, and this is a GpuRef; write: await device.copy(ref), or "
            "on another device: await device.put(await other.get(ref))"
        )
    host = native(np.asarray(array))
    try:
        dtype = as_dtype(host.dtype)
    except TypeError as error:
        if isinstance(array, np.ndarray):
            raise
        raise TypeError(
            f"array must be an array of numbers, or what numpy.asarray makes one of, such as a "
            f"list of them, not {said_of(array)}: {error}"
        ) from None
    return np.asarray(host, dtype=dtype, order="C")


async def in_worker(function: Callable[..., _T], *args: Any) -> _T:
    """Run a long function on memory in a worker thread, to its end."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = trio.CapacityLimiter(COPIERS)
        _limiter.set(limiter)
    return await in_thread(partial(function, *args), limiter)


async def in_thread(
    function: Callable[[], _T], limiter: trio.CapacityLimiter, *, abandon: bool = False
) -> _T:
    """Run ``trio.to_thread.run_sync``, so that the thread holds no reference to the result.

    An idle worker thread may keep its last result for long, such as an error whose frames hold
    buffers. The function's result is therefore passed in another object.
    """
    job: list[Any] = [function]
    del function

    def work() -> None:
        job.append(outcome.capture(job.pop()))

    try:
        await trio.to_thread.run_sync(work, limiter=limiter, abandon_on_cancel=abandon)
    except RuntimeError as error:  # what ``work`` does raises nothing
        if "start new thread" not in str(error):
            raise
        raise short_of(OSError(errno.EAGAIN, str(error)), "a worker thread") from error
    result: outcome.Outcome[_T] = job.pop()
    return result.unwrap()


async def opened_in_thread(open_one: Callable[[], Any]) -> Any:
    """Open something that can be closed, such as a connection, in a thread.

    Nothing can end an attempt, so it may outlast a cancelled call. Its result is then closed. The
    thread is not among those of a limiter.
    """
    lock, wanted = threading.Lock(), True
    made: list[Any] = []

    def work() -> None:
        one = open_one()
        with lock:
            if wanted:
                made.append(one)
                return
        one.close()

    try:
        await in_thread(work, trio.CapacityLimiter(1), abandon=True)
    except BaseException:
        with lock:
            wanted = False
        for one in made:
            one.close()
        raise
    return made.pop()


async def arranged(array: Any) -> np.ndarray[Any, Any]:
    """``as_host_array``; in a thread if it has much to copy. A checkpoint only then."""
    long = isinstance(array, np.ndarray) and array.nbytes > SMALL
    if not long or (array.flags.c_contiguous and array.dtype.isnative):
        return as_host_array(array)
    return await in_worker(as_host_array, array)


def room_for(ref: GpuRef) -> np.ndarray[Any, Any]:
    """An array for the content of a buffer."""
    try:
        return np.empty(ref.shape, ref.dtype)
    except MemoryError as error:
        raise OutOfMemory(
            f"no room in the program for the {ref.nbytes} bytes of {ref!r}", requested=ref.nbytes
        ) from error


def bytes_of(array: np.ndarray[Any, Any]) -> Bytes:
    """The data of a C-contiguous array."""
    return np.asarray(array).reshape(-1).view(np.uint8)  # a matrix would stay 2-d


# --- one way and the other -----------------------------------------------------------


async def upload(
    core: DeviceCore,
    host: np.ndarray[Any, Any],
    ref: GpuRef,
    *,
    new: bool,
    wait: bool = True,
) -> None:
    """Copy an array into a buffer.

    Args:
        core: the device.
        host: the array, C-contiguous.
        ref: the buffer.
        new: whether the program has no ref to it yet, so that the call can retry if it becomes
            stale.
        wait: whether to wait until the data has arrived. If false, a small array is only sent.

    Raises:
        Rebuilt: a new buffer became stale before any data had arrived.
        GpuRefStale, GpuRefSealed: the buffer became stale or sealed before any data had arrived.
    """
    data = bytes_of(host)
    block = ref.block

    def check() -> None:
        if not new:
            require_writable(ref, core.memory, "out")
        elif block.epoch is not core.memory.epoch:
            raise Rebuilt

    address = core.pinned.find(data)
    if len(data) <= SMALL:
        piece = core.staging.try_acquire(len(data)) or await core.staging.acquire(len(data))
        np.copyto(piece.view(len(data)), data)
        await send(core, piece, ref, 0, len(data), check, wait=wait)
        return
    with _observed(core, "put", len(data)) as transfer:
        if address is not None:
            await _upload_directly(core, address, ref, check, transfer)
            return

        def submit(piece: Piece, start: int, length: int) -> Op | None:
            check()
            if core.context is None:
                return None
            message = Copy(ref.block.address + start, piece.address, length)
            written = within(ref.block, start, length)
            return core.submit(core.ports[MEMORY_LANE], "put", message, (), (written,))

        await Bulk(core, data, submit, upload=True, progress=transfer.add).run()


async def download(core: DeviceCore, ref: GpuRef, host: np.ndarray[Any, Any]) -> None:
    """Copy a buffer into a C-contiguous array.

    Raises:
        GpuRefStale: the buffer became stale before any data had arrived.
        DeviceLost: the device is lost or closed, and its staging memory with it.
    """
    if core.context is None:
        await core.ready()
        require_readable(ref, core.memory, "ref")
    data = bytes_of(host)
    address = core.pinned.find(data)
    if len(data) <= SMALL:
        piece = core.staging.try_acquire(len(data)) or await core.staging.acquire(len(data))
        await receive(core, piece, ref, 0, len(data))
        np.copyto(data, piece.view(len(data)))
        piece.release()
        return
    with _observed(core, "get", len(data)) as transfer:
        if address is not None:
            await _download_directly(core, address, ref, transfer)
            return

        def submit(piece: Piece, start: int, length: int) -> Op | None:
            block = require_readable(ref, core.memory, "ref")
            if core.context is None:  # sealed buffers are good without one, too
                return None
            message = Copy(piece.address, ref.block.address + start, length)
            return core.submit(core.ports[MEMORY_LANE], "get", message, (block,), ())

        await Bulk(core, data, submit, upload=False, progress=transfer.add).run()


async def send(
    core: DeviceCore,
    piece: Piece,
    ref: GpuRef,
    start: int,
    length: int,
    check: Callable[[], None],
    *,
    wait: bool = True,
) -> None:
    """Send the content of a piece, and give the piece back."""
    try:
        check()
        while (context := core.context) is None:
            await core.ready()
            check()
        message = Copy(ref.block.address + start, piece.address, length)
        port = core.ports[MEMORY_LANE]
        op = core.submit(port, "put", message, (), (within(ref.block, start, length),))
    except BaseException:
        piece.release()
        raise
    if not wait and port.load <= _BACKLOG:
        after(core, context.host, op, piece.release, expected=context)
        await trio.lowlevel.checkpoint()
        return
    try:
        await op.wait()
    except BaseException:
        after(core, context.host, op, piece.release)
        raise
    piece.release()


async def receive(core: DeviceCore, piece: Piece, ref: GpuRef, start: int, length: int) -> None:
    """Fill a piece, which the caller still owns unless this raises."""
    try:
        block = require_readable(ref, core.memory, "ref")
        while (context := core.context) is None:  # sealed buffers are good without one, too
            await core.ready()
            block = require_readable(ref, core.memory, "ref")
        message = Copy(piece.address, ref.block.address + start, length)
        op = core.submit(core.ports[MEMORY_LANE], "get", message, (block,), ())
    except BaseException:
        piece.release()
        raise
    try:
        await op.wait()
    except BaseException:
        after(core, context.host, op, piece.release)
        raise


def after(
    core: DeviceCore,
    host: HostHandle,
    op: Op,
    callback: Callable[[], None],
    *,
    expected: ServingContext | None = None,
) -> None:
    """Call a function once the memory of ``op`` is not accessed any more.

    A host that is being killed may still be moving data when its ops are answered. An op without a
    waiting caller has its context as ``expected``: any error counts as a fault then, because a
    buffer would be left with wrong content.
    """

    def answered() -> None:
        if isinstance(op.error, ENDED):
            core.reaper.quarantine(host, callback)
            return
        callback()
        if op.error is not None and expected is not None:
            expected.fail(op)

    op.when_answered(answered)


async def in_chunks(nbytes: int, move: Callable[[int, int], Awaitable[None]]) -> None:
    """Call ``move(start, length)`` for all chunks of a transfer, several at a time.

    Twice as many chunks are in progress as threads copy: while one half is copied, the other half
    is on the bus. ``Bulk`` is faster for chunks of one copy and one op.
    """
    size = chunk_size(nbytes)
    starts = iter(range(0, nbytes, size))
    failures: list[Exception] = []

    async def mover() -> None:
        for start in starts:
            try:
                await move(start, min(size, nbytes - start))
            except (AccelError, Rebuilt) as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

    async with PlainNursery() as nursery:
        for _ in range(min(2 * COPIERS, -(-nbytes // size))):
            nursery.start_soon(mover)
    if failures:
        try:
            # The errors of ops in flight say more than later ones.
            raise min(failures, key=lambda error: not isinstance(error, ContextPoisoned))
        finally:
            failures.clear()  # their tracebacks have these frames in them


@contextmanager
def _observed(core: DeviceCore, name: str, nbytes: int) -> Iterator[Transfer]:
    """Show how far a transfer is, and make a fault fail it as a whole."""
    transfer = Transfer(name, nbytes)
    core.transfers.add(transfer)
    generation = core.memory.generation
    if core.instruments.active:
        core.instruments("transfer_started", core, transfer)
    failure: BaseException | None = None
    try:
        yield transfer
    except BaseException as error:
        failure = error
        if not isinstance(error, (GpuRefStale, Rebuilt)):
            raise
        # The transfer was in flight all the time, even if none of its pieces was.
        if transfer.done and core.memory.generation > generation:
            over = core.lifecycle.why_over(name, generation)
            raise over from over.__cause__
        raise
    finally:
        core.transfers.discard(transfer)
        if core.instruments.active:
            core.instruments("transfer_finished", core, transfer, failure)
        del failure  # its traceback has this frame in it


# --- page-locked arrays ----------------------------------------------------------------


async def _upload_directly(
    core: DeviceCore, address: int, ref: GpuRef, check: Callable[[], None], transfer: Transfer
) -> None:
    def submit(start: int, length: int) -> Op:
        check()
        message = Copy(ref.block.address + start, address + start, length)
        written = within(ref.block, start, length)
        return core.submit(core.ports[MEMORY_LANE], "put", message, (), (written,))

    await _directly(core, address, submit, transfer)


async def _download_directly(
    core: DeviceCore, address: int, ref: GpuRef, transfer: Transfer
) -> None:
    def submit(start: int, length: int) -> Op:
        block = require_readable(ref, core.memory, "ref")
        message = Copy(address + start, ref.block.address + start, length)
        return core.submit(core.ports[MEMORY_LANE], "get", message, (block,), ())

    ops: list[tuple[HostHandle, Op]] = []
    try:
        await _directly(core, address, submit, transfer, ops)
    except BaseException:
        # The array is the caller's, who may do with it what he likes once this returns:
        # nothing may write to it then, neither this host nor one that is being killed.
        with trio.CancelScope(shield=True):
            for host, op in ops:
                try:
                    await op.wait()
                except (ContextPoisoned, HostDied, DeviceLost):
                    await host.close(terminating=True)
                except AccelError:
                    pass  # the error came before it
        raise


async def _directly(
    core: DeviceCore,
    address: int,
    submit: Callable[[int, int], Op],
    transfer: Transfer,
    ops: list[tuple[HostHandle, Op]] | None = None,
) -> None:
    """Move a page-locked array by ops of which a few are in flight at a time."""
    ops = [] if ops is None else ops
    lengths: list[int] = []
    for start in range(0, transfer.nbytes, _DIRECT_CHUNK):
        length = min(_DIRECT_CHUNK, transfer.nbytes - start)
        host = await core.pinned.mapped(address)
        piece = core.pinned.piece_at(address)
        op = submit(start, length)
        piece.hold()
        after(core, host, op, piece.drop)
        ops.append((host, op))
        lengths.append(length)
        if len(ops) == _DIRECT_DEPTH:
            await _first(ops, lengths, transfer)
    while ops:
        await _first(ops, lengths, transfer)


async def _first(ops: list[tuple[HostHandle, Op]], lengths: list[int], transfer: Transfer) -> None:
    await ops[0][1].wait()
    ops.pop(0)
    transfer.done += lengths.pop(0)


# --- sealing ---------------------------------------------------------------------------


@asynccontextmanager
async def filling(core: DeviceCore, block: Block) -> AsyncIterator[None]:
    """Let the memory lane write a new block; if it lies in a sealed slab, seal it after.

    Raises:
        Rebuilt: the block became stale, or a scope has freed it.
        OutOfMemory: the slab cannot be mapped a second time.
    """
    if not block.sealed:
        yield
        return
    context = core.context
    if context is None or core.memory.epoch is not block.epoch:
        raise Rebuilt
    slab = core.memory.slab_of(block).id
    port = core.ports[MEMORY_LANE]
    # All of these write the block, so none overtakes another, whatever happens.
    unprotected = core.submit(port, "unprotect", Unprotect(slab), (), (block,))
    protected: Op | None = None
    hold = Hold(block)  # if a scope frees it meanwhile, its memory is not reused yet

    def check() -> None:
        if core.memory.epoch is not block.epoch:
            raise Rebuilt

    try:
        await unprotected.wait()  # copying to a slab without it may fault the device
        check()
        yield
        check()
        protected = core.submit(port, "protect", Protect(slab), (), (block,))
        await protected.wait()
        check()
        core.memory.seal(block)
    except BaseException:
        unprotected.when_answered(partial(_unfilled, core, context, block, unprotected, protected))
        raise
    finally:
        hold.release()


def _unfilled(
    core: DeviceCore, context: ServingContext, block: Block, unprotected: Op, protected: Op | None
) -> None:
    """Protect a slab after a block was not filled, and hold the block until that is done.

    Sealed slabs survive a rebuild. A host that has not ended yet could still write to the block
    through its second mapping, even if the block is used again.
    """
    release = Hold(block).release
    if protected is None and unprotected.error is None and core.context is context:
        port = core.ports[MEMORY_LANE]
        slab = core.memory.slab_of(block).id
        protected = core.submit(port, "protect", Protect(slab), (), (block,))
    if protected is not None:
        after(core, context.host, protected, release)
    elif unprotected.error is None or isinstance(unprotected.error, ENDED):
        core.reaper.quarantine(context.host, release)
    else:
        release()


@contextmanager
def refusing_writers(core: DeviceCore, block: Block) -> Iterator[None]:
    """Refuse writes to a block that is to be sealed, until all tasks that seal it are done.

    Earlier ops come before the seal, later ones after it.
    """
    core.being_sealed[block] += 1
    block.sealed = True
    try:
        yield
    finally:
        core.being_sealed[block] -= 1
        if not core.being_sealed[block]:
            del core.being_sealed[block]
            block.sealed = block.epoch is core.memory.sealed_epoch


async def seal(core: DeviceCore, ref: GpuRef) -> None:
    """Move a block into a sealed slab; its handles and all views of it stay the same."""
    # One at a time: two that seal the same buffer would undo each other's work.
    async with core.sealing:
        source = require_readable(ref, core.memory, "ref", strided=True).base
        if source.epoch is core.memory.sealed_epoch:
            return
        if isinstance(core.memory.owner_of(source), Kept):
            raise Unsupported(
                "ref is a variable of a module: sealing moves the content, and kernels would go on "
                "with what is left behind; seal a copy: device.seal(await device.copy(ref))"
            )
        if source.held:
            await core.exports.sweep()
            require_readable(ref, core.memory, "ref", strided=True)
            if source.held:
                raise ValueError(
                    "ref is exported, or an open batch has calls with it put off: sealing moves "
                    "the content, and would leave those behind; let go of what was exported, and "
                    "seal before the batch or after it"
                )
        while True:
            target = (await core.empty(source.size, np.uint8, sealed=True)).block
            require_readable(ref, core.memory, "ref", strided=True)
            with suppress(Rebuilt):
                async with filling(core, target):
                    message = Copy(target.address, source.address, source.size)
                    port = core.ports[MEMORY_LANE]
                    await core.submit(port, "seal", message, (source,), (target,)).wait()
                require_readable(ref, core.memory, "ref", strided=True)  # not freed meanwhile
                core.memory.rebind(source, target)
                return
