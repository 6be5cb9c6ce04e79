"""The life of hosts: they start alone, answer or are killed, and end with their program."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    DeviceUnavailable,
    GpuRefStale,
    OutOfMemory,
    Standby,
)
from atomr_accel.actors import Backoff
from atomr_accel.device.contexts import context as _context
from atomr_accel.device.standby import _keeper, _spare
from atomr_accel.lanes import HostHandle, Isolation, _spawn, start_host
from atomr_accel.testing import kill_host, poison
from tests import seeds
from tests.harness import (
    AT_ONCE,
    cpu_only,
    descriptors,
    no_descriptors,
    opened,
    sized,
    stop_process,
)

from .standbys import EYE, OFTEN, open_a_lane, standby_of, works

pytestmark = cpu_only


def children() -> set[int]:
    """The processes that this one has started and not reaped."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                found.add(int(path.parent.name))
    return found


@pytest.fixture(autouse=True)
def others() -> Iterator[set[int]]:
    """Processes of other tests; there are no more after a test."""
    others = children()
    yield others
    assert children() <= others


def short_of(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def failing(failures: list[Any]) -> Callable[..., Awaitable[HostHandle]]:
    """Return a ``start_host`` that raises these errors first, from the last on."""

    async def sometimes(isolation: Isolation, *_: object) -> HostHandle:
        if failures:
            await trio.lowlevel.checkpoint()
            raise failures.pop()
        return await start_host(isolation)

    return sometimes


# --- what is started ---------------------------------------------------------------------


async def test_host_executes_no_file_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "msgspec", "signal", "atomr_accel", "site", "encodings"):
        code = "open('executed', 'w').close(); raise SystemExit('not this one')"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    async with opened() as device:
        await works(device)
    assert not (tmp_path / "executed").exists()


async def test_a_host_finds_what_the_program_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_this_program.py").write_text("def answer(): return 42", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    import of_this_program  # type: ignore[import-not-found]

    async with opened() as device:
        assert await device.run(of_this_program.answer) == 42


async def test_host_ignores_the_path_entries_that_python_ignores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path: list[Any] = [*sys.path, Path("somewhere"), None, "no\0name"]
    async with opened() as device:
        monkeypatch.setattr(sys, "path", path)
        await kill_host(device)
        await works(device)


async def test_opening_and_recovery_need_no_worker_thread_of_trios() -> None:
    """Programs use them up: each task that calls into the loop from a thread holds one."""
    limiter = trio.to_thread.current_default_thread_limiter()
    taken = [object() for _ in range(int(limiter.available_tokens))]
    for holder in taken:
        limiter.acquire_on_behalf_of_nowait(holder)
    try:
        async with opened(standby=Standby(warm=1)) as device:
            await kill_host(device)
            await works(device)
        async with opened(isolation="thread") as device:
            await works(device)
    finally:
        for holder in taken:
            limiter.release_on_behalf_of(holder)


@pytest.mark.filterwarnings("ignore:trio.run:trio.TrioDeprecationWarning")
@pytest.mark.parametrize("end", [poison, kill_host])
def test_a_program_that_wants_single_errors_bare(end: Callable[[Device], Awaitable[Any]]) -> None:
    async def main() -> None:
        async with opened() as device:
            await end(device)
            await works(device)

    trio.run(main, strict_exception_groups=False)


