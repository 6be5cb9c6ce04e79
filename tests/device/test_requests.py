"""Requests: their destination, the errors for a wrong one, and their leftovers."""

from __future__ import annotations

import gc
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import Device, GpuRef, GpuRefStale, open_system
from atomr_accel.actors import Actor, Backoff, Directive, Message, Strategy, Supervision, handler
from atomr_accel.libraries.blas.checks import LANE
from atomr_accel.libraries.nccl.lanes import ABORTS, COLLECTIVES
from atomr_accel.libraries.registry import catalogue
from atomr_accel.ops import Preparer, Request, Submission, perform
from atomr_accel.testing.garbage import collect_garbage
from tests.harness import BACKEND, SECOND, cpu_only, on_shared, opened, settled

EYE = np.eye(2, dtype=np.float32)
KERNEL = 'extern "C" __global__ void nothing() {}'


# --- sent elsewhere --------------------------------------------------------------------------


def test_each_lane_is_a_librarys() -> None:
    of_worlds = {COLLECTIVES.name, ABORTS.name}
    assert sorted(catalogue().library_of_lane) == sorted({*catalogue().lanes} - of_worlds)


async def _requests_of(device: Device) -> dict[str, Request[Any]]:
    """Return requests that name no buffer: only their maker says which device they belong to."""
    requests = device.requests
    generator = device.rng.default_rng(seed=1)
    kernel = await device.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
    return {
        "rng": requests.rng.normal(size=4),
        "a generator": requests.using(generator).normal(size=4),
        "one it has made": requests.rng.default_rng(seed=1).normal(size=4),
        "a kernel": requests.using(kernel).launch(1, 1),
        "nvrtc": requests.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None),
    }


async def test_a_request_is_carried_out_on_the_device_that_made_it_alone() -> None:
    async with open_system("app") as system:
        one = await system.spawn_device(0, backend=BACKEND, name="one")
        two = await system.spawn_device(SECOND, backend=BACKEND, name="two")
        for what, request in (await _requests_of(two)).items():
            library = "nvrtc" if what in ("a kernel", "nvrtc") else "rng"
            said = rf"made by the requests of {re.escape(two.name)}.*sent to {re.escape(one.name)}"
            with pytest.raises(ValueError, match=said):
                await getattr(one, library).ref.ask(request)
            async with one.batch() as batch:
                with pytest.raises(ValueError, match=said):
                    batch.perform(request)
            await getattr(two, library).ref.ask(request)


async def test_request_of_another_device_is_refused_with_both_names() -> None:
    async with opened() as one, opened(SECOND) as two:
        generator = two.rng.default_rng(seed=1)
        kernel = await two.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
        both = f"{re.escape(one.name)}, not .*{re.escape(two.name)}"
        for made in (generator, kernel, two.rng):
            with pytest.raises(TypeError, match=both):
                one.requests.using(made)
            async with one.batch() as batch:
                with pytest.raises(TypeError, match=both):
                    batch.using(made)
        async with one.batch() as batch:
            with pytest.raises(TypeError, match=both):
                batch.launch(kernel, 1, 1)


@on_shared
async def test_a_librarys_actor_takes_its_own_requests_alone(device: Device) -> None:
    x = await device.put(np.ones(4, np.complex64))
    request = device.requests.fft.fft(x)
    for name in catalogue().facades:
        if name != "fft":
            with pytest.raises(TypeError, match=rf"fft\.fft.*/device-0/{name}.*device\.fft\.ref"):
                await getattr(device, name).ref.ask(request)
    kernel = await device.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
    launch = device.requests.using(kernel).launch(1, 1)
    with pytest.raises(TypeError, match=r"kernel nothing.*device\.nvrtc\.ref"):
        await device.blas.ref.ask(launch)
    await device.nvrtc.ref.ask(launch)
    assert (await device.get(await device.fft.ref.ask(request))).tolist() == [4, 0, 0, 0]


