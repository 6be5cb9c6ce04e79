"""Events for a timeline, and the tracks and slices made from them.

Hooks run in the middle of other work, so they only append to lists. The rest is done in a worker
thread, for many events at once.
"""

from __future__ import annotations

import itertools
import os
import sys
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from trio.lowlevel import current_task

from ..device.core import ASKING_FOR_TIMES
from ..lanes import DeviceInstrument
from ..lanes.instrument import UNMEASURED
from ._perfetto import Encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .._errors import ContextPoisoned, DeviceLost, OutOfMemory
    from ..actors import ActorRef, Message
    from ..lanes import (
        FinishedOps,
        OpTimes,
        Phases,
        WatchedDevice,
        WatchedOp,
        WatchedTransfer,
    )
    from ..wire.activity import ActivityRecord
    from ._perfetto import Slice

_OpsNote = tuple["FinishedOps", "Sequence[int]"]
_Later = tuple["Callable[..., None]", tuple[Any, ...]]
Notes = tuple[list[_OpsNote], list[_Later], list[Any]]

_K = TypeVar("_K")

_Key = tuple["ActorRef", int]
"""A message to an actor, by its id."""

_SENT, _STARTED, _FINISHED, _ENDED, _DROPPED = range(5)
"""Events of a message; at ``_ENDED`` its asker continues."""


def taken(sent: dict[_K, list[int]], key: _K) -> int:
    """Return when a message was sent that waits no more; 0 if that is not known."""
    waiting = sent.get(key)
    if not waiting:
        return 0
    at = waiting.pop(0)
    if not waiting:
        del sent[key]
    return at


@final
class _TrackRows:
    """Tracks of one name, as many as slices overlap."""

    __slots__ = ("_ends", "_make", "_next", "_tracks")

    def __init__(self, make: Callable[[], int]) -> None:
        self._make = make
        self._tracks: list[int] = []
        self._ends: list[int] = []
        self._next = 0

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Return the row of a slice and its start there, so that slices of a row do not overlap."""
        ends = self._ends
        # Slices one after the other are all in the first row. Dozens at once go into one row each,
        # after that of the last one.
        row = 0
        if not ends or ends[0] > start:
            row = self._next
            if row >= len(ends) or ends[row] > start:
                row = next((row for row, end in enumerate(ends) if end <= start), len(ends))
        self._next = row + 1
        if row == len(ends):
            self._tracks.append(self._make())
            ends.append(max(start, end))
            return self._tracks[row], start
        start += ends[row] == start  # a slice that starts at another's end would lie inside of it
        ends[row] = max(start, end)
        return self._tracks[row], start


@final
class _DeviceTracks:
    """The tracks of a device."""

    def __init__(self, encoder: Encoder, device: WatchedDevice) -> None:
        self._encoder = encoder
        self._rows: dict[str, _TrackRows] = {}
        self.group: Final = encoder.track(
            f"{device.path.rpartition('/')[2]} ({device.name})", encoder.root, explicit=True
        )
        self.life: Final = encoder.track("generations", self.group)
        self.rebuilds: Final = self.rows("rebuilds")
        self.standby: Final = encoder.track("standby", self.group)
        self.memory: Final = encoder.counter("memory reserved", self.group, unit="B")
        self.transfers: Final = self.rows("transfers")
        self._numbers: dict[int, str] = {}
        self._together: dict[str, tuple[int, int]] = {}
        self.reserved = 0
        self.alive = self.waits = False

    def rows(self, name: str) -> _TrackRows:
        """Return the tracks of a name, below the device's."""
        rows = self._rows.get(name)
        if rows is None:
            rows = self._rows[name] = _TrackRows(partial(self._encoder.track, name, self.group))
        return rows

    def lane(self, name: str) -> _TrackRows:
        """Return the tracks of a lane."""
        return self.rows(f"lane {name}")

    def activity(self, record: ActivityRecord) -> _TrackRows:
        """Return the tracks of a record: those of its stream, or of its thread."""
        return self.rows(
            f"CUPTI {'thread' if record.kind == 'calls' else 'stream'} {record.stream}"
        )

    def stream(self, lane: str, stream: int, started: int, ended: int) -> _TrackRows | None:
        """Return the tracks of a stream; None if an op with the same times is there already."""
        if stream:
            name = self._numbers.get(stream) or f"stream {len(self._numbers)}"
            self._numbers[stream] = name
        else:
            name = f"executing {lane}"
        together = started, ended
        if self._together.get(name) == together:
            return None
        self._together[name] = together
        return self.rows(name)


