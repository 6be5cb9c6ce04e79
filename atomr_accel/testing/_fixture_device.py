"""The device of the fixtures."""

from __future__ import annotations

import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .. import Device
    from ..lanes import Isolation


@asynccontextmanager
async def opened(backend: str, isolation: Isolation) -> AsyncIterator[Device]:
    """Open the device of the fixtures, and say nothing if it is the CPU's."""
    from .. import CpuFallbackWarning, open_device

    async with AsyncExitStack() as stack:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CpuFallbackWarning)
            opening = open_device(0, backend=backend, isolation=isolation)
            device = await stack.enter_async_context(opening)
        yield device
