"""Replays: what a recording needs before one, the checks of its buffers, and the ops.

A recording of one device is replayed by that device alone. Its parts on several devices are
replayed together, by whoever made all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from ...libraries.recordings.wire.messages import ForgetRecording, PrepareRecording
from ...ops import LaneSpec, require_readable, require_writable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ...arrays import GpuRef
    from ...lanes import Op, Port
    from ...memory import Block
    from ._life import RecordingLife
    from .record import Recording

RECORDINGS: Final = LaneSpec(
    "recordings",
    {
        "cpu": "atomr_accel.libraries.recordings.host._cpu:CpuRecordings",
        "cuda": "atomr_accel.libraries.recordings.host._cuda:CudaRecordings",
    },
)

FROM_OUTSIDE: Final = "a buffer that the recording takes from outside"


class ReplayBuffers(NamedTuple):
    """The buffers of a replay: those from outside by their stand-ins, and all by their use."""

    bound: Mapping[Block, GpuRef]
    reads: list[Block]
    writes: list[Block]
    addresses: list[Any]


class RunningReplay(NamedTuple):
    """A replay that was submitted.

    Attributes:
        op: the op.
        prepared: the op before it that has prepared the recording.
        lives: the recording and those it calls, each in its present generation.
    """

    recording: Recording
    op: Op
    prepared: Op
    lives: list[tuple[Recording, RecordingLife]]

    def succeeded(self) -> None:
        """Count the replay."""
        self.recording._in_flight -= 1
        self.recording._replays += 1

    def failed(self, error: BaseException) -> None:
        """Take content from its results if it was not executed."""
        self.recording._in_flight -= 1
        if not isinstance(error, Exception):
            if self.op.sent:
                return  # it is carried out
        elif self.prepared.error is not None and self.recording._recorded is self.prepared:
            self.recording._sent = None
        for part, life in self.lives:
            part._replay_failed(life)


def bind_inputs(
    recording: Recording,
    inputs: tuple[GpuRef, ...],
    replace: Mapping[GpuRef, GpuRef] | None = None,
) -> dict[Block, GpuRef]:
    """Return the buffers of a replay by their stand-ins; see ``Recording.replay``."""
    recording._check_replayable()
    return recording._bind(inputs, replace)


async def ready_to_replay(recording: Recording) -> None:
    """Wait until there are the lane, and memory for all buffers that it makes."""
    while True:
        await recording.core.open_lane(recording.lane)
        for part in (recording, *recording.called):
            await part._prepared()
        if is_ready(recording):
            return


def is_ready(recording: Recording) -> bool:
    """Return whether nothing has to be waited for before a replay."""
    there = recording.lane.name in recording.core.ports
    return there and not any(part._unprepared() for part in (recording, *recording.called))


def checked_buffers(recording: Recording, bound: Mapping[Block, GpuRef]) -> ReplayBuffers:
    """Check the buffers that a replay takes from outside."""
    task = trio.lowlevel.current_task()
    parts = (recording, *recording.called)
    for part in parts:
        part._require_own(task)
    called = {block for part in recording.called for block in part._made}
    reads: list[Block] = []
    writes: list[Block] = []
    addresses: list[Any] = []
    for stand_in, ref in bound.items():
        written, block = stand_in in recording._written, ref.addressable_block
        if block not in called:  # what a part makes has content when it comes there
            check = require_writable if written else require_readable
            check(ref, recording.memory, FROM_OUTSIDE, strided=True)
        (writes if written else reads).append(block)
        addresses.append(block.address)
    for part in parts:
        writes += part._made
        addresses.append(part._provided)
    return ReplayBuffers(bound, reads, writes, addresses)


def submit_replay(
    recording: Recording,
    buffers: ReplayBuffers,
    submit: Callable[[Port, Iterable[Block], Iterable[Block]], Op],
    outside: int = 0,
) -> RunningReplay:
    """Submit a replay, and before it what prepares it on its buffers if that has changed.

    ``outside`` is a number besides addresses that the messages of its ops depend on.
    """
    port, reads = recording.core.ports[recording.lane.name], buffers.reads
    writes = [*buffers.writes, recording._keep()]  # keeps what the host does with it in order
    binding = (recording.memory.epoch, outside, *buffers.addresses)
    if binding != recording._sent:
        if recording._sent is not None and recording._sent[1] != outside:
            forget(recording)
        record = PrepareRecording(recording.number, *recording._encode(buffers.bound))
        recording._recorded = recording.core.submit(port, "recording.record", record, reads, writes)
        recording._sent = binding
        recording.core.recordings[recording.number] = recording
        # What several devices replay together is nothing that a standby can capture alone.
        if recording.core.standby is not None and recording.lane is RECORDINGS:
            recording.core.standby.note_recording(recording.number, recording)
    assert recording._recorded is not None
    replay = submit(port, reads, writes)
    if recording.core.instruments.active:
        recording.core.instruments("op_replays", replay, recording.number)
    task = trio.lowlevel.current_task()
    lives = [(part, part._begin_replay(task)) for part in (recording, *recording.called)]
    recording._in_flight += 1
    return RunningReplay(recording, replay, recording._recorded, lives)


def forget(recording: Recording) -> None:
    """Have the host release the recording; the next replay prepares it again."""
    port, kept = recording.core.ports.get(recording.lane.name), recording._kept
    if recording._sent is not None and port is not None and kept is not None:
        message = ForgetRecording(recording.number)
        recording.core.submit(port, "recording.forget", message, (), (kept,))
    recording._sent = None
