"""Managed memory: buffers that move between the device and the host by themselves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ..._dtypes import as_dtype
from ...arrays import GpuRef, as_shape
from ...ops import require_writable
from ...wire import Copy
from ..core import MEMORY_LANE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import DTypeLike

    from ...wire import Message
    from ..core import DeviceCore, Shape

Place = Literal["device", "host"]
Attachment = Literal["global", "host", "single"]
Advice = Literal[
    "read_mostly",
    "unset_read_mostly",
    "prefer:device",
    "prefer:host",
    "unset_prefer",
    "accessed_by:device",
    "accessed_by:host",
    "unset_accessed_by:device",
    "unset_accessed_by:host",
]

_PAGE: Final = 4096


async def make_managed(core: DeviceCore, shape: Shape, dtype: DTypeLike) -> GpuRef:
    """Implement ``Device.managed``."""
    dtype = as_dtype(dtype)
    shape = as_shape(shape)
    nbytes = math.prod(shape) * dtype.itemsize
    room = max(1, -(-nbytes // _PAGE)) * _PAGE
    return GpuRef(await core.growth.managed(room), shape, dtype, nbytes)


async def on_managed(
    core: DeviceCore, ref: GpuRef, name: str, message: Callable[[int], Message]
) -> None:
    """Submit an op of managed memory, ordered among the ops that use the buffer."""
    require_writable(ref, core.memory, "ref")
    await core.ready()
    block = require_writable(ref, core.memory, "ref")
    # Memory of others, which is adopted, is all of its slab too, but has an owner.
    if not core.memory.is_own(block) or core.memory.owner_of(block) is not None:
        raise ValueError(f"{name} takes a buffer made by device.managed, not {ref!r}")
    # With one memory there is nothing to move; the op still waits for those before it.
    here = core.capabilities.host_memory
    sent = Copy(block.address, block.address, 0) if here else message(block.address)
    op = core.submit(core.ports[MEMORY_LANE], name, sent, (), (block,))
    await op.wait()


def one_of(value: str, kind: Any, name: str) -> str:
    """``value``, if it is one of a ``Literal``."""
    if value not in get_args(kind):
        raise ValueError(f"{name} must be one of {', '.join(get_args(kind))}, not {value!r}")
    return value
