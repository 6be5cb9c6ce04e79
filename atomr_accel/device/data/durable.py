"""Durable buffers: memory that ops write to and that survives faults if digests prove its content.

Each op that writes to such a buffer is followed by one that digests the bytes it may have written,
right behind it on the device. The digests come to the program, where no kernel can reach them.
After a fault, the new host digests all durable buffers before the program continues. It does the
same with sealed buffers that the program has asked to verify.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import trio

from ..._errors import Unsupported
from ...arrays import GpuRef
from ...lanes import Op, uninterrupted
from ...libraries.digests.lane import DIGESTS
from ...libraries.digests.wire.messages import Digest, RowRange
from ...memory import BlockView, DurableState, DurableStatistics, Kept, RowDigests, RowProof, told
from ...ops import require_readable
from ...wire import CHUNK_BYTES, Copy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...lanes import Port
    from ...memory import Block, Proof
    from ..core import DeviceCore

_MOST_CHUNKS: Final = 1 << 18
"""Chunks that one op digests at most when a buffer is verified: 16 GiB, for an answer of 2 MiB."""

Asked = tuple["Block", DurableState | RowDigests, Any]
"""A ``Proof`` or a ``RowProof`` that is asked for, of a block."""


@final
@uninterrupted
class DurableBuffers:
    """The durable buffers of one device, and the sealed ones that are verified."""

    def __init__(self, core: DeviceCore) -> None:
        self._core: Final = core
        self._sealed: Final[weakref.WeakSet[Block]] = weakref.WeakSet()
        # By lane: writes to a block are ordered, but lanes answer by sockets of their own.
        self._latest: Final[weakref.WeakKeyDictionary[Block, dict[Port, Op]]] = (
            weakref.WeakKeyDictionary()
        )
        self._verified = self._in_flight = self._changed = 0

    # --- making them ---------------------------------------------------------------------

    async def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer in memory that survives, to be filled and adopted.

        Raises:
            OutOfMemory: no room.
            Unsupported: the platform cannot export device memory, or the backend has no digests.
        """
        while True:
            await self._core.open_lane(DIGESTS)
            ref = await self._core.empty(shape, dtype, durable=True)
            if DIGESTS.name in self._core.ports:
                return ref

    def adopt(self, block: Block) -> Op:
        """Make a block in memory that survives durable, with the content that ops have given it.

        Returns:
            The op that proves the content for the first time.
        """
        state = DurableState(block.nbytes)
        self._core.memory.make_durable(block, state)
        proof = state.proof_of(0, block.nbytes)
        return self._ask("durable.proof", [] if proof is None else [(block, state, proof)])

    async def convert(self, ref: GpuRef) -> None:
        """Implement ``Device.make_durable``."""
        core = self._core
        source = require_readable(ref, core.memory, "ref", strided=True).base
        while source.durable is None:
            _require_movable(core, source)
            target = (await self.room((source.size,), np.dtype(np.uint8))).block
            require_readable(ref, core.memory, "ref", strided=True)
            if ref.durable or target.epoch is not core.memory.epoch:
                continue
            _require_movable(core, source)
            message = Copy(target.address, source.address, source.size)
            lane = core.ports[core.memory_lane.name]
            # It counts as a write of the source, too, which has that memory from here on.
            copied = core.submit(lane, "durable.copy", message, (), (source, target))
            source.move(target)
            proof = self.adopt(source)
            source.settle()
            await copied.wait()
            await proof.wait()
        await self.proven(source)

    async def proven(self, block: Block) -> None:
        """Wait until all writes so far are proven."""
        await trio.lowlevel.checkpoint()
        for latest in [*self._latest.get(block.base, {}).values()]:
            answered = trio.Event()  # other tasks may wait for the op itself
            latest.when_answered(answered.set)
            await answered.wait()
            if latest.port.name == DIGESTS.name:
                await latest.wait()

    # --- verifying them ------------------------------------------------------------------

    async def ready(self) -> Port:
        """Return the lane of digests, once there is a context that has it."""
        while True:
            await self._core.ready()
            await self._core.open_lane(DIGESTS)
            port = self._core.ports.get(DIGESTS.name)
            if port is not None:
                return port

    async def check(self, ref: GpuRef, known: bytes = b"") -> str:
        """Implement ``Device.verify``; ``known`` are the digests of a sealed buffer, if known."""
        core = self._core
        _require_lasting(core, ref)
        await self.ready()
        block = _require_lasting(core, ref)
        state, checks = block.durable or block.digests, True
        if isinstance(state, RowDigests):
            raise ValueError(  # noqa: TRY004 - it is of the right type
                "ref must not be the memory of a cache, whose rows have digests of their own; "
                "verify these: await cache.recover()"
            )
        if state is None:
            state = block.digests = DurableState(block.nbytes, known)
            self._sealed.add(block)
            checks = bool(known)
        asked = state.all_of(_MOST_CHUNKS, checks=checks)
        for op in [self._ask("durable.verify", [(block, state, proof)]) for proof in asked]:
            await op.wait()
        require_readable(ref, core.memory, "ref", strided=True)
        return state.digest()

    # --- ops that write to them ----------------------------------------------------------

    def submit(self, op: Op) -> None:
        """Submit an op by its port, with digests of the bytes it writes."""
        extents = []
        rows: list[Asked] = []
        for block in op.writes:
            state = block.durable
            if isinstance(state, RowDigests):
                written = state.proof_of(
                    *_extent(block), block.rows if isinstance(block, BlockView) else None
                )
                if written is not None:
                    rows.append((block.base, state, written))
            elif state is not None:
                extents.append((block.base, state, *_extent(block)))
        if not extents and not rows:
            op.port.submit(op)
            return
        checks: list[tuple[Block, DurableState, Proof]] = []
        for block, state, begin, end in extents:
            checks += [(block, state, check) for check in state.checks_of(begin, end)]
        if checks and DIGESTS.name in self._core.ports:
            self._ask("durable.check", [*checks])
            op.seq = self._core.next_place()
        op.port.submit(op)
        if op.answered:  # its context is over, and nothing was written
            for _, state, check in checks:
                state.drop(check)
            return
        proofs: list[Asked] = [
            (block, state, proof)
            for block, state, begin, end in extents
            if (proof := state.proof_of(begin, end)) is not None
        ]
        proofs += rows
        if proofs and DIGESTS.name in self._core.ports:
            op.proof = self._ask("durable.proof", proofs, op)

    def _ask(self, name: str, asked: list[Asked], writer: Op | None = None) -> Op:
        """Submit an op that digests blocks, after the op ``writer`` if that writes them."""
        core = self._core
        ranges: list[tuple[Any, int]] = []
        rows: list[RowRange] = []
        for block, state, proof in asked:
            if isinstance(state, DurableState):
                begin, nbytes = state.range_of(proof)
                ranges.append((block.address + begin, nbytes))
            else:
                rows.append(RowRange.of(block.address, state.row_bytes, proof.rows))
        blocks = tuple(block for block, _, _ in asked)
        port = core.ports[DIGESTS.name]
        op = Op(port, core.next_place(), name, Digest(tuple(ranges), tuple(rows)), blocks, ())
        op.when_answered(partial(self._answered, op, asked, writer))
        for block in blocks:
            latest = self._latest.setdefault(block, {})
            latest[port] = op
            if rows and writer is not None:  # without its answer they are not taken
                latest[writer.port] = writer
        port.submit(op)
        return op

    def _answered(self, op: Op, asked: list[Asked], writer: Op | None) -> None:
        """Take digests; without an answer the writes stay unproven."""
        if not op.succeeded:
            return
        at, value = 0, op.value
        for block, state, proof in asked:
            found = value[at : at + 8 * proof.count]
            at += 8 * proof.count
            if isinstance(state, RowDigests):
                assert writer is not None
                # It may be answered later, because its lane has a socket of its own.
                writer.when_answered(partial(_take_rows, state, proof, found, writer))
                continue
            if writer is not None and writer.withdrawn:
                proof.checks = True  # the bytes are as they were
            changed = state.take(proof, found)
            if changed:
                self._lose_changed(block, changed)

    # --- faults --------------------------------------------------------------------------

    def interrupted(self) -> None:
        """Give up buffers of which a write is in flight, because the context has ended."""
        core = self._core
        for block in self._usable():
            state = block.durable
            assert state is not None
            if isinstance(state, DurableState) and state.in_flight:
                self._in_flight += 1
                why = f"a write to it was in flight when generation {core.generation - 1} ended"
                self._lose(block, why)
            state.settle()
        for block in [*self._sealed]:
            state = block.digests
            if state is not None and state.in_flight:  # the first, which are not known yet
                self._sealed.discard(block)
                block.digests = None
            elif state is not None:
                state.settle()

    @property
    def required(self) -> bool:
        """True if a host must have the lane of digests."""
        return self._core.memory.has_durable or bool(self._sealed)

    async def verify(self, ports: Mapping[str, Port]) -> None:
        """Compare the content of all buffers with their digests, on a new host.

        The earlier host has to be gone, because it could still write to durable ones.
        """
        core = self._core
        if self._usable():
            await core.reaper.make_room()
            if core.reaper.terminating:
                for block in self._usable():
                    self._in_flight += 1
                    self._lose(block, "an earlier host has not ended, and may still write to it")
        sealed = [block for block in self._sealed if block.epoch is core.memory.sealed_epoch]
        for block in self._usable() + sealed:
            state = block.durable or block.digests
            assert state is not None
            if isinstance(state, RowDigests):
                continue  # a cache asks for them when it recovers, and loses rows
            found = [await op.wait() for op in self._all_of(block, state, ports[DIGESTS.name])]
            changed = state.changed(b"".join(found))
            if changed:
                self._lose_changed(block, changed)
            else:
                self._verified += 1

    def _all_of(self, block: Block, state: DurableState, port: Port) -> list[Op]:
        step = _MOST_CHUNKS * CHUNK_BYTES
        return [
            self._core.submit(
                port,
                "durable.verify",
                Digest(((block.address + at, min(step, state.nbytes - at)),)),
                (block,),
            )
            for at in range(0, state.nbytes, step)
        ]

    def _lose_changed(self, block: Block, changed: list[int]) -> None:
        state = block.durable or block.digests
        if not isinstance(state, DurableState) or state.lost:
            return
        self._changed += 1
        where = told(changed, state.chunks)
        self._lose(block, f"bytes of it have changed that no op has written ({where})")

    def _lose(self, block: Block, why: str) -> None:
        self._core.memory.lose(block, f"{why}; put the data again")
        if self._core.recorder is not None:
            self._core.recorder.lost(block)

    def _usable(self) -> list[Block]:
        lasting = self._core.memory.sealed_epoch
        return [block for block in self._core.memory.durable_blocks if block.epoch is lasting]

    def statistics(self) -> DurableStatistics:
        """Return the counters at this moment."""
        usable = self._usable()
        return DurableStatistics(
            buffers=len(usable),
            nbytes=sum(block.nbytes for block in usable),
            verified=self._verified,
            in_flight=self._in_flight,
            changed=self._changed,
        )


