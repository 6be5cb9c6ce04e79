"""The report of a fault, made of the knowledge of the program and the notes of the host."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..._reports import FaultReport, ReportedBuffer, ReportedNode, ReportedOp
from ...libraries.recordings.wire.messages import Replay
from ...wire.trace import traceparent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ...lanes import Op, Port
    from ...wire.blackbox import BlackBox
    from ..core import DeviceCore

_MOST_IN_FLIGHT: Final = 64
_MOST_BUFFERS: Final = 32


def suspect_of(core: DeviceCore, box: BlackBox) -> tuple[Op | None, bool]:
    """Return the op that may have ended the host, and whether that is certain.

    A function of the program that was running is more likely than anything else, and an op that was
    executed is more likely than one that waited. A function of `Device.run` is more likely than
    those that stand in for kernels.
    """
    in_flight = core.in_flight
    op = in_flight.get(box.ended_by())
    if op is not None:
        return op, True
    heads: dict[str, Op] = {}
    for op in in_flight.values():
        if op.sent:
            heads.setdefault(op.lane, op)
    # Where launches are not the execution, any op on the device may have ended the host.
    executed = set() if core.capabilities.asynchronous else box.launching()
    for seqs in (box.functions(), executed, [op.seq for op in heads.values()]):
        suspects = [in_flight[seq] for seq in sorted(seqs) if seq in in_flight]
        if suspects:
            suspects.sort(key=lambda op: not op.message.pickles)
            return likeliest(suspects), False
    return None, False


def likeliest(suspects: Sequence[Op]) -> Op | None:
    """Return the op that has probably caused a fault: the first that no check can make safe.

    Args:
        suspects: the ops that may have caused it, the likelier ones first.
    """
    return next((op for op in suspects if op.message.unchecked), next(iter(suspects), None))


def fault_report(
    core: DeviceCore,
    ports: Mapping[str, Port],
    box: BlackBox,
    *,
    generation: int,
    status: int,
    status_name: str,
    message: str,
    op: Op | None,
    certain: bool,
    output: Iterable[str],
) -> FaultReport:
    """Return the report of a fault, while its ops are still in flight."""
    first = [*islice(core.in_flight.values(), _MOST_IN_FLIGHT)]
    before = sorted(done for port in ports.values() for done in port.recent)
    return FaultReport(
        device=core.name,
        generation=generation,
        at=time.time(),
        status=status,
        status_name=status_name,
        message=message,
        op=None if op is None else _op(op),
        certain=certain,
        node=None if op is None else _node(core, op, box),
        buffers=() if op is None else tuple(_buffers(core, op)),
        in_flight=tuple(map(_op, first)),
        in_flight_count=len(core.in_flight),
        before=tuple(ReportedOp(seq, name, lane) for seq, name, lane in before),
        stack=box.stack(),
        output=tuple(output),
    )


def _op(op: Op) -> ReportedOp:
    task = op.task
    return ReportedOp(
        op.seq,
        op.name,
        op.lane,
        call=_call(op.message),
        task=None if task is None else task.name,
        request=None if task is None else task.context.get(traceparent),
    )


def _call(message: Any) -> str:
    """Return the type of a request, which its template begins with."""
    encoded = getattr(message, "encoded", None)
    if encoded is None:
        return type(message).__name__
    return str(msgspec.msgpack.decode(encoded)[0])


def _node(core: DeviceCore, op: Op, box: BlackBox) -> ReportedNode | None:
    if not isinstance(op.message, Replay):
        return None
    recording = core.recordings.get(op.message.recording)
    steps = [] if recording is None else recording.steps
    number = box.node_of(op.seq)
    name = steps[number - 1] if 0 < number <= len(steps) else None
    return ReportedNode(op.message.recording, number or None, name, len(steps))


def _buffers(core: DeviceCore, op: Op) -> list[ReportedBuffer]:
    workspaces = {ref.block.base for kept in core.scratch.values() for ref in kept.refs}
    found: list[ReportedBuffer] = []
    for role, blocks in (("reads", op.reads), ("writes", op.writes)):
        for block in islice(blocks, _MOST_BUFFERS):
            whole = block.base
            if not whole.nbytes:  # it only keeps ops in order
                continue
            users = {whole.writer, *(whole.readers or ())} - {0, op.seq}
            owner = whole.memory.device
            if whole in workspaces:
                owner += f", a workspace of lane {op.lane}"
            found.append(
                ReportedBuffer(
                    role=role,
                    address=whole.address if isinstance(whole.address, int) else None,
                    nbytes=whole.nbytes,
                    owner=owner,
                    generation=whole.generation,
                    sealed=whole.sealed,
                    offset=block.offset,
                    used_by=tuple(sorted(users)),
                )
            )
    return found