# --- hosts that do not answer ------------------------------------------------------------


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience that tests can wait for."""
    monkeypatch.setattr(_spawn, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr(_context, "_PROMPT_SECONDS", 0.05)


def stop(host: HostHandle) -> None:
    assert host.pid is not None
    stop_process(host.pid)


async def grow(device: Device) -> None:
    await device.empty(1 << 28, np.uint8)


async def nothing(device: Device) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("call", [grow, open_a_lane, nothing])
async def test_a_stopped_host_holds_nobody_up(call: Callable[[Device], Awaitable[None]]) -> None:
    async with opened() as device:
        await device.put(EYE)
        stop((await device.core.ready()).host)
        with trio.move_on_after(0.05):
            await call(device)


@pytest.mark.usefixtures("brief")
async def test_a_host_that_never_answers_costs_one_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened() as device:
        await device.put(EYE)
        stop((await device.core.ready()).host)
        with monkeypatch.context() as patch:
            patch.setattr(_spawn, "ANSWER_SECONDS", 0.05)
            async with device.watch_generation() as changes, trio.open_nursery() as nursery:
                nursery.start_soon(grow, device)
                await anext(changes)
                patch.undo()
        fault = device.statistics().last_fault
        assert fault is not None
        assert "was killed, because it did not answer CreateSlab" in fault
        await works(device)


@pytest.mark.usefixtures("brief")
async def test_a_host_that_is_stopped_as_it_starts_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def stopped(isolation: Isolation, *_: object) -> HostHandle:
        host = await start_host(isolation)
        stop(host)
        started.set()
        return host

    async def cancel() -> None:
        await started.wait()
        scope.cancel()

    started = trio.Event()
    monkeypatch.setattr(_context, "start_host", stopped)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel)
        with trio.CancelScope() as scope:
            async with opened():
                pytest.fail("opened")


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
async def test_a_stopped_standby_is_not_taken() -> None:
    async with opened(standby=Standby(warm=1)) as device:
        await works(device)
        standby = standby_of(device)
        await standby.wait_ready()
        stop(standby.hosts[0])
        await kill_host(device)
        await works(device)


@pytest.mark.usefixtures("brief")
async def test_a_standby_that_is_stopped_as_it_loads_holds_nobody_up() -> None:
    async with opened(standby=Standby(warm=1)) as device:
        standby = standby_of(device)
        await standby.wait_ready()
        stop(standby.hosts[0])
        await works(device)  # it is to load what that uses, too


async def test_a_process_forked_in_a_host_does_not_hide_its_end() -> None:
    """The forked process holds copies of the host's sockets, so they do not report the end."""

    def fork() -> tuple[int, int]:
        pid = os.fork()
        while not pid:
            time.sleep(1000)
        return pid, os.getpid()

    async with opened() as device:
        await device.put(EYE)
        child, host = await device.run(fork)
        try:
            async with trio.open_nursery() as nursery:

                async def wait_for_ever() -> None:
                    with pytest.raises(ContextPoisoned):
                        await device.run(time.sleep, 1000)

                nursery.start_soon(wait_for_ever)
                while not device.statistics().in_flight:
                    await trio.lowlevel.checkpoint()
                os.kill(host, signal.SIGKILL)
            await works(device)
        finally:
            os.kill(child, signal.SIGKILL)


# --- devices that are not lost without need ----------------------------------------------


@pytest.fixture
def retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_keeper, "_RETRY", AT_ONCE)


@pytest.mark.slow
@pytest.mark.usefixtures("retried")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
async def test_a_standby_that_cannot_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [short_of(number)] * 3

    monkeypatch.setattr(_spare, "start_host", failing(failures))
    async with opened(standby=Standby(warm=1), max_restarts=1) as device:
        await standby_of(device).wait_ready()
        await poison(device)
        await works(device)
    assert caplog.text.count("no standby host") == 3


@pytest.mark.slow
@pytest.mark.usefixtures("retried")
async def test_a_standby_that_ends_is_replaced() -> None:
    async with opened(standby=Standby(warm=1)) as device:
        standby = standby_of(device)
        await standby.wait_ready()
        standby.hosts[0].kill()
        while standby.ready:
            await trio.lowlevel.checkpoint()
        await standby.wait_ready()
        await poison(device)
        await works(device)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
async def test_a_rebuild_for_which_there_is_no_room_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    failures = [short_of(number)] * 2

    async with opened(max_restarts=3) as device:
        monkeypatch.setattr(_context, "start_host", failing(failures))
        await kill_host(device)
        await works(device)
    assert not failures


@pytest.mark.parametrize("starts", [9, 10])
async def test_a_device_whose_context_does_not_start_ten_times_in_a_row_is_lost(
    monkeypatch: pytest.MonkeyPatch, starts: int
) -> None:
    failures = [DeviceUnavailable("it is gone")] * starts

    lost = pytest.raises(DeviceLost, match=r"did not start 10 times in a row; .*: it is gone")
    with lost if starts == 10 else nullcontext():
        async with opened() as device:
            monkeypatch.setattr(_context, "start_host", failing(failures))
            await kill_host(device)
            await works(device)
    assert not failures


