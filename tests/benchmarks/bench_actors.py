"""Actors side by side: this package, trio's memory channels by hand, pykka and xoscar.

One run on one machine measures four costs of each package: a question with its answer, a message
without an answer, the memory of an idle actor, and a restart. Every time is the best of several
rounds, which take turns so that a busy moment of the machine hits all alike. pykka and xoscar are
left out if they are not installed.

What pykka takes for a round trip depends on whether the system runs its two threads on one
core or on two, and left alone it does now this, now that. So it is measured both ways. The
floor for two trio tasks is measured as well: each wakes the other and parks, and that is all.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import itertools
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trio
import trio.testing
from measuring import free_port

from atomr_accel.actors import (
    Actor,
    Backoff,
    Intensity,
    Mailbox,
    Message,
    Supervision,
    handler,
    open_actor_system,
)

ROUNDS = 5
IDLE = 100_000
GOALS = {"ask": 1.15, "pykka": 4, "tell": 5, "idle": 8192}

Measured = dict[str, float]
"""Seconds, or bytes, each, by contender."""


class Add(Message[int]):
    k: int


class Fail(Message[None]):
    pass


class Counter(Actor):
    def __init__(self) -> None:
        self.total = 0

    @handler
    async def add(self, message: Add) -> int:
        self.total += message.k
        return self.total

    @handler
    async def fail(self, message: Fail) -> None:
        raise RuntimeError


RESTLESS = Supervision(intensity=Intensity(restarts=10**9), backoff=Backoff(base=0))


# --- ask: a question and its answer ------------------------------------------------


async def ask_ours(n: int) -> float:
    async with open_actor_system("bench") as system:
        counter = await system.spawn(Counter)
        message = Add(k=1)
        start = time.perf_counter()
        for _ in range(n):
            await counter.ask(message)
        return (time.perf_counter() - start) / n


async def ask_channels(n: int) -> float:
    """Two memory channels, there and back: the least that trio's own tools can do."""
    questions_in, questions = trio.open_memory_channel[int](0)
    answers_in, answers = trio.open_memory_channel[int](0)

    async def serve() -> None:
        total = 0
        async for k in questions:
            total += k
            await answers_in.send(total)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        start = time.perf_counter()
        for _ in range(n):
            await questions_in.send(1)
            await answers.receive()
        elapsed = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return elapsed / n


async def ask_floor(n: int) -> float:
    """Two tasks that wake each other with nothing in between."""
    client = trio.lowlevel.current_task()
    server = client

    def abort(_: object) -> trio.lowlevel.Abort:
        return trio.lowlevel.Abort.SUCCEEDED

    async def serve() -> None:
        nonlocal server
        server = trio.lowlevel.current_task()
        while True:
            await trio.lowlevel.wait_task_rescheduled(abort)
            trio.lowlevel.reschedule(client)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        start = time.perf_counter()
        for _ in range(n):
            trio.lowlevel.reschedule(server)
            await trio.lowlevel.wait_task_rescheduled(abort)
        elapsed = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return elapsed / n


def ask_pykka(n: int, cores: int) -> float:
    """A round trip between two threads, both on one core or each on its own."""
    before = os.sched_getaffinity(0)
    ours, *others = sorted(before)
    os.sched_setaffinity(0, {ours})  # of this thread, and those it starts
    try:
        ref = _pykka_counter().start()
        if cores == 2:
            ref.proxy().move_to(others[0]).get()
        start = time.perf_counter()
        for _ in range(n):
            ref.ask(1)
        elapsed = time.perf_counter() - start
        ref.stop()
    finally:
        os.sched_setaffinity(0, before)
    return elapsed / n


def ask_xoscar(n: int) -> float:
    async def measure(ref: Any) -> float:
        start = time.perf_counter()
        for _ in range(n):
            await ref.add(1)
        return (time.perf_counter() - start) / n

    return _in_xoscar(measure)


# --- tell: messages without an answer, until the last is handled -------------------


