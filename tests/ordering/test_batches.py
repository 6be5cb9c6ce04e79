"""Batches: refs at once, one wait for all, errors at the end."""

from __future__ import annotations

import contextlib
import gc
import itertools
import select
import sys
import weakref
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    GpuRef,
    GpuRefSealed,
    GpuRefStale,
    Unsupported,
    open_system,
)
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing._faults import FAULTS, simulate, source_of
from atomr_accel.testing.garbage import collect_garbage

from ..harness import (
    AT_ONCE,
    BACKEND,
    ON_CUDA,
    Gate,
    cancelled_at,
    needs_nvrtc,
    on_shared,
    opened,
    settled,
    used_by,
)
from .programs import ADD, REFUSED, SIDE, SOURCE, add, adder, launched, mix

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests


@pytest.mark.slow
@settings(max_examples=30)
@given(count=st.integers(0, 100), seed=st.integers(0, 99))
@on_shared
async def test_a_batch_computes_what_one_op_after_the_other_does(
    device: Device, count: int, seed: int
) -> None:
    host = np.random.default_rng(seed).integers(-1, 2, (4, 4)).astype(np.float32)
    signs = np.sign(host @ host)
    a = await device.put(host)
    async with device.batch() as batch:
        refs = [batch.blas.gemm(a, a) for _ in range(count)]
        pairs = [batch.blas.gemm(one, other) for one, other in itertools.pairwise(refs)]
    for ref in (*refs[-3:], *pairs[-3:]):
        expected = host @ host if {ref} & {*refs} else host @ host @ host @ host
        assert np.array_equal(await device.get(ref), expected)
    assert np.array_equal(np.sign(host @ host), signs)


@on_shared
async def test_puts_and_gets_keep_their_order(device: Device) -> None:
    kernel = await adder(device)
    x = await device.put(np.zeros(4, np.float32))
    async with device.batch() as batch:
        batch.launch(kernel, 1, 4, x, 1.0)
        first = batch.get(x)
        batch.launch(kernel, 1, 4, x, 10.0)
        second = batch.get(x)
        y, z = batch.put(np.full(4, 5, np.float32)), batch.put(np.full((2, 2), 7, ">f4"))
        batch.launch(kernel, 1, 4, y, 2.0)
        third, fourth = batch.get(y), batch.get(z)
        batch.launch(kernel, 1, 4, y, 1.0)
        hollow = batch.get(batch.empty((2, 2), np.int16))
    assert (first.value[0], second.value[0], third.value[0]) == (1, 11, 7)
    assert fourth.value.tolist() == [[7, 7], [7, 7]]
    assert (hollow.value.shape, hollow.value.dtype) == ((2, 2), np.int16)
    assert (await device.get(x)).tolist() == [11] * 4
    assert (await device.get(y)).tolist() == [8] * 4
    assert (await device.get(z)).dtype == np.float32


@pytest.mark.parametrize("size", [4, 1 << 18])  # the larger one is fetched as the block is left
@pytest.mark.parametrize("how", ["well", "block", "op"])
@on_shared
async def test_a_get_has_no_value_before_its_batch_has_ended_well(
    device: Device, size: int, how: str
) -> None:
    x = await device.put(np.ones(size))
    kernel = await device.nvrtc.compile(SOURCE, "mix", cpu=mix)
    a, out = await device.zeros((SIDE, SIDE), "f4"), await device.zeros((SIDE, SIDE), "f4")
    blocks, options = launched(fail=True)
    with pytest.raises((KeyError, REFUSED)) if how != "well" else nullcontext():
        async with device.batch() as batch:
            later = batch.get(x)
            values = cast("Any", later)
            for read in (lambda: later.value, lambda: np.mean(values), lambda: batch.put(later)):
                with pytest.raises((RuntimeError, TypeError), match="the batch's block"):
                    read()
            assert "no value before" in repr(later)
            if how == "block":
                raise KeyError
            if how == "op":
                batch.launch(kernel, blocks, 64, a, a, out, SIDE**2, 0, 1, 1, **options)
    if how == "well":
        assert later.value.tolist() == [1] * size
    else:
        with pytest.raises(RuntimeError, match="before the batch's block is left, without error"):
            _ = later.value


