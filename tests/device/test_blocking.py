"""Devices from synchronous code: calls, errors, Ctrl-C, faults, and both ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import signal
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, assert_type

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import (
    Blocking,
    ContextPoisoned,
    Device,
    DeviceLost,
    DeviceUnavailable,
    GpuRef,
    GpuRefStale,
    open_blocking,
)
from atomr_accel.device.portal.portal import FutureEnd, PortalCall
from atomr_accel.testing import poison

from ..harness import AT_ONCE, BACKEND, SECONDS, cpu_only, opened


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Wait for the threads of trio that begin in a block."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name == "trio":
            thread.join(SECONDS)
            assert not thread.is_alive()


@asynccontextmanager
async def open_number(log: list[str] | None = None, fails: str = "") -> AsyncIterator[int]:
    """Something to open that costs nothing. ``fails`` says where: when it opens or closes."""
    if fails == "open":
        raise OSError("it cannot be opened")
    try:
        yield 7
    finally:
        if log is not None:
            log.append("closed")
        if fails == "close":
            raise OSError("it cannot be closed")


async def add(number: int, *others: int, times: int = 1) -> int:
    await trio.lowlevel.checkpoint()
    return times * sum((number, *others))


async def double(device: Device, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    ref = await device.put(x)
    return await device.get(await device.blas.scal(2.0, ref))


def press_ctrl_c() -> None:
    """Send the signal to the thread that waits, as the system does for a terminal."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


def test_functions_are_called_with_the_device() -> None:
    with no_thread_left(), open_blocking(0, backend=BACKEND, isolation="thread") as gpu:
        assert_type(gpu, Blocking[Device])
        assert (gpu.run(double, np.ones(3)) == 2).all()
        assert_type(gpu.run(double, np.ones(3)), np.ndarray[Any, Any])


def test_single_calls_are_methods_and_lambdas() -> None:
    with open_blocking(0, backend=BACKEND, isolation="thread") as gpu:
        a = gpu.run(lambda device: device.put(np.eye(3)))
        b = gpu.run(lambda device: device.blas.gemm(a, a))
        assert_type(b, GpuRef)
        assert (gpu.run(Device.get, b) == np.eye(3)).all()


@given(numbers=st.lists(st.lists(st.integers(), max_size=5), max_size=5), times=st.integers(0, 10))
@settings(deadline=None, max_examples=20)
def test_what_a_function_returns_or_raises_comes_back(numbers: list[list[int]], times: int) -> None:
    async def wrong(_number: int, error: Exception) -> None:
        raise error

    log: list[str] = []
    with no_thread_left(), open_blocking(open_number(log)) as number:
        assert_type(number, Blocking[int])
        for others in numbers:
            assert number.run(add, *others, times=times) == times * (7 + sum(others))
            mine = ValueError("an error of mine")
            with pytest.raises(ValueError, match="an error of mine") as caught:
                number.run(wrong, mine)
            assert caught.value is mine
        assert log == []
    assert log == ["closed"]


def test_threads_share_it() -> None:
    """Each waits for the other's event, so neither would end if they ran one after the other."""
    events = [trio.Event(), trio.Event()]

    async def meet(_number: int, mine: int) -> int:
        events[mine].set()
        await events[1 - mine].wait()
        return mine

    with open_blocking(open_number()) as number, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda mine: number.run(meet, mine), (0, 1), timeout=SECONDS)) == [
            0,
            1,
        ]


def test_what_opening_raises_is_raised_and_no_thread_is_left() -> None:
    with no_thread_left():
        with pytest.raises(OSError, match="cannot be opened"):
            open_blocking(open_number(fails="open"))
        with pytest.raises(DeviceUnavailable):
            open_blocking(0, backend="none such")
        with (
            pytest.raises(OSError, match="cannot be closed"),
            open_blocking(open_number(fails="close")),
        ):
            pass


def test_an_error_of_the_block_leaves_it_after_the_end() -> None:
    log: list[str] = []
    with no_thread_left(), pytest.raises(ZeroDivisionError), open_blocking(open_number(log)):
        1 // 0  # noqa: B018
    assert log == ["closed"]


def test_both_errors_are_seen_if_closing_fails_too() -> None:
    with (
        pytest.raises(OSError, match="cannot be closed") as caught,
        open_blocking(open_number(fails="close")),
    ):
        1 // 0  # noqa: B018
    assert isinstance(caught.value.__context__, ZeroDivisionError)


def test_it_can_be_closed_without_a_block_and_twice() -> None:
    log: list[str] = []
    with no_thread_left():
        number = open_blocking(open_number(log))
        assert number.run(add, 1) == 8
        number.close()
        number.close()
        assert log == ["closed"]
        with pytest.raises(RuntimeError, match="has been closed"):
            number.run(add, 1)


