"""No descriptors left, no address space left, at every step: an error that says so, or success.

Nothing is lost by it, and nothing leaks: once there is room again, all is as before.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import trio

from atomr_accel import AccelError, Device, OutOfMemory
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host
from atomr_accel.testing.garbage import collect_garbage

from ..harness import cpu_only, leaves, no_descriptors, opened, same_bits, settled, sized, used_by

pytestmark = cpu_only

ARRAY = np.arange(5000.0)
MOST = 60
COUNTS: tuple[int, ...] = sized((0, 1, 2, *range(3, MOST, 3)), tuple(range(MOST)))
"""Amounts that are free, one after the other; small ones end a step at each of its places."""


@contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """A limit of a process, for a while."""
    old = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, old[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, what, old)


def few_descriptors(pid: int, free: int) -> Any:
    """Leave a process only a number of free file descriptors."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    if pid == os.getpid():
        used = {fd for fd in used if Path(f"/proc/self/fd/{fd}").exists()}  # not that of the list
    numbers = (number for number in range(1 << 16) if number not in used)
    *_, limit = (next(numbers) for _ in range(free + 1))
    return limited(pid, resource.RLIMIT_NOFILE, limit)


def open_files(pid: int) -> int:
    """Return the number of descriptors of a process."""
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


def address_space(pid: int) -> int:
    """Return the size of a process's address space, in bytes."""
    return resource.getpagesize() * int(Path(f"/proc/{pid}/statm").read_text().split()[0])


def pids(device: Device) -> list[int]:
    """The processes that take part."""
    host = device.statistics().host_pid
    return [os.getpid()] if host is None else [os.getpid(), host]


# --- the steps --------------------------------------------------------------------------------


async def grow(device: Device) -> None:
    ref = await device.empty(70 << 20, np.uint8)
    await device.free(ref)


async def put(device: Device) -> None:
    ref = await device.put(ARRAY)
    assert same_bits(await device.get(ref), ARRAY)


async def put_sealed(device: Device) -> None:
    ref = await device.put(ARRAY, sealed=True)
    assert same_bits(await device.get(ref), ARRAY)


async def seal(device: Device) -> None:
    ref = await device.put(ARRAY)
    try:
        await device.seal(ref)
    finally:
        assert same_bits(await device.get(ref), ARRAY)


async def share_sealed(device: Device) -> None:
    ref = await device.put(ARRAY, sealed=True)
    try:
        with await device.share(ref) as shared:
            assert same_bits(await device.get(await device.adopt(shared)), ARRAY)
    finally:
        assert same_bits(await device.get(ref), ARRAY)


async def share_plain(device: Device) -> None:
    ref = await device.put(ARRAY)
    with await device.share(ref) as shared:
        assert same_bits(await device.get(await device.adopt(shared)), ARRAY)


async def export(device: Device) -> None:
    ref = await device.put(ARRAY)
    assert same_bits(np.asarray(await device.export(ref)), ARRAY)


async def pinned(device: Device) -> None:
    async with device.pinned.array(ARRAY.shape, ARRAY.dtype) as array:
        array[:] = ARRAY
        ref = await device.put(array)
        array[:] = 0
        assert same_bits(await device.get(ref, out=array), ARRAY)
    async with device.pinned.array(1 << 20, np.uint8) as large:
        large[:] = 7
        copy = await device.put(large)
        assert (await device.get(copy) == 7).all()


async def salvage(device: Device) -> None:
    ref = await device.put(ARRAY)
    assert same_bits(await device.salvage(ref), ARRAY)


async def lane(device: Device) -> None:
    ref = await device.put(np.eye(3))
    assert same_bits(await device.get(await device.blas.gemm(ref, ref)), np.eye(3))


STEPS = [grow, put, put_sealed, seal, share_sealed, share_plain, export, pinned, salvage, lane]


async def tidied(device: Device) -> None:
    """Free all unused memory."""
    await device.fill(await device.empty(1), 0)  # the lane has forgotten the op before it
    await settled(device)
    collect_garbage()
    await device.trim()
    await device.pinned.trim()


async def until_it_works(
    device: Device, step: Callable[[Device], Awaitable[None]], scarce: Callable[[int], Any]
) -> int:
    """Take a step with more and more, from nothing on; how often it failed."""
    await tidied(device)
    before = [open_files(pid) for pid in pids(device)]
    generation = device.generation
    for free in COUNTS:
        refusal: Exception | None = None
        with scarce(free):
            try:
                await step(device)
            except OutOfMemory as error:  # whatever it is that is short
                refusal = error
        if refusal is None:
            return free
        del refusal
        await tidied(device)
        assert [open_files(pid) for pid in pids(device)] == before, free
        assert device.statistics().memory.used == 0
        assert device.pinned.statistics().used == 0
        assert device.generation == generation
    raise AssertionError(f"{step.__name__} does not work with {MOST} descriptors either")


@pytest.mark.slow
@pytest.mark.parametrize("who", ["program", "host"])
@pytest.mark.parametrize("step", STEPS)
async def test_without_descriptors(
    step: Callable[[Device], Awaitable[None]], who: str, isolation: Isolation
) -> None:
    if (who, isolation) == ("host", "thread"):
        pytest.skip("one process")
    async with opened(isolation=isolation) as device:
        pid = pids(device)[0 if who == "program" else -1]
        await step(device)  # imports what it needs
        await until_it_works(device, step, lambda free: few_descriptors(pid, free))
        await step(device)
        await tidied(device)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
