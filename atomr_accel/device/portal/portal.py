"""A trio run in a thread of its own, for programs that cannot run trio themselves."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, final

import trio

from ..._errors import DeviceLost, is_awaitable, said_of
from ...actors.nursery import PlainNursery

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_SIGNAL_SECONDS: Final = 0.5
"""Most seconds that Ctrl-C is not seen if it comes just before a thread blocks.

Python has noted the signal then, and calls its handler only when the thread goes on.
"""


@final
class FutureEnd:
    """The end of a future, which a thread waits for whatever interrupts it.

    A future's own methods take its lock in Python, where Ctrl-C can leave it locked; whoever gives
    the result would then wait for ever. A thread that may be interrupted calls them only before
    the work begins or after the end. In between it waits here.
    """

    def __init__(self, future: Future[Any]) -> None:
        self._done = False
        self._lock: Final = threading.Lock()
        self._lock.acquire()
        future.add_done_callback(self._tell)

    def _tell(self, _: Future[Any]) -> None:
        self._done = True
        self._lock.release()

    def wait(self) -> None:
        """Wait until the future is done."""
        while not self._done:
            # Whether done or interrupted between the two, the next wait does not need the lock.
            if self._lock.acquire(timeout=_SIGNAL_SECONDS):
                self._lock.release()


@final
class PortalCall(Generic[R]):
    """A call, which begins with ``start``.

    A caller that may be interrupted anywhere makes it first, and starts it where ``cancel`` and
    ``future`` are within its reach already.

    Attributes:
        future: gets the function's result or error; None if it was cancelled.
        end: the end of ``future``.
        cancelled: whether ``cancel`` has ended it. Known once the future is done.
    """

    def __init__(self, portal: Portal[Any], function: Callable[[], Awaitable[R]]) -> None:
        self.future: Final[Future[R | None]] = Future()
        self.end: Final = FutureEnd(self.future)
        self.cancelled: bool = False
        self._portal: Final = portal
        self._function: Final = function
        self._scope: Final = trio.CancelScope()
        self._begun = False  # used by the trio thread alone

    def start(self) -> None:
        """Call the function. After the portal's end, its future gets an error."""
        if self._is_awaited():
            self._portal._soon(self._begin)

    def cancel(self) -> None:
        """Cancel the function, which ends as usual in trio."""
        if self._is_awaited():
            self._portal._soon(self._stop)

    def _is_awaited(self) -> bool:
        """Have the portal's end answer this call; if that has been, answer it now."""
        portal = self._portal
        with portal._lock:
            over = portal._over
            if not over:
                portal._calls.add(self)
        if over:
            self._fail(portal.ended.result())
        return not over

    def _fail(self, failure: BaseException | None) -> None:
        """Answer with the portal's failure, unless there is an answer."""
        with suppress(InvalidStateError):
            self.future.set_exception(_over(failure))

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            # The block may be on its way out, its nursery closed: then its end answers the call.
            with suppress(RuntimeError):
                self._portal._nursery.start_soon(self._run)

    def _stop(self) -> None:
        self._scope.cancel()
        self._begin()  # an interrupted ``start`` may not have come to it
        if self.future.done():
            self._portal._calls.discard(self)

    async def _run(self) -> None:
        try:
            with self._scope:
                made = self._function()
                if not is_awaitable(made):
                    raise TypeError(
                        f"run takes an async function, and this one returned {said_of(made)}: "
                        "write `async def`"
                    )
                value = await made
        except Exception as error:  # noqa: BLE001 (it is the caller's)
            # Without this frame, which has the future, the two are no cycle.
            ours = error.__traceback__
            self.future.set_exception(error.with_traceback(ours and ours.tb_next))
            del ours
        else:
            self.cancelled = self._scope.cancelled_caught
            self.future.set_result(None if self.cancelled else value)
        # Any other exception ends the run, and the portal answers then.
        self._portal._calls.discard(self)
        # Frames in the error's traceback lead back to this one, which must not lead to the future.
        del self


