"""Devices from asyncio: calls, errors, cancellation, and both ends."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, assert_type

import numpy as np
import pytest
import trio

from atomr_accel import Device, DeviceLost, DeviceUnavailable, FromAsyncio, from_asyncio
from atomr_accel.actors import Actor, ActorSystem, Message, handler, open_actor_system
from atomr_accel.testing import kill_host

from ..harness import BACKEND, SECONDS, opened, refused


def in_asyncio(function: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of an async function: run by asyncio, and not for ever; no thread is left."""

    def test(**fixtures: Any) -> None:
        async def run() -> None:
            async with asyncio.timeout(SECONDS):
                await function(**fixtures)

        before = set(threading.enumerate())
        asyncio.run(run())
        for thread in set(threading.enumerate()) - before:
            if thread.name == "trio":
                thread.join(SECONDS)
                assert not thread.is_alive()

    test.__name__ = function.__name__
    test.__doc__ = function.__doc__
    return test


async def double(device: Device, x: np.ndarray[Any, Any], *, times: int = 1) -> Any:
    ref = await device.put(x)
    for _ in range(times):
        ref = await device.blas.scal(2.0, ref)
    return await device.get(ref)


@in_asyncio
async def test_functions_are_called_with_the_device() -> None:
    async with from_asyncio(opened(isolation="thread")) as gpu:
        assert_type(gpu, FromAsyncio[Device])
        assert (await gpu.run(double, np.ones(3), times=2) == 4).all()

        async def name(device: Device) -> str:
            return device.name

        assert_type(await gpu.run(name), str)
        assert ":0" in await gpu.run(name)


@in_asyncio
async def test_calls_run_side_by_side() -> None:
    async with from_asyncio(open_pair()) as pair:

        async def meet(events: tuple[trio.Event, trio.Event], mine: int) -> int:
            events[mine].set()
            await events[1 - mine].wait()
            return mine

        answers = await asyncio.gather(pair.run(meet, 0), pair.run(meet, 1))
        assert list(answers) == [0, 1]


@asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[trio.Event, trio.Event]]:
    yield trio.Event(), trio.Event()


@in_asyncio
async def test_errors_come_back_as_they_are() -> None:
    async with from_asyncio(opened(isolation="thread")) as gpu:

        async def wrong(device: Device) -> None:
            await device.blas.gemm(await device.put(np.ones((2, 3))), await device.put(np.eye(2)))

        with pytest.raises(ValueError, match="the inner dimensions differ"):
            await gpu.run(wrong)
        assert (await gpu.run(double, np.ones(3)) == 2).all()


