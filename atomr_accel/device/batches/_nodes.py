"""Nodes of recordings: ops, other recordings, and parts that depend on flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from ...arrays import span
from ...libraries.recordings.wire.messages import RecordingStep
from ...ops import same_place
from ...wire import Message, encode

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...libraries.recordings.wire.messages import Kind
    from ...memory import Block
    from .record import Recording

CollectedOp: TypeAlias = tuple[str, str, Message]
"""A collected op: its executor, its name, its message."""


@dataclass(frozen=True, slots=True)
class RecordingCall:
    """Another recording as a part of this one, with its buffers."""

    recording: Recording
    arguments: dict[Block, GpuRef]


@dataclass(frozen=True, slots=True)
class ConditionalPart:
    """A part that is executed if a flag is set, or repeatedly until it is not."""

    kind: Kind
    flag: GpuRef
    nodes: list[RecordedNode] = field(default_factory=list)
    written: set[Block] = field(default_factory=set)


RecordedNode: TypeAlias = CollectedOp | RecordingCall | ConditionalPart


def names_of(nodes: list[RecordedNode]) -> list[str]:
    """Return the names of the ops in nodes and their parts, in order."""
    names: list[str] = []
    for node in nodes:
        if isinstance(node, RecordingCall):
            names += node.recording.steps
        else:
            names += names_of(node.nodes) if isinstance(node, ConditionalPart) else [node[1]]
    return names


def step_of(op: CollectedOp) -> RecordingStep:
    """Return a collected op with its message encoded."""
    executor, name, message = op
    return RecordingStep(executor, name, encode(message, name))


def start_in(part: GpuRef, whole: GpuRef) -> int | None:
    """Return the offset of ``part`` in ``whole`` in bytes, or None if it is not inside."""
    start = part.block.offset - whole.block.offset
    if part.block.base is not whole.block.base:
        return None
    if whole.own_strides is not None:  # the memory between its elements is not its own
        return start if same_place(part, whole) else None
    low, high = span(part.shape, part.strides, part.dtype.itemsize)
    if not 0 <= start + low <= start + high <= whole.nbytes:
        return None
    return start