@final
class Portal(Generic[T]):
    """Keeps a trio async context manager open in a thread, and calls functions with it.

    Its methods return at once, and futures hold the results.

    Attributes:
        opened: done when functions can be called. It holds the error if opening fails.
        ended: done when everything has ended, with the error of the block, if any.
        opening: the end of ``opened``.
        end: the end of ``ended``.
        closed: whether ``close`` was called.
    """

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        if not hasattr(type(manager), "__aenter__"):
            raise TypeError(
                "the argument must be what `async with` takes, such as "
                f"open_device(0), not {said_of(manager)}"
            )
        self.opened: Final[Future[None]] = Future()
        self.ended: Final[Future[BaseException | None]] = Future()
        self.opening: Final = FutureEnd(self.opened)
        self.end: Final = FutureEnd(self.ended)
        self.closed: bool = False
        self._manager: Final = manager
        self._scope: Final = trio.CancelScope()
        self._lock: Final = threading.Lock()
        # Under the lock: whether the thread serves, and has ended, or was cancelled before.
        self._serves = self._over = False
        # Under the lock: what the run is to do as soon as it has a token.
        self._token: trio.lowlevel.TrioToken | None = None
        self._early: list[Callable[[], object]] = []
        self._calls: set[PortalCall[Any]] = set()
        self._stop: Final = trio.Event()
        self._value: T
        self._nursery: trio.Nursery

    def start(self) -> None:
        """Begin the thread, which opens it."""
        # A daemon, so that a program that forgets to close it can end. Hosts end by themselves.
        threading.Thread(target=self._serve, name="trio", daemon=True).start()

    def prepared(
        self,
        function: Callable[Concatenate[T, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> PortalCall[R]:
        """Return a call of an async function with the opened object, after ``opened``."""
        if not callable(function):
            raise TypeError(f"the argument must be an async function, not {said_of(function)}")
        return PortalCall(self, partial(function, self._value, *args, **kwargs))

    def close(self) -> None:
        """Leave the block. Functions that still run are cancelled."""
        self.closed = True
        self._soon(self._stop.set)

    def cancel(self) -> None:
        """Cancel everything, also while it is being opened, or before."""
        with self._lock:
            never = not (self._serves or self._over)
            self._over = self._over or never
        if never:  # an interrupted ``start`` may have begun no thread; a late one does nothing
            self.ended.set_result(None)
            self.opened.set_result(None)
        self._soon(self._scope.cancel)

    def _soon(self, action: Callable[[], object]) -> None:
        with self._lock:
            if self._token is None:
                self._early.append(action)
                return
        with suppress(trio.RunFinishedError):  # a portal that has ended needs no calls
            self._token.run_sync_soon(action)

    def _serve(self) -> None:
        with self._lock:
            if self._over:
                return
            self._serves = True
        failure: BaseException | None = None
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 (whoever waits gets it)
            failure = error
        self.ended.set_result(failure)
        with self._lock:
            self._over = True
            calls, self._calls = self._calls, set()
        for call in calls:
            call._fail(failure)
        if not self.opened.done():
            if failure is None:
                self.opened.set_result(None)  # cancelled, and whoever did that knows
            else:
                self.opened.set_exception(failure)

    async def _main(self) -> None:
        with self._lock:
            self._token = trio.lowlevel.current_trio_token()
        for action in self._early:
            action()
        with self._scope:
            async with self._manager as self._value, PlainNursery() as self._nursery:
                self.opened.set_result(None)
                await self._stop.wait()
                self._nursery.cancel_scope.cancel()


def _over(failure: BaseException | None) -> Exception:
    """Return the error for calls after the end."""
    error: Exception
    if isinstance(failure, DeviceLost):
        error = DeviceLost(str(failure))
    else:
        error = RuntimeError("what was opened has been closed, and can be called no more")
    error.__cause__ = failure
    return error