@final
class Recorder(DeviceInstrument):
    """Records the events of a system, and makes packets of them.

    Args:
        timed: whether hosts report their times.
    """

    def __init__(self, *, timed: bool) -> None:
        self.timed = timed
        self._ops: list[_OpsNote] = []
        self._later: list[_Later] = []
        # Events of messages arrive by the ten thousand, in one flat list, because the garbage
        # collector would visit tuples again and again. Ids of messages may be used again once a
        # message is gone, so the events are handled in order.
        self._mail: list[Any] = []
        self._sent: dict[_Key, list[int]] = {}
        self._started: dict[_Key, tuple[int, int]] = {}
        self._asked: dict[int, tuple[int, type[Message[Any]]]] = {}
        self._flows: dict[tuple[WatchedDevice, int], int] = {}
        self._begun: dict[int, int] = {}

    # --- noting, in trio's thread ------------------------------------------------------------

    def op_in_batch(self, op: WatchedOp, batch: int) -> None:
        """Ops of a batch are a flow."""
        self._flows[op.device, op.seq] = batch << 1

    def op_replays(self, op: WatchedOp, recording: int) -> None:
        """Replays of a recording are a flow."""
        self._flows[op.device, op.seq] = recording << 1 | 1

    def ops_finished(self, ops: FinishedOps) -> None:
        """Note a slice of its lane for each op, and one of the device."""
        if ops.name != ASKING_FOR_TIMES:
            take = self._flows.pop
            flows = [take((ops.device, seq), 0) for seq in ops.seqs] if self._flows else ()
            self._ops.append((ops, flows))

    def unfinished(self, op: WatchedOp) -> None:
        """Note an op that is not over at the end of the timeline."""
        if op.times is not None and op.name != ASKING_FOR_TIMES:
            self._later.append((self._add_unfinished, (op.device, op.lane, op.name, op.times)))

    def activity_recorded(self, device: WatchedDevice, records: Sequence[ActivityRecord]) -> None:
        """Note the slices of activities, each below that of its op."""
        self._note(self._add_activities, device, records)

    def message_sent(self, ref: ActorRef, message: Message[Any]) -> None:
        """Note the time at which a message enters the mailbox."""
        try:
            task = id(current_task())
        except RuntimeError:  # of no task, such as a callback of trio's
            task = 0
        self._mail += _SENT, ref, id(message), type(message), task, monotonic_ns()

    def ask_ended(self, ref: ActorRef, message: Message[Any]) -> None:
        """Note the end of an ask; it belongs to the last message that this task has sent."""
        task = current_task()
        self._mail += _ENDED, ref, id(message), task.name, id(task), monotonic_ns()

    def message_started(self, ref: ActorRef, message: Message[Any]) -> None:
        """Note the time at which the handling of a message begins."""
        self._mail += _STARTED, ref, id(message), None, None, monotonic_ns()

    def message_finished(
        self, ref: ActorRef, message: Message[Any], failure: BaseException | None
    ) -> None:
        """Note a slice of the actor's mailbox, and one of the actor."""
        failed = None if failure is None else type(failure)
        self._mail += _FINISHED, ref, id(message), type(message), failed, monotonic_ns()

    def dead_letter(self, ref: ActorRef, message: Message[Any], reason: str) -> None:
        """Note that a message is not handled."""
        now = monotonic_ns()
        self._mail += _DROPPED, ref, id(message), None, None, now
        name = f"dead letter: {type(message).__name__}"
        self._note(self._add_to_actor, ref.path, name, now, reason)

    def actor_restarting(self, ref: ActorRef, cause: BaseException | None) -> None:
        """Note a mark on the actor's track."""
        self._note(self._add_to_actor, ref.path, "restart", monotonic_ns(), repr(cause))

    def transfer_started(self, device: WatchedDevice, transfer: WatchedTransfer) -> None:
        """Note the start of a transfer."""
        self._begun[id(transfer)] = monotonic_ns()

    def transfer_finished(
        self, device: WatchedDevice, transfer: WatchedTransfer, failure: BaseException | None
    ) -> None:
        """Add the slice of a transfer."""
        begun = self._begun.pop(id(transfer), 0)
        if begun:
            name = f"{transfer.name} {transfer.nbytes / (1 << 20):.1f} MiB"
            if failure is not None:
                name += f" ({type(failure).__name__})"
            self._note(self._add_transfer, device, name, begun, monotonic_ns())

    def slab_added(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        """Note the reserved memory."""
        self._note(self._add_memory, device, nbytes, monotonic_ns())

    def slab_removed(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        """Note the reserved memory."""
        self._note(self._add_memory, device, -nbytes, monotonic_ns())

    def out_of_memory(self, device: WatchedDevice, error: OutOfMemory) -> None:
        """Note a mark on the device's track."""
        self._note(self._mark, device, "out of memory", monotonic_ns(), str(error))

    def fault(self, device: WatchedDevice, fault: ContextPoisoned) -> None:
        """Note a mark on the device's track, and the end of its generation."""
        now = monotonic_ns()
        self._note(self._mark, device, f"fault: {fault.status_name}", now, str(fault))
        self._note(self._live, device, 0, now)

    def generation_ready(self, device: WatchedDevice, generation: int, phases: Phases) -> None:
        """Note the phases of the rebuild, and the start of a generation."""
        now = monotonic_ns()
        parts = (phases.open, phases.remap, phases.lanes)
        self._note(self._add_rebuild, device, generation, parts, now)
        self._note(self._live, device, generation, now)

    def standby_changed(self, device: WatchedDevice, state: str) -> None:
        """Note a slice for each state."""
        self._note(self._stand_by, device, state, monotonic_ns())

    def device_lost(self, device: WatchedDevice, error: DeviceLost) -> None:
        """Note a mark on the device's track."""
        self._note(self._mark, device, "lost", monotonic_ns(), str(error))

    def there(self, device: WatchedDevice, reserved: int, state: str | None) -> None:
        """Note the state of a device at the beginning of the timeline."""
        now = monotonic_ns()
        self._note(self._live, device, device.generation, now)
        self._note(self._add_memory, device, reserved, now)
        if state is not None:
            self._note(self._stand_by, device, state, now)

    def finish(self) -> None:
        """Note the end of the timeline."""
        self._note(self._end_all, monotonic_ns())

    def _note(self, add: Callable[..., None], *args: Any) -> None:
        self._later.append((add, args))

    def take(self) -> Notes:
        """Return the events since the last call, for ``encode``."""
        notes = self._ops, self._later, self._mail
        self._ops, self._later, self._mail = [], [], []
        return notes

    # --- encoding, in a worker thread ----------------------------------------------------------

    def encode(self, notes: Notes) -> bytes:
        """Return the packets for some events."""
        if not hasattr(self, "_encoder"):
            self._begin()
        finished, later, mail = notes
        self._slices: list[Slice] = []
        for add, args in later:
            add(*args)
        for event in zip(*[iter(mail)] * 6, strict=True):
            self._follow(*event)
        for ops, flows in finished:
            self._add_ops(ops, flows)
        self._encoder.slices(self._slices)
        return self._encoder.take()

    def _begin(self) -> None:
        encoder: Encoder = Encoder(Path(sys.argv[0]).name or "python", os.getpid())
        self._encoder = encoder
        self._tasks_group = encoder.track("tasks", encoder.root)
        self._actors_group = encoder.track("actors", encoder.root)
        self._devices: dict[WatchedDevice, _DeviceTracks] = {}
        self._groups: dict[tuple[int, str], _TrackRows] = {}
        self._marks: dict[str, int] = {}
        self._queued = encoder.name("queued")

    def _tracks(self, device: WatchedDevice) -> _DeviceTracks:
        tracks = self._devices.get(device)
        if tracks is None:
            tracks = self._devices[device] = _DeviceTracks(self._encoder, device)
        return tracks

    def _rows(self, group: int, name: str) -> _TrackRows:
        rows = self._groups.get((group, name))
        if rows is None:
            make = partial(self._encoder.track, name, group)
            rows = self._groups[group, name] = _TrackRows(make)
        return rows

    def _add(self, rows: _TrackRows, name: str, start: int, end: int, flow: int = 0) -> int:
        track, start = rows.place(start, end)
        self._slices.append((start, end, track, self._encoder.name(name), flow))
        return track

    def _add_ops(self, ops: FinishedOps, flows: Sequence[int]) -> None:
        tracks = self._tracks(ops.device)
        title = ops.name if ops.outcome == "done" else f"{ops.name} ({ops.outcome})"
        number, own = self._encoder.name(title), self._encoder.name(ops.name)
        place, add, queued = tracks.lane(ops.lane).place, self._slices.append, self._queued
        rows = ops.rows
        each = zip(
            ops.seqs,
            ops.submitted,
            ops.sent,
            ops.answered,
            flows or itertools.repeat(0),
            strict=False,
        )
        for seq, submitted, sent, answered, flow in each:
            track, start = place(submitted, answered)
            add((start, answered, track, number, flow))
            launched, started, ended, _, stream = rows.get(seq, UNMEASURED)
            begun = launched or sent
            if begun:
                add((start, max(start, begun), track, queued, 0))
            if ended:
                executing = tracks.stream(ops.lane, stream, started, ended)
                if executing is not None:
                    track, started = executing.place(started, ended)
                    add((started, ended, track, own, flow))

    def _add_activities(self, device: WatchedDevice, records: Sequence[ActivityRecord]) -> None:
        """Add a slice for each run of records of one op in a stream, and theirs inside of it."""
        tracks = self._tracks(device)
        runs: list[list[ActivityRecord]] = []
        last: dict[tuple[str, int], list[ActivityRecord]] = {}
        for record in sorted(records, key=lambda each: (each.start, each.end)):
            where = "calls" if record.kind == "calls" else "device", record.stream
            run = last.get(where)
            if run is None or run[-1].op != record.op or run[-1].end > record.start:
                run = last[where] = []
                runs.append(run)
            run.append(record)
        number = self._encoder.name
        for run in runs:
            first, parts = run[0], []
            after = first.start + 1  # a slice that begins at another's end would lie inside of it
            for record in run:
                begin = max(after, record.start)
                end = max(begin, record.end)
                parts.append((begin, end, record.name))
                after = end + 1
            track, start = tracks.activity(first).place(first.start, end)
            self._slices.append((start, end, track, number(first.op_name or "no op"), 0))
            self._slices += [(begin, end, track, number(name), 0) for begin, end, name in parts]

    def _add_unfinished(self, device: WatchedDevice, lane: str, name: str, times: OpTimes) -> None:
        track, start = self._tracks(device).lane(lane).place(times.submitted, sys.maxsize)
        self._encoder.begin(start, track, name, {"outcome": "not finished"})

    def _follow(self, what: int, ref: ActorRef, message: int, kind: Any, who: Any, at: int) -> None:
        """Follow a message from one event to the next, and add its slices."""
        key = ref, message
        if what == _SENT:
            self._sent.setdefault(key, []).append(at)
            if who:
                self._asked[who] = at, kind
        elif what == _STARTED:
            self._started[key] = taken(self._sent, key) or at, at
        elif what == _FINISHED:
            if key in self._started:
                self._add_message(ref, kind, who, *self._started.pop(key), at)
        elif what == _ENDED:
            if who in self._asked:
                begun, asked = self._asked.pop(who)
                self._add_ask(kind, asked, ref, begun, at)
            if key not in self._started:  # taken back
                taken(self._sent, key)
        else:
            taken(self._sent, key)

    def _add_ask(
        self, task: str, message: type[Message[Any]], ref: ActorRef, start: int, end: int
    ) -> None:
        name = f"{message.__name__} → {ref.path}"
        self._add(self._rows(self._tasks_group, task), name, start, end)

    def _add_message(
        self,
        ref: ActorRef,
        message: type[Message[Any]],
        failure: type[BaseException] | None,
        sent: int,
        started: int,
        ended: int,
    ) -> None:
        path, name = ref.path, message.__name__
        if failure is not None:
            name += f" ({failure.__name__})"
        if started > sent:
            self._add(self._rows(self._actors_group, f"{path} (mailbox)"), name, sent, started)
        self._add(self._rows(self._actors_group, path), name, started, ended)

    def _add_to_actor(self, path: str, name: str, at: int, why: str) -> None:
        track = self._marks.get(path)
        if track is None:
            track = self._marks[path] = self._encoder.track(path, self._actors_group)
        self._encoder.instant(at, track, name, {"why": why})

    def _add_transfer(self, device: WatchedDevice, name: str, start: int, end: int) -> None:
        self._add(self._tracks(device).transfers, name, start, end)

    def _add_memory(self, device: WatchedDevice, nbytes: int, at: int) -> None:
        tracks = self._tracks(device)
        tracks.reserved += nbytes
        self._encoder.count(at, tracks.memory, tracks.reserved)

    def _mark(self, device: WatchedDevice, name: str, at: int, why: str) -> None:
        self._encoder.instant(at, self._tracks(device).life, name, {"why": why})

    def _live(self, device: WatchedDevice, generation: int, at: int) -> None:
        """Add the start of a generation, or, without a number, its end."""
        tracks = self._tracks(device)
        if tracks.alive:
            self._encoder.end(at, tracks.life)
        tracks.alive = generation > 0
        if tracks.alive:
            self._encoder.begin(at, tracks.life, f"generation {generation}")

    def _add_rebuild(
        self, device: WatchedDevice, generation: int, parts: tuple[float, ...], at: int
    ) -> None:
        rows = self._tracks(device).rebuilds
        lasted = [int(seconds * 1e9) for seconds in parts]
        start = at - sum(lasted)
        track = self._add(rows, f"context of generation {generation}", start, at)
        for name, nanoseconds in zip(("open", "remap", "lanes"), lasted, strict=True):
            self._slices.append(
                (start + 1, start + nanoseconds, track, self._encoder.name(name), 0)
            )
            start += nanoseconds

    def _stand_by(self, device: WatchedDevice, state: str, at: int) -> None:
        tracks = self._tracks(device)
        if tracks.waits:
            self._encoder.end(at, tracks.standby)
        tracks.waits = True
        self._encoder.begin(at, tracks.standby, state)

    def _end_all(self, at: int) -> None:
        for tracks in self._devices.values():
            for open_one, track in ((tracks.alive, tracks.life), (tracks.waits, tracks.standby)):
                if open_one:
                    self._encoder.end(at, track)