@on_shared
async def test_puts_beside_buffers_that_have_no_memory_yet(device: Device) -> None:
    async with device.batch() as batch:
        refs = [batch.put(np.full(3, n, np.int32)) for n in range(5)]
        hosts = [batch.get(ref) for ref in refs]
    for n, (ref, host) in enumerate(zip(refs, hosts, strict=True)):
        assert host.value.tolist() == [n] * 3
        assert (await device.get(ref)).tolist() == [n] * 3


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_lanes_that_are_not_open_yet(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        kernel = await adder(device)
        x = await device.put(np.zeros(4, np.float32))
        signal = await device.put(np.ones(4, np.float32))
        assert [lane.name for lane in device.statistics().lanes] == ["memory", "nvrtc"]
        async with device.batch() as batch:
            square = batch.blas.gemm(x.reshape(2, 2), x.reshape(2, 2))
            batch.launch(kernel, 1, 4, x, 3.0)
            spectrum = batch.fft.rfft(signal)
            after = batch.get(x)
        assert after.value.tolist() == [3] * 4
        assert (await device.get(square)).tolist() == [[0, 0], [0, 0]]
        assert (await device.get(spectrum)).tolist() == [4, 0, 0]
        assert {"blas", "kernels", "fft"} <= {lane.name for lane in device.statistics().lanes}
        await settled(device)


@on_shared
async def test_memory_grows_inside_a_batch(device: Device) -> None:
    side = 3000  # 36 MB each: three need more than a slab
    a = await device.full((side, 1), 1, np.float32)
    b = await device.full((1, side), 2, np.float32)
    async with device.batch() as batch:
        refs = [batch.blas.gemm(a, b) for _ in range(3)]
        corner = batch.blas.gemm(refs[2][:1], refs[1])
    for ref in refs:
        assert (await device.get(ref))[[0, -1], [0, -1]].tolist() == [2, 2]
    assert (await device.get(corner))[0, 0] == 4 * side
    del refs, ref, corner, batch
    await device.trim()


PUT_OFF = ["a lane that is not open", "run", "a large put"]


def nothing() -> None:
    pass


@contextlib.asynccontextmanager
async def putting_off(why: str) -> AsyncIterator[tuple[Device, GpuRef]]:
    """A device on which batches put calls off until their blocks are left, and ones."""
    async with opened() as device:
        x = await device.put(np.ones((4, 4)))
        if why != PUT_OFF[0]:
            await device.blas.gemm(x, x)
            await device.run(nothing)
        yield device, x


def put_off(batch: Any, why: str) -> None:
    if why == "run":
        batch.run(nothing)
    elif why == "a large put":
        batch.put(np.zeros((512, 512)))


@pytest.mark.parametrize("why", PUT_OFF)
async def test_deferred_call_touches_no_memory_of_others(why: str) -> None:
    """Whatever is freed before the block is left is another's only after that."""
    async with putting_off(why) as (device, x):
        gone, out = await device.copy(x), await device.zeros((4, 4))
        used = used_by(device)
        async with device.batch() as batch:
            put_off(batch, why)
            batch.blas.gemm(x, x, out=out)
            y = batch.blas.gemm(gone, gone)
            await device.free(out)
            await device.free(gone)
            others = [await device.full((4, 4), 7.0) for _ in range(8)]
        assert np.all(await device.get(y) == 4)
        for other in others:
            assert np.all(await device.get(other) == 7)
        del y, batch, other, others
        await settled(device)
        assert used_by(device) < used


@pytest.mark.parametrize("why", PUT_OFF)
async def test_deferred_result_belongs_to_its_batch(why: str) -> None:
    async with putting_off(why) as (device, x):
        out = await device.zeros((4, 4))
        async with device.batch() as batch:
            put_off(batch, why)
            y = batch.blas.gemm(x, x)
            batch.blas.gemm(x, y, out=out)
            z = batch.put(np.zeros((512, 512)))
            for ref in (y, z):
                with pytest.raises(RuntimeError, match="until its block is left"):
                    await device.copy(ref)
            with pytest.raises(ValueError, match="an open batch has calls with it put off"):
                await device.seal(out)
        assert np.all(await device.get(y) == 4)
        await device.seal(out)
        assert np.all(await device.get(out) == 16)
        with pytest.raises(ZeroDivisionError):
            async with device.batch() as batch:
                put_off(batch, why)
                batch.fft.rfft(x)
                raise ZeroDivisionError
        assert (await device.seal(x)).sealed


# --- what libraries hand out ---------------------------------------------------------------


@on_shared
async def test_generators_and_plan_caches_in_a_batch(device: Device) -> None:
    """Calls without coroutines work as outside, and calls with coroutines return at once."""
    mine = device.rng.default_rng(7)
    limit = device.fft.plan_limit
    async with device.batch() as batch:
        made = batch.rng.default_rng(7)
        drawn = made.normal(size=8)
        children = [child.random(size=3) for child in made.spawn(2)]
        batch.rng.seed(5)
        seeded = batch.rng.random(size=4)
        shared = batch.using(mine).normal(size=8)
        assert made.kind == "philox4_32_10"
        batch.fft.plan_limit = limit + 1
        assert batch.fft.plan_limit == device.fft.plan_limit == limit + 1
        assert device.statistics().caches["fft.plans"].limit == limit + 1
        assert repr(made).startswith("<Generator")
        with pytest.raises(TypeError, match="was not made by a library"):
            batch.using(np.random.default_rng(7))  # type: ignore[call-overload]
        takers: list[Any] = [batch, device.requests]
        for taker in takers:
            for wrong in (device, batch):
                with pytest.raises(TypeError, match="has libraries, not what one of them has made"):
                    taker.using(wrong)
            for library in (device.blas, batch.blas, device.requests.blas):
                with pytest.raises(TypeError, match="blas is a library itself"):
                    taker.using(library)
        with pytest.raises(TypeError, match=r"launch takes a kernel.*not <Generator"):
            batch.launch(mine, 1, 1)  # type: ignore[arg-type]
    device.fft.plan_limit = limit
    expected = device.rng.default_rng(7)
    first = await device.get(await expected.normal(size=8))
    assert np.array_equal(await device.get(drawn), first)
    assert np.array_equal(await device.get(shared), first)
    for ref, child in zip(children, expected.spawn(2), strict=True):
        assert np.array_equal(await device.get(ref), await device.get(await child.random(size=3)))
    device.rng.seed(5)
    again = await device.get(await device.rng.random(size=4))
    assert np.array_equal(await device.get(seeded), again)
    assert mine.state["position"] == expected.state["position"]
    with pytest.raises(RuntimeError, match="inside the batch's block"):
        made.normal(size=8)


# --- errors --------------------------------------------------------------------------------


@on_shared
async def test_an_error_comes_at_the_end_and_names_its_op(device: Device) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "mix", cpu=mix)
    a, out = await device.zeros((SIDE, SIDE), "f4"), await device.zeros((SIDE, SIDE), "f4")

    def launch(batch: Any, *, fail: bool) -> None:
        blocks, options = launched(fail=fail)
        batch.launch(kernel, blocks, 64, a, a, out, SIDE**2, 0, 1, int(fail), **options)

    reached = False
    with pytest.raises(REFUSED) as info:
        async with device.batch() as batch:
            launch(batch, fail=False)
            launch(batch, fail=True)
            square = batch.blas.gemm(a, a)
            launch(batch, fail=False)
            reached = True
    assert reached
    assert "in a batch, at kernel mix" in info.value.__notes__
    assert square.is_stale
    with pytest.raises(GpuRefStale, match=r"^ref was freed"):
        await device.get(square)
    assert np.all(await device.get(out) == 8)  # the other two took place

    with pytest.raises(ExceptionGroup, match="several ops") as several:
        async with device.batch() as batch:
            launch(batch, fail=True)
            launch(batch, fail=True)
    assert [type(error) for error in several.value.exceptions] == [REFUSED] * 2


