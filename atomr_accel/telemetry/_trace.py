"""Timelines of a program's work on its devices, in a file for Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, final

import trio

from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..device import Device
from ._recorder import Recorder

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator

    from ..actors import ActorSystem
    from ..device import System
    from ._recorder import Notes

_EVERY_SECONDS: Final = 0.25
"""Seconds between writes; a program that is killed loses the events since the last one."""


@final
class _File:
    """Writes the events of a recorder, in worker threads, one call at a time."""

    def __init__(self, file: BinaryIO, recorder: Recorder, system: ActorSystem) -> None:
        self._file = file
        self._recorder = recorder
        self._system = system
        self.failure: OSError | None = None

    async def run(self) -> None:
        """Write the noted events at intervals."""
        while self.failure is None:
            await trio.sleep(_EVERY_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write the noted events. The first error is kept, and ends all writing."""
        if self.failure is not None:
            return
        self._system.tell_instruments()
        with trio.CancelScope(shield=True):
            try:
                await trio.to_thread.run_sync(self._write, self._recorder.take())
            except OSError as error:
                self.failure = error

    def close(self) -> None:
        """Close the file; an error of closing is kept unless writing failed before."""
        try:
            self._file.close()
        except OSError as error:
            self.failure = self.failure or error

    def _write(self, notes: Notes) -> None:
        self._file.write(self._recorder.encode(notes))
        self._file.flush()


@opens
async def trace(
    watched: Device | System, path: str | os.PathLike[str], *, timed: bool = True
) -> AsyncIterator[None]:
    """Write a timeline of a device, or of a system of actors with all its devices.

    ::

        async with trace(device, "run.pftrace"):
            ...

    Open the file at https://ui.perfetto.dev, which reads it in the browser and sends it nowhere, or
    query it with Perfetto's trace processor. It shows each op in its lane, with its time in the
    queue, and its execution on the device. It also shows transfers, the reserved memory,
    generations, faults, rebuilds with their phases, and standbys. Actors are shown with their
    mailboxes and with their waits for answers. Ops of a batch, and replays of a recording, are
    flows: arrows from one to the next.

    The file is written four times a second, in a worker thread. If the program is killed, the file
    can be read and lacks only the last moment.

    Args:
        watched: the device or system to watch. A device is watched with all of its system.
        path: the file; an existing one is replaced.
        timed: whether hosts report when they launched ops and how long the device took. That costs
            them some microseconds per op.

    Raises:
        OSError: the file cannot be created; or, as the block ends, not be written in full.
    """
    system = watched.system if isinstance(watched, Device) else watched
    recorder = Recorder(timed=timed)
    opened = await trio.to_thread.run_sync(Path(path).open, "wb")
    file = _File(opened, recorder, system)
    try:
        for device in system.devices:
            seen = device.statistics()
            standby = None if seen.standby is None else seen.standby.state
            recorder.there(device.core, seen.memory.capacity, standby)
        async with PlainNursery() as nursery:
            try:
                with system.instrumented(recorder):
                    nursery.start_soon(file.run, name="trace")
                    yield
            finally:
                nursery.cancel_scope.cancel()
                for device in system.devices:
                    for op in device.core.in_flight.values():
                        recorder.unfinished(op)
                recorder.finish()
                await file.write()
    finally:
        file.close()
    if file.failure is not None:
        raise file.failure
