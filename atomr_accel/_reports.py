"""Reports of faults: the work of a device at the moment when its context failed."""

from __future__ import annotations

from typing import Final, Self, final

import msgspec

_MOST_LINES: Final = 8


@final
class ReportedOp(msgspec.Struct, frozen=True, omit_defaults=True):
    """An op in a `FaultReport`.

    Attributes:
        seq: its place in the device's program order.
        name: its name: ``"blas.gemm"`` for a call of a library, ``"kernel add"`` for a kernel,
            ``"run load"`` for a function of ``device.run``.
        lane: the lane that executed it.
        call: the request that the lane's executor got, such as ``"Gemm"``; empty for ops that are
            over.
        task: the task that waited for it; None without one, as in a batch.
        request: the trace context of that task (see ``traceparent``), if it has one.
    """

    seq: int
    name: str
    lane: str
    call: str = ""
    task: str | None = None
    request: str | None = None


@final
class ReportedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a recording that was executed, in a `FaultReport`.

    Attributes:
        recording: the recording's number, as in its path ``/device-0/recording-3``.
        number: the place of the op among those of the recording, from 1 on; None if it is unknown:
            a GPU executes a recording as one graph.
        name: the op's name; None if it is unknown.
        steps: the number of ops of the recording.
    """

    recording: int
    number: int | None
    name: str | None
    steps: int


@final
class ReportedBuffer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A buffer of the suspected op, in a `FaultReport`.

    Attributes:
        role: ``"reads"`` or ``"writes"``.
        address: its address in the device's address space: slab and offset, not a pointer.
        nbytes: its size.
        owner: the device to which the memory belongs, and whether it is a library's workspace.
        generation: the generation in which it was made.
        sealed: whether it is sealed.
        offset: where the op's view of it begins, in bytes.
        used_by: places of the ops in flight that read or write it, too.
    """

    role: str
    address: int | None
    nbytes: int
    owner: str
    generation: int
    sealed: bool = False
    offset: int = 0
    used_by: tuple[int, ...] = ()


@final
class ReportedXid(msgspec.Struct, frozen=True):
    """The driver's own error, in a `FaultReport`.

    Attributes:
        number: the vendor's number.
        meaning: its meaning, in some words.
    """

    number: int
    meaning: str


@final
class FaultReport(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The work of a device when its context failed: ``error.report`` of a `ContextPoisoned`.

    All errors of one fault share the report, which is complete when they are raised, except for
    ``xid``.

    Attributes:
        device: the device's name, such as ``"cuda:0"``.
        generation: the generation that ended.
        at: the time at which the fault was noticed, in seconds since 1970.
        status: the driver's status code, or the host's exit code (negative: a signal).
        status_name: its name.
        message: the fault in one line.
        op: the op that has failed, or is suspected; None if the device was idle.
        certain: whether ``op`` is known to be the one: it alone was executed, or the host knows
            which thread has ended it. Otherwise it is the oldest that had not finished.
        node: the part of a recording that was executed, if ``op`` replays one.
        buffers: the buffers of ``op``.
        in_flight: the ops that were not answered, the oldest first, at most 64.
        in_flight_count: the number of ops that were not answered.
        before: the last ops that were answered before, the latest last; at most 16 of each lane.
        stack: Python frames of the host's thread that crashed, the innermost first.
        output: the last lines of the host's standard error.
        xid: the driver's report about the GPU. It arrives later, if at all, while ``open_nvml``
            watches the device's system.
    """

    device: str
    generation: int
    at: float
    status: int
    status_name: str
    message: str
    op: ReportedOp | None = None
    certain: bool = False
    node: ReportedNode | None = None
    buffers: tuple[ReportedBuffer, ...] = ()
    in_flight: tuple[ReportedOp, ...] = ()
    in_flight_count: int = 0
    before: tuple[ReportedOp, ...] = ()
    stack: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    xid: ReportedXid | None = None

    def to_json(self) -> str:
        """Return the report as one line of JSON, with these names. Defaults are left out."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the report that ``to_json`` has written.

        Raises:
            ValueError: the text is not a report.
        """
        return msgspec.json.decode(text, type=cls)

    def __str__(self) -> str:
        lines = [f"{self.device}, generation {self.generation}: {self.status_name}", self.message]
        if self.op is None:
            lines.append("no op was in flight")
        else:
            word = "failed" if self.certain else "suspected"
            lines.append(f"{word}: {_told(self.op)}")
        if self.node is not None:
            lines.append(_told_node(self.node))
        lines += _listed("buffers", list(map(_told_buffer, self.buffers)))
        others = [each for each in self.in_flight if each != self.op]
        lines += _listed(f"in flight: {self.in_flight_count} ops", list(map(_told, others)))
        lines += _listed("before", list(map(_told, self.before[-_MOST_LINES:])))
        lines += _listed("stack", list(self.stack))
        lines += _listed("the host's last words", list(self.output[-_MOST_LINES:]))
        if self.xid is not None:
            lines.append(f"Xid {self.xid.number}: {self.xid.meaning}")
        return "\n".join(lines)


def _listed(title: str, lines: list[str]) -> list[str]:
    rest = len(lines) - _MOST_LINES
    shown = [f"    {line}" for line in lines[:_MOST_LINES]]
    return [title, *shown, *([f"    and {rest} more"] if rest > 0 else [])] if lines else []


def _told(op: ReportedOp) -> str:
    said = f"{op.name} (op {op.seq} of lane {op.lane}"
    said += f", {op.call}" if op.call else ""
    said += f", for task {op.task}" if op.task else ""
    return said + (f", request {op.request})" if op.request else ")")


def _told_node(node: ReportedNode) -> str:
    where = f"recording {node.recording}"
    if node.number is None:
        return f"somewhere in the {node.steps} ops of {where}"
    return f"{node.name}: op {node.number} of {node.steps} in {where}"


def _told_buffer(buffer: ReportedBuffer) -> str:
    address = "no address" if buffer.address is None else f"{buffer.address:#x}"
    said = f"{buffer.role} {buffer.nbytes} bytes at {address} of {buffer.owner}"
    said += f", generation {buffer.generation}" + (", sealed" if buffer.sealed else "")
    if buffer.used_by:
        said += f", used by op {', '.join(map(str, buffer.used_by))}"
    return said
