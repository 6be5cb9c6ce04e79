"""Hosts killed at every await of writes to a durable buffer; no ref may continue with wrong bytes.

``python -m tests.soak.durable_kills --kills 1000 --backend cuda --seconds 100 --seed 7`` kills that
number of hosts, or as many as it can in that time. Each time a program of writes, or of appends to
a durable cache, is interrupted by ``SIGKILL`` when its task awaits something: at the next await
each time, until the program ends before it. Every second time, the kill comes up to 2 ms after the
await has begun.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import trio

from atomr_accel import ContextPoisoned, Device, GpuRef, GpuRefStale
from atomr_accel.testing import kill_host

from ..durable.programs import IN_FLIGHT
from .programs import opened, run

SIZE = 40_000  # elements of float32: three chunks, the last one in part

HEADS, SIZE_OF_HEAD, PAGE, PROMPT = 2, 16, 4, 5

Write = tuple["Callable[[Device, GpuRef], Awaitable[object]]", slice, float]
"""A write, the elements that it sets, and to what."""


def _set(array: Any, value: float) -> None:
    if hasattr(array, "__cuda_array_interface__"):
        import cupy

        array = cupy.asarray(array)
    array[:] = value


async def _put(device: Device, ref: GpuRef) -> None:
    await device.put(np.full(300, 1, np.float32), out=ref[100:400])


async def _fill(device: Device, ref: GpuRef) -> None:
    await device.fill(ref[16_000:20_000], 2)


async def _run(device: Device, ref: GpuRef) -> None:
    await device.run(_set, ref[300:500], 3.0)


async def _evaluate(device: Device, ref: GpuRef) -> None:
    await device.evaluate(ref[:10_000] * 0 + 4, out=ref[:10_000])


async def _batch(device: Device, ref: GpuRef) -> None:
    async with device.batch() as batch:
        batch.fill(ref[39_000:], 5)


WRITES: list[Write] = [
    (_put, slice(100, 400), 1),
    (_fill, slice(16_000, 20_000), 2),
    (_run, slice(300, 500), 3),
    (_evaluate, slice(0, 10_000), 4),
    (_batch, slice(39_000, None), 5),
]


def contents(writes: list[Write]) -> list[np.ndarray[Any, Any]]:
    """Return the content before the first write, and after each."""
    found = [np.zeros(SIZE, np.float32)]
    for _, part, value in writes:
        after = found[-1].copy()
        after[part] = value
        found.append(after)
    return found


class Awaits(trio.abc.Instrument):
    """Tells when one task awaits something for the n-th time, or has ended."""

    def __init__(self, wanted: int) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.reached = trio.Event()
        self._left = wanted

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task awaits something, or has ended."""
        if task is self.task:
            self._left -= 1
            if self._left < 0:
                self.reached.set()

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        """A task has ended."""
        if task is self.task:
            self.reached.set()


async def killed_at(
    step: int, delay: float, device: Device, function: Callable[[], Awaitable[None]]
) -> bool:
    """Kill the host at an await of a function; return True if it came to its end before."""
    ended = False
    awaits = Awaits(step)

    async def run() -> None:
        nonlocal ended
        awaits.task = trio.lowlevel.current_task()
        try:
            await function()
            ended = True
        except (ContextPoisoned, GpuRefStale):
            pass

    trio.lowlevel.add_instrument(awaits)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await awaits.reached.wait()
            await trio.sleep(delay)
            before = ended
            await kill_host(device)
    finally:
        trio.lowlevel.remove_instrument(awaits)
    return before


async def kill_one(
    device: Device, writes: list[Write], step: int, delay: float, counts: Counter[str]
) -> tuple[bool, str]:
    """Kill the host at one checkpoint of the writes.

    Returns:
        True if all writes had ended before that; the failure, or an empty text.
    """
    ref = await device.zeros(SIZE, np.float32, durable=True)
    done = 0

    async def write() -> None:
        nonlocal done
        for call, _, _ in writes:
            await call(device, ref)
            done += 1

    ended = await killed_at(step, delay, device, write)
    counts["kills"] += 1
    try:
        found = await device.get(ref)
    except GpuRefStale as error:
        counts["stale"] += 1
        wrong = ended or IN_FLIGHT not in str(error)
        return ended, f"step {step}: stale, {ended=}: {error}" if wrong else ""
    counts["continued"] += 1
    # The write that was interrupted has happened or not.
    allowed = contents(writes)[done : done + 2]
    good = any((found == each).all() for each in allowed)
    return ended, "" if good else f"step {step}: wrong bytes after {done} writes"


async def kill_appends(
    device: Device, step: int, delay: float, counts: Counter[str]
) -> tuple[bool, str]:
    """Kill the host at one checkpoint of appends to a durable cache.

    Returns:
        True if all appends had ended before that; the failure, or an empty text.
    """
    cache = await device.dnn.kv_cache(16, PAGE, HEADS, SIZE_OF_HEAD, dtype="float16", durable=True)
    one = cache.new()
    row = await device.put(np.full((1, PROMPT, HEADS, SIZE_OF_HEAD), 1, np.float16))
    await cache.append([one], row, row)
    other = cache.fork(one)
    done = 0

    async def write() -> None:
        nonlocal done
        for number in (2, 3):
            new = await device.put(np.full((2, 2, HEADS, SIZE_OF_HEAD), number, np.float16))
            await cache.append([one, other], new, new)
            done += 1

    ended = await killed_at(step, delay, device, write)
    counts["kills"] += 1
    found = await cache.recover()
    expected = [1] * PROMPT + [2, 2, 3, 3]
    memory = (await device.get(cache.k)).reshape(-1, HEADS * SIZE_OF_HEAD)
    for each in (one, other):
        length = cache.length(each)
        if found[each].changed or not PROMPT + 2 * done <= length <= PROMPT + 2 * done + 2:
            return ended, f"step {step}: {found[each]} after {done} appends"
        pages = cache.pages(each)
        rows = [pages[at // PAGE] * PAGE + at % PAGE for at in range(length)]
        if (memory[rows] != np.array(expected[:length])[:, None]).any():
            return ended, f"step {step}: wrong tokens after {done} appends"
    counts["tokens lost"] += sum(one.lost for one in found.values())
    return ended, ""


async def soak(words: argparse.Namespace, counts: Counter[str]) -> list[str]:
    """Kill hosts, and return the failures."""
    kills, end = words.kills, trio.current_time() + words.seconds
    wrong: list[str] = []
    draw = random.Random(words.seed)
    async with opened(words.backend) as device:
        turn = words.seed
        while counts["kills"] < kills and trio.current_time() < end:
            writes = WRITES[turn % len(WRITES) :] + WRITES[: turn % len(WRITES)]
            turn += 1
            ended, step = False, 0
            while not ended and counts["kills"] < kills and trio.current_time() < end:
                delay = draw.uniform(0, 0.002) if turn % 2 else 0.0
                if turn % 3:
                    ended, said = await kill_one(device, writes, step, delay, counts)
                else:
                    ended, said = await kill_appends(device, step, delay, counts)
                step += 1
                if said:
                    wrong.append(f"turn {turn}, {said}")
                    print(wrong[-1], flush=True)
        counts["turns"] = turn - words.seed
    return wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000_000)
    run(soak, parser)


if __name__ == "__main__":
    main()
