"""Mistakes of the first hours, each with the sentence that says what to write."""

from __future__ import annotations

import functools
import gc
import re
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device, GpuRef, open_device
from atomr_accel.actors.blocks import opens
from atomr_accel.actors.nursery import PlainNursery
from atomr_accel.device.batches.batch import Batch
from atomr_accel.patterns import open_batcher, open_fair_share
from atomr_accel.replay import open_journal
from atomr_accel.telemetry import Metrics

from ..harness import cpu_only, on_shared, opened

SOURCE = 'extern "C" __global__ void twice(double *x) {}'
PACKAGES = ("", ".actors", ".dashboard", ".patterns", ".replay", ".telemetry", ".worlds")


async def same(items: list[int]) -> list[int]:
    return items


async def awaits(thing: Any) -> Any:
    return await thing


def entered(block: Any) -> Any:
    with block:
        pytest.fail("entered")


def uses_a_lock() -> Callable[[], object]:
    lock = threading.Lock()

    def inner() -> object:
        return lock

    return lambda: inner()


def in_batch(body: Callable[[Any, Batch, GpuRef], Awaitable[object]]) -> Any:
    """Make a case of a body of a batch."""

    async def case(device: Any, x: GpuRef) -> None:
        async with device.batch() as batch:
            await body(device, batch, x)

    return case


async def get_in_batch(device: Device, _batch: Batch, x: GpuRef) -> None:
    await device.get(x)


async def get_result_in_batch(device: Device, batch: Batch, x: GpuRef) -> None:
    await device.get(batch.blas.gemm(x, x))


async def get_in_task_of_batch(device: Device, batch: Batch, x: GpuRef) -> None:
    failed: list[RuntimeError] = []

    async def fetch() -> None:
        try:
            await device.get(x)
        except RuntimeError as error:
            failed.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
    raise failed[0]


async def await_in_batch(_: Device, batch: Any, x: GpuRef) -> None:
    await batch.blas.gemm(x, x)


async def await_get_in_batch(_: Device, batch: Any, x: GpuRef) -> None:
    await batch.get(x)


async def index_get_in_batch(_: Device, batch: Any, x: GpuRef) -> None:
    batch.get(x)[0]


async def forget_gemm_in_batch(device: Device, batch: Batch, x: GpuRef) -> None:
    device.blas.gemm(x, x)  # type: ignore[unused-coroutine]


async def forget_launch_in_batch(device: Device, batch: Batch, x: GpuRef) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "twice", cpu=lambda x: None)
    kernel.launch(1, 1, x)  # type: ignore[unused-coroutine]


async def launch_an_array(device: Device, x: GpuRef) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "twice", cpu=lambda x: None)
    await kernel.launch(1, 1, np.eye(3))  # type: ignore[arg-type]


async def launch_an_expression(device: Device, x: GpuRef) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "twice", cpu=lambda x: None)
    await kernel.launch(1, 1, x + 1)  # type: ignore[arg-type]


Case = tuple["Callable[[Any, Any], Any]", type[Exception], str]
OUTSIDE = (
    "device.get must be called outside of a batch's block, because the batch's ops may not have "
    "begun, not inside; write: later = batch.get(...), and later.value after the block"
)
BATCH = "a batch begins with a block; write: async with device.batch() as batch"
LATER = "this is a result of a batch: use `later.value` after the batch's block"


def unopened(call: Callable[[Any, Any], Any], opener: str, block: str = "") -> Case:
    """Make a case of an opener whose block is not entered, or not as it must be."""
    block = block or f"{opener}(...) as x"
    return call, TypeError, f"{opener}() opens with a block; write: async with {block}"


