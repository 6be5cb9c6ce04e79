"""Shared state: named buffers with leases, for one writer or many readers at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack, final

import trio

from .._errors import said_of
from ..actors import ActorRef, Message, Place, Service, handler, serving
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..arrays import GpuRef
from ..patterns import Closed, Retry
from ._errors import LeaseLost, NameUnknown

if TYPE_CHECKING:
    from .. import Device


@dataclass(frozen=True, slots=True)
class StateVersion:
    """A version of a named buffer.

    Attributes:
        number: 1 for the first one, and one more for each that follows.
        ref: the buffer. It is sealed, so that it does not change, and survives faults.
    """

    number: int
    ref: GpuRef


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedStateStatistics:
    """Statistics of shared state, at one moment.

    Attributes:
        names: named buffers.
        readers: leases for reading.
        writers: leases for writing.
        waiting: callers that wait for a lease.
        granted: leases so far.
        ended: leases that ended otherwise than by their holders.
        commits: new versions so far.
    """

    names: int
    readers: int
    writers: int
    waiting: int
    granted: int
    ended: int
    commits: int


class ReadState(Message[StateVersion]):
    """A question for the version of this moment; see `SharedState.current`."""

    name: str


class WriteState(Message[StateVersion]):
    """A new version, written under a lease that waits for its turn.

    Attributes:
        name: the name, made if it is new.
        value: an array or a buffer, as `StateLease.commit` takes it.
    """

    name: str
    value: Any


class AcquireState(Message["StateLease"]):
    """A lease for an actor. It ends when released, or when that actor has ended for good.

    Attributes:
        name: the name.
        holder: the actor.
        exclusive: whether the lease is for writing.
    """

    name: str
    holder: ActorRef
    exclusive: bool = False


@final
class StateLease(metaclass=NoPublicConstructor):
    """The right to read a version, or to write the next one, as `SharedState` grants it.

    Once it has ended, its methods and properties raise `LeaseLost`.

    Attributes:
        name: the name of the buffer.
        exclusive: whether it is for writing.
        token: the fencing token. It is larger than those of all earlier leases of this name, so
            that whatever else the holder writes to can refuse holders of old ones.
    """

    _made_by = "SharedState.reading or SharedState.writing"

    def __init__(self, state: SharedState, variable: _NamedBuffer, *, exclusive: bool) -> None:
        self.name: Final = variable.name
        self.exclusive = exclusive
        self.token = 0
        self._state = state
        self._variable = variable
        self._ended_by: str | None = "it was not granted yet"
        self._granted = trio.Event()
        self._task: trio.lowlevel.Task | None = None  # whose block it is

    def __repr__(self) -> str:
        kind = "writing" if self.exclusive else "reading"
        return f"<StateLease {self.token} for {kind} {self.name!r}>"

    @property
    def valid(self) -> bool:
        """True until the lease ends."""
        return self._ended_by is None

    @property
    def version(self) -> StateVersion:
        """The version of the buffer: no other lease changes it."""
        self._check()
        assert self._variable.version is not None
        return self._variable.version

    @property
    def ref(self) -> GpuRef:
        """The buffer of `version`."""
        return self.version.ref

    async def commit(self, value: Any) -> StateVersion:
        """Make the next version. Readers see it as a whole or not at all.

        If this raises or is cancelled, the version has not changed. Any number of versions may
        be made under one lease.

        Args:
            value: an array, which is copied, or a buffer of the device, which is sealed and becomes
                the version.

        Raises:
            ValueError: the lease is for reading.
            GpuRefStale: the buffer's content was lost in a fault.
            OutOfMemory: no room on the device.
            Unsupported: the platform cannot seal memory.
        """
        if not self.exclusive:
            raise ValueError("the lease must be for writing, not for reading, to commit")
        self._check()
        ref = await self._state._sealed(value)
        self._check()  # it may have ended meanwhile
        return self._state._install(self._variable, ref)

    async def release(self) -> None:
        """End the lease. It may have ended already."""
        await trio.lowlevel.checkpoint()
        self._state._end(self, "it was released")

    def _check(self) -> None:
        if self._ended_by is not None:
            raise LeaseLost(f"the lease of {self.name!r} has ended: {self._ended_by}")


class _NamedBuffer:
    """A name with its version, its leases, and those that wait."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.version: StateVersion | None = None
        self.leases: set[StateLease] = set()
        self.queue: deque[StateLease] = deque()
        self.changed: trio.Event = trio.Event()

    def next(self) -> StateLease | None:
        """Return the next lease that can be granted: strictly in the order of requests."""
        if not self.queue:
            return None
        first = self.queue[0]
        fits = not self.leases or not (
            first.exclusive or any(lease.exclusive for lease in self.leases)
        )
        return self.queue.popleft() if fits else None


