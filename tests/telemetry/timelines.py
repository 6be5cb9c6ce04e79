"""Reads timelines, and checks that each of their tracks holds together."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Slice:
    track: str
    name: str
    start: int
    end: int
    depth: int
    flows: tuple[int, ...]
    told: dict[str, Any]


@dataclass
class Timeline:
    """Contents of a file: tracks by their paths."""

    slices: list[Slice] = field(default_factory=list)
    open: list[Slice] = field(default_factory=list)
    instants: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    counts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def named(self, name: str, track: str = "") -> list[Slice]:
        return [one for one in self.slices if one.name == name and track in one.track]


def read(path: Path, messages: Any, *, cut: int | None = None) -> Timeline:
    """The timeline of a file, or of its first ``cut`` bytes."""
    data = path.read_bytes()[:cut]
    if cut is not None:
        data = _whole(data)
    trace = messages.Trace.FromString(data)
    tracks: dict[int, str] = {}
    names: dict[int, str] = {}
    events: list[tuple[int, int, Any]] = []
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        for name in packet.interned_data.event_names:
            names[name.iid] = name.name
        if packet.HasField("track_descriptor"):
            one = packet.track_descriptor
            assert one.uuid not in tracks
            above = f"{tracks[one.parent_uuid]}/" if one.parent_uuid else ""
            tracks[one.uuid] = above + (one.name or one.process.process_name)
        if packet.HasField("track_event"):
            assert packet.track_event.track_uuid in tracks
            events.append((packet.timestamp, number, packet.track_event))
    timeline = Timeline()
    stacks: dict[int, list[Slice]] = defaultdict(list)
    for at, _, event in sorted(events, key=lambda entry: entry[:2]):
        stack, track = stacks[event.track_uuid], tracks[event.track_uuid]
        told = {a.name: a.string_value or a.int_value for a in event.debug_annotations}
        if event.type == event.TYPE_SLICE_BEGIN:
            name = names[event.name_iid]
            stack.append(Slice(track, name, at, 0, len(stack), tuple(event.flow_ids), told))
        elif event.type == event.TYPE_SLICE_END:
            stack[-1].end = at
            timeline.slices.append(stack.pop())
        elif event.type == event.TYPE_INSTANT:
            timeline.instants.append((track, names[event.name_iid], told))
        else:
            timeline.counts[track].append(event.counter_value)
    timeline.open = [one for stack in stacks.values() for one in stack]
    return timeline


def _whole(data: bytes) -> bytes:
    """The packets that are complete."""
    at = 0
    while at < len(data):
        size, shift, then = 0, 0, at + 1
        while then < len(data) and data[then] > 0x7F:
            size |= (data[then] & 0x7F) << shift
            shift += 7
            then += 1
        if then >= len(data):
            break
        size |= data[then] << shift
        then += 1
        if then + size > len(data):
            break
        at = then + size
    return data[:at]
