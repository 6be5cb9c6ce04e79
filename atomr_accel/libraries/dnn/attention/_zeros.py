"""Results that no element goes into: what arrays with a zero in their shape give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..._arguments import writable
from ..._perform import Prepared, perform
from ..graph._run import LANE
from ..wire._sequence_messages import Clear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy as np

    from ....memory import GpuRef
    from ..._library import Submitter
    from ..._perform import Room

ZERO: Final = 0x00
NAN: Final = 0xFF
"""A byte of which every floating-point number that is made of it is NaN."""


async def fill(
    device: Submitter,
    name: str,
    given: Iterable[GpuRef],
    target: tuple[tuple[int, ...], np.dtype[Any]],
    out: GpuRef | None,
    check: Callable[[], None],
    byte: int = ZERO,
) -> GpuRef:
    """Make a result that has nothing to be computed from; it may be empty itself.

    Args:
        device: where.
        name: what to call the op.
        given: what the caller gave, of which there is nothing to read.
        target: the result's shape and dtype.
        out: where the caller wants it.
        check: checks what was given; may be called several times.
        byte: what the result's bytes are.
    """
    shape, dtype = target

    def prepare(room: Room) -> Prepared:
        check()
        result = out
        if result is None:
            result = room.empty(shape, dtype)
        else:
            writable(result, device.memory, "out")
            if result.shape != shape or result.dtype is not dtype:
                raise (ValueError if result.shape != shape else TypeError)(
                    f"out is {result.dtype.name} of shape {result.shape}, but the result is "
                    f"{dtype.name} of shape {shape}"
                )
        message = Clear(result._block.address, result.nbytes, byte)
        return Prepared(message, [ref._block for ref in given], [result._block], result)

    made: GpuRef = await perform(device, LANE, name, prepare)
    return made
