"""NVML as an actor: readings of GPUs, and the driver's reports of faults."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final, final
from uuid import UUID

import trio

from .. import DeviceInstrument, ReportedXid, System
from ..actors import Actor, Backoff, Group, Intensity, Message, Supervision, handler
from ..actors.blocks import opens
from ..actors.util import NoPublicConstructor
from ..wire.options import real
from ._gpu_readings import DeviceFault, GpuReading, Xid
from .nvml_library import NvmlLibrary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .. import ContextPoisoned, WatchedDevice
    from ..actors import ActorRef, ActorSystem

_log = logging.getLogger("atomr_accel.telemetry")

_WAIT_SECONDS: Final = 0.1
"""Seconds that a thread waits for an event, and that closing waits for that thread."""

_TIED_SECONDS: Final = 5.0
"""Largest distance in time between an Xid and a fault of the same GPU that belong together."""

_MOST_NOTED: Final = 256

_SUPERVISION: Final = Supervision(
    # NVML may fail for as long as it likes, such as while a GPU is reset: it is only watched.
    intensity=Intensity(restarts=20, within=60.0),
    backoff=Backoff(initial=0.0, base=1.0, factor=2.0, maximum=30.0),
)


class ReadGpus(Message[tuple[GpuReading, ...]]):
    """Read all GPUs now; the answer is in the order of NVML's indices."""


class Nvml(Actor):
    """The actor that talks to NVML, in worker threads. `open_nvml` spawns it.

    Each life opens NVML again. The actor takes `ReadGpus`, reads by itself at an interval, and
    reports Xids as they happen.

    Args:
        monitor: receives the readings; it stays the same across restarts.
        interval: seconds between its own readings; ``math.inf`` for none.
        module: replaces the vendor's package in tests.
    """

    def __init__(self, monitor: NvmlMonitor, interval: float, module: object | None) -> None:
        self._monitor = monitor
        self._interval = interval
        self._module = module
        self._limiter = trio.CapacityLimiter(1)

    async def started(self) -> None:
        """Open NVML and begin to watch."""
        self._library, listening = await trio.to_thread.run_sync(self._open)
        if listening:
            self.nursery.start_soon(self._listen)
        if self._interval < math.inf:
            self.nursery.start_soon(self._poll)

    async def stopping(self) -> None:
        """Close NVML; this life of the actor no longer calls it."""
        await trio.to_thread.run_sync(self._library.close)

    @handler
    async def read(self, message: ReadGpus) -> tuple[GpuReading, ...]:
        """Read all GPUs."""
        return await self._read()

    def _open(self) -> tuple[NvmlLibrary, bool]:
        library = NvmlLibrary(self._module)
        try:
            return library, library.listen()
        except BaseException:
            library.close()
            raise

    async def _read(self) -> tuple[GpuReading, ...]:
        readings = await trio.to_thread.run_sync(self._library.read, limiter=self._limiter)
        self._monitor.readings = readings
        return readings

    async def _poll(self) -> None:
        while True:
            await self._read()
            await trio.sleep(self._interval)

    async def _listen(self) -> None:
        # The thread is never abandoned: it would wait on what `stopping` frees.
        limiter = trio.CapacityLimiter(1)
        wait = self._library.wait_for_xid
        while True:
            xid = await trio.to_thread.run_sync(wait, _WAIT_SECONDS, limiter=limiter)
            if xid is not None:
                self._monitor._note_xid(xid)


@final
class NvmlMonitor(metaclass=NoPublicConstructor):
    """Monitor of the GPUs, as returned by `open_nvml`. It outlives restarts of its actor.

    Attributes:
        readings: the last readings, by NVML's index; empty before the first.
    """

    _made_by: ClassVar[str] = "open_nvml(system)"

    def __init__(self) -> None:
        self.readings: tuple[GpuReading, ...] = ()
        self._xids: Final[deque[Xid]] = deque(maxlen=_MOST_NOTED)
        self._faults: Final[deque[DeviceFault]] = deque(maxlen=_MOST_NOTED)
        self._watchers: Final[set[trio.MemorySendChannel[Xid]]] = set()
        self._counts: Final[dict[tuple[str, int], int]] = {}
        self._ref: ActorRef | None = None

    @property
    def ref(self) -> ActorRef:
        """Actor that talks to NVML."""
        assert self._ref is not None  # set before it is handed out
        return self._ref

    @property
    def xids(self) -> tuple[Xid, ...]:
        """Last 256 Xids, each with the fault it explains, even if that was seen later."""
        return tuple(self._xids)

    @property
    def xid_counts(self) -> dict[tuple[str, int], int]:
        """Number of Xids so far, by UUID and number."""
        return dict(self._counts)

    async def read(self) -> tuple[GpuReading, ...]:
        """Read all GPUs now.

        Returns:
            Readings in the order of NVML's indices.

        Raises:
            ActorStopped: the block of ``open_nvml`` was left.
            Exception: what NVML raised; it is opened anew then.
        """
        return await self.ref.ask(ReadGpus())

    @opens
    async def watch_xids(self) -> AsyncIterator[AsyncIterator[Xid]]:
        """Watch every Xid from now on.

        ``async with monitor.watch_xids() as xids:`` gives an async iterator, which ends with the
        block of ``open_nvml``. An Xid arrives as it happens. If the fault that it explains is seen
        only later, `xids` has both.
        """
        send, receive = trio.open_memory_channel[Xid](math.inf)
        self._watchers.add(send)
        try:
            with send, receive:
                yield receive
        finally:
            self._watchers.discard(send)

    def _note_xid(self, xid: Xid) -> None:
        """Note an Xid. Called in trio's thread."""
        xid = _tied(xid, nearest_fault(xid, self._faults))
        self._xids.append(xid)
        key = (xid.uuid, xid.number)
        self._counts[key] = self._counts.get(key, 0) + 1
        _log.warning(
            "Xid %d (%s) on %s%s",
            xid.number,
            xid.meaning,
            xid.uuid,
            "" if xid.fault is None else f": fault of {xid.fault.device} in {xid.fault.op}",
        )
        for watcher in self._watchers:
            with suppress(trio.BrokenResourceError):  # the iterator was closed
                watcher.send_nowait(xid)

    def _note_fault(self, fault: DeviceFault) -> None:
        """Note a fault of a device of this program, which an Xid may explain, now or soon."""
        self._faults.append(fault)
        for at, xid in enumerate(self._xids):
            if xid.fault is None and (tied := nearest_fault(xid, (fault,))) is not None:
                self._xids[at] = _tied(xid, tied)

    def _close(self) -> None:
        for watcher in list(self._watchers):
            watcher.close()


