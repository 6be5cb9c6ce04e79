"""Devices for synchronous programs: trio runs in a thread of its own, and calls block."""

from __future__ import annotations

import inspect
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    TypeVar,
    Unpack,
    final,
    overload,
)

import trio

from .._device import Device
from .._open import open_device
from .portal import Portal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from .._settings import DeviceSettings

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@final
class Blocking(Generic[T]):
    """The object that `open_blocking` returns, which calls async functions and waits for them.

    It is open from the start. ``with`` closes it, and so does ``close``. Several threads may use
    it at once: their functions run concurrently.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        portal: Final = Portal(manager)
        try:
            try:
                portal.start()
                portal.opening.wait()
            except BaseException:  # of a signal's handler, as Ctrl-C is
                portal.cancel()
                portal.end.wait()
                raise
            portal.opened.result()
        finally:
            self._portal: Final = portal
            del portal  # the traceback of an error has this frame in it

    def run(
        self,
        function: Callable[Concatenate[T, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call an async function with the opened object as its first argument, and wait for it.

        Ctrl-C cancels the function, waits until it has ended, and raises ``KeyboardInterrupt``. A
        second Ctrl-C does not wait. What another handler of a signal raises does the same.

        Args:
            function: the function to call: one of the program, a method such as ``Device.put``, or
                a lambda that makes one call.
            *args: its arguments after the opened object.
            **kwargs: its keyword arguments.

        Returns:
            The function's result.

        Raises:
            DeviceLost: the device was lost before the function was done.
            RuntimeError: it is closed, or this thread runs trio.
            TypeError: the function is not async.
            Exception: the error of the function.
        """
        _check_thread("run", "`await` the function directly")
        call = self._portal.prepared(function, *args, **kwargs)
        try:
            try:
                call.start()
                call.end.wait()
            except BaseException:  # of a signal's handler, as Ctrl-C is
                call.cancel()
                call.end.wait()
                raise
            return call.future.result()  # type: ignore[return-value] # None only if cancelled
        finally:
            del call  # the traceback of an error has this frame in it

    if not TYPE_CHECKING:  # else any name would be taken for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            advice = ""
            if not name.startswith("_"):
                if inspect.iscoroutinefunction(getattr(Device, name, None)):
                    write = f"gpu.run(Device.{name}, ...)"
                else:
                    write = "gpu.run(function), with an async function that takes the device"
                advice = f"; what was opened is used in its own thread: write {write}"
            raise AttributeError(
                f"'Blocking' object has no attribute {name!r}{advice}", name=name, obj=self
            )

    def close(self) -> None:
        """Close the opened object, and cancel functions that still run.

        A second call does nothing.

        Raises:
            DeviceLost: the device was lost.
            RuntimeError: this thread runs trio.
            Exception: any other error that leaves the opened block.
        """
        _check_thread("close", "close it in the thread that has opened it")
        portal, again = self._portal, self._portal.closed
        try:
            portal.close()
            portal.end.wait()
        except BaseException:  # of a signal's handler, as Ctrl-C is
            portal.cancel()
            portal.end.wait()
            raise
        failure = portal.ended.result()
        try:
            if failure is not None and not again:
                raise failure
        finally:
            del failure, portal  # the traceback of the error has this frame in it

    def __enter__(self) -> Blocking[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            # A call in the block has raised it already, or an error of the same cause.
            if error is not None and (error is failure or error.__cause__ is failure):
                return
            raise
        finally:
            del error  # its traceback has the caller's frame in it


@overload
def open_blocking(index: int = 0, /, **settings: Unpack[DeviceSettings]) -> Blocking[Device]: ...


@overload
def open_blocking(manager: AbstractAsyncContextManager[T], /) -> Blocking[T]: ...


def open_blocking(opening: Any = 0, /, **settings: Any) -> Blocking[Any]:
    """Use a device, or another async context manager of trio, from synchronous code.

    ::

        async def double(device: Device, x: np.ndarray) -> np.ndarray:
            ref = await device.put(x)
            return await device.get(await device.blas.scal(2.0, ref))


        with open_blocking(0) as gpu:
            print(gpu.run(double, np.ones(3)))

    Trio runs in a thread, in which all functions of ``run`` are called; this thread waits for
    them. If the device is lost, the next ``run`` raises ``DeviceLost``, and so does the end of the
    block. A device that is not closed stays open until the program ends.

    Args:
        opening: the device's index, or the context manager to open, such as
            ``open_devices([0, 1])``.
        **settings: the settings of ``open_device``, with an index.

    Returns:
        The open device, to be used with ``with`` or to be closed by ``close``.

    Raises:
        RuntimeError: this thread runs trio. Use ``async with open_device(0)`` there.
        TypeError: there are settings beside a context manager.
        Exception: an error of opening, such as ``DeviceUnavailable``.
    """
    _check_thread("open_blocking", "`async with` opens it directly")
    if not hasattr(type(opening), "__aenter__"):
        return Blocking(open_device(opening, **settings))
    if settings:
        raise TypeError(
            f"settings must come with an index, not with a context manager; give {[*settings]} to "
            "the function that made it"
        )
    return Blocking(opening)


def _check_thread(name: str, instead: str) -> None:
    if trio.lowlevel.in_trio_run():
        raise RuntimeError(
            f"{name} must be called where trio does not run, not in a task: it would block all "
            f"others; {instead}"
        )
