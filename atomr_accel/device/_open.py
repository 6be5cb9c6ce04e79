"""Opening devices: ``open_device``, and systems of actors that devices are part of."""

from __future__ import annotations

import inspect
import operator
import sys
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Unpack, final

import trio

from .._errors import CpuFallbackWarning, DeviceLost, DeviceUnavailable
from ..actors import (
    ActorRef,
    ActorSystem,
    Backoff,
    Directive,
    Instrument,
    Intensity,
    Supervision,
)
from ..actors._blocks import opens
from ..actors._deciders import leaves
from ..actors._instrument import Instruments
from ..actors._nursery import PlainNursery
from ..actors._system import opened
from ..backends._registry import find_backend
from ..lanes import find_sanitizer, uninterrupted
from ..libraries._table import CALLED
from ..memory import MemoryScope
from ._actors import DeviceActor
from ._core import DeviceCore
from ._device import Device
from ._room import StandbyMode
from ._run import HostCalls
from ._settings import (
    Completion,
    DeviceSettings,
    StreamStrategy,
    check_settings,
    cores_of,
    standby_mode,
    stream_plan,
)
from ._standby import Standby
from .data._pinned import Pinned
from .interop._exports import Exports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from ..actors import Decider
    from ..backends import Backend
    from ..backends._registry import BackendName
    from ..lanes import Isolation, Sanitizer, SanitizerTool
    from ..wire import StreamPlan

_RESTART_BACKOFF: Final = Backoff(initial=0.0, base=0.1, factor=2.0, maximum=2.0)
_STANDBY_BACKOFF: Final = Backoff(initial=0.0, base=0.01, factor=2.0, maximum=2.0)
"""Where a host is ready, and nothing else limits how often it is needed."""

_NO_BACKOFF: Final = Backoff(initial=0.0, base=0.0, maximum=0.0)

_MOST_FAILED_STARTS: Final = 10
"""Contexts in a row that do not start, after which the device is lost; they take some 10 s."""