@on_shared
async def test_messages_are_ordered_with_asks_but_not_with_calls(device: Device) -> None:
    """Ordering follows the documentation: a message passes a mailbox, a call does not."""
    for _ in range(5):
        x = await device.put(np.ones(3, np.float32))
        double = device.requests.blas.scal(2.0, x)
        device.blas.ref.tell(double)
        assert (await device.get(x)).tolist() in ([1, 1, 1], [2, 2, 2])
        await device.blas.ref.ask(double)
        await device.blas.scal(2.0, x)
        assert (await device.get(x)).tolist() == [8, 8, 8]


# --- given where something else is wanted ----------------------------------------------------


@on_shared
async def test_a_library_is_nothing_that_it_has_made(device: Device) -> None:
    async with device.batch() as batch:
        for library in (device.rng, batch.rng, device.requests.rng):
            for use in (batch, device.requests):
                using: Any = use.using
                with pytest.raises(TypeError, match=r"rng is a library itself.*as its attribute"):
                    using(library)
        generator: Any = batch.rng.default_rng(seed=1)
        with pytest.raises(TypeError, match=r"in a batch, .* have it made by the device"):
            device.requests.using(generator)
        with pytest.raises(TypeError, match="GpuRef was not made by a library"):
            batch.using(batch.put(EYE))  # type: ignore[call-overload]


@on_shared
async def test_a_request_is_not_awaited(device: Device) -> None:
    x = await device.put(EYE)
    request: Any = device.requests.blas.gemm(x, x)
    with pytest.raises(TypeError, match=r"blas\.gemm.*device\.ref\.ask\(request\)"):
        await request
    kernel = await device.nvrtc.compile(KERNEL, "nothing", cpu=lambda: None)
    request = device.requests.using(kernel).launch(1, 1)
    with pytest.raises(TypeError, match=r"kernel nothing.*batch\.perform\(request\)"):
        await request


def _same(thing: object) -> object:
    return thing


@pytest.mark.slow
@on_shared
async def test_a_function_is_not_given_what_is_there_later(device: Device) -> None:
    x = await device.put(EYE)
    request = device.requests.blas.gemm(x, x)
    with pytest.raises(TypeError, match=r"not the request blas\.gemm: carry it out first"):
        await device.run(_same, {"nested": request})
    with pytest.raises(TypeError, match=r"given, a coroutine: did you forget `await` before gemm"):
        await device.run(_same, [device.blas.gemm(x, x)])
    async with device.batch() as batch:
        later = batch.run(_same, 1)
        with pytest.raises(TypeError, match=r"batch\.run has returned.*pass `later\.value`"):
            batch.run(_same, later)
        with pytest.raises(TypeError, match=r"not the request blas\.gemm: carry"):
            batch.run(_same, request)
        with pytest.raises(TypeError, match=r"given, a coroutine: did you forget `await`"):
            batch.run(_same, device.blas.gemm(x, x))
    with pytest.raises(TypeError, match=r"batch\.run has returned.*pass `later\.value`"):
        async with device.batch() as batch:
            later = batch.run(_same, 1)
            batch.run(_same, {"nested": later})
    async with device.batch() as batch:
        later = batch.run(_same, 1)
    with pytest.raises(TypeError, match=r"batch\.run has returned.*pass `later\.value`"):
        await device.run(_same, later)
    assert await device.run(_same, later.value) == 1


# --- what a failed one leaves ----------------------------------------------------------------


class Borrow(Message[None]):
    ref: GpuRef


class Lender(Actor):
    """Fails on all that it is given."""

    @handler
    async def borrow(self, message: Borrow) -> None:
        raise KeyError(message.ref.shape)


@contextmanager
def no_garbage_is_collected() -> Iterator[None]:
    collect_garbage()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _used(device: Device) -> int:
    while device.statistics().memory.dropped:
        """Each look frees some."""
    return device.statistics().memory.used


INDEX = 'extern "C" __global__ void index(float* x) {}'


def _index(x: Any) -> None:
    x[1000] = 0


