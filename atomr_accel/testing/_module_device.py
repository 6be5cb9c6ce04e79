"""A device for all tests of a module."""

from __future__ import annotations

import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar, final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from .. import Device
    from ..lanes import Isolation

P = ParamSpec("P")
R = TypeVar("R")


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


@final
class ModuleDevice:
    """Value of the fixture ``module_device``: a device, in a trio run in its own thread."""

    def __init__(self, opening: AbstractAsyncContextManager[Device]) -> None:
        # Pytest loads the plugin also where no test wants a device: trio can wait until one does.
        from ..device.portal.portal import Portal

        self._portal: Final = Portal(opening)
        try:
            self._portal.opened.result()
        except KeyboardInterrupt:
            self._portal.cancel()
            raise

    def run(
        self,
        function: Callable[Concatenate[Device, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call an async function with the device, and wait for it.

        Args:
            function: what to call.
            *args: for it, after the device.
            **kwargs: for it.

        Returns:
            The function's result.

        Raises:
            DeviceLost: the device was lost, in this test or one before it.
            Exception: what the function raised.
        """
        call = self._portal.call(function, *args, **kwargs)
        try:
            return call.future.result()  # type: ignore[return-value] # it is not cancelled
        except KeyboardInterrupt:
            call.cancel()
            raise

    def close(self) -> None:
        """Close the device, and raise what leaves its block."""
        self._portal.close()
        failure = self._portal.ended.result()
        if failure is not None:
            raise failure