@pytest.mark.parametrize("inside", ["a task", "a function that it runs"])
def test_trio_tasks_are_sent_elsewhere(inside: str) -> None:
    with open_blocking(open_number()) as number:

        async def task(_number: int = 7) -> None:
            with pytest.raises(RuntimeError, match="open_blocking must be called where trio does"):
                open_blocking(0)
            with pytest.raises(RuntimeError, match="run must be called where trio does not run"):
                number.run(add, 1)
            with pytest.raises(RuntimeError, match="close must be called where trio does not run"):
                number.close()
            if inside == "a task":
                assert await trio.to_thread.run_sync(number.run, add, 1) == 8

        if inside == "a task":
            trio.run(task)
        else:
            number.run(task)
        assert number.run(add, 1) == 8


def test_wrong_arguments_are_refused_before_anything_begins() -> None:
    with no_thread_left():
        with pytest.raises(TypeError, match=r"settings must come with an index.*\['backend'\]"):
            open_blocking(open_number(), backend="cpu")  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="index must be"):
            open_blocking("0")  # type: ignore[call-overload]
        with open_blocking(open_number()) as number:
            with pytest.raises(TypeError, match="must be an async function, not int"):
                number.run(3)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="run takes an async function"):
                number.run(lambda value: value)  # type: ignore[arg-type, return-value]
            assert number.run(add) == 7


def test_ctrl_c_cancels_the_function_and_waits_for_its_end() -> None:
    log: list[str] = []

    async def interrupted(_number: int) -> None:
        try:
            press_ctrl_c()
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            log.append("cancelled")

    with no_thread_left():
        number = open_blocking(open_number(log))
        with pytest.raises(KeyboardInterrupt):
            number.run(interrupted)
        assert log == ["cancelled"]
        assert number.run(add, 1) == 8  # only the call has ended
        number.close()
        assert log == ["cancelled", "closed"]


