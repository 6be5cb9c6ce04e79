"""The part of Perfetto's trace format that timelines need.

A file is one ``TracePacket`` after the other: one that is cut off in the middle loses the last.
Fields and their numbers are those of ``perfetto_trace.proto``. Slices come by the thousand, so they
are packets of one size, which NumPy fills in: numbers of variable length may be padded.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_BEGIN: Final = 1
_END: Final = 2
_INSTANT: Final = 3
_COUNTER: Final = 4
"""``TrackEvent.Type``"""

_REALTIME, _MONOTONIC, _BOOTTIME = 1, 3, 6
"""``BuiltinClock``"""

_TIMESTAMP: Final = 9
_SHORT: Final = 5
"""Bytes of padded numbers: of 63 bits, and of 35."""

Annotation = str | int | float


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """Encode a field: a number, or data with its length."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode(errors="backslashreplace") if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _annotation(name: str, value: Annotation) -> bytes:
    """A ``DebugAnnotation``."""
    number = 6 if isinstance(value, str) else 4 if isinstance(value, int) else 5
    return _field(4, _field(10, name) + _field(number, value))


_SEQUENCE: Final = _field(10, 1)
_STATE: Final = _SEQUENCE + _field(13, 2)  # SEQ_NEEDS_INCREMENTAL_STATE


def _template(kind: int, *, named: bool, flows: bool) -> tuple[NDArray[np.uint8], dict[str, int]]:
    """Return a packet with zeros for the variable parts, and the places of these."""
    event = _field(9, kind) + _varint(11 << 3)
    inside = {"track": len(event)}
    event += bytes(_SHORT)
    if named:
        event += _varint(10 << 3)
        inside["name"] = len(event)
        event += bytes(_SHORT)
    if flows:
        event += _varint(47 << 3 | 1)
        inside["flow"] = len(event)
        event += bytes(8)
    head = _varint(8 << 3)
    body = head + bytes(_TIMESTAMP) + _STATE + _field(11, event)
    packet = _field(1, body)
    start = len(packet) - len(event)
    places = {name: start + at for name, at in inside.items()}
    places["time"] = len(packet) - len(body) + len(head)
    return np.frombuffer(packet, np.uint8), places


_BEGINS: Final = _template(_BEGIN, named=True, flows=False)
_BEGINS_WITH_FLOW: Final = _template(_BEGIN, named=True, flows=True)
_ENDS: Final = _template(_END, named=False, flows=False)