@final
class System(ActorSystem):
    """A tree of actors that devices can be part of. ``atomr_accel.open_system`` makes one.

    It is all that ``ActorSystem`` is. What an actor has as ``self.system`` is one, too, where
    such a system has spawned it; ``assert isinstance(self.system, System)`` tells type checkers.
    """

    _made_by: ClassVar[str] = "atomr_accel.open_system(name)"

    def __init__(
        self,
        name: str,
        nursery: trio.Nursery,
        supervision: Supervision,
        instruments: Instruments,
    ) -> None:
        super().__init__(name, nursery, supervision, instruments)
        self._devices: list[Device] = []

    async def open_device(
        self,
        index: int = 0,
        *,
        name: str | None = None,
        supervisor: ActorRef | None = None,
        **settings: Unpack[DeviceSettings],
    ) -> Device:
        """Open a device as an actor of this system, for as long as its supervisor keeps it.

        ``max_restarts``, ``restart_period`` and ``backoff`` tell how the device deals with
        faults by itself. If that does not suffice it fails with ``DeviceLost``, and its
        supervisor decides: the system, or the actor that is given. If it restarts the
        device, that goes on under a new generation, with its sealed buffers, and who waits
        for it waits on. If not, the device is lost. ``device.ref.stop()`` closes it.

        Args:
            index: which device.
            name: its name in the tree; by default, ``gpu-0`` for index 0.
            supervisor: the actor that is to be its parent. By default, the system.
            **settings: those of ``open_device``.

        Returns:
            The device.

        Raises:
            NameTaken: there is an actor of that name.
            DeviceUnavailable: there is no such device.
            Exception: whatever else ``open_device`` raises.
        """
        return await _open_in(self, index, name, supervisor, settings, stacklevel=3)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Its devices that have not been stopped, in the order in which they were opened."""
        self._devices = [device for device in self._devices if not device.ref.stopped]
        return tuple(self._devices)


@opens
async def open_system(
    name: str,
    *,
    supervision: Supervision = Supervision(),  # noqa: B008 (frozen)
    instruments: Iterable[Instrument] = (),
) -> AsyncIterator[System]:
    """Open a system of actors, some of which may be devices.

    It is what ``atomr_accel.actors.open_system`` opens, with ``open_device`` beside it.

    Args:
        name: for logs and the tree.
        supervision: how the actors and devices at the top are supervised.
        instruments: objects to tell what happens in the system.
    """
    async with opened(System, name, supervision, instruments) as system:
        yield system


@opens
@trio.lowlevel.enable_ki_protection
async def open_device(
    index: int = 0,
    *,
    backend: BackendName | str = "auto",
    isolation: Isolation = "process",
    max_restarts: int | None = None,
    restart_period: float = 60.0,
    backoff: Backoff | None = None,
    standby: StandbyMode | Literal["auto"] | bool | None = "auto",
    standbys: int = 1,
    warm_up: Callable[[Device], Awaitable[object]] | None = None,
    op_deadline: float | None = None,
    memory_limit: int | None = None,
    pinned_limit: int = 1 << 30,
    streams: StreamStrategy = "shared",
    stream_pool: int = 4,
    priorities: Mapping[str, int] | None = None,
    completion: Completion | None = None,
    deterministic: bool = False,
    prompt: bool = True,
    affinity: Literal["near"] | Iterable[int] | None = "near",
    sanitizer: SanitizerTool | None = None,
    instruments: Iterable[Instrument] = (),
) -> AsyncIterator[Device]:
    """Open a device for the length of an ``async with`` block.

    Inside the block the device comes back by itself after a fault, under a new
    generation, however often. Faults that follow each other within ``restart_period`` are waited
    for longer and longer, up to two seconds. If ten starts in a row fail, because the device is
    gone, say, the block is cancelled and ``DeviceLost`` leaves it. ``max_restarts`` ends it
    earlier.

    This is short for a system of actors with one device, which is lost for good when it is
    lost. ``System.open_device`` puts devices under a supervisor of your own.

    Args:
        index: which device.
        backend: ``"auto"`` takes CUDA where a driver and a device answer, otherwise the
            CPU with a ``CpuFallbackWarning``. ``"cuda"`` and ``"cpu"`` insist.
        isolation: ``"process"`` runs the vendor's libraries in a child process, so that a
            fault does not touch the program. ``"thread"`` runs them in threads of this
            process; a sticky fault is then final.
        max_restarts: failures to recover from within ``restart_period``. One more, and the device
            is lost. By default, any number, but for starts that fail ten times in a row.
        restart_period: seconds. After so long without a fault, the next one is the first again.
        backoff: how long to wait before a restart. By default not at all before the first within
            ``restart_period``, then 0.1 s, and twice as long before each that follows, up to 2 s.
            Where a standby is kept, that begins with 0.01 s; with ``max_restarts`` only a start
            that has failed is waited for there, not a fault.
        standby: keep another host process prepared for the next rebuild. ``"warm"``, or True:
            it has imported what it needs and touches no device. ``"hot"``: it has the device
            open, the sealed buffers mapped, the lanes in use running, and what the ``init`` of
            each lane of ``device.run`` makes, so that a fault costs little more than an op. That
            takes a second context's memory on the device, which ``memory_limit`` counts; where
            there is no room for it, or the program needs that, a warm one is kept, with a
            ``StandbyWarning``. None, or False: none. By default a warm one where a host is slow
            to start: on CUDA, under ``isolation="process"``, which every standby needs.
        standbys: how many of them.
        warm_up: an async function that is called with a device as ``open_device`` gives it,
            which runs on a hot standby: it uses what the program uses, with its sealed buffers,
            so that libraries have loaded and planned what they need. It is called for each
            standby, and again when the device uses more; what it makes is freed when it returns.
            It cannot seal anything. If it raises, that is logged.
        op_deadline: seconds after which an op at the head of its lane counts as hung: its
            host is killed, the op and what was in flight with it fail with
            ``KernelHung``, and the device recovers as from any fault. Nothing else ends a
            kernel that never finishes. Compiling is not counted. Needs
            ``isolation="process"``.
        memory_limit: bytes of device memory that buffers may take at most, with results,
            workspaces and work areas; by default all there is. Beyond that, ``OutOfMemory`` is
            raised. It is taken in pieces of 2 MiB and more. What the vendors' libraries take for
            themselves is not counted, but all that a hot standby takes is.
        pinned_limit: bytes that arrays of ``device.pinned`` may take together.
        streams: ``"shared"`` has ops of all libraries on the same four streams, so that one
            that comes after another follows it in its stream; ``"per_actor"`` gives each lane
            streams of its own, ``"pooled"`` shares ``stream_pool`` of them, ``"single"`` runs
            everything on one.
        stream_pool: how many streams ``"pooled"`` shares.
        priorities: stream priority by lane name (``"blas"``, ``"kernels"``, ...); lower
            runs first, 0 is the default.
        completion: how a lane learns that work is done: ``"polled"``, ``"blocking"``,
            ``"hybrid"`` (polls, then naps; the default in a host process) or
            ``"callback"`` (a host function that needs no GIL). Under
            ``isolation="thread"`` only the second (the default there) and the last are
            good neighbours.
        deterministic: have the same calls give the same bits on the same kind of device,
            whatever else is in flight. By default small products that are in flight together
            are launched together, which may add up in another order, and libraries may choose
            what is fastest: algorithms that differ from run to run, or, where a program asks
            for ``autotune``, those that win a race. With this nothing of the kind is done, and
            ``autotune`` is a ``ValueError``. Small products and some gradients take longer.
        prompt: send ops and take answers between the turns of trio's loop, as an instrument
            of it, and have the interpreter's switch interval short while ops are in flight
            (unless the program has set one of its own). With False tasks do the former, and
            the interval stays as it is: answers come a turn later, and beside a thread that
            computes up to 5 ms.
        affinity: the cores that hosts may run on: ``"near"``, those of the NUMA node that the
            card is plugged into, as far as the program may use them (all it may where no node is
            known, as on the CPU backend); numbers of cores; or None, wherever the program may.
            Under ``isolation="thread"`` nothing is bound, since that would bind the program.
        sanitizer: the tool of NVIDIA's compute-sanitizer that hosts run under: ``"memcheck"``
            and ``"synccheck"`` name the kernel, the line and the thread of a fault in its
            ``ContextPoisoned``; ``"racecheck"`` logs what it finds. Kernels get the lines of
            their source, and all of it becomes slow. On the CPU backend Python functions stand
            for kernels, and nothing is done.
        instruments: objects to tell what happens on the device and in its system of actors,
            such as a ``DeviceInstrument``.

    Raises:
        RuntimeError: trio does not run here, but asyncio, say: see ``from_asyncio``.
        DeviceUnavailable: there is no such device; the message says what was looked for.
        LibraryMissing: the backend's own library is not installed, or compute-sanitizer.
        TypeError: an argument of a wrong type, such as a number as text.
        ValueError: an argument out of its range, or a priority for a lane that there is not.
        DeviceLost: the device was lost.
        OSError: there are no descriptors, processes or memory left to open it.
        ExceptionGroup: several things failed. Any other error of the block leaves it as it is.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "open_device is for programs of trio, and this runs under another event loop; in "
            "asyncio or Jupyter: `async with atomr_accel.from_asyncio(open_device(0)) as gpu:`"
        )
    settings: DeviceSettings = {
        "backend": backend,
        "isolation": isolation,
        "max_restarts": max_restarts,
        "restart_period": restart_period,
        "backoff": backoff,
        "standby": standby,
        "standbys": standbys,
        "warm_up": warm_up,
        "op_deadline": op_deadline,
        "memory_limit": memory_limit,
        "pinned_limit": pinned_limit,
        "streams": streams,
        "stream_pool": stream_pool,
        "priorities": priorities,
        "completion": completion,
        "deterministic": deterministic,
        "prompt": prompt,
        "affinity": affinity,
        "sanitizer": sanitizer,
    }
    # A device that is lost ends its system, and the error is that of the device.
    async with opened_devices([index], settings, _escalate, instruments, stacklevel=6) as devices:
        yield devices[0]


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def opened_devices(
    indices: Sequence[int],
    settings: DeviceSettings,
    decider: Decider,
    instruments: Iterable[Instrument],
    *,
    stacklevel: int,
) -> AsyncIterator[list[Device]]:
    """Open devices in a system of their own, and close them when the block is left.

    Args:
        indices: which devices, at least one.
        settings: of all of them.
        decider: what becomes of the others when one is lost. If that escalates, its
            ``DeviceLost`` leaves the block.
        instruments: what to tell of them.
        stacklevel: of a warning that they are no GPUs, as ``warnings.warn`` counts.
    """
    supervision = Supervision(decider=decider, escalation=lambda _name, cause: cause)
    devices: list[Device] = []

    def lost(error: BaseException) -> bool:
        """Whether all it says is that a device is lost, which the system raises itself."""
        of = (each for each in devices if each._core.lifecycle.tells_of_the_loss(error))
        device = next(of, None)
        # Where the supervisor lets others go on, nobody else tells the block.
        return device is not None and decider(DeviceLost("")) is Directive.ESCALATE

    try:
        async with opened(System, "device", supervision, instruments) as system:
            # The first one decides which backend "auto" is; the others are opened side by side.
            devices.append(
                await _open_in(system, indices[0], None, None, settings, stacklevel=stacklevel)
            )
            devices += await _open_others(system, devices[0], indices[1:], settings)
            for device in devices:
                device._core.lifecycle.over_how = "its 'async with' block was left"
            try:
                yield devices
                for device in devices:
                    await device._core.lifecycle.verdict()
            except BaseException as error:
                # If the block was told of the loss, the loss is all that went wrong: the system
                # raises it.
                if not lost(error):
                    raise
    except BaseExceptionGroup as group:
        # The block was told of the fault before it was decided that it was one too many.
        if not lost(group):
            raise
        loss = next((one for one in leaves(group) if isinstance(one, DeviceLost)), None)
        if loss is None:
            raise
    else:
        return
    try:
        raise loss
    finally:
        del loss