@on_shared
async def test_the_error_of_a_failed_ask_goes_with_what_it_was_asked_for(device: Device) -> None:
    requests, ref = device.requests.blas, device.blas.ref
    warm = await device.put(np.ones((4, 4), np.float32))
    await ref.ask(requests.gemm(warm, warm))
    stale = await device.put(np.ones((4, 4), np.float32))
    await device.free(stale)
    calls: dict[str, tuple[type[Exception], Callable[[GpuRef], Request[Any]]]] = {
        "refused at once": (ValueError, lambda x: requests.gemm(x, x[:1])),
        "stale": (GpuRefStale, lambda x: requests.gemm(x, stale)),
        "of another library": (TypeError, device.requests.fft.fft),
    }
    if device.backend == "cpu":
        kernel = await device.nvrtc.compile(INDEX, "index", cpu=_index)
        launch = device.requests.using(kernel).launch
        calls["failed on the lane"] = IndexError, lambda x: launch(1, 1, x)
    await settled(device)  # an answer may come before it is known that the op is over
    with no_garbage_is_collected():
        before = _used(device)
        for what, (expected, make) in calls.items():
            for _ in range(3):
                x = await device.put(np.full((4, 4), -1, np.float32))
                try:
                    request = make(x)
                    library = device.nvrtc.ref if request.name == "kernel index" else ref
                    await library.ask(request)
                except expected:
                    pass
                else:
                    raise AssertionError(what)
                del x, request
                await settled(device)
                assert _used(device) == before, what


@pytest.mark.parametrize("directive", [Directive.RESUME, Directive.RESTART])
async def test_the_error_of_an_actor_goes_with_the_message(
    directive: Directive, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is logged refers to the error, and pytest keeps it.
    monkeypatch.setattr(logging.getLogger("atomr_accel.actors"), "disabled", True)
    judged = Supervision(decider=lambda *_: directive, backoff=Backoff(base=0.0))
    async with open_system("app", supervision=judged) as system:
        device = await system.spawn_device(0, backend=BACKEND)
        await device.get(await device.put(np.ones(100)))
        lender = await system.spawn(Lender)
        await settled(device)
        with no_garbage_is_collected():
            before = _used(device)
            x = await device.put(np.ones(100))
            with suppress(KeyError):
                await lender.ask(Borrow(x))
            del x
            await trio.testing.wait_all_tasks_blocked()
            await settled(device)
            assert _used(device) == before


@on_shared
async def test_answers_belong_to_what_was_asked(device: Device) -> None:
    """A kept answer is not asked for again, and only its question gets it."""
    kept: dict[str, str] = {}

    def saying(text: str) -> Request[str]:
        return Request(LANE, text, lambda _preparer: Submission(None, (), (), text), ("says", text))

    def prepare(preparer: Preparer) -> Submission[str]:
        for text in "ab":
            if text not in kept:
                kept[text] = preparer.perform(saying(text)) or ""
        return Submission(
            None, (), (), kept["a"] + kept["b"] + (preparer.perform(saying("c")) or "")
        )

    submitter: Any = device.blas.home
    assert await perform(submitter, Request(LANE, "all", prepare)) == "abc"


@cpu_only  # on a card the answer came before the stop
async def test_questions_wait_while_a_supervisor_restarts_the_device() -> None:
    together = Supervision(strategy=Strategy.ONE_FOR_ALL, backoff=Backoff(base=0.0))
    async with open_system("app", supervision=together) as system:
        lender = await system.spawn(Lender)
        device = await system.spawn_device(0, backend=BACKEND)
        a = await device.put(np.eye(4), sealed=True)
        library = device.blas.ref
        await lender.stop()
        failing = await system.spawn(Lender)
        with suppress(KeyError):
            await failing.ask(Borrow(a))
        # The device is being stopped, to be started again with its sibling.
        product = await library.ask(device.requests.blas.gemm(a, a))
        assert (await device.get(product)).trace() == 4.0
        assert device.ref.statistics().restarts == 1
        assert device.blas.ref is library