def _fill(
    template: tuple[NDArray[np.uint8], dict[str, int]],
    times: NDArray[np.uint64],
    tracks: NDArray[np.uint64],
    names: NDArray[np.uint64] | None = None,
    flows: NDArray[np.uint64] | None = None,
) -> bytes:
    packet, places = template
    packets = np.tile(packet, (len(times), 1))
    for name, values, width in (
        ("time", times, _TIMESTAMP),
        ("track", tracks, _SHORT),
        ("name", names, _SHORT),
    ):
        if values is not None:
            shifts = np.arange(0, 7 * width, 7, dtype=np.uint64)
            digits = (values[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8) | 0x80
            digits[:, -1] &= 0x7F
            packets[:, places[name] : places[name] + width] = digits
    if flows is not None:
        at = places["flow"]
        packets[:, at : at + 8] = flows.astype("<u8").view(np.uint8).reshape(-1, 8)
    return packets.tobytes()


Slice = tuple[int, int, int, int, int]
"""When it begins and ends, in nanoseconds; its track; its name; and its flow, or 0."""


@final
class Encoder:
    """Makes the packets of one timeline. Use it in one thread at a time.

    Attributes:
        root: the track of the process, which others are below.
    """

    def __init__(self, process: str, pid: int) -> None:
        self._out = bytearray()
        self._tracks = 0
        self._names: dict[str, int] = {}
        clocks = b"".join(
            _field(1, _field(1, number) + _field(2, time.clock_gettime_ns(clock)))
            for number, clock in (
                (_MONOTONIC, time.CLOCK_MONOTONIC),
                (_BOOTTIME, time.CLOCK_BOOTTIME),
                (_REALTIME, time.CLOCK_REALTIME),
            )
        )
        self._packet(_SEQUENCE + _field(6, clocks + _field(2, _MONOTONIC)))
        defaults = _field(59, _field(58, _MONOTONIC))
        self._packet(_SEQUENCE + _field(13, 1) + defaults)  # SEQ_INCREMENTAL_STATE_CLEARED
        self.root: Final = self._describe(_field(3, _field(1, pid) + _field(6, process)))

    def take(self) -> bytes:
        """Return the packets since the last call."""
        out, self._out = bytes(self._out), bytearray()
        return out

    def track(self, name: str, parent: int, *, explicit: bool = False) -> int:
        """Add a track below another one. Tracks of one name are shown as one, with rows.

        ``explicit`` keeps the order of the tracks below.
        """
        order = _field(11, 3) if explicit else b""
        return self._describe(_field(5, parent) + _field(2, name) + order)

    def counter(self, name: str, parent: int, *, unit: str) -> int:
        """Add a track of values."""
        return self._describe(_field(5, parent) + _field(2, name) + _field(8, _field(6, unit)))

    def name(self, text: str) -> int:
        """Return the number of a name."""
        number = self._names.get(text)
        if number is None:
            number = self._names[text] = len(self._names) + 1
            interned = _field(12, _field(2, _field(1, number) + _field(2, text)))
            self._packet(_STATE + interned)
        return number

    def slices(self, slices: Sequence[Slice]) -> None:
        """Add finished slices. Slices of a track lie in each other or do not overlap."""
        if not slices:
            return
        table = np.array(slices, np.uint64)
        table[:, 1] = np.maximum(table[:, 1], table[:, 0])
        flowing = table[:, 4] != 0
        plain, with_flow = table[~flowing], table[flowing]
        # Slices that begin at one time lie in each other in their order here, and those inside of
        # others have no flows.
        self._out += _fill(
            _BEGINS_WITH_FLOW, with_flow[:, 0], with_flow[:, 2], with_flow[:, 3], with_flow[:, 4]
        )
        self._out += _fill(_BEGINS, plain[:, 0], plain[:, 2], plain[:, 3])
        self._out += _fill(_ENDS, table[:, 1], table[:, 2])

    def begin(
        self, at: int, track: int, name: str, told: Mapping[str, Annotation] | None = None
    ) -> None:
        """Begin a slice whose end is unknown, or is added later with more annotations."""
        self._event(at, _BEGIN, track, name, told)

    def end(self, at: int, track: int, told: Mapping[str, Annotation] | None = None) -> None:
        """End the innermost open slice of a track."""
        self._event(at, _END, track, None, told)

    def instant(
        self, at: int, track: int, name: str, told: Mapping[str, Annotation] | None = None
    ) -> None:
        """Something happens."""
        self._event(at, _INSTANT, track, name, told)

    def count(self, at: int, track: int, value: int) -> None:
        """Set the value of a counter."""
        self._packet(
            _field(8, at)
            + _STATE
            + _field(11, _field(9, _COUNTER) + _field(11, track) + _field(30, value))
        )

    def _event(
        self,
        at: int,
        kind: int,
        track: int,
        name: str | None,
        told: Mapping[str, Annotation] | None,
    ) -> None:
        event = _field(9, kind) + _field(11, track)
        if name is not None:
            event += _field(10, self.name(name))
        for key, value in (told or {}).items():
            event += _annotation(key, value)
        self._packet(_field(8, at) + _STATE + _field(11, event))

    def _describe(self, descriptor: bytes) -> int:
        self._tracks += 1
        self._packet(_SEQUENCE + _field(60, _field(1, self._tracks) + descriptor))
        return self._tracks

    def _packet(self, body: bytes) -> None:
        self._out += _field(1, body)
