"""Devices for asyncio programs: trio runs in a thread of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Concatenate, Final, Generic, ParamSpec, TypeVar, final

from ...actors.blocks import opens, passed_on
from .portal import Portal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from concurrent.futures import Future
    from contextlib import AbstractAsyncContextManager

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@final
class FromAsyncio(Generic[T]):
    """The object that `from_asyncio` returns, which calls trio functions from asyncio."""

    def __init__(self, portal: Portal[T]) -> None:
        self._portal: Final = portal

    async def run(
        self,
        function: Callable[Concatenate[T, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call an async trio function, with the opened object as its first argument.

        Functions run concurrently, as tasks of one trio nursery, and may use all of trio. If the
        caller is cancelled, so is the function, and the call returns when the function has ended.

        Args:
            function: the function to call.
            *args: its arguments after the opened object.
            **kwargs: its keyword arguments.

        Returns:
            The function's result.

        Raises:
            CancelledError: the caller was cancelled, and the function has raised no other error; or
                it was cancelled, and the opened object has failed meanwhile.
            DeviceLost: the device was lost before the function was done.
            RuntimeError: the opened object is closed.
            Exception: the error of the function.
        """
        call = self._portal.prepared(function, *args, **kwargs)
        call.start()
        answer = await _settled(call.future, call.cancel, self._failed)
        if call.cancelled:  # the caller was not cancelled, but the call was
            raise asyncio.CancelledError
        return answer  # type: ignore[return-value] # None only where it was cancelled

    def _failed(self) -> bool:
        ended = self._portal.ended
        return ended.done() and ended.result() is not None


@opens
async def from_asyncio(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[FromAsyncio[T]]:
    """Use a device, or another async context manager of trio, from asyncio.

    ::

        async def double(device: Device, x: np.ndarray) -> np.ndarray:
            ref = await device.put(x)
            return await device.get(await device.blas.scal(2.0, ref))


        async def main() -> None:
            async with atomr_accel.from_asyncio(open_device(0)) as gpu:
                print(await gpu.run(double, np.ones(3)))


        asyncio.run(main())

    Trio runs in a thread. Refs and other objects of a device stay on that side: functions are sent
    there, and arrays come back. Leaving the block cancels the functions that still run. If the
    device is lost, the body is cancelled and the block raises ``DeviceLost``.

    Args:
        manager: the context manager to open, such as ``open_device(0)``.

    Raises:
        RuntimeError: the code does not run under asyncio. Under trio, use the context manager
            directly.
        Exception: an error of opening, such as ``DeviceUnavailable``.
        DeviceLost: the device was lost.
        ExceptionGroup: several things failed on trio's side.
    """
    passed_on(manager)
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "from_asyncio is for programs of asyncio, which does not run here; under trio, open "
            "it directly: `async with open_device(0) as device:`"
        ) from None
    body = asyncio.current_task()
    assert body is not None  # this is a coroutine
    portal = Portal(manager)
    portal.start()
    try:
        await _settled(portal.opened, portal.cancel)
    except BaseException:
        await _settled(portal.ended, portal.cancel)
        raise
    leaving = told = False

    def over() -> None:
        nonlocal told
        if not leaving and not body.done():
            told = body.cancel()

    def over_there(ended: Future[BaseException | None]) -> None:
        if ended.result() is not None:
            with suppress(RuntimeError):  # the loop is closed, so errors cannot be reported
                loop.call_soon_threadsafe(over)

    portal.ended.add_done_callback(over_there)
    error: BaseException | None = None
    try:
        try:
            yield FromAsyncio(portal)
        finally:
            leaving = True
            portal.close()
            await _settled(portal.ended, portal.cancel)
    except BaseException as raised:  # noqa: BLE001 (raised below)
        error = raised
    try:
        if told and not body.uncancel() and isinstance(error, asyncio.CancelledError):
            error = None
        failure = portal.ended.result()
        if failure is not None:
            raise failure from error
        if error is not None:
            raise error
    finally:
        del error  # its traceback has this frame in it


async def _settled(
    future: Future[R], cancel: Callable[[], None], failed: Callable[[], bool] = bool
) -> R:
    """Return the result of a future of the trio side, and pass cancellation on.

    An error takes priority over the cancellation, unless ``failed`` returns True. In that case the
    body or its call is cancelled because of the failure, which is raised once, elsewhere.
    """
    answer = asyncio.wrap_future(future)
    cancelled: asyncio.CancelledError | None = None
    while not answer.done():
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError as error:
            cancelled = error
            cancel()
    try:
        if cancelled is not None and (answer.exception() is None or failed()):
            raise cancelled from answer.exception()
        return answer.result()
    finally:
        del cancelled  # its traceback has this frame in it