async def _open_others(
    system: System, first: Device, indices: Sequence[int], settings: DeviceSettings
) -> list[Device]:
    """Open devices side by side, of the backend that the first one is of."""
    of_same = settings.copy()
    of_same["backend"] = first.backend
    found: dict[int, Device] = {}

    async def open_one(index: int) -> None:
        found[index] = await _open_in(system, index, None, None, of_same, stacklevel=2)

    async with PlainNursery() as nursery:
        for index in indices:
            nursery.start_soon(open_one, index)
    return [found[index] for index in indices]


_DEFAULTS: Final[Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(open_device).parameters.items()
    if name not in ("index", "instruments")
}


async def _open_in(
    system: System,
    index: int,
    name: str | None,
    supervisor: ActorRef | None,
    settings: DeviceSettings,
    *,
    stacklevel: int,
) -> Device:
    unknown = sorted(settings.keys() - _DEFAULTS.keys())
    if unknown:
        raise TypeError(
            f"open_device has no setting {unknown[0]!r}; there are {', '.join(_DEFAULTS)}"
        )
    given = {**_DEFAULTS, **settings}
    isolation: Isolation = given["isolation"]
    check_settings(
        index=index,
        backend=given["backend"],
        isolation=given["isolation"],
        max_restarts=given["max_restarts"],
        restart_period=given["restart_period"],
        backoff=given["backoff"],
        standby=given["standby"],
        standbys=given["standbys"],
        warm_up=given["warm_up"],
        op_deadline=given["op_deadline"],
        memory_limit=given["memory_limit"],
        pinned_limit=given["pinned_limit"],
        prompt=given["prompt"],
        sanitizer=given["sanitizer"],
    )
    given["affinity"] = cores_of(given["affinity"], isolation)
    plan = stream_plan(
        streams=given["streams"],
        stream_pool=given["stream_pool"],
        priorities=given["priorities"],
        completion=given["completion"],
        isolation=isolation,
        op_deadline=given["op_deadline"],
        deterministic=given["deterministic"],
        sanitized=given["sanitizer"] is not None,
    )
    unavailable: DeviceUnavailable | None = None
    try:
        for candidate in _candidates(given["backend"]):
            absent = candidate.why_absent()
            if absent is not None:
                text = f"{candidate.name}:{index} cannot be opened: {absent}"
                unavailable = DeviceUnavailable(text)
                continue
            if unavailable is not None:
                text = f"running on the CPU: {unavailable}"
                warnings.warn(CpuFallbackWarning(text), stacklevel=stacklevel)
            try:
                return await _spawn(system, candidate, index, name, supervisor, given, plan)
            except DeviceUnavailable as error:
                unavailable = error
        assert unavailable is not None
        raise unavailable
    finally:
        del unavailable  # its traceback has this frame in it