@final
class SharedState(Service, metaclass=NoPublicConstructor):
    """Named buffers of a device with leases, as `open_shared_state` returns it.

    Methods raise ``TypeError`` for a name that is not a string, `NameUnknown` for one that does not
    exist, and `LeaseLost` to those that wait for a name while it is deleted.
    """

    _made_by = "open_shared_state"

    def __init__(self, device: Device) -> None:
        self._device = device
        self._names: dict[str, _NamedBuffer] = {}
        self._retry = Retry(attempts=5)
        self._granted = self._lost = self._commits = 0
        self._closed = False
        self._holders: dict[StateLease, ActorRef] = {}
        self._nursery: trio.Nursery | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names that have a version."""
        return tuple(name for name, each in self._names.items() if each.version is not None)

    async def create(self, name: str, value: Any) -> StateVersion:
        """Make the first version of a name.

        Args:
            name: a new name.
            value: as for `StateLease.commit`.

        Raises:
            ValueError: the name is taken.
        """
        self._check_new(name)
        ref = await self._sealed(value)
        self._check_new(name)  # somebody may have been faster
        return self._install(self._names.setdefault(name, _NamedBuffer(name)), ref)

    def _check_new(self, name: str) -> None:
        check_instance("name", name, str)
        self._check_open()
        if name in self._names:
            raise ValueError(f"name must be a new one, not {name!r}; write it under a lease")

    async def current(self, name: str) -> StateVersion:
        """Return the version of this moment, without a lease."""
        await trio.lowlevel.checkpoint()
        version = self._named(name).version
        assert version is not None
        return version

    def reading(self, name: str) -> AbstractAsyncContextManager[StateLease]:
        """Lease a name for reading: ``async with state.reading("weights") as lease:``.

        Many may read at a time, all the same version. Leases are granted in the order of requests,
        so a writer that waits goes before readers that come later. The lease ends with the block.

        Raises:
            RuntimeError: the task holds a lease of this name, for which this one would wait.
        """
        return self._leased(name, exclusive=False)

    def writing(self, name: str) -> AbstractAsyncContextManager[StateLease]:
        """Lease a name for writing: other leases wait meanwhile.

        ::

            async with state.writing("weights") as lease:
                await lease.commit(await step(lease.ref))

        Raises:
            RuntimeError: the task holds a lease of this name, for which this one would wait.
        """
        return self._leased(name, exclusive=True)

    @asynccontextmanager
    async def _leased(self, name: str, *, exclusive: bool) -> AsyncIterator[StateLease]:
        task = trio.lowlevel.current_task()
        lease = await self._acquire(name, exclusive=exclusive, task=task)
        try:
            yield lease
        finally:
            lease._task = None
            self._end(lease, "its block was left")

    async def _acquire(
        self, name: str, *, exclusive: bool, task: trio.lowlevel.Task | None = None
    ) -> StateLease:
        await trio.lowlevel.checkpoint_if_cancelled()
        variable = self._named(name)
        lease: StateLease = StateLease.construct(self, variable, exclusive=exclusive)
        lease._task = task
        variable.queue.append(lease)
        self._grant(variable)
        own = [
            each for each in variable.leases if task and each._task is task and each is not lease
        ]
        if own and not lease._granted.is_set():
            self._withdraw(lease)
            raise RuntimeError(
                f"a task must leave its {own[0]!r} before it takes another, for which it would "
                "wait itself; take the one for writing first"
            )
        try:
            await lease._granted.wait()
        except BaseException:
            self._withdraw(lease)
            raise
        lease._check()
        return lease

    async def delete(self, name: str) -> None:
        """Delete a name. Its leases end, and those that wait for one get `LeaseLost`."""
        await trio.lowlevel.checkpoint()
        variable = self._named(name)
        del self._names[name]
        self._end_all(variable, "the name was deleted")

    async def revoke(self, name: str) -> None:
        """End all leases of a name, such as those of a holder that does not answer.

        Their holders get `LeaseLost` when they use them. Those that wait get theirs.
        """
        await trio.lowlevel.checkpoint()
        for lease in tuple(self._named(name).leases):
            self._lost += 1
            self._end(lease, "it was revoked")

    async def watch(self, name: str, *, after: int = 0) -> AsyncIterator[StateVersion]:
        """Iterate over versions as they come; of several at once only the last.

        Args:
            name: the name.
            after: the version to begin after; 0 begins with that of this moment.

        Raises:
            LeaseLost: the name was deleted.
        """
        check_instance("after", after, int)
        variable = self._named(name)
        while True:
            await trio.lowlevel.checkpoint()
            if self._names.get(name) is not variable:
                raise LeaseLost(f"{name!r} was deleted")
            if variable.version is not None and variable.version.number > after:
                after = variable.version.number
                yield variable.version
            else:
                await variable.changed.wait()

    # --- leases come and go -----------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the state's block was left")

    def _named(self, name: str) -> _NamedBuffer:
        check_instance("name", name, str)
        self._check_open()
        variable = self._names.get(name)
        if variable is None:
            there = ", ".join(map(repr, self._names)) or "there are none yet"
            raise NameUnknown(f"name must be one of the state's, not {name!r}: {there}")
        return variable

    async def _sealed(self, value: Any) -> GpuRef:
        if isinstance(value, GpuRef):
            return await self._device.seal(value)
        if isinstance(value, StateVersion):
            raise TypeError(f"value must be an array or a buffer, not {said_of(value)}")

        async def put() -> GpuRef:
            return await self._device.put(value, sealed=True)

        return await self._retry(put)

    def _install(self, variable: _NamedBuffer, ref: GpuRef) -> StateVersion:
        number = 1 if variable.version is None else variable.version.number + 1
        variable.version = StateVersion(number, ref)
        self._commits += 1
        self._changed(variable)
        return variable.version

    def _changed(self, variable: _NamedBuffer) -> None:
        changed, variable.changed = variable.changed, trio.Event()
        changed.set()

    def _grant(self, variable: _NamedBuffer) -> None:
        while (lease := variable.next()) is not None:
            self._granted += 1
            lease.token = self._granted  # also above those of a deleted name of the same
            lease._ended_by = None
            variable.leases.add(lease)
            lease._granted.set()

    def _withdraw(self, lease: StateLease) -> None:
        """End a request, also one that was granted just now."""
        if lease in lease._variable.queue:
            lease._variable.queue.remove(lease)
            self._grant(lease._variable)
        self._end(lease, "its request was cancelled")

    def _end(self, lease: StateLease, why: str) -> None:
        if lease in lease._variable.leases:
            lease._variable.leases.remove(lease)
            lease._ended_by = why
            self._holders.pop(lease, None)
            self._grant(lease._variable)

    def _end_all(self, variable: _NamedBuffer, why: str) -> None:
        waiting, variable.queue = variable.queue, deque()
        for lease in (*variable.leases, *waiting):
            self._lost += 1
            lease._ended_by = why
            self._holders.pop(lease, None)
            lease._granted.set()
        variable.leases.clear()
        self._changed(variable)

    # --- the service ------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watch the actors that hold leases."""
        async with PlainNursery() as nursery:
            self._nursery = nursery
            for lease, holder in self._holders.items():  # of the life before
                nursery.start_soon(self._outlived, lease, holder)
            task_status.started()
            await trio.sleep_forever()

    async def _outlived(self, lease: StateLease, holder: ActorRef) -> None:
        await holder.wait_stopped()
        if lease.valid:
            self._lost += 1
        self._end(lease, "its holder has ended")

    def ended(self, cause: BaseException | None) -> None:  # noqa: ARG002 (leases tell it)
        """End all leases."""
        self._closed = True
        for variable in self._names.values():
            self._end_all(variable, "the state's block was left")
        self._names.clear()

    def depth(self) -> int:
        """Callers that wait for a lease."""
        return sum(len(each.queue) for each in self._names.values())

    def statistics(self) -> SharedStateStatistics:
        """Return the statistics of this moment."""
        leases = [lease for each in self._names.values() for lease in each.leases]
        writers = sum(lease.exclusive for lease in leases)
        return SharedStateStatistics(
            names=len(self._names),
            readers=len(leases) - writers,
            writers=writers,
            waiting=self.depth(),
            granted=self._granted,
            ended=self._lost,
            commits=self._commits,
        )

    async def call(self, item: Any, **options: Any) -> Any:
        """Return the version of a name, for a `Call`. See `current`."""
        return await self.current(item, **options)

    @handler
    async def _on_read(self, message: ReadState) -> StateVersion:
        return await self.current(message.name)

    @handler
    async def _on_write(self, message: WriteState) -> StateVersion:
        check_instance("name", message.name, str)
        if message.name not in self._names:
            return await self.create(message.name, message.value)
        async with self.writing(message.name) as lease:
            return await lease.commit(message.value)

    @handler
    async def _on_acquire(self, message: AcquireState) -> StateLease:
        check_instance("holder", message.holder, ActorRef)
        lease = await self._acquire(message.name, exclusive=message.exclusive)
        assert self._nursery is not None
        self._holders[lease] = message.holder
        self._nursery.start_soon(self._outlived, lease, message.holder)
        return lease


@opens
async def open_shared_state(device: Device, **place: Unpack[Place]) -> AsyncIterator[SharedState]:
    """Open named buffers that tasks and actors share under leases.

    Use ``async with open_shared_state(device) as state:``. A name has versions: sealed buffers that
    do not change and survive faults of the device. A lease for reading holds a version, and one for
    writing makes the next. A holder that is cancelled, or an actor that ends, loses its lease.

    Args:
        device: the device of the buffers.
        **place: ``system=``, ``name=`` and ``parent=``, which make the state an actor. It answers
            `ReadState`, `WriteState` and `AcquireState`.
    """
    state: SharedState = SharedState.construct(device)
    async with serving(state, **place):
        yield state