@pytest.mark.parametrize("late", [False, True])
def test_ctrl_c_around_the_start_of_a_call_ends_it(
    monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    log: list[str] = []
    start = PortalCall.start

    def interrupted(call: PortalCall[None]) -> None:
        if late:
            start(call)
        raise KeyboardInterrupt

    async def work(_number: int) -> None:
        try:
            await trio.sleep_forever()
        finally:
            log.append("cancelled")

    with open_blocking(open_number(log)) as number:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(PortalCall, "start", interrupted)
            number.run(work)
        assert log == ["cancelled"]
        assert number.run(add, 1) == 8


_FOLDERS = tuple(
    str(Path(file).parent)
    for file in (sys.modules[PortalCall.__module__].__file__, concurrent.futures.__file__)
    if file is not None
)


def _starts_a_thread(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code is threading.Thread.start.__code__:
            return True
        frame = frame.f_back
    return False


class CtrlC:
    """Raises ``KeyboardInterrupt`` where this thread begins or leaves its n-th function.

    That is where Python may call a signal's handler. It counts functions of the portal and of
    futures; the wait for an end is the last one.
    """

    def __init__(self, left: int) -> None:
        self.left = left
        self.at_last = False

    def __call__(self, frame: FrameType, event: str, _: object) -> CtrlC | None:
        path = frame.f_code.co_filename
        if not path.startswith(_FOLDERS) and path != threading.__file__:
            return None
        if _starts_a_thread(frame):  # Python's own functions, which do not bear it
            return None
        if event in ("call", "return"):
            self.left -= 1
            self.at_last = frame.f_code is FutureEnd.wait.__code__
            if self.at_last or self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@contextmanager
def interrupted_each_time() -> Iterator[Callable[[], Iterator[CtrlC]]]:
    """Yield what to loop over, with something that is interrupted in each turn."""
    before = sys.gettrace()

    def turns() -> Iterator[CtrlC]:
        number, trace = 0, CtrlC(0)
        while not trace.at_last:
            number += 1
            trace = CtrlC(number)
            yield trace
        assert number > 3

    try:
        yield turns
    finally:
        sys.settrace(before)


def test_ctrl_c_anywhere_in_a_call_leaves_no_function_behind() -> None:
    log: list[str] = []

    async def work(_number: int) -> None:
        log.append("began")
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            log.append("ended")

    with open_blocking(open_number()) as number, interrupted_each_time() as turns:
        for trace in turns():
            log.clear()
            with pytest.raises(KeyboardInterrupt):
                sys.settrace(trace)
                number.run(work)
            seen = list(log)
            assert seen in ([], ["began", "ended"])
            assert number.run(add, 1) == 8
            assert log == seen


def test_ctrl_c_anywhere_in_opening_and_closing_leaves_no_thread_behind() -> None:
    log: list[str] = []

    with interrupted_each_time() as turns:
        for trace in turns():
            with no_thread_left(), pytest.raises(KeyboardInterrupt):
                sys.settrace(trace)
                open_blocking(open_number(log))
    with interrupted_each_time() as turns:
        for trace in turns():
            log.clear()
            with no_thread_left():
                number = open_blocking(open_number(log))
                with pytest.raises(KeyboardInterrupt):
                    sys.settrace(trace)
                    number.close()
                number.close()
                assert log == ["closed"]


def test_what_another_handler_of_a_signal_raises_ends_the_call_too() -> None:
    log: list[str] = []

    def handler(*_: object) -> None:
        raise TimeoutError("of a handler")

    async def work(_number: int) -> None:
        try:
            press_ctrl_c()
            await trio.sleep_forever()
        finally:
            log.append("cancelled")

    with open_blocking(open_number()) as number:
        before = signal.signal(signal.SIGINT, handler)
        try:
            with pytest.raises(TimeoutError, match="of a handler"):
                number.run(work)
        finally:
            signal.signal(signal.SIGINT, before)
        assert log == ["cancelled"]
        assert number.run(add, 1) == 8


def test_ctrl_c_while_it_opens_cancels_that() -> None:
    log: list[str] = []

    @asynccontextmanager
    async def opening() -> AsyncIterator[None]:
        try:
            press_ctrl_c()
            await trio.Event().wait()
            yield
        finally:
            log.append("cancelled")

    with no_thread_left(), pytest.raises(KeyboardInterrupt):
        open_blocking(opening())
    assert log == ["cancelled"]


def test_closing_cancels_functions_of_other_threads() -> None:
    began = threading.Event()

    async def begin(_number: int) -> None:
        began.set()
        await trio.sleep_forever()

    number = open_blocking(open_number())
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(number.run, begin)
        assert began.wait(SECONDS)
        number.close()
        with pytest.raises(RuntimeError, match="has been closed"):
            call.result(SECONDS)


def test_a_fault_ends_the_calls_and_not_the_device() -> None:
    with open_blocking(opened(backoff=AT_ONCE)) as gpu:
        sealed = gpu.run(lambda device: device.put(np.ones(3), sealed=True))
        plain = gpu.run(lambda device: device.put(np.ones(3)))
        assert isinstance(gpu.run(poison), ContextPoisoned)
        with pytest.raises(GpuRefStale):
            gpu.run(lambda device: device.get(plain))
        assert (gpu.run(lambda device: device.get(sealed)) == 1).all()

        async def again(device: Device) -> np.ndarray[Any, Any]:
            return await device.retry(double, device, np.ones(2))

        assert (gpu.run(again) == 2).all()


@cpu_only  # on CUDA the fault would be one of this process
def test_a_lost_device_is_told_once_for_each_call_and_at_the_end() -> None:
    async def lose(device: Device) -> None:
        await poison(device)  # under isolation="thread" for good
        await device.zeros(3)

    with no_thread_left():
        with pytest.raises(DeviceLost), open_blocking(opened(isolation="thread")) as gpu:
            with pytest.raises(DeviceLost):
                gpu.run(lose)
            with pytest.raises(DeviceLost, match="is lost"):
                gpu.run(double, np.ones(3))
        with pytest.raises(DeviceLost), open_blocking(opened(isolation="thread")) as gpu:
            gpu.run(lose)


def test_errors_leave_no_cycles() -> None:
    """An error in a cycle would keep the arrays of its frames until a collection."""

    async def wrong(_number: int, array: np.ndarray[Any, Any]) -> None:
        raise ValueError(array.size)

    def use(number: Blocking[int]) -> weakref.ref[np.ndarray[Any, Any]]:
        array = np.ones(3)
        with contextlib.suppress(ValueError):
            number.run(wrong, array)
        return weakref.ref(array)

    with open_blocking(open_number()) as number:
        number.run(add)
        gc.disable()
        try:
            kept = use(number)
            number.run(add)  # the thread has gone on, and lets go of its last call
            assert kept() is None
        finally:
            gc.enable()


def test_methods_of_the_device_are_missing_with_advice() -> None:
    with open_blocking(open_number()) as number:
        wrong: Any = number
        with pytest.raises(AttributeError, match=r"write gpu\.run\(Device\.put, \.\.\.\)"):
            wrong.put(np.ones(3))
        with pytest.raises(AttributeError, match=r"'blas'; .* write gpu\.run\(function\), with"):
            _ = wrong.blas
        with pytest.raises(AttributeError) as info:
            _ = wrong._core
        assert "write" not in str(info.value)
    with pytest.raises(AttributeError, match=r"write gpu\.run\(Device\.get, "):
        wrong.get(None)