@pytest.mark.slow
@pytest.mark.parametrize("standby", [None, Standby(warm=1)])
async def test_faults_that_follow_each_other_are_survived_and_waited_for(standby: Any) -> None:
    async with opened(backoff=None, standby=standby) as device:
        cell = device.ref._cell
        assert cell.supervisor is not None
        machine = cell.supervisor._machine
        for number in range(1, 7):
            await poison(device)
            await works(device)
            assert machine.restarts == number
        delays = [machine.backoff.delay(number) for number in range(1, 14)]
        assert delays[0] == 0
        assert delays[1] == (0.1 if standby is None else 0.01)
        assert delays == sorted(delays)
        assert delays[-1] == 2.0
        assert machine.backoff.delay(machine.restarts_in_window(trio.current_time() + 61)) == 0


# --- the end of a device says why --------------------------------------------------------


@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_a_loss_as_the_last_thing_leaves_the_block(isolation: Isolation) -> None:
    with pytest.raises(DeviceLost) as info:
        async with opened(isolation=isolation, max_restarts=0) as device:
            await poison(device)
    assert isinstance(info.value.__cause__, ContextPoisoned)


async def test_a_fault_as_the_last_thing_that_could_be_mended_does_not() -> None:
    async with opened(max_restarts=1) as device:
        await poison(device)


async def test_a_loss_says_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async def odd(isolation: Isolation, *_: object) -> HostHandle:
        await trio.lowlevel.checkpoint()
        raise KeyError("odd")

    last = "another one would not mend; the last failure: KeyError: 'odd'"
    with pytest.raises(DeviceLost, match=last):
        async with opened() as device:
            monkeypatch.setattr(_context, "start_host", odd)
            await kill_host(device)
            await works(device)


async def test_refs_say_that_their_device_was_closed_or_lost() -> None:
    async with opened() as device:
        ref = await device.put(EYE)
    with pytest.raises(GpuRefStale, match=r"ref is gone: cpu:0.* is closed: its 'async"):
        await device.get(ref)
    with pytest.raises(DeviceLost):
        async with opened(max_restarts=0) as device:
            ref = await device.put(EYE)
            await poison(device)
    with pytest.raises(GpuRefStale, match=r"ref is gone: cpu:0.* is lost"):
        await device.get(ref)


# --- other threads -----------------------------------------------------------------------


async def test_use_from_another_threads_loop_is_refused_at_once(isolation: Isolation) -> None:
    async with opened(isolation=isolation) as device:
        x = await device.put(EYE)
        errors: list[BaseException] = []

        def elsewhere(call: Callable[[], Awaitable[Any]]) -> None:
            async def main() -> None:
                with pytest.raises(RuntimeError, match=r"trio\.from_thread\.run") as info:
                    await call()
                errors.append(info.value)

            trio.run(main)

        calls = [
            lambda: device.put(EYE),
            lambda: device.put(EYE, sealed=True),
            lambda: device.put(np.zeros(1 << 21)),
            lambda: device.get(x),
            lambda: device.empty(3),
            lambda: device.zeros(3),
            lambda: device.blas.gemm(x, x),
            lambda: device.run(len, []),
            lambda: device.seal(x),
            lambda: device.free(x),
            lambda: device.copy(x),
        ]
        for call in calls:
            await trio.to_thread.run_sync(elsewhere, call)
        assert len(errors) == len(calls)
        assert "of thread" in str(errors[0])
        assert np.array_equal(await device.get(x), EYE)
        token = trio.lowlevel.current_trio_token()
        there = partial(trio.from_thread.run, device.get, x, trio_token=token)
        assert np.array_equal(await trio.to_thread.run_sync(there), EYE)


# --- leaks -------------------------------------------------------------------------------


class _CancelAt(trio.abc.Instrument):
    """Cancels a scope when any task of the program takes its n-th step."""

    def __init__(self, scope: trio.CancelScope, step: int) -> None:
        self._scope = scope
        self._step = step
        self.steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps == self._step:
            self._scope.cancel()


async def _cancelled_at(step: int, *, fault: bool, **options: Any) -> bool:
    """Open a device, and cancel that somewhere; whether it got that far."""
    with trio.CancelScope() as scope:
        canceller = _CancelAt(scope, step)
        trio.lowlevel.add_instrument(canceller)
        try:
            async with opened(**options) as device:
                if fault:
                    sealed = await device.put(EYE, sealed=True)
                    await poison(device)
                    assert np.array_equal(await device.get(sealed), EYE)
        finally:
            trio.lowlevel.remove_instrument(canceller)
    return canceller.steps >= step