@needs_nvrtc
@on_shared
async def test_wrong_arguments_raise_where_they_are_given(device: Device) -> None:
    a, b = await device.zeros((2, 3), np.float32), await device.zeros((2, 3), np.float32)
    kernel = await adder(device)
    with pytest.raises(ValueError, match="the inner dimensions differ"):
        async with device.batch() as batch:
            kept = batch.blas.gemm(a, b, trans_b=True)
            batch.blas.gemm(a, b)
    assert kept.is_stale
    async with device.batch() as batch:
        with pytest.raises(TypeError, match="takes 2 arguments"):
            batch.launch(kernel, 1, 4, a)
        with pytest.raises(TypeError, match="must be a GpuRef"):
            batch.get(np.zeros(3))  # type: ignore[arg-type]
        with pytest.raises(Unsupported, match="cannot be in a batch"):
            batch.nvrtc.compile(ADD, "add", cpu=add)
        with pytest.raises(AttributeError):
            batch.nothing  # type: ignore[attr-defined]  # noqa: B018
        good = batch.blas.gemm(a, b, trans_b=True)
    assert (await device.get(good)).tolist() == [[0, 0], [0, 0]]
    sealed = await device.put(np.zeros(4, np.float32), sealed=True)
    with pytest.raises(GpuRefSealed):
        async with device.batch() as batch:
            batch.launch(kernel, 1, 4, sealed, 1.0)