async def _spawn(
    system: System,
    backend: Backend,
    index: int,
    name: str | None,
    supervisor: ActorRef | None,
    given: dict[str, Any],
    plan: StreamPlan,
) -> Device:
    isolation: Isolation = given["isolation"]
    core = DeviceCore(
        backend,
        operator.index(index),  # NumPy's numbers do not travel to a host
        isolation,
        op_deadline=given["op_deadline"],
        plan=plan,
        memory_limit=given["memory_limit"],
        prompt=given["prompt"],
        affinity=given["affinity"],
        sanitizer=_sanitizer_of(backend, given["sanitizer"]),
        instruments=system._instruments,
    )
    core.pinned = Pinned(core, given["pinned_limit"])
    core.exports = Exports(core)
    core.host_calls = HostCalls(core)
    mode = standby_mode(given["standby"], slow_start=backend.slow_start, isolation=isolation)
    backoff: Backoff | None = given["backoff"]
    if backoff is None:
        backoff = _RESTART_BACKOFF
        if mode is not None:  # a host that is ready is not made any better by waiting
            core.start_backoff = backoff
            backoff = _STANDBY_BACKOFF if given["max_restarts"] is None else _NO_BACKOFF
    most: int | None = given["max_restarts"]
    if most is None:
        core.most_failed_starts, most = _MOST_FAILED_STARTS, sys.maxsize
    if mode is not None:
        core.standby = Standby(core, mode, operator.index(given["standbys"]), given["warm_up"])
    try:
        ref = await system.spawn(
            DeviceActor,
            core,
            name=f"gpu-{core.index}" if name is None else name,
            supervisor=supervisor,
            supervision=Supervision(
                decider=core.lifecycle.decide,
                intensity=Intensity(restarts=most, within=given["restart_period"]),
                backoff=backoff,
                escalation=core.lifecycle.loss,
            ),
        )
    finally:
        if core.place.cell is None:  # it has not begun, so it has no end either
            core.lifecycle.close()
    device = Device(core, ref)
    system._devices = [*system.devices, device]
    return device


def _sanitizer_of(backend: Backend, tool: SanitizerTool | None) -> Sanitizer | None:
    """What the hosts of a backend run under: none where Python functions stand for kernels."""
    if tool is None or backend.capabilities.python_kernels:
        return None
    return find_sanitizer(tool)


# These know nothing of trio: hosts import them, too, or what lies beside them.
for _called in (*CALLED, MemoryScope):
    uninterrupted(_called)


def _candidates(backend: str) -> list[Backend]:
    return [find_backend(name) for name in (("cuda", "cpu") if backend == "auto" else (backend,))]


def _escalate(_error: BaseException) -> Directive:
    return Directive.ESCALATE