def _take_rows(state: RowDigests, proof: RowProof, found: bytes, writer: Op) -> None:
    """Take the digests of rows, if the op that was to write them has done so."""
    if writer.succeeded and not writer.withdrawn:
        state.take(proof, found)
    else:
        state.refuse(proof)


def within(block: Block, start: int, nbytes: int) -> Block:
    """Return the part of a durable block that a transfer writes, or any other block unchanged."""
    if block.durable is None:
        return block
    begin = block.offset + start
    view = BlockView(block.memory, 0, 0, None, 0, 0, whole=block.base, start=begin)
    view.extent = begin, begin + nbytes
    return view


def refuse_durable(ref: GpuRef, what: str) -> None:
    """Refuse to hand out the address of a durable buffer."""
    if ref.durable:
        raise Unsupported(
            f"ref must be plain or sealed to be {what}, not durable, because no digests would "
            "follow the writes of other libraries; take a copy: device.copy(ref)"
        )


def _require_lasting(core: DeviceCore, ref: GpuRef) -> Block:
    """Return the whole block of a ref, which survives rebuilds."""
    block = require_readable(ref, core.memory, "ref", strided=True).base
    if block.epoch is not core.memory.sealed_epoch:
        raise ValueError(
            "ref must be sealed or durable to be verified, because other buffers change without "
            "digests; seal it: device.seal(ref)"
        )
    return block


def _extent(block: Block) -> tuple[int, int]:
    """Return the bytes of the whole block that an op may write by a block of its writes."""
    known = block.extent if isinstance(block, BlockView) else None
    return (0, block.nbytes) if known is None else known


def _require_movable(core: DeviceCore, source: Block) -> None:
    if source.sealed:
        raise ValueError("ref is sealed, or being sealed; make a copy: await device.unseal(ref)")
    if isinstance(core.memory.owner_of(source), Kept):
        raise Unsupported(
            "ref is a variable of a module, whose address kernels know; use a copy: "
            "device.make_durable(await device.copy(ref))"
        )
    if source.held:
        raise ValueError(
            "ref is exported, or an open batch has calls with it put off: its content would move, "
            "and leave those behind; let go of what was exported, and call it before the batch or "
            "after it"
        )
