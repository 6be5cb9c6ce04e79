"""Recordings that a hot standby captures, so that a replay after a fault finds them captured."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from ...libraries.recordings.wire.messages import PrepareRecording
from ...memory import part_of
from ...ops import BLOCK_ALIGNMENT
from ...wire import SLAB_SHIFT
from .replaying import RECORDINGS

if TYPE_CHECKING:
    from ...arrays import GpuRef
    from ...memory import Block
    from ..core import DeviceCore
    from .record import Recording


async def capture_in(recording: Recording, shadow: DeviceCore, mapped: set[int]) -> None:
    """Have a standby's host capture a recording, as far as possible there.

    Sealed buffers are used directly. All others get an address that is never written to, because
    the recording is launched only after the present buffers have replaced them.
    """
    port = await shadow.open_lane(RECORDINGS)
    parts = (recording, *recording.called)
    made = {block: nbytes for part in parts for block, nbytes in part._made.items()}
    plain = [stand_in for stand_in, ref in recording.inputs_bound.items() if not ref.block.sealed]
    sizes = [
        *made.values(),
        *(recording.inputs_bound[one].nbytes + recording._pads[one] for one in plain),
    ]
    # They may overlap, but each begins elsewhere, because a copy to its own source is dropped.
    room = max(sizes, default=0) + BLOCK_ALIGNMENT * len(sizes)
    place = await shadow.empty(room, np.uint8)
    # From here on nothing is awaited until it is submitted.
    starts = itertools.count(0, BLOCK_ALIGNMENT)
    there = {one: part_of(place.block, next(starts)) for one in (*made, *plain)}
    bound: dict[Block, GpuRef] = {}
    for stand_in, ref in recording.inputs_bound.items():
        pad, block = recording._pads[stand_in], ref.block
        if not block.sealed:
            if stand_in not in there:
                return  # it was unsealed meanwhile
            bound[stand_in] = ref.on_block(part_of(there[stand_in], pad))
        elif block.epoch is not None and block.address >> SLAB_SHIFT in mapped:
            bound[stand_in] = ref
        else:
            return  # that is gone: another will be there at the next replay
    addresses = {block: block.address for block in made}
    try:
        for block in made:
            block.address = there[block].address
        record = PrepareRecording(recording.number, *recording._encode(bound))
    finally:
        for block, address in addresses.items():
            block.address = address
    reads = [ref.block for ref in bound.values() if ref.block.sealed]
    op = shadow.submit(port, "recording.record: in advance", record, reads, (place.block,))
    await op.wait()


def own(recording: Recording) -> None:
    """The device's host has captured a recording in advance: it is to forget it in the end."""
    recording._keep()