@on_shared
async def test_an_exception_in_the_block_gives_everything_up(device: Device, gate: Gate) -> None:
    hold, kernel = await gate.kernel(device), await adder(device)
    x, y = await device.zeros(4, np.float32), await device.zeros(4, np.float32)
    gate.open()
    await hold(x)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, x)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(KeyError, match=r"^'mine'$"):
            async with device.batch() as batch:
                for _ in range(40):
                    batch.launch(kernel, 1, 4, y, 1.0)
                square = batch.blas.gemm(x.reshape(2, 2), x.reshape(2, 2))
                raise KeyError("mine")
        assert square.is_stale  # at once, although the device is busy
        gate.open()
    await settled(device)
    del square, batch
    # Bunches of 1, 2, 4 and 8, the first of which loads the kernel; the rest was withdrawn.
    assert (await device.get(y))[0] == 38


@pytest.mark.parametrize("how", ["immediately", "later"])
@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_kernel_of_a_batch_that_was_given_up_still_runs(
    isolation: Isolation, how: str
) -> None:
    async with opened(isolation=isolation) as device:
        kernel, x = await adder(device), await device.zeros(4, np.float32)
        if how == "immediately":  # the kernels' lane is open, and the kernel is not loaded
            await (await adder(device)).launch(1, 4, x, 0.0)
        with pytest.raises(KeyError):
            async with device.batch() as batch:
                if how == "immediately":
                    batch.launch(await adder(device), 1, 4, x, 0.0)  # keeps the lane busy
                batch.launch(kernel, 1, 4, x, 0.0)
                raise KeyError
        await kernel.launch(1, 4, x, 5.0)
        assert (await device.get(x)).tolist() == [5] * 4


@on_shared
async def test_cancelling_the_block_at_every_checkpoint(device: Device) -> None:
    kernel = await adder(device)
    x = await device.zeros(4, np.float32)
    await kernel.launch(1, 4, x, 0.0)

    async def work() -> None:
        async with device.batch() as batch:
            batch.launch(kernel, 1, 4, x, 1.0)
            small = batch.put(np.zeros(4, np.float32))
            batch.get(small)
            y = batch.put(np.zeros(1 << 18, np.float32))  # which takes a wait
            batch.launch(kernel, 1, 4, y[:4], 1.0)
            batch.get(y)
            batch.blas.gemm(x.reshape(2, 2), y[:4].reshape(2, 2))

    step = 1
    while await cancelled_at(step, work):
        step += 1
        await settled(device)
    assert step > 4
    assert (await device.get(x))[0] <= step