@pytest.mark.parametrize(
    ("isolation", "standby", "fault", "stride"),
    [
        ("thread", None, False, 1),
        pytest.param("process", None, False, sized(8, 3), marks=pytest.mark.slow),
        pytest.param("process", Standby(warm=1), False, sized(10, 4), marks=pytest.mark.slow),
        pytest.param("process", None, True, sized(40, 17), marks=pytest.mark.slow),
        pytest.param("process", Standby(warm=1), True, sized(55, 23), marks=pytest.mark.slow),
    ],
)
async def test_cancelled_anywhere_it_leaves_nothing(
    others: set[int], isolation: Isolation, standby: Standby | None, fault: bool, stride: int
) -> None:
    async with opened(isolation=isolation):  # the thread that starts hosts stays
        pass
    before, threads = descriptors(), threading.active_count()
    step = 1 + seeds.draw() % stride
    while await _cancelled_at(step, fault=fault, isolation=isolation, standby=standby):
        assert descriptors() <= before, step
        assert threading.active_count() <= threads, step
        assert children() <= others, step
        step += stride
    assert step > 20


@pytest.mark.parametrize("left", [0, 1, 2, 3, 5, 8, 13])
async def test_out_of_descriptors_opening_says_so(isolation: Isolation, left: int) -> None:
    before = descriptors()
    told: OSError | OutOfMemory | None = None
    try:
        with no_descriptors(left):
            async with opened(isolation=isolation) as device:
                await device.put(EYE)
    except (OSError, OutOfMemory) as error:
        told = error
    if isinstance(told, OSError):
        assert told.errno == errno.EMFILE
    elif told is not None:
        assert os.strerror(errno.EMFILE) in str(told)
    assert descriptors() <= before


@pytest.mark.parametrize("left", [0, 1, 2, 3, 5, 8])
async def test_out_of_descriptors_for_a_while_a_device_recovers(left: int) -> None:
    before = descriptors()
    async with opened(
        max_restarts=OFTEN, backoff=Backoff(initial=0.01, base=0.01, factor=1.0)
    ) as device:
        sealed = await device.put(EYE, sealed=True)
        supervisor = device.core.place.supervisor
        assert supervisor is not None
        with no_descriptors(left):
            await kill_host(device)
            restarts = supervisor.statistics().restarts
            while device.statistics().state != "ready":
                if supervisor.statistics().restarts > restarts + 1:
                    break
                await trio.lowlevel.checkpoint()
        assert np.array_equal(await device.get(sealed), EYE)
        await works(device)
    assert descriptors() <= before


# --- the end of a program ----------------------------------------------------------------


def started(code: str) -> subprocess.Popen[str]:
    """Start a program, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


OUTLIVED: Final = """
import ctypes, os, signal, time, trio
from atomr_accel import open_device

def keep_the_gil():
    ctypes.PyDLL(None).sleep(1000)

async def main():
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    async with open_device(0, backend="cpu") as device:
        host = device.statistics().host_pid
        child = os.fork()
        while not child:
            time.sleep(1000)
        print(host, child, flush=True)
        await device.run(keep_the_gil)

trio.run(main)
"""


@pytest.mark.slow
async def test_no_host_outlives_its_program() -> None:
    """The host ends even if a child of the program holds its sockets, or if it keeps the GIL."""
    process = started(OUTLIVED)
    assert process.stdout is not None
    line = await trio.to_thread.run_sync(process.stdout.readline)
    host, child = map(int, line.split())
    pidfd = os.pidfd_open(host)
    try:
        process.kill()
        await trio.to_thread.run_sync(process.wait)
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()
        os.close(pidfd)


INTERRUPTED: Final = """
import os, signal, trio
from atomr_accel import open_device
from atomr_accel.device.contexts import context as _context

@trio.lowlevel.enable_ki_protection
async def interrupted(*args, **options):
    host = await start(*args, **options)
    os.killpg(0, signal.SIGINT)  # as a terminal does
    return host

start, _context.start_host = _context.start_host, interrupted

async def main():
    try:
        async with open_device(0, backend="cpu"):
            print("opened")
    except KeyboardInterrupt:
        print("bye")

trio.run(main)
"""


@pytest.mark.slow
async def test_an_interrupt_while_opening_is_nothing_else() -> None:
    process = started(INTERRUPTED)
    output, errors = await trio.to_thread.run_sync(process.communicate)
    assert (output, errors, process.returncode) == ("bye\n", "", 0)
