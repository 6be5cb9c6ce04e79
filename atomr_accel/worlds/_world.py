"""``open_world``: devices that compute together, and go on together when one of them fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar, Unpack, final

import trio

from .._errors import ContextPoisoned, DeviceLost
from ..actors import Place, Service, serving
from ..actors.blocks import opens
from ..actors.service import in_place
from ..device import Device
from ..device.batches.record import Recording
from ..ops import Awaited
from ..wire.options import real
from . import _plans as plans
from ._bootstrap import meet
from ._collectives import Collectives, scratch
from ._engine import Engine
from ._member import REPLAYS, DeviceMember
from ._plans import CollectivePlan, OutputPending
from ._recorded import WorldRecording, inputs_by_rank
from ._together import CollectiveGroup, WorldBatch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from ..arrays import GpuRef
    from ..device.core import DeviceCore
    from ._engine import CollectiveCall, Term

T = TypeVar("T")

OnBreak = Literal["wait", "shrink"]
"""Action of a world when a rank fails: wait for its device, or continue without it."""


@dataclass(frozen=True, slots=True)
class WorldStatistics:
    """A world at one moment.

    Attributes:
        phase: ``"gathering"``: some devices are not ready; ``"joining"``: ranks join a
            communicator; ``"whole"``; or ``"over"``.
        epoch: the present epoch, from 1 on.
        size: how many ranks there are.
        in_flight: ops that are not done.
        completed: ops that were done.
        breaks: how often a rank has failed.
        last_break: the last of them in one line, or None.
    """

    phase: str
    epoch: int
    size: int
    in_flight: int
    completed: int
    breaks: int
    last_break: str | None


@final
class World(Collectives[Awaited], Service):
    """Devices, each with a rank, and the collectives among them. Made by ``open_world``.

    It is an actor of its devices' system. If its supervisor restarts it, ops in flight raise
    ``WorldBroken``, and the devices meet again in the next epoch. Other calls wait for that.

    Its ops are ordered with all other ops of its devices as those are among each other: they come
    after what writes their buffers, and before what reads them. Any task of the ``trio.run``
    that opened it may call them, also at the same time.
    """

    def __init__(self, engine: Engine[DeviceMember]) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        membership = self._engine.membership
        return f"<World of {self.size}, {membership.phase}, epoch {membership.epoch}>"

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices, in the order of their ranks."""
        return tuple(member.device for member in self._engine.present)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self._engine.membership.members)

    @property
    def epoch(self) -> int:
        """Number of the epoch. It starts at 1, and grows by one whenever the world breaks."""
        return self._engine.membership.epoch

    def rank_of(self, device: Device) -> int:
        """Return the rank of a device.

        Raises:
            ValueError: the device is not in this world, or has left it.
        """
        try:
            return self.devices.index(device)
        except ValueError:
            raise ValueError(f"{device!r} is no device of {self!r}") from None

    def statistics(self) -> WorldStatistics:
        """Return the statistics of this moment."""
        membership = self._engine.membership
        broken = membership.broken
        said = None
        if broken is not None:
            who = "a rank" if broken.rank is None else f"rank {broken.rank}"
            said = f"{who} in epoch {broken.epoch}: {broken.cause}"
        return WorldStatistics(
            phase=membership.phase,
            epoch=membership.epoch,
            size=self.size,
            in_flight=membership.in_flight,
            completed=membership.completed,
            breaks=membership.breaks,
            last_break=said,
        )

    # --- the actor -------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Form communicators and look after them until cancelled."""
        await self._engine.run(task_status=task_status)

    def ended(self, cause: BaseException | None) -> None:  # noqa: ARG002 (calls know its own)
        """Refuse all further calls."""
        self._engine.close()

    def depth(self) -> int:
        """Ops in flight."""
        return self._engine.membership.in_flight

    @opens
    async def watch(self) -> AsyncIterator[AsyncIterator[int]]:
        """Watch for new epochs, each reported once all its ranks have joined.

        ``async with world.watch() as epochs:`` gives an async iterator of numbers, which ends with
        the world.
        """
        with self._engine.watch() as epochs:
            yield epochs

    async def resize(self, devices: Sequence[Device]) -> None:
        """Continue with these devices: more, fewer, or others, in the order of their ranks.

        New devices get ready while the world goes on. Then the world waits for ops in flight, and
        begins a new epoch. This returns when all ranks have joined it. Calls that have not begun
        raise ``WorldBroken``, because their lists have another length. So does ``send`` of a buffer
        that was not received. If you are cancelled once no op is in flight, the world is resized
        nevertheless.

        Args:
            devices: as for ``open_world``. A device that is in the world already keeps its buffers;
                one that has left may come back.

        Raises:
            WorldBroken: the new world cannot be formed; see ``open_world``.
            TypeError, ValueError: as for ``open_world``; or devices of another backend than the
                world's.
            DeviceLost: a device is lost or its block was left. The world continues unchanged.
            LibraryMissing, Unsupported, OutOfMemory: a new device cannot take collectives. The
                world continues unchanged.
        """
        found = _checked(devices)
        present = self._engine.present
        if found[0].backend != present[0].device.backend:
            raise ValueError(
                f"a world of {present[0].device.backend} devices cannot go on with {found[0].name}"
            )
        members = {member.device: member for member in present}
        await self._engine.resize([members.get(each) or DeviceMember(each) for each in found])

    # --- ops -------------------------------------------------------------------------------

    async def barrier(self) -> None:
        """Wait until all ranks have come here, after all collectives that were called before."""
        await self._carry_out(partial(scratch))

    async def send(self, x: GpuRef, to: int) -> None:
        """Send a buffer to a rank, and wait until ``recv`` has received it there (``ncclSend``).

        If you are cancelled before that, the buffer is not sent.

        Args:
            x: the buffer, of any shape and dtype, on the rank that sends.
            to: the rank that receives.

        Raises:
            WorldBroken: the buffer will not be received, because the world continues with other
                ranks, is over, or was left.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        source = self._rank(x)
        await self._engine.mail.send(source, plans.require_rank(to, self.size, "to"), x)

    async def recv(self, source: int, to: int, *, out: GpuRef | None = None) -> GpuRef:
        """Receive a buffer from a rank, and wait for it if necessary (``ncclRecv``).

        Buffers from one rank to another arrive in the order in which they were sent.

        Args:
            source: the rank that sends.
            to: the rank that receives.
            out: the destination, on the receiving rank; by default a new buffer of the same shape
                and dtype.

        Returns:
            The received buffer.

        Raises:
            WorldBroken: no buffer will arrive, for the reasons given in ``send``.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        plans.require_rank(source, self.size, "source")
        plans.require_rank(to, self.size, "to")

        async def bring(x: GpuRef, sent: Callable[[], object]) -> GpuRef:
            return await self._send(partial(plans.send, x=x, to=to, out=out), sent)

        return await self._engine.mail.receive(source, to, bring)

    @opens
    async def group(self) -> AsyncIterator[CollectiveGroup]:
        """Collectives that go together: ``async with world.group() as group:``.

        Its calls give buffers at once, which hold their results when the block was left; all are
        sent then, as one op of each rank (``ncclGroupStart``). If the block raises nothing is sent.
        If it raises, or if the op is not done, the buffers that the group made are freed.

        Raises:
            WorldBroken: on leaving, if a rank failed meanwhile.
            RuntimeError: by calls of the group after its block.
        """
        term = await self._engine.whole()
        group = CollectiveGroup(self, term)
        try:
            yield group
            call = group._send()
            if call is not None:
                await call.wait()
        except BaseException:
            group._abandon()
            raise

    @opens
    async def batch(self) -> AsyncIterator[WorldBatch]:
        """Collect ops of all devices: ``async with world.batch() as batch:``.

        ``batch.devices`` has a batch of each device, as ``device.batch()`` gives, in the order of
        ranks. Collectives of ``batch`` and ops of these may use each other's results at once. The
        block ends when all have finished, and raises their errors. If it raises, all refs that were
        made in it are freed.

        The devices' own ops have no deadline but that of ``open_device``.

        Raises:
            WorldBroken: by collectives or on leaving, if a rank failed meanwhile.
            ContextPoisoned, DeviceLost: by ops of the batch of a device that has failed.
            RuntimeError: by calls of the batch after its block.
        """
        term = await self._engine.whole()
        left: WorldBatch | None = None
        try:
            async with AsyncExitStack() as stack:
                batches = [await stack.enter_async_context(each.batch()) for each in self.devices]
                batch = WorldBatch(self, term, batches)
                try:
                    yield batch
                    left = batch
                    await batch._finish()
                except BaseException:
                    batch._abandon()
                    raise
        except (ContextPoisoned, DeviceLost) as error:
            if left is None:
                raise
            raise left.broken(error) from error

    @opens
    async def record(
        self, *inputs: Sequence[GpuRef], shared: bool = False
    ) -> AsyncIterator[WorldRecording]:
        """Record ops of all devices: ``async with world.record(x) as recording:``.

        ``recording.devices`` has a recording of each device, as ``device.record()`` gives, in the
        order of ranks. Collectives of ``recording`` and ops of these are recorded in the order of
        their calls, and use each other's results. ``await recording.replay()`` then executes all:
        on CUDA as one graph launch on each device.

        Args:
            *inputs: lists of buffers, one for each rank, that ``replay`` can replace by others.
            shared: as for ``device.record``.

        Raises:
            TypeError, ValueError: an input is not a list of buffers, one on each device.
            RuntimeError: by calls of the recording after its block.
        """
        await self._engine.whole()
        devices = self.devices
        given = inputs_by_rank(self._cores(), inputs)
        async with AsyncExitStack() as stack:
            recordings = [
                await stack.enter_async_context(
                    Recording(device, refs, shared=shared, lane=REPLAYS)
                )
                for device, refs in zip(devices, given, strict=True)
            ]
            recording = WorldRecording(self, recordings)
            try:
                yield recording
                recording._close()
            finally:
                recording._open = False

    @opens
    async def split(self, colors: Sequence[Hashable]) -> AsyncIterator[dict[Hashable, World]]:
        """Worlds of some ranks each: ``async with world.split([0, 0, 1, 1]) as parts:``.

        They have communicators of their own, and break on their own: a rank that fails breaks
        its part and this world, and no other part. In both, devices are in the same order.

        Args:
            colors: one for each rank; ranks of one color are one world.

        Returns:
            The worlds by color.

        Raises:
            WorldBroken: this world is over.
        """
        given: object = colors
        if not isinstance(given, Sequence):
            raise TypeError(
                f"colors must be a list, one for each rank, not {type(colors).__name__}"
            )
        if len(colors) != self.size:
            raise ValueError(f"there are {len(colors)} colors for {self.size} ranks")
        called_in = self._engine.members
        await self._engine.whole()
        self._engine.require("the world was not split", called_in)
        by_color: dict[Hashable, list[Device]] = {}
        for device, color in zip(self.devices, colors, strict=True):
            by_color.setdefault(color, []).append(device)
        membership = self._engine.membership
        async with AsyncExitStack() as stack:
            yield {
                color: await stack.enter_async_context(
                    open_world(
                        devices,
                        on_break="shrink" if membership.shrinks else "wait",
                        op_deadline=self._engine.deadline,
                    )
                )
                for color, devices in by_color.items()
            }

    # --- how they are carried out ----------------------------------------------------------

    def _rank(self, ref: GpuRef) -> int:
        return CollectivePlan(self._cores(), 0, []).rank_of(ref, "x")

    def _cores(self) -> list[DeviceCore]:
        return [member.core for member in self._engine.present]

    async def _carry_out(self, plan: partial[T]) -> T:
        return await self._send(plan)

    async def _send(
        self, plan: Callable[[CollectivePlan], T], sent: Callable[[], object] | None = None
    ) -> T:
        """Plan an op and submit it with nothing awaited in between, and wait for it."""
        engine = self._engine
        called_in = engine.members
        outputs: list[tuple[int, GpuRef]] = []
        await trio.lowlevel.checkpoint_if_cancelled()  # waiting for the op is the other half
        term = engine.whole_now()
        while True:
            at_once = term is not None
            if term is None:
                term = await engine.whole()
            engine.require("the op has not begun", called_in)
            made = CollectivePlan(self._cores(), term.at, outputs)
            try:
                result = plan(made)
            except OutputPending as pending:
                await self._provide(self._cores(), pending, outputs)
                term = None
                continue
            except Exception:
                if not at_once:
                    raise
                term = None  # a device may just have failed, which the world does not know yet
                continue
            call = self._submit(term, made)
            if sent is not None:
                sent()
            await call.wait()
            return result

    def _submit(self, term: Term, made: CollectivePlan) -> CollectiveCall:
        made.require_placed()
        return self._engine.submit(term, made.name, made.parts, made.at)

    async def _provide(
        self, cores: Sequence[DeviceCore], pending: OutputPending, outputs: list[tuple[int, GpuRef]]
    ) -> None:
        """Wait for memory."""
        rank, shape, dtype = pending.wanted
        outputs.append((rank, await cores[rank].empty(shape, dtype)))