async def test_without_address_space(step: Callable[[Device], Awaitable[None]]) -> None:
    async with opened() as device:
        pid = pids(device)[-1]
        await step(device)
        size = address_space(pid)

        def scarce(free: int) -> Any:
            return limited(pid, resource.RLIMIT_AS, size + free * (8 << 20))

        await until_it_works(device, step, scarce)
        await step(device)


async def test_a_lane_whose_thread_would_not_begin_is_refused() -> None:
    """The thread's stack fits, and nothing else does: the host still answers."""
    async with opened() as device:
        await device.run(os.getpid)
        pid = pids(device)[-1]
        stack = resource.prlimit(pid, resource.RLIMIT_STACK)[0]
        room = address_space(pid) + stack + (12 << 10)
        short = pytest.raises(OutOfMemory, match=r"lane 'run.other' of .* no room for")
        with limited(pid, resource.RLIMIT_AS, room), short as caught:
            await device.run(os.getpid, lane="other")
        assert isinstance(caught.value.__cause__, OSError)
        assert await device.run(os.getpid, lane="other") == pid
        assert device.generation == 1


async def test_sealing_says_what_it_lacks() -> None:
    async with opened() as device:
        await device.put(ARRAY, sealed=True)
        pid = pids(device)[-1]
        size = address_space(pid)
        keep = await device.put(ARRAY, sealed=True)
        lacking = pytest.raises(OutOfMemory, match=r"cannot be mapped: .*Cannot allocate memory")
        with limited(pid, resource.RLIMIT_AS, size + (10 << 20)), lacking:
            await device.put(ARRAY, sealed=True)
        again = await device.put(ARRAY, sealed=True)
        for ref in (keep, again):
            assert same_bits(await device.get(ref), ARRAY)


async def test_page_locked_memory_that_did_not_reach_the_host_is_not_taken_for_mapped() -> None:
    async with opened() as device:
        with few_descriptors(pids(device)[-1], 0), pytest.raises((AccelError, OSError)):
            await pinned(device)
        await pinned(device)


async def test_seal_without_descriptors_survives_all_the_same(
    isolation: Isolation,
) -> None:
    """The memory is sealed with its descriptor, or it is not sealed."""
    if isolation == "thread":
        pytest.skip("nothing survives there")
    async with opened(max_restarts=MOST) as device:
        await put_sealed(device)
        await tidied(device)
        for free in range(MOST):
            try:
                with few_descriptors(os.getpid(), free):
                    ref = await device.put(ARRAY, sealed=True)
            except (AccelError, OSError):
                continue
            await kill_host(device)
            assert same_bits(await device.get(ref), ARRAY)
            return


@pytest.mark.slow
async def test_opening_without_descriptors() -> None:
    async def step() -> None:
        async with opened(isolation="thread") as device:
            await put(device)

    await step()
    collect_garbage()
    before = open_files(os.getpid())
    for free in COUNTS:
        try:
            with few_descriptors(os.getpid(), free):
                await step()
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 (looked into below)
            found = [*leaves(error)]
            assert all(isinstance(each, (AccelError, OSError)) for each in found), found
        else:
            return
        collect_garbage()
        assert open_files(os.getpid()) == before, free
    raise AssertionError("opening takes too many descriptors")


def _no_thread(*_args: Any, **_options: Any) -> NoReturn:
    raise RuntimeError("can't start new thread")


async def test_without_a_thread_to_copy_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is not made later, when the memory belongs to another buffer."""
    async with opened() as device:
        sealed = await device.put(np.ones(4), sealed=True)
        before, free = used_by(device), device.core.staging.statistics().used
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", _no_thread)
            patch.setattr(trio.to_thread, "run_sync", _no_thread)
            for _ in range(3):
                with pytest.raises(OutOfMemory, match="a copying thread cannot be started"):
                    await device.put(np.zeros(1 << 20))
            with pytest.raises(OutOfMemory, match="a worker thread cannot be started"):
                await device.export(sealed)
        assert used_by(device) == before
        assert device.core.staging.statistics().used == free
        x = np.arange(1 << 20)
        assert same_bits(await device.get(await device.put(x)), x)
        with monkeypatch.context() as patch:  # those that there are do it all
            patch.setattr(threading.Thread, "start", _no_thread)
            assert same_bits(await device.get(await device.put(x)), x)
        assert (np.asarray(await device.export(sealed)) == 1).all()


async def test_without_descriptors_there_is_no_room_for_an_export() -> None:
    async with opened() as device:
        sealed = await device.put(np.ones(4), sealed=True)
        with no_descriptors(left=1), pytest.raises(OutOfMemory, match="Too many open") as caught:
            await device.export(sealed)
        assert isinstance(caught.value.__cause__, OSError)
        assert (np.asarray(await device.export(sealed)) == 1).all()


async def test_arrays_that_there_is_no_room_for_in_the_host_or_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none(*_: Any, **__: Any) -> NoReturn:
        raise MemoryError("Unable to allocate")

    shape, more = (2300, 2300), 8 << 20  # larger than what an allocator keeps for the next one
    async with opened(isolation="process") as device:
        x = await device.put(np.ones(shape))
        y = await device.evaluate(np.sin(x))
        _, host = pids(device)
        with (
            limited(host, resource.RLIMIT_AS, address_space(host) + more),
            pytest.raises(OutOfMemory, match="the host is short of memory"),
        ):
            await device.evaluate(np.sin(x) + np.cos(x), out=y)
        await device.evaluate(np.sin(x), out=y)
        with monkeypatch.context() as patched, pytest.raises(OutOfMemory, match="in the program"):
            patched.setattr(np, "empty", none)
            await device.get(y)
        assert same_bits(await device.get(y), np.sin(np.ones(shape)))
        assert device.generation == 1