def _tied(xid: Xid, fault: DeviceFault | None) -> Xid:
    """Return an Xid with the fault that it explains, and add it to that fault's report."""
    if fault is not None and fault.report is not None and fault.report.xid is None:
        fault.report.xid = ReportedXid(xid.number, xid.meaning)
    return replace(xid, fault=fault)


def nearest_fault(
    xid: Xid, faults: tuple[DeviceFault, ...] | deque[DeviceFault]
) -> DeviceFault | None:
    """Return the fault that an Xid explains: same GPU, process (if known) and time."""
    near = [
        fault
        for fault in faults
        if fault.uuid == xid.uuid
        if xid.pid is None or fault.pid is None or xid.pid == fault.pid
        if abs(fault.at - xid.at) <= _TIED_SECONDS
    ]
    return min(near, key=lambda fault: abs(fault.at - xid.at), default=None)


@final
class _Faults(DeviceInstrument):
    """Reports the faults of a system's devices to a monitor."""

    def __init__(self, monitor: NvmlMonitor, system: System) -> None:
        self._monitor: Final = monitor
        self._system: Final = system

    def fault(self, device: WatchedDevice, fault: ContextPoisoned) -> None:
        """Note a fault, with NVML's name of its GPU."""
        failed = next((one for one in self._system.devices if one.core is device), None)
        if failed is not None and failed.info.uuid:
            self._monitor._note_fault(
                DeviceFault(
                    device=failed.name,
                    uuid=nvml_uuid(failed.info.uuid),
                    generation=fault.generation,
                    status_name=fault.status_name,
                    op=fault.op,
                    pid=failed.core.host_pid,
                    at=time.monotonic(),
                    report=fault.report,
                )
            )


def nvml_uuid(uuid: str) -> str:
    """Return NVML's form of a UUID that CUDA reports as 16 bytes."""
    return f"GPU-{UUID(uuid)}"


@opens
async def open_nvml(
    system: ActorSystem,
    *,
    interval: float = 1.0,
    name: str = "nvml",
    supervisor: ActorRef | None = None,
    library: object | None = None,
) -> AsyncIterator[NvmlMonitor]:
    """Watch the GPUs of this machine through NVML, for the length of an ``async with`` block.

    An actor reads the GPUs and is restarted after every failure of NVML, however many there are.
    All calls are made in worker threads. They do not touch CUDA.

    Args:
        system: the system of the actor, such as ``device.system``. Faults of the devices in it are
            matched with Xids.
        interval: seconds between readings, the last of which is ``monitor.readings``; ``math.inf``
            for readings on request only.
        name: its name in the tree.
        supervisor: the parent of the actor. By default, the system.
        library: a module with NVML's functions, under the names of the package nvidia-ml-py; by
            default that package.

    Yields:
        The monitor.

    Raises:
        LibraryMissing: nvidia-ml-py is not installed.
        DeviceUnavailable: the driver is missing.
        NameTaken: an actor has that name.
    """
    interval = real(interval, "interval", above=0, infinity=True)
    monitor: NvmlMonitor = NvmlMonitor.construct()
    group = await system.spawn(Group, name=name, supervisor=supervisor, supervision=_SUPERVISION)
    try:
        monitor._ref = await system.spawn(
            Nvml, monitor, interval, library, name="reader", supervisor=group
        )
        with (
            system.instrumented(_Faults(monitor, system))
            if isinstance(system, System)
            else nullcontext()
        ):
            yield monitor
    finally:
        monitor._close()
        with trio.CancelScope(shield=True):  # at most a wait for an event
            try:
                await group.stop()
            except Exception:  # noqa: BLE001 (it was only watched, and is not any more)
                _log.warning("NVML failed as it was closed", exc_info=True)