@opens
async def open_world(
    devices: Sequence[Device],
    *,
    on_break: OnBreak = "wait",
    op_deadline: float | None = 30.0,
    **place: Unpack[Place],
) -> AsyncIterator[World]:
    """Have devices compute together: a context manager, which gives their world.

    Args:
        devices: open devices of one backend, each once. A device's rank is its place among them.
            A device may be in several worlds.
        on_break: what to do when a rank fails. ``"wait"``: wait until its device is back.
            ``"shrink"``: go on without it; the ranks after it move up. The last one is waited for.
        op_deadline: seconds that an op, or leaving the world, may take. Then the hosts that hang
            are killed, and the world breaks. Forming it may take 15 seconds at least, because
            new hosts load the library first. None: for ever.
        **place: ``system=``, ``name=`` and ``parent=``: the world's place in a tree of actors. By
            default it is ``/world-1``, or a later number, in the system of the first device.

    Returns:
        The world, whole.

    Raises:
        WorldBroken: it cannot be formed, or a device was lost for good and is waited for. Its
            cause tells why: ``LibraryMissing`` without NCCL.
        ValueError: no device, one twice, or devices of several backends.
    """
    if on_break not in ("wait", "shrink"):
        raise ValueError(f"on_break must be 'wait' or 'shrink', not {on_break!r}")
    if op_deadline is not None:
        op_deadline = real(op_deadline, "op_deadline", above=0, infinity=True)
    members = [DeviceMember(device) for device in _checked(devices)]
    engine = Engine(members, meet, shrink=on_break == "shrink", deadline=op_deadline)
    world = World(engine)
    async with serving(world, **in_place(place, members[0].device.system)):
        try:
            await engine.whole()
            yield world
        finally:
            engine.close()


def _checked(devices: Sequence[Device]) -> list[Device]:
    """Devices that can make a world."""
    found = list(devices)
    for device in found:
        if not isinstance(device, Device):
            raise TypeError(f"a world takes open devices, not {type(device).__name__}")
    if not found:
        raise ValueError("a world needs a device at least")
    if len({id(device.core) for device in found}) < len(found):
        raise ValueError("a device has one rank only, and is named twice")
    backends = {device.backend for device in found}
    if len(backends) > 1:
        names = ", ".join(sorted(backends))
        raise ValueError(f"devices of one backend make a world, not of {names}")
    return found