@in_asyncio
async def test_a_cancelled_caller_leaves_when_its_function_has() -> None:
    log: list[str] = []

    async def dawdle(pair: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.lowlevel.checkpoint()
            log.append("cancelled")

    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    async with from_asyncio(open_pair()) as pair:
        task = asyncio.create_task(pair.run(dawdle))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["cancelled"]

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await pair.run(dawdle)
        assert log == ["cancelled"] * 2


@in_asyncio
async def test_asyncio_function_may_raise_another_error_when_cancelled() -> None:
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    async def stubborn(pair: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("mine")

    async with from_asyncio(open_pair()) as pair:
        task = asyncio.create_task(pair.run(stubborn))
        await begun.wait()
        task.cancel()
        with pytest.raises(KeyError, match=r"^'mine'$"):
            await task


@in_asyncio
async def test_leaving_cancels_what_still_runs() -> None:
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    async def forever(pair: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        await trio.sleep_forever()

    async with from_asyncio(open_pair()) as pair:
        task = asyncio.create_task(pair.run(forever))
        await begun.wait()
    with pytest.raises(RuntimeError, match="has been closed"):
        await task
    with pytest.raises(RuntimeError, match="has been closed"):
        await pair.run(forever)


@in_asyncio
async def test_from_asyncio_refuses_objects_that_it_cannot_open() -> None:
    await refused(DeviceUnavailable, "no backend 'tpu'", from_asyncio, opened(backend="tpu"))
    await refused(TypeError, "such as open_device", from_asyncio, 3)


@in_asyncio
async def test_opening_can_be_cancelled() -> None:
    log: list[str] = []
    loop, begun = asyncio.get_running_loop(), asyncio.Event()

    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        loop.call_soon_threadsafe(begun.set)
        try:
            await trio.sleep(math.inf)
            yield
        finally:
            log.append("left")

    async def use() -> None:
        async with from_asyncio(slow()):
            pytest.fail("opened")

    task = asyncio.create_task(use())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["left"]


@in_asyncio
async def test_cancelled_before_it_begins() -> None:
    async def use() -> None:
        async with from_asyncio(open_pair()):
            pytest.fail("opened")

    task = asyncio.create_task(use())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_asyncio
async def test_a_body_that_fails_or_is_cancelled_closes_it() -> None:
    with pytest.raises(KeyError, match=r"^'mine'$"):
        async with from_asyncio(opened(isolation="thread")):
            raise KeyError("mine")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), from_asyncio(open_pair()):
            await asyncio.sleep(SECONDS)


@in_asyncio
async def test_a_lost_device_cancels_the_body_and_leaves_as_from_a_nursery() -> None:
    async def lose(device: Device) -> None:
        await kill_host(device)
        await trio.sleep_forever()

    answers: list[BaseException] = []

    async def client(gpu: FromAsyncio[Device]) -> None:
        try:
            await gpu.run(lose)
        except DeviceLost as error:
            answers.append(error)

    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(DeviceLost):
        async with from_asyncio(opened(max_restarts=0)) as gpu:
            other = asyncio.create_task(client(gpu))
            await asyncio.sleep(SECONDS)
    await other
    (error,) = answers
    assert re.match(rf"{BACKEND}:0( \(\d+\))? is lost", str(error))
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing is left of the cancellation
    with pytest.raises(DeviceLost):
        await gpu.run(lose)


@in_asyncio
async def test_an_error_of_the_body_is_the_cause_of_what_leaves() -> None:
    async def lose(device: Device) -> None:
        await kill_host(device)
        await trio.sleep_forever()

    with pytest.raises(DeviceLost) as info:
        async with from_asyncio(opened(max_restarts=0)) as gpu:
            try:
                await gpu.run(lose)
            finally:
                raise KeyError("mine")
    assert isinstance(info.value.__cause__, KeyError)


@in_asyncio
async def test_from_asyncio_keeps_a_device_open_between_cells() -> None:
    """Each cell is a task of its own."""
    stack = AsyncExitStack()

    async def first() -> Any:
        return await stack.enter_async_context(from_asyncio(opened(isolation="thread")))

    gpu = await asyncio.create_task(first())
    answer = await asyncio.create_task(gpu.run(double, np.ones(3)))
    assert (answer == 2).all()
    await asyncio.create_task(stack.aclose())


@in_asyncio
async def test_actors_can_be_asked_too() -> None:
    class Square(Message[int]):
        n: int

    class Worker(Actor):
        @handler
        async def square(self, message: Square) -> int:
            return message.n**2

    @asynccontextmanager
    async def open_worker() -> AsyncIterator[Any]:
        async with open_actor_system("demo") as system:
            assert isinstance(system, ActorSystem)
            yield await system.spawn(Worker)

    async with from_asyncio(open_worker()) as worker:

        async def ask(ref: Any, n: int) -> int:
            answer: int = await ref.ask(Square(n))
            return answer

        assert await worker.run(ask, 12) == 144


@in_asyncio
async def test_many_calls_with_some_cancelled_are_all_answered() -> None:
    async def work(pair: Any, n: int) -> int:
        for _ in range(n % 5):
            await trio.lowlevel.checkpoint()
        return n

    async with from_asyncio(open_pair()) as pair:
        tasks = [asyncio.create_task(pair.run(work, n)) for n in range(200)]
        await asyncio.sleep(0)
        for task in tasks[::3]:
            task.cancel()
        for n, task in enumerate(tasks):
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == n
            assert task.cancelled() == (n % 3 == 0)


@in_asyncio
async def test_a_body_is_cancelled_while_it_calls_and_the_device_is_lost() -> None:
    async def lose(device: Device) -> None:
        await kill_host(device)
        await trio.sleep_forever()

    await call_and_wait(lose)


@in_asyncio
async def test_a_body_is_cancelled_after_its_call_has_raised_that_the_device_is_lost() -> None:
    async def lose(device: Device) -> None:
        await kill_host(device)
        await device.put(np.ones(3))

    await call_and_wait(lose)


async def call_and_wait(lose: Callable[[Device], Awaitable[None]]) -> None:
    cancelled = 0
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(DeviceLost):
        async with from_asyncio(opened(max_restarts=0)) as gpu:
            try:
                with contextlib.suppress(DeviceLost):
                    await gpu.run(lose)
                await asyncio.Event().wait()  # as a server does, for its next request
            except asyncio.CancelledError:
                cancelled += 1
                raise
    assert cancelled == 1
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing is left of the cancellation


@in_asyncio
async def test_a_body_that_waits_for_calls_of_others_is_cancelled() -> None:
    async def lose(device: Device) -> None:
        await kill_host(device)
        await trio.sleep_forever()

    with pytest.raises(DeviceLost):
        async with from_asyncio(opened(max_restarts=0)) as gpu:
            with contextlib.suppress(DeviceLost):
                await asyncio.gather(gpu.run(lose), gpu.run(lose))
            await asyncio.Event().wait()


def test_each_under_the_other_loop_says_what_to_write() -> None:
    async def under_asyncio() -> None:
        async with opened():
            pytest.fail("opened")

    async def under_trio() -> None:
        async with from_asyncio(opened()):
            pytest.fail("opened")

    with pytest.raises(RuntimeError, match=r"from_asyncio\(open_device\(0\)\)"):
        asyncio.run(under_asyncio())
    with pytest.raises(RuntimeError, match="under trio, open it directly"):
        trio.run(under_trio)