# --- faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["in the block", "at its end", "with a get after it"])
async def test_a_fault_ends_a_batch(stage: str) -> None:
    def fault(where: Any) -> None:
        simulate("illegal_address", where)

    async with opened(isolation="process", max_restarts=10) as device:
        kernel = await device.nvrtc.compile(source_of("illegal_address"), "fault", cpu=fault)
        a = await device.put(np.eye(2, dtype=np.float32))
        sealed = await device.put(np.eye(2, dtype=np.float32), sealed=True)
        await device.blas.gemm(a, a)
        made: list[GpuRef] = []
        with pytest.raises(ContextPoisoned) as info:
            async with device.batch() as batch:
                made.append(batch.blas.gemm(sealed, sealed))
                if stage == "in the block":
                    await poison(device)
                else:
                    batch.launch(kernel, 1, 1, 0)
                    if stage == "with a get after it":
                        batch.get(made[0])
                made.append(batch.blas.gemm(sealed, sealed))
        assert info.value.generation == 1
        assert info.value.status == FAULTS["illegal_address"].status
        assert all(ref.is_stale for ref in made)
        async with device.batch() as batch:
            good = batch.blas.gemm(sealed, sealed)
        assert np.array_equal(await device.get(good), np.eye(2))
        await settled(device)


async def test_failed_batch_is_not_kept_alive() -> None:
    """The batch's objects are freed at once, without a garbage collection."""

    def fault(where: Any) -> None:
        simulate("illegal_address", where)

    async with opened(isolation="process", max_restarts=10) as device:
        kernel = await device.nvrtc.compile(source_of("illegal_address"), "fault", cpu=fault)
        a = await device.put(np.eye(2, dtype=np.float32))
        await device.blas.gemm(a, a)
        gc.disable()
        try:
            try:
                async with device.batch() as batch:
                    made = weakref.ref(batch.blas.gemm(a, a))
                    batch.launch(kernel, 1, 1, 0)
            except ContextPoisoned as error:
                told = weakref.ref(error)
            del batch
            await settled(device)
            assert (made(), told()) == (None, None)
        finally:
            gc.enable()


async def test_the_host_dies_while_a_batch_waits_for_memory_and_lanes() -> None:
    async with opened(isolation="process", max_restarts=10) as device:
        with pytest.raises(ContextPoisoned):
            async with device.batch() as batch:
                ref = batch.put(np.zeros(100))
                await kill_host(device)
        assert ref.is_stale
        async with device.batch() as batch:
            ref = batch.put(np.arange(100))
        assert np.array_equal(await device.get(ref), np.arange(100))
        del ref, batch
        await settled(device)
        assert used_by(device) == 0


@pytest.mark.parametrize("fails", [False, True])
@on_shared
async def test_batch_frees_the_buffers_that_it_made(device: Device, fails: bool) -> None:
    """The batch frees its scratch memory, maybe most of the device's, without a collection."""
    x = await device.put(np.ones((8, 2000), np.complex64))
    kernel = await adder(device)
    async with device.batch() as first:
        first.fft.irfft(x)  # plans and lanes are there now
    del first
    collect_garbage()
    gc.disable()
    try:
        before = device.statistics().memory.used
        for _ in range(3):
            with pytest.raises(ZeroDivisionError) if fails else nullcontext():
                async with device.batch() as batch:
                    batch.fft.irfft(x)
                    batch.blas.gemm(x, x, trans_b=True)
                    batch.launch(kernel, 1, 4, batch.empty(4, np.float32), 1.0)
                    if fails:
                        raise ZeroDivisionError
        del batch  # a batch has a work area of its own
        await settled(device)
        assert device.statistics().memory.used == before
    finally:
        gc.enable()


# --- what an error holds -------------------------------------------------------------------