MISTAKES: dict[str, Case] = {
    # blocks
    "await open_device": unopened(lambda d, x: awaits(open_device(0)), "open_device"),
    "await open_batcher": unopened(
        lambda d, x: awaits(open_batcher(same, max_size=4)), "open_batcher"
    ),
    "with open_batcher": unopened(
        lambda d, x: entered(open_batcher(same, max_size=4)), "open_batcher"
    ),
    "open_batcher not entered": unopened(
        lambda d, x: open_batcher(same, max_size=4)(3),  # type: ignore[operator]
        "open_batcher",
    ),
    "open_batcher not entered, ask": (
        lambda d, x: open_batcher(same, max_size=4).ask(3),  # type: ignore[attr-defined]
        AttributeError,
        "write: async with open_batcher(...) as x, and then x.ask",
    ),
    "open_fair_share not entered": (
        lambda d, x: open_fair_share(capacity=2).slot("a"),  # type: ignore[attr-defined]
        AttributeError,
        "write: async with open_fair_share(...) as x, and then x.slot",
    ),
    "await open_journal": unopened(
        lambda d, x: awaits(open_journal(d, "never.journal")), "open_journal"
    ),
    "await scope": unopened(lambda d, x: awaits(d.scope()), "scope", "device.scope(...) as x"),
    "with scope": unopened(lambda d, x: entered(d.scope()), "scope", "device.scope(...) as x"),
    "for watch_generation": unopened(
        lambda d, x: aiter(d.watch_generation()), "watch_generation", "device.watch_generation(...)"
    ),
    "with batch": (lambda d, x: entered(d.batch()), TypeError, BATCH),
    "await batch": (lambda d, x: awaits(d.batch()), TypeError, BATCH),
    "await record": (
        lambda d, x: awaits(d.record(x)),
        TypeError,
        "a recording begins with a block; write: async with device.record(...) as recording",
    ),
    "observe as async with": (
        lambda d, x: awaits(Metrics().observe(d)),
        TypeError,
        "observe() opens with a block; write: with metrics.observe(...)",
    ),
    # names
    "open_device(backnd=)": (
        lambda d, x: open_device(0, backnd="cpu"),  # type: ignore[call-arg]
        TypeError,
        "open_device() got an unexpected keyword argument 'backnd'; write backend=",
    ),
    "open_batcher(max_sze=)": (
        lambda d, x: open_batcher(same, max_sze=4),  # type: ignore[call-overload]
        TypeError,
        "open_batcher() got an unexpected keyword argument 'max_sze'; write max_size=",
    ),
    "open_batcher(sytem=)": (
        lambda d, x: open_batcher(same, max_size=4, sytem=None),  # type: ignore[call-overload]
        TypeError,
        "open_batcher() got an unexpected keyword argument 'sytem'; write system=",
    ),
    # values
    "await an expression": (
        lambda d, x: awaits(x + 1),
        TypeError,
        (
            "an expression is not awaited itself; write: ref = await device.evaluate(expression), "
            "or array = await device.get(expression)"
        ),
    ),
    "await a ref": (
        lambda d, x: awaits(x),
        TypeError,
        (
            "a GpuRef is not awaited, because it is a result; leave out `await`, as before all "
            "methods of a batch or a recording, which return at once"
        ),
    ),
    "fill with a ref": (
        lambda d, x: d.fill(x, x),
        TypeError,
        (
            "the value must be a number, not GpuRef; to write one buffer to another: "
            "await device.copy(value, ref)"
        ),
    ),
    "fill with an expression": (
        lambda d, x: d.fill(x, x + 1),
        TypeError,
        "the value must be a number, not Expression; to write one buffer to another",
    ),
    "fill with an array": (
        lambda d, x: d.fill(x, np.eye(3)),
        ValueError,
        (
            "must be a scalar, not of shape (3, 3); to write an array: "
            "await device.copy(await device.put(value), ref)"
        ),
    ),
    "fill without await": (
        lambda d, x: d.fill(x, d.put(1.0)),
        TypeError,
        "the value must be a number, not coroutine: did you forget `await` before put(...)?",
    ),
    "backward": (
        lambda d, x: x.backward(),
        AttributeError,
        "'GpuRef' object has no attribute 'backward'; there is no automatic differentiation",
    ),
    "backward of an expression": (
        lambda d, x: (x + 1).sum().backward(),
        AttributeError,
        "'Expression' object has no attribute 'backward'; there is no automatic differentiation",
    ),
    "requires_grad": (
        lambda d, x: x.requires_grad_(),
        AttributeError,
        "let another library do it in the device's memory: await device.run(function, x)",
    ),
    "launch with an array": (
        launch_an_array,
        TypeError,
        "argument 0 must be a scalar or a GpuRef, not ndarray; put it on the device first",
    ),
    "launch with an expression": (
        launch_an_expression,
        TypeError,
        "evaluate it first: await device.evaluate(expression)",
    ),
    # batches
    "get in a batch": (in_batch(get_in_batch), RuntimeError, OUTSIDE),
    "get of a result in a batch": (in_batch(get_result_in_batch), RuntimeError, OUTSIDE),
    "get in a task of a batch": (in_batch(get_in_task_of_batch), RuntimeError, OUTSIDE),
    "await in a batch": (in_batch(await_in_batch), TypeError, "leave out `await`"),
    "await batch.get": (in_batch(await_get_in_batch), TypeError, LATER),
    "batch.get()[0]": (in_batch(index_get_in_batch), TypeError, LATER),
    "a forgotten gemm in a batch": (
        in_batch(forget_gemm_in_batch),
        TypeError,
        (
            "an op in a batch's block must be awaited or be the batch's, not neither, because then "
            "it does nothing; write: batch.blas.gemm(...)"
        ),
    ),
    "a forgotten launch in a batch": (
        in_batch(forget_launch_in_batch),
        TypeError,
        "write: batch.using(kernel).launch(...)",
    ),
}


