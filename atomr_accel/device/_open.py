"""Opening devices: ``open_device``, and systems of actors that devices are part of."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Unpack, final

import trio

from .._calling import advice
from .._errors import CpuFallbackWarning, DeviceLost, DeviceUnavailable
from .._other_names import is_other_name
from ..actors import (
    ActorRef,
    ActorSystem,
    Backoff,
    Directive,
    Instrument,
    Intensity,
    Supervision,
)
from ..actors.blocks import opens
from ..actors.deciders import leaves
from ..actors.instrument import Instruments
from ..actors.nursery import PlainNursery
from ..actors.system import opened
from ..backends.registry import find_backend
from ..lanes import find_sanitizer, uninterrupted
from ..libraries.registry import Catalogue, catalogue
from ..memory import MemoryScope
from ._actors import DeviceActor
from ._assembly import add_parts
from ._device import Device
from ._settings import (
    Completion,
    DeviceSettings,
    StreamStrategy,
    Threads,
    check_settings,
    checked_numbers,
    cores_of,
    stream_plan,
)
from ._standby import Standby
from .batches.batch import Batch
from .batches.collector import offer_library, offered
from .batches.record import Recording
from .calls._requests import Requests
from .core import DeviceCore
from .standby._keeper import StandbyKeeper
from .standby._parking import check_parking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from ..actors import Decider
    from ..backends import Backend
    from ..backends.registry import BackendName
    from ..lanes import Isolation, Sanitizer, SanitizerTool
    from ..wire import HostClass, StreamPlan

_RESTART_BACKOFF: Final = Backoff(initial=0.0, base=0.1, factor=2.0, maximum=2.0)
_STANDBY_BACKOFF: Final = Backoff(initial=0.0, base=0.01, factor=2.0, maximum=2.0)
"""Back-off with a standby, if nothing else limits how often it is needed."""

_STANDBY: Final = Standby()

_NO_BACKOFF: Final = Backoff(initial=0.0, base=0.0, maximum=0.0)

_MOST_FAILED_STARTS: Final = 10
"""Failed starts in a row after which the device is lost, which takes some 10 s."""


@final
class System(ActorSystem):
    """A tree of actors that devices can be part of. ``atomr_accel.open_system`` makes one.

    It has all methods of ``ActorSystem``. An actor that it has spawned finds it as ``self.system``;
    ``assert isinstance(self.system, System)`` makes that known to type checkers.
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

    async def spawn_device(
        self,
        index: int = 0,
        *,
        name: str | None = None,
        supervisor: ActorRef | None = None,
        **settings: Unpack[DeviceSettings],
    ) -> Device:
        """Open a device as an actor of this system, for as long as its supervisor keeps it.

        ``max_restarts``, ``restart_period`` and ``backoff`` say how the device recovers from faults
        by itself. If that does not suffice, it fails with ``DeviceLost`` and its supervisor
        decides: the system, or the given actor. If the supervisor restarts the device, it continues
        under a new generation with its sealed buffers, and waiting calls go on waiting. Otherwise
        the device is lost. ``device.ref.stop()`` closes it.

        Args:
            index: the device's index.
            name: its name in the tree; by default, ``device-0`` for index 0.
            supervisor: its parent in the tree. By default, the system.
            **settings: the settings of ``open_device``.

        Returns:
            The device.

        Raises:
            NameTaken: an actor has that name already.
            DeviceUnavailable: the device does not exist.
            Exception: any other error of ``open_device``.
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

    It is a system as ``atomr_accel.actors.open_actor_system`` opens it, with the method
    ``spawn_device``.

    Args:
        name: its name in logs and in the tree.
        supervision: the supervision of the actors and devices at the top.
        instruments: instruments to call for events in the system.
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
    standby: Standby | None = _STANDBY,
    op_deadline: float | None = None,
    memory_limit: int | None = None,
    pinned_limit: int = 1 << 30,
    streams: StreamStrategy | str | HostClass = "shared",
    stream_pool: int = 4,
    priorities: Mapping[str, int] | None = None,
    completion: Completion | str | HostClass | None = None,
    threads: Threads | None = None,
    deterministic: bool = False,
    low_latency: bool = True,
    affinity: Literal["near"] | Iterable[int] | None = "near",
    sanitizer: SanitizerTool | None = None,
    instruments: Iterable[Instrument] = (),
) -> AsyncIterator[Device]:
    """Open a device for the length of an ``async with`` block.

    Inside the block the device recovers by itself from any number of faults, each time under a new
    generation. If faults follow each other within ``restart_period``, the back-off grows, up to two
    seconds. If ten starts in a row fail, for example because the device is gone, the block is
    cancelled and raises ``DeviceLost``. ``max_restarts`` sets a lower limit.

    This is short for a system of actors with one device, whose loss is final.
    ``System.spawn_device`` puts devices under a supervisor of your own.

    Args:
        index: the device's index.
        backend: ``"auto"`` takes CUDA if a driver and a device respond, otherwise the CPU with a
            ``CpuFallbackWarning``. ``"cuda"`` and ``"cpu"`` take that one or fail.
        isolation: ``"process"`` runs the vendor's libraries in a child process, so that a fault
            does not touch the program. ``"thread"`` runs them in threads of this process; a sticky
            fault is then final.
        max_restarts: failures to recover from within ``restart_period``. After one more the device
            is lost. By default any number, except for ten failed starts in a row.
        restart_period: seconds without a fault after which the next one counts as the first again.
        backoff: the wait before a restart. By default 0 s before the first within
            ``restart_period``, then 0.1 s, doubled for each that follows, up to 2 s. With a standby
            it begins with 0.01 s. With a standby and ``max_restarts`` it applies only after failed
            starts, not after faults.
        standby: the hosts to keep prepared for the next rebuild, as a `Standby`; None keeps none.
            By default a warm one if hosts are slow to start: on CUDA, under
            ``isolation="process"``, which every standby needs.
        op_deadline: seconds after which an op at the head of its lane counts as hung. Its host is
            then killed, this op and the others in flight fail with ``KernelHung``, and the device
            recovers as from any fault. This is the only way to end a kernel that never finishes.
            Compiling is not counted. Needs ``isolation="process"``.
        memory_limit: bytes of device memory that buffers may take at most, with results, workspaces
            and work areas. By default all of the device's memory. Beyond the limit, ``OutOfMemory``
            is raised. Memory is taken in pieces of 2 MiB and more. Memory that vendor libraries
            allocate themselves is not counted, but all memory of a hot standby is.
        pinned_limit: bytes that arrays of ``device.pinned`` may take together.
        streams: ``"shared"`` runs the ops of all libraries on the same four streams, so an op
            follows the one it depends on in its stream. ``"per_actor"`` gives each lane streams of
            its own, ``"pooled"`` shares ``stream_pool`` of them, and ``"single"`` runs everything
            on one. ``"module:Class"``, or a ``HostClass`` with arguments, is a ``StreamAllocator``
            of your own.
        stream_pool: number of streams that ``"pooled"`` shares.
        priorities: stream priority by lane name (``"blas"``, ``"kernels"``, ...); lower runs first,
            0 is the default.
        completion: how a lane waits for the end of ops: ``"polled"``, ``"blocking"``, ``"hybrid"``
            (polls, then naps; the default in a host process) or ``"callback"`` (a host function
            that needs no GIL). Under ``isolation="thread"`` choose ``"blocking"`` (the default
            there) or ``"callback"``, because the others take the GIL again and again.
            ``"module:Class"``, or a ``HostClass`` with arguments, is a ``CompletionStrategy`` of
            your own.
        threads: ``"shared"`` launches the ops of all libraries from one thread of the host, apart
            from lanes that hold their thread for long, such as compilers. ``"per_library"`` gives
            each lane of each library a dedicated thread, with streams of its own if they would be
            ``"shared"``. By default ``"shared"`` on CUDA, where a chain of ops of several libraries
            then never waits for another thread. On the CPU backend ``"per_library"``, because ops
            execute in these threads, except with ``streams="single"``.
        deterministic: give the same bits for the same calls on the same kind of device, independent
            of other ops in flight. By default, small products that are in flight together are
            launched together, which may change the order of sums. Libraries may also choose the
            fastest algorithms: those that differ from run to run, or with ``autotune`` those that
            measure fastest. With ``deterministic=True`` neither happens, and ``autotune`` raises
            ``ValueError``. Small products and some gradients take longer.
        low_latency: send ops and take answers between the turns of trio's loop, by an instrument of
            trio. Also shorten the interpreter's switch interval while ops are in flight, unless the
            program has set its own. With False tasks send and receive, and the interval is not
            changed. Answers then come a turn later, or up to 5 ms later if another thread computes.
        affinity: the cores that hosts may run on. ``"near"``: those of the NUMA node that the card
            is plugged into, as far as the program may use them. If the node is unknown, as on the
            CPU backend, hosts may use all cores of the program. Numbers of cores: those. None: all
            cores of the program. Under ``isolation="thread"`` ``"near"`` has no effect, because it
            would bind the program.
        sanitizer: the tool of NVIDIA's compute-sanitizer that hosts run under. ``"memcheck"`` and
            ``"synccheck"`` name the kernel, the line and the thread of a fault in its
            ``ContextPoisoned``; ``"racecheck"`` logs its findings. Kernels are compiled with line
            numbers, and everything runs slowly. The CPU backend ignores it, because Python
            functions run there in place of kernels.
        instruments: instruments to call for events on the device and in its system of actors, such
            as a ``DeviceInstrument``.

    Raises:
        RuntimeError: the code runs under another event loop than trio, such as asyncio: see
            ``from_asyncio``.
        DeviceUnavailable: the device does not exist or has no usable driver, or a class that the
            backend, ``streams`` or ``completion`` names cannot be loaded; the message has the
            details.
        LibraryMissing: the backend's own library is not installed, or compute-sanitizer.
        TypeError: an argument of a wrong type, such as a number as text.
        ValueError: an argument out of its range, a priority for an unknown lane, or two libraries
            of one name.
        Unsupported: parked standbys, which this driver or backend does not support. Or a class that
            ``streams`` or ``completion`` names cannot be made in the host.
        DeviceLost: the device was lost.
        OSError: descriptors, processes or memory are short, so it cannot be opened.
        ExceptionGroup: several things failed. Any other single error of the block is raised
            unchanged.
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
        "op_deadline": op_deadline,
        "memory_limit": memory_limit,
        "pinned_limit": pinned_limit,
        "streams": streams,
        "stream_pool": stream_pool,
        "priorities": priorities,
        "completion": completion,
        "threads": threads,
        "deterministic": deterministic,
        "low_latency": low_latency,
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

    If ``decider`` escalates for a lost device, the block raises its ``DeviceLost``. Other actors of
    the system, such as worlds, are restarted.
    """
    devices: list[Device] = []

    def decide(error: BaseException, child: str) -> Directive:
        if any(child == device.ref.name for device in system._devices):
            return decider(error, child)
        return Directive.RESTART

    supervision = Supervision(decider=decide, escalation=lambda _name, cause: cause)

    def lost(error: BaseException) -> bool:
        """Return True if an error only says that a device is lost. The system raises that."""
        of = (each for each in devices if each.core.lifecycle.tells_of_the_loss(error))
        device = next(of, None)
        # If the supervisor lets the other devices go on, the error must reach the block here.
        return device is not None and decider(DeviceLost(""), device.ref.name) is Directive.ESCALATE

    try:
        async with opened(System, "device", supervision, instruments) as system:
            # The first one decides which backend "auto" is; the others are opened side by side.
            devices.append(
                await _open_in(system, indices[0], None, None, settings, stacklevel=stacklevel)
            )
            devices += await _open_others(system, devices[0], indices[1:], settings)
            for device in devices:
                device.core.lifecycle.over_how = "its 'async with' block was left"
            try:
                yield devices
                for device in devices:
                    await device.core.lifecycle.verdict()
            except BaseException as error:
                # If the block got the loss, the loss is the only error: the system raises it.
                if not lost(error):
                    raise
    except BaseExceptionGroup as group:
        # The block got the fault before the supervisor decided that it was one too many.
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
            f"open_device has no setting {unknown[0]!r}{advice(unknown[0], tuple(_DEFAULTS))}"
        )
    given = {**_DEFAULTS, **settings}
    isolation: Isolation = given["isolation"]
    index = checked_numbers(index, given)
    check_settings(given)
    given["affinity"] = cores_of(given["affinity"], isolation)
    plan = stream_plan(given)
    _offer(catalogue())
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
        index,
        isolation,
        op_deadline=given["op_deadline"],
        plan=plan,
        memory_limit=given["memory_limit"],
        low_latency=given["low_latency"],
        affinity=given["affinity"],
        sanitizer=_sanitizer_of(backend, given["sanitizer"]),
        instruments=system._instruments,
    )
    add_parts(core, given["pinned_limit"])
    keeper: StandbyKeeper | None = None
    wanted: Standby | None = given["standby"]
    if wanted is not None and isolation == "process":
        keeper = await _keeper(core, wanted)
    backoff: Backoff | None = given["backoff"]
    if backoff is None:
        backoff = _RESTART_BACKOFF
        if keeper is not None:  # a host that is ready is not made any better by waiting
            core.start_backoff = backoff
            backoff = _STANDBY_BACKOFF if given["max_restarts"] is None else _NO_BACKOFF
    most: int | None = given["max_restarts"]
    if most is None:
        core.most_failed_starts, most = _MOST_FAILED_STARTS, sys.maxsize
    core.standby = keeper
    try:
        ref = await system.spawn(
            DeviceActor,
            core,
            name=f"device-{core.index}" if name is None else name,
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


async def _keeper(core: DeviceCore, wanted: Standby) -> StandbyKeeper | None:
    """Return what keeps the standbys of a device, or None if none are wanted.

    Raises:
        Unsupported: hosts cannot be parked here.
    """
    slow_start = core.backend_description.slow_start
    parked, warm = (count(slow_start=slow_start) for count in (wanted.parked_on, wanted.warm_on))
    if not (wanted.hot or parked or warm):
        return None
    if wanted.parked:
        await check_parking(core)
    warm_up = wanted.warm_up
    called = None if warm_up is None else lambda shadow, ref: warm_up(Device(shadow, ref))
    return StandbyKeeper(
        core,
        wanted.hot,
        parked,
        warm,
        called,
        wanted.host_memory,
        optional=not wanted.parked,
    )


def _sanitizer_of(backend: Backend, tool: SanitizerTool | None) -> Sanitizer | None:
    """Return the sanitizer for a backend's hosts, or None if Python functions run as kernels."""
    if tool is None or backend.capabilities.python_kernels:
        return None
    return find_sanitizer(tool)


uninterrupted(MemoryScope)  # its module does not import trio


@functools.cache
def _offer(known: Catalogue) -> None:
    """Give batches and recordings all libraries of this process."""
    places = (Device, Requests, Batch, Recording, DeviceCore)
    names = {name for place in places for name in dir(place) if not is_other_name(place, name)}
    taken = {"memory", "requests", *names}
    for name in known.facades.keys() - offered:
        if name in taken:
            raise ValueError(
                f"the library {name!r} of {known.brought_by[name]} must have another name: devices "
                "or batches have an attribute of that name"
            )
        offer_library(name)


def _candidates(backend: str) -> list[Backend]:
    return [find_backend(name) for name in (("cuda", "cpu") if backend == "auto" else (backend,))]


def _escalate(_error: BaseException, _child: str) -> Directive:
    return Directive.ESCALATE