async def test_a_failed_op_holds_nothing() -> None:
    """Once the caller has dropped the error, nothing holds the arguments."""

    def fails(*_args: object) -> None:
        raise ValueError("no")

    if ON_CUDA:  # where no kernel of ours fails but by a fault
        return
    async with opened(isolation="thread") as device:
        kernel = await device.nvrtc.compile(ADD, "add", cpu=fails)

        async def run() -> None:
            await device.run(fails, await device.zeros(1000))

        async def launch() -> None:
            await kernel.launch(1, 1, await device.zeros(1000, np.float32), 1.0)

        async def batch() -> None:
            x = await device.zeros(1000, np.float32)
            async with device.batch() as batch:
                batch.launch(kernel, 1, 1, x, 1.0)

        async def several() -> None:
            x = await device.zeros(1000, np.float32)
            async with device.batch() as batch:
                batch.launch(kernel, 1, 1, x, 1.0)
                batch.launch(kernel, 1, 1, x, 1.0)

        for call in (run, launch, batch, several):
            with contextlib.suppress(ValueError, ExceptionGroup):
                await call()  # what is loaded or opened first
            await settled(device)
            collect_garbage()
            before = device.statistics().memory.used
            gc.disable()
            try:
                for _ in range(5):
                    with contextlib.suppress(ValueError, ExceptionGroup):
                        await call()
                await settled(device)
                assert device.statistics().memory.used == before, call.__name__
            finally:
                gc.enable()


@on_shared
async def test_errors_of_functions_are_told_beside_those_of_ops(device: Device) -> None:
    def fails() -> None:
        raise KeyError("no")

    def wrong(*_args: object) -> None:
        raise ValueError("wrong")

    kernel = await device.nvrtc.compile(ADD, "add", cpu=wrong)
    if ON_CUDA:  # where no kernel of ours fails but by a fault
        return
    x = await device.zeros(4, np.float32)
    with pytest.raises(ExceptionGroup) as info:
        async with device.batch() as batch:
            batch.launch(kernel, 1, 4, x, 1.0)
            batch.run(fails)
    assert sorted(type(each).__name__ for each in info.value.exceptions) == [
        "KeyError",
        "ValueError",
    ]
    assert all(each.__notes__ for each in info.value.exceptions)


@on_shared
async def test_a_batch_is_entered_once_and_takes_requests(device: Device) -> None:
    a = await device.put(np.eye(2, dtype=np.float32))
    batch = device.batch()
    async with batch:
        made = batch.perform(device.requests.blas.gemm(a, a))
        with pytest.raises(TypeError, match="perform takes a request"):
            batch.perform(3)  # type: ignore[arg-type]
    assert (await device.get(made)).tolist() == [[1, 0], [0, 1]]
    with pytest.raises(RuntimeError, match="entered once"):
        async with batch:
            pass


@on_shared
async def test_dir_tells_what_programs_call(device: Device) -> None:
    libraries = {
        "array",
        "blas",
        "blaslt",
        "cub",
        "cutlass",
        "dnn",
        "engine",
        "fft",
        "flash_attention",
        "linalg",
        "nvrtc",
        "rng",
        "sparse",
        "sparselt",
        "tensor",
        "xp",
    }
    making = {
        "copy",
        "empty",
        "evaluate",
        "fuse",
        "fill",
        "full",
        "launch",
        "perform",
        "using",
        "zeros",
    }

    def shown(thing: object) -> set[str]:
        return {name for name in dir(thing) if not name.startswith("_")}

    own = {
        "free",
        "get",
        "put",
        "replay",
        "restore",
        "run",
        "seal",
        "snapshot",
        "statistics",
        "unseal",
    }
    assert shown(device.requests) == {*libraries, *making, *own} - {"launch", "perform"}
    async with device.batch() as batch:
        assert shown(batch) == {*libraries, *making, "get", "put", "run"}
        assert all(hasattr(batch, name) for name in dir(batch))
    async with device.record() as recording:
        own = {"call", "dot", "loop", "replay", "statistics", "steps", "when"}
        assert shown(recording) == {*libraries, *making, *own}


@pytest.mark.parametrize("count", [1, 15, 100])
async def test_dropped_buffer_is_freed_within_a_batch(count: int) -> None:
    """This holds even if all of it does not fit, as if each product were awaited."""
    async with opened(memory_limit=8 << 20) as device:
        x = await device.put(np.eye(256))
        async with device.batch() as batch:
            y = x
            for _ in range(count):  # half a MiB each
                y = batch.blas.gemm(y, x)
            host = batch.get(y)
        np.testing.assert_array_equal(host.value, np.eye(256))
        np.testing.assert_array_equal(await device.get(y), host.value)