@pytest.mark.parametrize(("call", "kind", "sentence"), MISTAKES.values(), ids=MISTAKES)
@cpu_only
@on_shared
async def test_mistake_says_what_to_write(
    device: Device, call: Callable[[Any, Any], Any], kind: type[Exception], sentence: str
) -> None:
    x = await device.put(np.eye(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the error is all there is to read
        with pytest.raises(kind, match=re.escape(sentence)):
            await call(device, x)
    np.testing.assert_array_equal(await device.get(x), np.eye(3))


LOCK = threading.Lock()
UNPICKLED: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "variable": (uses_a_lock(), (), "the variable 'lock', which 'inner' uses, in the variable 'in"),
    "argument": (np.add, (1, LOCK), "argument 1 of the function"),
    "partial": (functools.partial(np.add, LOCK), (), "argument 0 of the partial"),
    "named": (functools.partial(np.add, x=LOCK), (), "argument 'x' of the partial"),
    "default": (lambda x=LOCK: x, (), "the default of argument 'x' of '<lambda>'"),
    "global": (lambda: LOCK, (), "the variable 'LOCK', which '<lambda>' uses"),
}


@pytest.mark.parametrize(("function", "args", "said"), UNPICKLED.values(), ids=UNPICKLED)
@cpu_only
async def test_function_that_does_not_pickle_names_the_variable(
    function: Any, args: tuple[Any, ...], said: str
) -> None:
    async with opened() as device:
        with pytest.raises(TypeError, match=r"cannot pickle '_thread\.lock' object: it is") as info:
            await device.run(function, *args)
        assert said in str(info.value)
        assert "make it in the function itself, or in `init`" in str(info.value)


def functions_that_open() -> dict[str, Any]:
    modules = [import_module(f"atomr_accel{name}") for name in PACKAGES]
    return {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in modules
        for name in module.__all__
        if name.startswith("open_") and name != "open_blocking"  # what it returns is open
    }


@pytest.mark.parametrize("function", functions_that_open().values(), ids=functions_that_open())
def test_every_function_that_opens_says_the_same(function: Any) -> None:
    async def nothing() -> AsyncIterator[None]:
        yield

    assert function.__code__ is opens(nothing).__code__
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'colour'; it takes"):
        function(colour="red")


def test_there_are_functions_that_open() -> None:
    assert len(functions_that_open()) > 10


async def test_block_that_is_not_entered_warns_in_its_line() -> None:
    async with opened(isolation="thread") as device:
        for make, line in (
            (lambda: Metrics().observe(device), "with metrics.observe(...)"),
            (lambda: open_batcher(same, max_size=4), "async with open_batcher(...) as x"),
        ):
            with pytest.warns(RuntimeWarning, match="never entered, so it did nothing") as caught:
                make()
            assert line in str(caught[0].message)
            assert caught[0].filename == __file__


async def test_an_entered_block_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with opened(isolation="thread") as device:
            with Metrics().observe(device):
                block = open_batcher(same, max_size=4)
                async with block as batcher:
                    assert await batcher(3) == 3
                with pytest.raises(AttributeError, match=r"and then x\.ask"):
                    block.ask  # type: ignore[attr-defined] # noqa: B018
            del block
        gc.collect()


@on_shared
async def test_missing_attribute_has_pythons_own_suggestion(
    device: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    x = await device.put(np.eye(2))
    for thing, wrong, right in (
        (device, "blass", "blas"),
        (device.blas, "gemmm", "gemm"),
        (device.batch(), "evalute", "evaluate"),
        (x, "shpe", "shape"),
    ):
        with pytest.raises(AttributeError) as info:
            getattr(thing, wrong)
        sys.__excepthook__(info.type, info.value, None)
        assert f"Did you mean: '{right}'?" in capsys.readouterr().err


@pytest.mark.parametrize("places", [1, 2])
@pytest.mark.parametrize("nested", [False, True], ids=["itself", "in a task"])
async def test_batcher_that_asks_itself_raises(nested: bool, places: int) -> None:
    async def ask_own(items: list[int]) -> list[int]:
        if not nested:
            return [await batcher(item) for item in items]
        async with PlainNursery() as nursery:
            for item in items:
                nursery.start_soon(batcher, item)
        return items

    with trio.fail_after(10):
        async with open_batcher(ask_own, max_size=4, max_in_flight=places) as batcher:
            with pytest.raises(RuntimeError, match="a batcher's function asks its own batcher"):
                await batcher(3)


async def test_batcher_may_be_asked_by_a_task_that_its_function_leaves_behind() -> None:
    answers: list[int] = []

    async def later(item: int) -> None:
        answers.append(await batcher(item))

    async def function(items: list[int]) -> list[int]:
        for item in items:
            if item < 2:
                outer.start_soon(later, item + 1)
        return items

    async with open_batcher(function, max_size=4) as batcher, trio.open_nursery() as outer:
        answers.append(await batcher(0))
    assert answers == [0, 1, 2]


async def test_other_tasks_and_devices_get_while_a_batch_is_open() -> None:
    async with opened(isolation="thread") as device, opened(isolation="thread") as other:
        x, y = await device.put(np.eye(2)), await other.put(np.eye(2))

        fetched = trio.Event()

        async def fetch() -> None:
            await device.get(x)
            fetched.set()

        async with trio.open_nursery() as nursery:
            async with device.batch() as batch:
                nursery.start_soon(fetch)
                await fetched.wait()
                await other.get(y)
                product = batch.blas.gemm(x, x)
            async with device.batch(), device.batch():
                pass
        np.testing.assert_array_equal(await device.get(product), np.eye(2))


async def test_ops_that_are_awaited_later_are_not_forgotten() -> None:
    async with opened(isolation="thread") as device:
        x = await device.put(np.eye(2))
        async with trio.open_nursery() as nursery, device.batch():
            for _ in range(200):
                nursery.start_soon(device.blas.gemm, x, x)
            call = device.blas.gemm(x, x)
            await device.blas.gemm(x, x)
        np.testing.assert_array_equal(await device.get(await call), np.eye(2))