async def tell_ours(n: int) -> float:
    async with open_actor_system("bench") as system:
        counter = await system.spawn(Counter, mailbox=Mailbox(capacity=1024))
        message = Add(k=1)
        start = time.perf_counter()
        for _ in range(n // 1000):
            for _ in range(1000):
                counter.tell(message)
            await counter.ask(message)  # wait until they are handled: the mailbox is bounded
        return (time.perf_counter() - start) / n


async def tell_channel(n: int) -> float:
    """One memory channel of the same capacity, awaited as it must be."""
    send, receive = trio.open_memory_channel[int](1024)

    async def serve() -> None:
        total = 0
        async for k in receive:
            total += k

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with send:
            for _ in range(n):
                await send.send(1)
    return (time.perf_counter() - start) / n


def tell_pykka(n: int) -> float:
    ref = _pykka_counter().start()
    start = time.perf_counter()
    for _ in range(n):
        ref.tell(1)
    ref.ask(1)
    elapsed = time.perf_counter() - start
    ref.stop()
    return elapsed / n


def tell_xoscar(n: int) -> float:
    async def measure(ref: Any) -> float:
        start = time.perf_counter()
        for _ in range(n):
            await ref.add.tell(1)
        await ref.add(1)
        return (time.perf_counter() - start) / n

    return _in_xoscar(measure)


# --- restart: from the message that fails to the first answer of the next life -----


async def restart_ours(n: int) -> float:
    async with open_actor_system("bench", supervision=RESTLESS) as system:
        counter = await system.spawn(Counter)
        fail, message = Fail(), Add(k=1)
        start = time.perf_counter()
        for _ in range(n):
            counter.tell(fail)
            await counter.ask(message)
        return (time.perf_counter() - start) / n


async def restart_by_hand(n: int) -> float:
    """A task around two memory channels that is started again when it fails."""
    questions_in, questions = trio.open_memory_channel[int](0)
    answers_in, answers = trio.open_memory_channel[int](0)

    async def serve(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        async for k in questions:
            if not k:
                raise RuntimeError
            await answers_in.send(k)

    async def supervise() -> None:
        while True:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(serve)
            except* RuntimeError:
                pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervise)
        start = time.perf_counter()
        for _ in range(n):
            await questions_in.send(0)
            await questions_in.send(1)
            await answers.receive()
        elapsed = time.perf_counter() - start
        nursery.cancel_scope.cancel()
    return elapsed / n


def restart_pykka(n: int) -> float:
    """Stop the actor and start another, as pykka has no supervision."""
    counter = _pykka_counter()
    ref = counter.start()
    start = time.perf_counter()
    for _ in range(n):
        ref.stop()
        ref = counter.start()
        ref.ask(1)
    elapsed = time.perf_counter() - start
    ref.stop()
    return elapsed / n


# --- idle: memory of an actor that does nothing ------------------------------------


def idle(who: str, n: int) -> float:
    """Bytes an actor adds to the resident memory of a fresh process."""
    command = [sys.executable, str(Path(__file__)), "--idle", who, str(n)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(result.stdout)


def _idle_here(who: str, n: int) -> float:
    """Run the part of `idle` that belongs in the fresh process."""
    return {"ours": _idle_ours, "channel": _idle_channel, "pykka": _idle_pykka}[who](n)


def _idle_ours(n: int) -> float:
    async def main() -> float:
        async with open_actor_system("bench") as system:
            await system.spawn(Counter)
            before = _resident()
            for _ in range(n):
                await system.spawn(Counter)
            after = _resident()
            os.write(1, str((after - before) / n).encode())
            os._exit(0)  # stopping them in order is not measured

    return trio.run(main)


def _idle_channel(n: int) -> float:
    async def serve(receive: trio.MemoryReceiveChannel[int]) -> None:
        async for _ in receive:
            pass

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            channels = []
            before = _resident()
            for _ in range(n):
                send, receive = trio.open_memory_channel[int](1024)
                channels.append(send)
                nursery.start_soon(serve, receive)
            await trio.testing.wait_all_tasks_blocked()
            after = _resident()
            nursery.cancel_scope.cancel()
        return (after - before) / n

    return trio.run(main)


def _idle_pykka(n: int) -> float:
    counter = _pykka_counter()
    before = _resident()
    refs = [counter.start() for _ in range(n)]
    after = _resident()
    for ref in refs:
        ref.stop()
    return (after - before) / n


def _resident() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- the others --------------------------------------------------------------------


def _pykka_counter() -> Any:
    import pykka

    class PykkaCounter(pykka.ThreadingActor):
        def __init__(self) -> None:
            super().__init__()
            self.total = 0

        def on_receive(self, message: Any) -> Any:
            self.total += message
            return self.total

        def move_to(self, core: int) -> None:
            os.sched_setaffinity(0, {core})

    return PykkaCounter


def _in_xoscar(measure: Callable[[Any], Any]) -> float:
    import xoscar

    class XoscarCounter(xoscar.Actor):  # type: ignore[misc] # untyped
        def __init__(self) -> None:
            self.total = 0

        async def add(self, k: int) -> int:
            self.total += k
            return self.total

    async def main() -> float:
        address = f"127.0.0.1:{free_port()}"
        pool = await xoscar.create_actor_pool(address, n_process=0)
        async with pool:
            ref = await xoscar.create_actor(XoscarCounter, address=address, uid="counter")
            return float(await measure(ref))

    return asyncio.run(main())


# --- the table ---------------------------------------------------------------------


def best_of(contenders: dict[str, Callable[[], float]]) -> Measured:
    """The best time of each, measured in turns."""
    best = dict.fromkeys(contenders, math.inf)
    for _, (name, measure) in itertools.product(range(ROUNDS), contenders.items()):
        gc.collect()
        best[name] = min(best[name], measure())
    return best


def show(title: str, measured: Measured, base: str, unit: str, scale: float) -> None:
    """One table: what each costs, and how that compares with the base."""
    print(f"\n{title}")
    for name, value in measured.items():
        print(f"  {name:<34}{value * scale:>10.2f} {unit}   {value / measured[base]:>7.2f}")


def verdict(text: str, *, met: bool) -> None:
    """One line on a goal."""
    print(f"  goal: {text}: {'met' if met else 'MISSED'}")


def main() -> None:
    """Measure everything and print it."""
    logging.getLogger("atomr_accel.actors").setLevel(logging.CRITICAL)  # restarts are logged
    pykka, xoscar = (importlib.util.find_spec(name) is not None for name in ("pykka", "xoscar"))
    ours, channels = "atomr_accel", "trio memory channels"

    contenders: dict[str, Callable[[], float]] = {
        ours: lambda: trio.run(ask_ours, 20_000),
        channels: lambda: trio.run(ask_channels, 20_000),
        "trio tasks, woken by hand": lambda: trio.run(ask_floor, 20_000),
    }
    if pykka:
        contenders["pykka, threads on one core"] = lambda: ask_pykka(5_000, 1)
        if len(os.sched_getaffinity(0)) > 1:
            contenders["pykka, threads on two cores"] = lambda: ask_pykka(5_000, 2)
    if xoscar:
        contenders["xoscar"] = lambda: ask_xoscar(5_000)
    times = best_of(contenders)
    show("ask: one round trip (ratio to two channels)", times, channels, "µs", 1e6)
    ratio = times[ours] / times[channels]
    verdict(f"at most {GOALS['ask']} of two channels, {ratio:.2f}", met=ratio <= GOALS["ask"])
    for name in (name for name in times if name.startswith("pykka")):
        ratio = times[name] / times[ours]
        verdict(f"{GOALS['pykka']} × as fast as {name}, {ratio:.1f} ×", met=ratio >= GOALS["pykka"])

    contenders = {
        ours: lambda: trio.run(tell_ours, 100_000),
        "trio memory channel, awaited": lambda: trio.run(tell_channel, 20_000),
    }
    if pykka:
        contenders["pykka"] = lambda: tell_pykka(20_000)
    if xoscar:
        contenders["xoscar"] = lambda: tell_xoscar(5_000)
    times = best_of(contenders)
    base = "trio memory channel, awaited"
    show("tell: one message, until it is handled (ratio to a channel)", times, base, "µs", 1e6)
    ratio = times[base] / times[ours]
    verdict(f"{GOALS['tell']} × as fast as a channel, {ratio:.1f} ×", met=ratio >= GOALS["tell"])

    contenders = {
        ours: lambda: trio.run(restart_ours, 2_000),
        "trio nursery, by hand": lambda: trio.run(restart_by_hand, 2_000),
    }
    if pykka:
        contenders["pykka, stopped and started"] = lambda: restart_pykka(500)
    times = best_of(contenders)
    title = "restart: from a failure to the next answer, no back-off (ratio to by hand)"
    show(title, times, "trio nursery, by hand", "µs", 1e6)

    measured = {ours: idle("ours", IDLE), "trio task and channel": idle("channel", IDLE)}
    if pykka:
        measured["pykka (1,000 of them)"] = idle("pykka", 1_000)
    title = f"idle: resident memory of each of {IDLE:,} actors (ratio to a task)"
    show(title, measured, "trio task and channel", "KiB", 1 / 1024)
    size = measured[ours]
    verdict(f"under 8 KiB each, {size / 1024:.1f} KiB", met=size < GOALS["idle"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--idle"]:
        print(_idle_here(sys.argv[2], int(sys.argv[3])))
    else:
        main()