def looked_at(_x: object) -> None:
    """Return nothing and change nothing."""


@pytest.mark.parametrize("each", [False, True])
async def test_function_in_a_batch_leaves_memory_to_later_ops(each: bool) -> None:
    """The batch leaves room for later ops in addition to its own."""
    async with opened(isolation="thread", memory_limit=4 << 20) as device:
        x = await device.put(np.eye(90))
        async with device.batch() as batch:
            batch.run(looked_at, x)
            y = x
            for _ in range(100):  # 64 KiB each
                y = batch.copy(y)
                if each:
                    batch.run(looked_at, y)
        np.testing.assert_array_equal(await device.get(y), np.eye(90))


async def test_within_a_batch_memory_serves_again_once_its_ops_are_answered() -> None:
    """Only the block takes answers while it runs; ops without room are sent when it ends."""
    async with opened(memory_limit=4 << 20) as device:
        x = await device.put(np.eye(256))  # half a MiB
        await device.blas.gemm(x, x)
        full = [await device.empty((256, 256)) for _ in range(6)]
        answers = device.core.ports["blas"]._sock
        async with device.batch() as batch:
            for _ in range(5):
                before = _submitted(device, "blas")
                batch.blas.gemm(x, x)
                assert _submitted(device, "blas") == before + 1
                select.select([answers], [], [])
        assert len(full) == 6


@on_shared
async def test_a_batch_that_had_no_room_leaves_some_to_the_next(device: Device, gate: Gate) -> None:
    hold = await gate.kernel(device)
    x = await device.put(np.ones((1024, 1), np.float32))
    await device.blas.gemm(x, x, trans_b=True)
    await device.trim()
    begun, slabs = [], device.statistics().memory.slabs
    for _ in range(2):
        before = _submitted(device, "blas")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, x)
            await trio.testing.wait_all_tasks_blocked()
            async with device.batch() as batch:
                for _ in range(34):  # 4 MiB each, none of which is done in the block
                    batch.blas.gemm(x, x, trans_b=True)
                begun.append(_submitted(device, "blas") - before)
                gate.open()
    assert begun[0] < begun[1] == 34
    assert device.statistics().memory.slabs == slabs + 1
    await device.trim()


async def test_room_is_made_ahead_within_a_share_of_the_limit() -> None:
    async with opened(memory_limit=256 << 20) as device:
        for wanted in (1 << 30, 1 << 20):
            await device.core.growth.grow_ahead(wanted)
            assert device.statistics().memory.capacity == 16 << 20
        async with device.batch() as batch:
            refs = [batch.zeros(1 << 20, np.uint8) for _ in range(20)]
        assert (await device.get(refs[-1])).sum() == 0


def _submitted(device: Device, lane: str) -> int:
    return next(each.submitted for each in device.statistics().lanes if each.name == lane)


@on_shared
async def test_calls_after_a_batch_say_that_it_was_left(device: Device) -> None:
    x = await device.zeros((2, 2))
    batch = device.batch()
    with pytest.raises(RuntimeError, match="which is not entered"):
        batch.blas.gemm(x, x)
    async with batch:
        pass
    with pytest.raises(RuntimeError, match="which was left"):
        batch.blas.gemm(x, x)


@pytest.mark.parametrize("faulted", [False, True])
async def test_a_batch_whose_device_is_stopped_says_so(faulted: bool) -> None:
    """And not that some fault of long ago has ended it."""
    async with open_system("demo") as system:
        device = await system.spawn_device(0, backend=BACKEND, backoff=AT_ONCE)
        if faulted:
            await poison(device)
            await device.zeros(1)
        with pytest.raises(DeviceLost, match=r"the batch did not finish: .* it was stopped"):
            async with device.batch() as batch:
                batch.zeros(3)
                await device.ref.stop()
                batch.zeros(3)
