"""Costs of a fault, and limits of its effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    GpuRef,
    GpuRefStale,
    KernelHung,
    Standby,
    Unsupported,
)
from atomr_accel.actors import Backoff
from atomr_accel.testing import FAULTS, hang, kill_host, poison
from atomr_accel.testing.garbage import collect_garbage

from ..array_samples import random_bits
from ..harness import (
    ON_CUDA,
    Gate,
    cpu_only,
    interrupted_at,
    opened,
    same_bits,
    settled,
    sized,
    used_by,
)

OFTEN: Final = 10**6
"""More restarts than any test needs."""

EYE: Final = np.eye(8, dtype=np.float32)


async def works(device: Device) -> None:
    """The device does what devices do."""
    a = await device.put(EYE)
    assert np.array_equal(await device.get(await device.blas.gemm(a, a)), EYE)


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_kind_of_fault_is_survived(fault: Any) -> None:
    async with opened() as device:
        a = await device.put(EYE)
        sealed = await device.put(EYE, sealed=True)
        error = await poison(device, fault)
        expected = FAULTS[fault]
        assert (error.generation, error.op) == (1, "kernel fault")
        assert str(error).startswith("op 'kernel fault' did not finish: generation 1")
        assert (error.status, error.status_name) == (expected.status, expected.status_name)
        assert device.generation == 2
        with pytest.raises(GpuRefStale, match=r"generation 1, .* at generation 2; put .* seal"):
            await device.get(a)
        product = await device.blas.gemm(sealed, sealed)
        assert np.array_equal(await device.get(product), EYE)
        assert product.generation == 2
        await works(device)


async def test_a_killed_host_is_survived(gate: Gate) -> None:
    async with opened() as device:
        hold = await gate.kernel(device)
        pid = device.statistics().host_pid
        sealed = await device.put(EYE, sealed=True)
        async with trio.open_nursery() as nursery:

            async def wait_for_ever() -> None:
                with pytest.raises(ContextPoisoned) as info:
                    await hold(await device.zeros(1, np.float32))
                assert (info.value.status, info.value.status_name) == (-9, "killed by SIGKILL")

            nursery.start_soon(wait_for_ever)
            while not device.statistics().in_flight:
                await trio.lowlevel.checkpoint()
            await kill_host(device)
        assert device.statistics().host_pid != pid
        assert same_bits(await device.get(sealed), EYE)
        await works(device)


async def test_everything_in_flight_has_the_same_cause(gate: Gate) -> None:
    async with opened() as device:
        hold = await gate.kernel(device)
        cells = await device.zeros((8, 8), np.float32)
        sealed = await device.put(EYE, sealed=True)
        await device.blas.gemm(sealed, sealed)  # the lane is open
        seen: list[tuple[str, BaseException, int]] = []

        async def call(name: str, function: Callable[[], Awaitable[object]]) -> None:
            try:
                await function()
            except ContextPoisoned as error:
                seen.append((name, error, device.generation))

        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "kernel": lambda: hold(cells, fault=True),
            "gemm": lambda: device.blas.gemm(cells, sealed),
            "gemm into": lambda: device.blas.gemm(sealed, sealed, out=cells),
            "get": lambda: device.get(cells),
            "another kernel": lambda: hold(other),
        }
        if not ON_CUDA:  # there, what a slab is mapped for waits until kernels have ended
            calls["seal"] = lambda: device.seal(cells)
        other = await device.zeros(1, np.float32)
        async with trio.open_nursery() as nursery:
            for name, function in calls.items():
                nursery.start_soon(call, name, function)
                await trio.testing.wait_all_tasks_blocked()
            names = {op.name for op in device.core.in_flight.values()}
            while "seal" in calls.keys() - names:
                await trio.lowlevel.checkpoint()  # its slab is being made
                names = {op.name for op in device.core.in_flight.values()}
            assert device.statistics().in_flight >= len(calls)
            # A GPU runs both kernels at once, so the other one is held until the context ends.
            gate.open(1 if ON_CUDA else 2)
        assert {name for name, _, _ in seen} == calls.keys()
        # The generation moved before anybody was told.
        assert {generation for _, _, generation in seen} == {2}
        causes = {id(error.__cause__) for _, error, _ in seen}
        assert len(causes) == 1
        assert len({id(error) for _, error, _ in seen}) == len(calls)
        cause = seen[0][1].__cause__
        assert isinstance(cause, ContextPoisoned)
        assert (cause.generation, cause.status) == (1, 700)
        for _, error, _ in seen:
            assert isinstance(error, ContextPoisoned)
            assert error.fields() == cause.fields()
            assert str(cause) in str(error)
        assert device.statistics().last_fault == str(cause)
        assert device.statistics().faults == 1
        assert not cells.sealed
        await works(device)


@pytest.mark.slow
async def test_watchers_see_every_generation() -> None:
    async with opened(max_restarts=OFTEN) as device:
        async with device.watch_generation() as one, device.watch_generation() as other:
            for expected in (2, 3, 4):
                await poison(device)
                assert await anext(one) == expected
                assert device.generation == expected
            await kill_host(device)
            assert [await anext(other) for _ in range(4)] == [2, 3, 4, 5]
            assert await anext(one) == 5
        async with device.watch_generation() as late:
            await kill_host(device)
            assert await anext(late) == 6


async def test_a_watcher_that_went_away_does_not_matter() -> None:
    async with opened(max_restarts=OFTEN) as device, device.watch_generation() as changes:
        closing: Any = changes
        await closing.aclose()
        await kill_host(device)
        assert device.generation == 2
        await works(device)


@pytest.mark.slow
async def test_sealed_buffers_survive_bit_for_bit() -> None:
    arrays = [
        random_bits((size,), np.dtype(np.uint8), size)
        for size in (0, 1, 255, 70_000, 3_000_000, 20_000_000)
    ]
    async with opened(max_restarts=OFTEN) as device:
        refs = [await device.put(array, sealed=True) for array in arrays[::2]]
        refs += [await device.seal(await device.put(array)) for array in arrays[1::2]]
        expected = arrays[::2] + arrays[1::2]
        for round_ in range(3):
            await (poison, kill_host)[round_ % 2](device)
            for ref, array in zip(refs, expected, strict=True):
                assert ref.sealed
                assert not ref.is_stale
                assert same_bits(await device.get(ref), array)
            # Sealed slabs can be filled, and freed, in later generations, too.
            more = await device.put(arrays[3], sealed=True)
            refs.append(await device.seal(more))
            expected.append(arrays[3])
        startup = device.statistics().startup
        assert startup is not None
        assert startup.remapped_bytes >= sum(array.nbytes for array in arrays)


async def test_unfinished_seal_leaves_a_stale_ref() -> None:
    async with opened() as device:
        ref = await device.put(EYE)
        await poison(device)
        with pytest.raises(GpuRefStale):
            await device.seal(ref)
        assert not ref.sealed
        assert ref.is_stale
        assert "stale" in repr(ref)


async def test_stale_refs_are_refused_everywhere() -> None:
    source = 'extern "C" __global__ void touch(float* x) { x[0] = 1; }'

    def touch(x: Any) -> None:
        x[0] = 1

    async with opened() as device:
        ref = await device.put(EYE)
        kernel = await device.nvrtc.compile(source, "touch", cpu=touch)
        await kernel.launch(1, 1, ref)
        await poison(device)
        good = await device.put(EYE)
        uses: list[Callable[[], Awaitable[object]]] = [
            lambda: device.get(ref),
            lambda: device.free(ref),
            lambda: device.seal(ref),
            lambda: device.blas.gemm(ref, good),
            lambda: device.blas.gemm(good, ref),
            lambda: device.blas.gemm(good, good, out=ref),
            lambda: kernel.launch(1, 1, ref),
        ]
        for use in uses:
            with pytest.raises(GpuRefStale, match="generation 1"):
                await use()
        await kernel.launch(1, 1, good)  # the kernel itself is good for all generations
        assert (await device.get(good))[0, 0] == 1


@pytest.mark.slow
async def test_memory_of_a_dead_generation_is_returned() -> None:
    async with opened(max_restarts=OFTEN) as device:
        for _ in range(3):
            refs = [await device.put(np.zeros(1 << 20, np.uint8)) for _ in range(10)]
            await kill_host(device)
            assert device.statistics().memory.stale >= 10 << 20
            await device.put(1.0)
            refs.clear()
            collect_garbage()
            assert device.statistics().memory.stale == 0
        await settled(device)
        assert used_by(device) == 0
        assert device.statistics().memory.slabs <= 1


async def test_calls_made_during_a_rebuild_wait_for_it() -> None:
    async with opened() as device:
        sealed = await device.put(EYE, sealed=True)
        plain = await device.put(EYE)
        await device.blas.gemm(sealed, plain)
        seen: dict[str, object] = {}

        async def call(name: str, function: Callable[[], Awaitable[object]]) -> None:
            try:
                seen[name] = await function()
            except GpuRefStale:
                seen[name] = "stale"

        async with device.watch_generation() as changes, trio.open_nursery() as nursery:
            nursery.start_soon(kill_host, device)
            await anext(changes)
            assert device.statistics().state == "rebuilding"
            assert device.statistics().host_pid is None
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "put": lambda: device.put(EYE),
                "put sealed": lambda: device.put(EYE, sealed=True),
                "get": lambda: device.get(sealed),
                "get stale": lambda: device.get(plain),
                "gemm": lambda: device.blas.gemm(sealed, sealed),
                "gemm stale": lambda: device.blas.gemm(sealed, plain),
                "zeros": lambda: device.zeros(3),
            }
            for name, function in calls.items():
                nursery.start_soon(call, name, function)
        assert {name for name, answer in seen.items() if isinstance(answer, str)} == {
            "get stale",
            "gemm stale",
        }
        assert seen.keys() == calls.keys()
        product: Any = seen["gemm"]
        assert np.array_equal(await device.get(product), EYE)
        assert product.generation == 2


@pytest.mark.slow
async def test_a_standby_takes_over() -> None:
    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        sealed = await device.put(EYE, sealed=True)
        for _ in range(3):
            await poison(device)
            assert same_bits(await device.get(sealed), EYE)
            await works(device)


@pytest.mark.slow
@cpu_only
async def test_a_standby_that_dies_is_no_loss() -> None:
    async with opened(standby=Standby(warm=1), max_restarts=OFTEN) as device:
        standby = device.core.standby
        assert standby is not None
        for _ in range(2):
            await standby.wait_ready()
            standby.hosts[0].kill()
            await poison(device)
            await works(device)


@pytest.mark.slow
async def test_faults_beyond_the_intensity_lose_the_device() -> None:
    left = []
    with pytest.raises(DeviceLost, match="more often than its restart intensity allows") as info:
        async with opened(max_restarts=2) as device:
            sealed = await device.put(EYE, sealed=True)
            try:
                for _ in range(2):
                    await poison(device)
                    assert same_bits(await device.get(sealed), EYE)
                await poison(device)
                await device.get(sealed)
            finally:
                left.append(device.generation)
    assert isinstance(info.value.__cause__, ContextPoisoned)
    assert left == [4]
    assert device.statistics().state == "lost"
    with pytest.raises(DeviceLost, match="intensity"):
        await device.put(1.0)


@cpu_only
async def test_a_fault_is_final_in_threads() -> None:
    told = []
    with pytest.raises(DeviceLost, match='isolation="process" survives it') as info:
        async with opened(isolation="thread") as device:
            error = await poison(device)
            told.append((error.status, device.generation))
            await device.put(1.0)
    assert isinstance(info.value.__cause__, ContextPoisoned)
    assert told == [(700, 2)]


@cpu_only
async def test_threads_cannot_be_killed_or_hung() -> None:
    async with opened(isolation="thread") as device:
        for cause in (kill_host, hang):
            with pytest.raises(Unsupported):
                await cause(device)
        await works(device)


@pytest.mark.slow
async def test_a_hung_op_is_ended_by_its_deadline() -> None:
    async with opened(op_deadline=1.0, max_restarts=OFTEN) as device:
        sealed = await device.put(EYE, sealed=True)
        with pytest.raises(KernelHung) as info:
            await hang(device)
        assert info.value.op == "kernel hang"
        assert info.value.generation == 1
        assert "op_deadline" in str(info.value)
        assert same_bits(await device.get(sealed), EYE)
        await works(device)


@pytest.mark.slow
async def test_a_restart_waits_as_the_backoff_says() -> None:
    backoff = Backoff(initial=0.0, base=0.05, factor=2.0, maximum=0.1)
    async with opened(backoff=backoff, max_restarts=OFTEN) as device:
        await kill_host(device)
        await works(device)
        for least in (0.05, 0.1, 0.1):
            async with device.watch_generation() as changes, trio.open_nursery() as nursery:
                nursery.start_soon(kill_host, device)
                await anext(changes)
                begin = trio.current_time()
                await works(device)
                assert trio.current_time() - begin >= least - 0.001


# --- at any moment -------------------------------------------------------------------------


async def gemm_of_sealed(device: Device, sealed: GpuRef) -> None:
    product = await device.blas.gemm(sealed, sealed)
    if not product.is_stale:
        assert np.array_equal(await device.get(product), EYE)


async def get_large(device: Device, large: GpuRef) -> None:
    got = await device.get(large)
    assert same_bits(got, LARGE)


LARGE: Final = random_bits((20_000_003,), np.dtype(np.uint8), 1)


async def seal_new(device: Device, _: GpuRef) -> None:
    ref = await device.put(EYE)
    await device.seal(ref)
    assert same_bits(await device.get(ref), EYE)


async def put_sealed(device: Device, _: GpuRef) -> None:
    ref = await device.put(EYE, sealed=True)
    assert same_bits(await device.get(ref), EYE)


async def share(device: Device, _: GpuRef) -> None:
    for sealed in (True, False):
        ref = await device.put(EYE, sealed=sealed)
        with await device.share(ref) as shared:
            assert same_bits(await device.get(await device.adopt(shared)), EYE)


async def put_large(device: Device, _: GpuRef) -> None:
    ref = await device.put(LARGE)
    assert same_bits(await device.get(ref), LARGE)


async def first_kernel(device: Device, sealed: GpuRef) -> None:
    source = 'extern "C" __global__ void copy(const float* x, float* y) { *y = *x; }'

    def copy(x: Any, y: Any) -> None:
        y[0] = x.reshape(-1)[0]

    kernel = await device.nvrtc.compile(source, "copy", cpu=copy)
    y = await device.zeros(1, np.float32)
    await kernel.launch(1, 1, sealed, y)
    assert (await device.get(y)).tolist() == [1.0]


CALLS: Final = {
    "put sealed": (put_sealed, EYE),
    "seal": (seal_new, EYE),
    "share": (share, EYE),
    "gemm": (gemm_of_sealed, EYE),
    "kernel": (first_kernel, EYE),
    "get": (get_large, LARGE),
    "put": (put_large, EYE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
async def test_the_host_may_die_between_any_two_steps(name: str) -> None:
    """Either the call comes out right, or it says that the context or the buffer is gone."""
    call, content = CALLS[name]
    outcomes: set[type[Exception] | None] = set()
    async with opened(max_restarts=OFTEN) as device:
        sealed = await device.put(content, sealed=True)
        for step in sized([1, 2, 3, 4, 6, 9, 15, 45], [*range(1, 12), 15, 20, 30, 45]):
            if step == 3:  # and once on a device where the call finds its lanes open
                await call(device, sealed)
            try:
                reached, _ = await interrupted_at(
                    step, lambda: call(device, sealed), lambda: kill_host(device)
                )
            except (ContextPoisoned, GpuRefStale) as error:
                outcomes.add(type(error))
                reached = True
            else:
                outcomes.add(None)
            assert same_bits(await device.get(sealed), content)
            await works(device)
            if not reached:
                break
        await settled(device)
    assert None in outcomes
