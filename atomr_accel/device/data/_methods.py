"""Methods of a device for data: put, get, copy, fill, free, seal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import trio

from ..._calling import clear_call
from ..._dtypes import as_dtype
from ..._errors import GpuRefStale, said_of
from ...actors.blocks import opens
from ...arrays import GpuRef, as_shape, ref_error
from ...arrays.expressions import Expression
from ...memory import MemoryScope
from ...ops import Awaited, perform, recorded_call, require_readable, require_writable
from ...wire import Advise, Attach, Fill, Prefetch
from ..interop._sharing import SharedBuffer, copy_here, lives_elsewhere, open_shared, salvage, share
from ._managed import Advice, Attachment, Place, make_managed, on_managed, one_of
from ._snapshot import Snapshot, check_outs, in_memory_of, restore_directly, take
from .arrays import Arrays, Number, check_like, check_pair, copying, element_of
from .transfer import (
    SMALL,
    Rebuilt,
    arranged,
    download,
    filling,
    in_worker,
    refusing_writers,
    room_for,
    seal,
    upload,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    from numpy.typing import DTypeLike

    from ..core import DeviceCore, Shape
    from ..interop._exports import Export
    from ._pinned import Pinned


class MemoryMethods(Arrays[Awaited]):
    """The methods of ``Device`` for data and memory."""

    core: DeviceCore

    @property
    def pinned(self) -> Pinned:
        """Pool of page-locked arrays, which are transferred without another copy."""
        return cast("Pinned", self.core.pinned)

    # --- to the device and back -------------------------------------------------------------

    @recorded_call
    async def put(
        self,
        array: object,
        *,
        out: GpuRef | None = None,
        sealed: bool = False,
        durable: bool = False,
    ) -> GpuRef:
        """Copy an array to the device.

        Arrays of ``device.pinned`` move at the speed of the bus. ``device.statistics().transfers``
        shows the progress of long transfers.

        An array of up to 512 KiB may still be in transfer when ``put`` returns. The caller may
        change the array again, and ops that use the buffer wait for the transfer. If the device
        fails before the data has arrived, the ref is stale.

        Args:
            array: a NumPy array, or an object that ``numpy.asarray`` accepts. It is copied first if
                it is not C-contiguous. Do not change it before ``put`` returns.
            out: the destination: a ref, or any view of one, of the same shape and dtype. By default
                a new buffer. Its content is undefined if ``put`` is cancelled or fails. A view that
                is not contiguous is filled from a contiguous copy on the device.
            sealed: make the buffer read-only for good; it then survives rebuilds.
            durable: make a buffer that can be written and survives rebuilds, as by
                ``make_durable``. The call then waits until its content is proven.

        Returns:
            ``out``, or a new ref with the array's shape and dtype.

        Raises:
            TypeError: a dtype that device memory does not support, such as objects, or another
                dtype than that of ``out``.
            ValueError: another shape than that of ``out``; two of ``out``, ``sealed`` and
                ``durable``; ``out`` was made by ``broadcast_to``; a page-locked array whose block
                was left.
            Unsupported: ``sealed`` or ``durable`` is true, and the platform cannot export device
                memory.
        """
        core = self.core
        if sealed and durable:
            raise ValueError(
                "put takes sealed=True or durable=True, not both; leave out durable if nothing "
                "writes to the buffer"
            )
        if out is not None:
            if sealed or durable:
                kind = "sealed" if sealed else "durable"
                raise ValueError(f"put(..., {kind}=True) makes a buffer of its own; leave out away")
            require_writable(out, core.memory, "out", strided=True)
        host = await arranged(array)
        if out is not None:
            check_like(out, host.shape, host.dtype, "out", "the array")
            if not out.contiguous:
                return await self.copy(await self.put(host), out)
            await core.ready()
            await upload(core, host, out, new=False, wait=out.durable)
            if out.durable:
                await core.durables.proven(out.block)
            return out
        while True:
            ref = None
            if durable:
                ref = await core.durables.room(host.shape, host.dtype)
            elif not sealed:
                ref = core.try_empty(host.shape, host.dtype, host.nbytes)
            if ref is None:
                ref = await core.empty(host.shape, host.dtype, sealed=sealed)
            try:
                if sealed:
                    async with filling(core, ref.block):
                        await upload(core, host, ref, new=True)
                else:
                    await upload(core, host, ref, new=True, wait=False)
                if durable:
                    await self._adopt(ref)
            except Rebuilt:
                continue
            return ref

    @recorded_call
    async def get(
        self, ref: GpuRef | Expression, out: np.ndarray[Any, Any] | None = None
    ) -> np.ndarray[Any, Any]:
        """Copy a buffer from the device.

        Args:
            ref: the buffer, any view of one, or an expression. The device copies a view that is not
                contiguous, and computes an expression, to a contiguous buffer first.
            out: an array to fill, of the same shape and dtype. An array of ``device.pinned`` is
                filled directly. Such a transfer is awaited to its end even if the caller is
                cancelled.

        Returns:
            ``out``, or a new array.

        Raises:
            ValueError: a ref of another device, ``out`` of another shape or read-only.
            RuntimeError: called in the block of a batch of this device, or in a task that the block
                waits for; ``batch.get`` is for that.
            OutOfMemory: the copy on the device does not fit.
        """
        core = self.core
        if core.open_batches:
            core.refuse_in_batch("get")
        if isinstance(ref, Expression):
            ref = await perform(core, core.evaluation(ref))
        require_readable(ref, core.memory, "ref", strided=True)
        if out is None:
            host = room_for(ref)
        else:
            _check_out(out, ref)
            host = out if out.flags.c_contiguous else room_for(ref)
        await self._download(ref, host)
        if out is None:
            return host
        if host is not out:
            if host.nbytes > SMALL:
                await in_worker(np.copyto, out, host)
            else:
                np.copyto(out, host)
        return out

    # --- on the device ----------------------------------------------------------------------

    @recorded_call
    async def copy(self, src: GpuRef, dst: GpuRef | None = None) -> GpuRef:
        """Copy a buffer, on the device or from another device to this one.

        Copies between GPUs that can reach each other do not go through the host. The new buffer is
        contiguous even if the source is not: ``ref.T`` is transposed, and ``ref[:, ::2]`` gathered.

        Args:
            src: the source, on this device or another one.
            dst: the destination, on this device: any view of the same shape and dtype that shares
                no memory with ``src``. By default a new contiguous buffer.

        Returns:
            ``dst``, or a new buffer.

        Raises:
            ValueError: shapes differ, both share memory, or ``dst`` is on another device.
        """
        core = self.core
        if lives_elsewhere(core, src):
            require_readable(src, src.block.memory, "src", strided=True)
            if dst is not None:
                check_pair(src, dst, core.memory)
            src = await copy_here(core, src)
            if dst is None:
                return src
        return await perform(core, copying(core, src, dst))

    # --- managed memory ------------------------------------------------------------------------

    @recorded_call
    async def managed(self, shape: Shape, dtype: DTypeLike = np.float64) -> GpuRef:
        """Return a buffer of managed memory, which moves between device and host by itself.

        It is used like any other buffer. Its memory is given back by ``free``, or when memory is
        short after the last ref is gone.

        On CUDA it begins on the device, and its size is limited to the device's free memory,
        including room for pages that have moved to the host. It belongs to the driver in the host,
        so it cannot be exported or shared: ``get`` fetches it.

        On the CPU backend the device and the program use the same memory, and nothing moves.
        ``(await device.export(ref)).numpy()`` is a view of it, which the program may read and
        write between ops.

        Args:
            shape: its shape.
            dtype: its dtype.

        Returns:
            A new ref, whose content is undefined.

        Raises:
            Unsupported: the device cannot share managed memory with a running host.
        """
        return await make_managed(self.core, shape, dtype)

    @recorded_call
    async def prefetch(self, ref: GpuRef, to: Place = "device") -> None:
        """Move managed memory to its next place of use (``cuMemPrefetchAsync``).

        On the CPU backend nothing moves. The call waits for earlier ops.

        Args:
            ref: a buffer made by ``managed``, or a view of it.
            to: ``"device"`` or ``"host"``.
        """
        on_device = one_of(to, Place, "to") == "device"
        await on_managed(self.core, ref, "prefetch", lambda at: Prefetch(at, ref.nbytes, on_device))

    @recorded_call
    async def advise(self, ref: GpuRef, advice: Advice) -> None:
        """Advise the driver on the use of managed memory (``cuMemAdvise``).

        The CPU backend has no driver to advise. The call waits for earlier ops.

        Args:
            ref: a buffer made by ``managed``, or a view of it.
            advice: ``"read_mostly"``; ``"prefer:device"`` or ``"prefer:host"``, the preferred
                place; or ``"accessed_by:device"`` or ``"accessed_by:host"``, the side that should
                access it without moving it. The prefix ``"unset_"`` takes an advice back.
        """
        one_of(advice, Advice, "advice")
        await on_managed(self.core, ref, "advise", lambda at: Advise(at, ref.nbytes, advice))

    @recorded_call
    async def attach(self, ref: GpuRef, to: Attachment) -> None:
        """Restrict access to managed memory (``cuStreamAttachMemAsync``).

        On the CPU backend nothing is restricted. The call waits for earlier ops.

        Args:
            ref: a buffer made by ``managed``.
            to: ``"global"``: any stream; ``"host"``: only the CPU; ``"single"``: only the stream on
                which data moves.
        """
        one_of(to, Attachment, "to")
        await on_managed(self.core, ref, "attach", lambda at: Attach(at, to))

    # --- the program's own libraries ---------------------------------------------------------

    @recorded_call
    async def export(self, ref: GpuRef) -> Export:
        """Return a buffer as an array in this process, without a copy, for other libraries.

        A ref is not an array, so that data is never fetched implicitly. The export supports DLPack.
        On CUDA it also has the CUDA array interface (``torch.as_tensor(export, device="cuda")``,
        ``cupy.asarray(export)``), on the CPU backend NumPy's array interface
        (``numpy.asarray(export)``, ``export.numpy()``). On CUDA this process then has a CUDA
        context of its own, next to the host's.

        The call waits for earlier ops that write the buffer. From then on the program must order
        accesses: wait for the device's ops before another library reads, and synchronize that
        library before the next op. A sealed buffer is read-only there too.

        Arrays made from an export keep the memory alive, even after ``free``, a rebuild, or the end
        of the device. Making another array then raises ``GpuRefStale``.

        Args:
            ref: the buffer, or a view of a part of one.

        Returns:
            An object that those libraries accept, with the shape and dtype of ``ref``.

        Raises:
            OutOfMemory: the process has no room for another descriptor.
            Unsupported: the platform cannot export device memory, or the buffer is durable, managed
                or adopted memory.
            LibraryError: the program's own CUDA context fails, perhaps because the program has
                broken it.
        """
        exported: Export = await self.core.exports.export(ref)
        return exported

    @recorded_call
    async def adopt(self, array: object) -> GpuRef:
        """Make a buffer of an array of CuPy, PyTorch, JAX or NumPy, or of a shared buffer.

        Do not use the array afterwards, because the buffer may share its memory. It does if the
        array is a view of an exported buffer, and the ref is then one of that buffer. It also does
        under ``isolation="thread"``. Otherwise the array is copied, on a GPU without going through
        the host. Memory that is shared in this way cannot be exported.

        Args:
            array: an object with DLPack, the CUDA array interface or NumPy's, or a result of
                ``share``, here or in another process.

        Returns:
            A ref with the array's shape and dtype.

        Raises:
            TypeError: another object, or a NumPy array with an unsupported dtype.
            ValueError: the device cannot read the memory, or a shared buffer's descriptor is too
                small or can be truncated by other processes.
            Unsupported: another library's array has an unsupported dtype.
            OutOfMemory: the copy, or another descriptor or mapping, does not fit.
        """
        if isinstance(array, SharedBuffer):
            return await open_shared(self.core, array)
        return await self.core.exports.adopt(array, self.put)

    @recorded_call
    async def share(self, ref: GpuRef) -> SharedBuffer:
        """Share a buffer with other processes, to be sent to them as a descriptor.

        There ``await device.adopt(shared)`` makes a ref of it. A sealed buffer is shared itself,
        which lets processes share one copy of a model's weights. Of another buffer a copy with the
        present content is shared.

        The descriptor gives access to this buffer only. A sealed buffer moves to memory of its own
        when it is first shared, all of it if ``ref`` is a view. A buffer that is not sealed, or a
        view that is not contiguous, is copied to memory of its own. On the CPU backend a process
        with the descriptor can neither write to the memory nor change its size. A GPU's driver has
        no such protection, so there the process can write to it.

        Args:
            ref: the buffer, or a view of a part of one.

        Returns:
            A descriptor and a description to send with it. Close it once it is sent, or use it as a
            context manager.

        Raises:
            OutOfMemory: the buffer's own memory, or its descriptor, does not fit.
            Unsupported: the platform cannot export device memory, or the buffer is managed or
                adopted memory.
        """
        return await share(self.core, ref)

    async def salvage(self, ref: GpuRef) -> np.ndarray[Any, Any]:
        """Fetch the content that a fault has left in a stale buffer. Do not trust it.

        The memory of stale refs stays until it is needed, and this method reads it. Ops in flight
        may have written a part of their results, and the failed op may have written anywhere. Use
        it for debugging, and for data that can be checked. For a buffer that is not stale it is the
        same as ``get``.

        Args:
            ref: the buffer, or a view of a part of one.

        Returns:
            A new array.

        Raises:
            GpuRefStale: the buffer was freed, or its memory is used again.
            OutOfMemory: another descriptor or mapping does not fit.
            Unsupported: the platform cannot export device memory.
        """
        return await salvage(self.core, ref)

    # --- checkpoints ------------------------------------------------------------------------

    async def snapshot(
        self,
        refs: Iterable[GpuRef],
        *,
        to: Self | None = None,
        out: Snapshot | None = None,
        verified: bool = False,
    ) -> Snapshot:
        """Copy the present content of buffers, so that it survives a fault: see ``restore``.

        It returns when the copies are submitted, all at one point of the program's order. They run
        on at the speed of the bus. Later ops that write the buffers come after them. ``await
        snapshot.wait()`` returns when all data has arrived. A fault of the device before that ends
        the snapshot.

        Args:
            refs: the buffers, or contiguous views of some.
            to: the destination: another device, which keeps the copies sealed. By default
                page-locked memory of the program, which does not count to ``pinned_limit``.
            out: a snapshot in host memory that this device has taken of buffers with the same
                shapes and dtypes. Its memory is reused, because page-locking takes longer than
                copying. Its content is lost at once, so alternate between two.
            verified: compute digests of the buffers, too, on the device and at the same point of
                the program's order. ``restore`` and ``Snapshot.save`` then verify the copies first.

        Returns:
            The snapshot; ``out``, if it was given.

        Raises:
            ValueError: a ref is of another device, or a view that is not contiguous; ``to`` is this
                device; ``out`` does not fit, was closed, or is being taken, restored or saved.
            TypeError: ``refs`` are not refs, ``to`` is not a device, or ``out`` is not a snapshot.
            OutOfMemory: the destination has too little memory.
            Unsupported: this device cannot write to the memory of ``to``.
        """
        if out is not None and not isinstance(out, Snapshot):
            raise TypeError(f"out must be a Snapshot, not {said_of(out)}")
        if to is not None and not isinstance(to, MemoryMethods):
            raise TypeError(f"to must be an open device, not {said_of(to)}")
        peer = None if to is None else to.core
        await trio.lowlevel.checkpoint_if_cancelled()
        return await take(self.core, tuple(refs), peer, out, verified=verified)

    async def restore(
        self, snapshot: Snapshot, *, out: Sequence[GpuRef] | None = None
    ) -> list[GpuRef]:
        """Restore buffers from a snapshot, after waiting until it is complete.

        A snapshot of this device in host memory is copied at the speed of the bus, one on a peer by
        copies between devices. A snapshot that another device has taken, or that was loaded from a
        file, goes through staging memory.

        Args:
            snapshot: the snapshot, of this device or of another one.
            out: buffers to write to, or views of some, of the snapshot's shapes and dtypes. Their
                content is undefined if this fails or is cancelled. By default, new ones.

        Returns:
            ``out``, or new refs, in the order of the snapshot's refs.

        Raises:
            ContextPoisoned: a device had failed before the snapshot was complete, or has failed
                meanwhile.
            GpuRefStale, GpuRefSealed: a buffer of ``out`` cannot be written; or the peer that had
                the snapshot is lost.
            TypeError: ``snapshot`` is not a snapshot, or ``out`` has other dtypes.
            ValueError: ``out`` has other shapes or is of another device; the snapshot was closed;
                or it was taken with ``verified=True``, and has changed since then.
        """
        if not isinstance(snapshot, Snapshot):
            raise TypeError(f"snapshot must be a Snapshot, not {said_of(snapshot)}")
        core = self.core
        if out is not None:
            check_outs(core, snapshot, out)
        with snapshot._being_read():
            return await self._restore(snapshot, out)

    async def _restore(self, snapshot: Snapshot, out: Sequence[GpuRef] | None) -> list[GpuRef]:
        """Implement ``restore``."""
        core = self.core
        await snapshot.verify()
        if snapshot._refs:
            outs = [None] * len(snapshot) if out is None else out
            return [
                await self.copy(ref, into) for ref, into in zip(snapshot._refs, outs, strict=True)
            ]
        # A journal records data by the calls that bring it to the device.
        plain = out is None or all(ref.contiguous for ref in out)
        if plain and in_memory_of(core, snapshot) and core.recorder is None:
            return await restore_directly(core, snapshot, out)
        arrays = await snapshot.arrays()
        if out is None:
            return [await self.put(array) for array in arrays]
        return [await self.put(array, out=ref) for array, ref in zip(arrays, out, strict=True)]

    # --- lifetime ---------------------------------------------------------------------------

    @recorded_call
    async def free(self, ref: GpuRef) -> None:
        """Free a buffer now. Its memory is reused after its last op.

        Dropping the last ref has the same effect. All views of the buffer are stale from now on.

        Args:
            ref: the buffer, or any view of it.
        """
        core = self.core
        require_readable(ref, core.memory, "ref", strided=True)
        await core.ready()
        core.memory.free(require_readable(ref, core.memory, "ref", strided=True))
        if core.memory.unmapped:
            await core.growth.unmap()

    async def trim(self) -> None:
        """Give memory that no buffer uses back to the device, for other programs.

        That happens by itself when memory is short.
        """
        await self.core.growth.trim()

    @opens
    async def scope(self) -> AsyncIterator[MemoryScope]:
        """Free buffers made inside a block: ``async with device.scope() as scope:``.

        Leaving the block frees every buffer that this task, and tasks started inside, have made
        there, including results of ops, even if refs to them are still held. ``scope.keep(ref)``
        exempts one. Dropped refs are freed earlier, as always.
        """
        scope = MemoryScope(self.core.memory)
        await trio.lowlevel.checkpoint()
        scope.open()
        try:
            yield scope
        finally:
            scope.close()
        await trio.lowlevel.checkpoint()

    @recorded_call
    async def seal(self, ref: GpuRef) -> GpuRef:
        """Make a buffer read-only for good, so that it survives rebuilds.

        The memory is mapped read-only: on CUDA a kernel that writes to it causes a fault. The
        content moves to another address. The ref stays valid, and all views of the buffer are
        sealed with it. Writes are refused from the call on. If the call is cancelled or fails, the
        buffer can be written again. Sealing a sealed buffer has no effect.

        Args:
            ref: the buffer, or any view of it.

        Returns:
            ``ref``.

        Raises:
            ValueError: the buffer is durable or exported, or a batch has deferred calls with it.
            OutOfMemory: the second copy that sealing needs does not fit.
            Unsupported: the platform cannot export device memory, or ``ref`` is a module's
                variable.
        """
        core = self.core
        block = require_readable(ref, core.memory, "ref", strided=True).base
        if block.durable is not None:
            raise ValueError("ref is durable; seal a copy: device.seal(await device.copy(ref))")
        with refusing_writers(core, block):
            await core.ready()
            require_readable(ref, core.memory, "ref", strided=True)
            if block.epoch is not core.memory.sealed_epoch:
                await seal(core, ref)
        return ref

    @recorded_call
    async def make_durable(self, ref: GpuRef) -> GpuRef:
        """Make a buffer survive rebuilds although ops write to it.

        Each op that writes to the buffer is followed by another one, which computes digests of the
        bytes written and sends them to the program. Waiting for the first includes the second.
        After a fault the new host computes the digests of the whole buffer. If all are unchanged,
        the ref continues in the new generation. Otherwise it is stale, and the error says whether
        a write was in flight at the fault, or bytes have changed that no op has written.

        The content moves to another address, and the ref and its views stay valid. If the call is
        cancelled, the buffer is durable all the same. For a durable buffer it only waits until all
        writes so far are proven.

        Args:
            ref: the buffer, or any view of it.

        Returns:
            ``ref``.

        Raises:
            ValueError: the buffer is sealed or exported, or a batch has deferred calls with it.
            ContextPoisoned: the device has failed before the content was proven.
            OutOfMemory: the second copy that this needs does not fit.
            Unsupported: the platform cannot export device memory, or ``ref`` is a module's
                variable.
        """
        require_readable(ref, self.core.memory, "ref", strided=True)
        await self.core.durables.convert(ref)
        return ref

    async def verify(self, ref: GpuRef) -> str:
        """Compare the content of a sealed or durable buffer with its digests.

        The first call for a sealed buffer computes its digests, on the device. From then on, the
        program keeps them, and each new host compares them with the memory that it has mapped,
        before any op runs. A durable buffer has digests anyway.

        Args:
            ref: the buffer, or any view of it. All of the buffer is verified.

        Returns:
            The buffer's digest, ``ref.digest``: XXH64 of the digests of its chunks of 64 KiB. It
            finds errors, and does not protect against forgery.

        Raises:
            GpuRefStale: bytes have changed, and the error says where; from now on the buffer is
                stale. Or ``ref`` was freed, or is of an older generation.
            ValueError: the buffer is neither sealed nor durable.
            Unsupported: the backend has no digests.
        """
        return await self.core.durables.check(ref)

    @clear_call
    def zeros(
        self, shape: Shape, dtype: DTypeLike = np.float64, *, durable: bool = False
    ) -> Coroutine[Any, Any, GpuRef]:
        """Make a buffer of zeros, like ``numpy.zeros``.

        Arguments and errors are those of ``empty``.

        Args:
            shape: its shape.
            dtype: its dtype.
            durable: make a buffer that survives rebuilds, as by ``make_durable``.
        """
        if durable:
            return self._zeros_durable(shape, dtype, durable=True)
        return super().zeros(shape, dtype)

    @clear_call
    def full(
        self,
        shape: Shape,
        fill_value: Number,
        dtype: DTypeLike | None = None,
        *,
        durable: bool = False,
    ) -> Coroutine[Any, Any, GpuRef]:
        """Make a buffer filled with one value, like ``numpy.full``.

        Args:
            shape: its shape.
            fill_value: a number, as for ``fill``.
            dtype: its dtype; by default that of ``numpy.array(fill_value)``.
            durable: make a buffer that survives rebuilds, as by ``make_durable``.

        Returns:
            A new ref.

        Raises:
            Unsupported: ``durable`` is true, and the platform cannot export device memory.
        """
        if durable:
            return self._full_durable(shape, fill_value, dtype, durable=True)
        if dtype is None:
            return super().full(shape, fill_value)
        return super().full(shape, fill_value, dtype)

    @recorded_call
    async def _zeros_durable(self, shape: Shape, dtype: DTypeLike, *, durable: bool) -> GpuRef:
        assert durable  # an argument because a journal records it
        kind = as_dtype(dtype)
        return await self._filled(shape, bytes(kind.itemsize), kind)

    @recorded_call
    async def _full_durable(
        self, shape: Shape, fill_value: Number, dtype: DTypeLike | None, *, durable: bool
    ) -> GpuRef:
        assert durable
        kind = as_dtype(np.asarray(fill_value).dtype if dtype is None else dtype)
        return await self._filled(shape, element_of(fill_value, kind), kind)

    async def _filled(self, shape: Shape, element: bytes, dtype: np.dtype[Any]) -> GpuRef:
        core = self.core
        ref = await core.durables.room(as_shape(shape), dtype)
        message = Fill(ref.block.address, ref.nbytes, element)
        port = core.ports[core.memory_lane.name]
        filled = core.submit(port, "fill", message, (), (ref.block,))
        proof = core.durables.adopt(ref.block)
        await filled.wait()
        await proof.wait()
        return ref

    async def _adopt(self, ref: GpuRef) -> None:
        """Make a new buffer durable, and wait until its content is proven."""
        core = self.core
        if ref.block.epoch is not core.memory.epoch:
            raise Rebuilt
        await core.durables.adopt(ref.block).wait()

    @recorded_call
    async def unseal(self, ref: GpuRef) -> GpuRef:
        """Return a new, writable buffer with the content of a sealed one.

        The sealed buffer does not change, because other code may rely on it.

        Args:
            ref: a sealed buffer, or a view of a part of one.

        Returns:
            A new ref of the same shape and dtype.

        Raises:
            OutOfMemory: the copy does not fit.
        """
        require_readable(ref, self.core.memory, "ref", strided=True)
        if not ref.sealed:
            raise ValueError(f"ref is not sealed: {ref!r}; device.copy makes a copy of any buffer")
        return await self.copy(ref)

    async def _download(self, ref: GpuRef, host: np.ndarray[Any, Any]) -> None:
        """Copy any view into an array, which is C-contiguous."""
        if ref.contiguous:
            await download(self.core, ref, host)
            return
        while True:
            try:
                await download(self.core, await self.copy(ref), host)
            except GpuRefStale:
                if not ref.sealed or ref.is_stale:
                    raise
            else:
                return

    async def _upload(self, array: np.ndarray[Any, Any], ref: GpuRef) -> None:
        """Copy an array to a buffer that a batch has made."""
        try:
            await upload(self.core, await arranged(array), ref, new=True)
        except Rebuilt:
            raise ref_error(ref, self.core.memory, "ref") from None


def transfers_of(core: DeviceCore) -> MemoryMethods:
    """Return the methods that move data, for a library that needs more than requests."""
    methods = MemoryMethods()
    methods.core = methods.home = core
    return methods


def _check_out(out: object, ref: GpuRef) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a numpy.ndarray, not {said_of(out)}")
    if out.shape != ref.shape:
        raise ValueError(f"out must have shape {ref.shape}, not {out.shape}")
    if out.dtype != ref.dtype:
        raise TypeError(f"out must have dtype {ref.dtype}, not {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
