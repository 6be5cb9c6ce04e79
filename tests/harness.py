"""Shared by tests of devices: the backend, opening a device, running a program.

Nothing here needs pytest-trio, so that these tests run wherever pytest and trio are.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import mmap
import os
import queue
import resource
import signal
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import Device, open_device
from atomr_accel.actors import Backoff
from atomr_accel.backends import cuda
from atomr_accel.testing._faults import simulate
from atomr_accel.testing.garbage import collect_garbage

P = ParamSpec("P")
T = TypeVar("T")

ROOT: Final = Path(__file__).resolve().parents[1]


def _backend() -> str:
    wanted = os.environ.get("ATOMR_TEST_BACKEND", "auto")
    if wanted == "auto":
        return "cpu" if cuda.why_absent() else "cuda"
    return wanted


BACKEND: Final = _backend()
"""Backend of the tests; the environment's ``ATOMR_TEST_BACKEND`` chooses."""

ON_CUDA: Final = BACKEND == "cuda"

FULL: Final = "ATOMR_TEST_FULL" in os.environ
"""True if long tests run in full, as in the session ``full``."""

SECONDS: Final = 600 if ON_CUDA else 300 if FULL else 60
"""Nothing here takes nearly as long: what does hangs.

On CUDA the first call of a kernel waits for its compilation, beside those of all other workers.
"""

AT_ONCE: Final = Backoff(initial=0.0, base=0.0, maximum=0.0)

cpu_only: Final = pytest.mark.skipif(ON_CUDA, reason="of the CPU backend")

_nvrtc_is_here: Final = pytest.mark.skipif(
    not ON_CUDA and importlib.util.find_spec("cuda") is None,
    reason="cuda-bindings is not installed: nothing here compiles CUDA C++",
)


def needs_nvrtc(test: Callable[P, T]) -> Callable[P, T]:
    """Mark a test that compiles CUDA C++: on the CPU backend the session ``headers`` runs it."""
    return pytest.mark.headers(_nvrtc_is_here(test))


SECOND: Final = int(os.environ.get("ATOMR_TEST_SECOND", "0"))
"""The index of the other device if there are two, else of the only one."""


def opened(index: int = 0, **options: Any) -> AbstractAsyncContextManager[Device]:
    """Open the device under test; restarts wait for nothing."""
    return open_device(index, **{"backend": BACKEND, "backoff": AT_ONCE, **options})


def sized(quick: T, full: T) -> T:
    """Return the quick value, or in the session ``full`` the full one.

    A test that asks is marked ``slow``, or that session would leave it out.
    """
    return full if FULL else quick


def program(function: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Make a test of an async function: run by trio, and not for ever."""

    @functools.wraps(function)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        trio.run(_in_time, partial(function, *args, **kwargs))

    return test


LONG: Final = 1e6
"""Seconds of a mock clock after which a program hangs: when it jumps they take no time."""


def on_mock_clock(function: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Make a test of an async function: run by trio, whose clock jumps when all wait."""

    @functools.wraps(function)
    def test(*args: P.args, **kwargs: P.kwargs) -> None:
        run_on_mock_clock(partial(function, *args, **kwargs))

    return test


def run_on_mock_clock(function: Callable[[], Awaitable[None]]) -> None:
    """Run an async function by trio, whose clock jumps when all wait."""

    async def main() -> None:
        with trio.fail_after(LONG):
            await function()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def refused(
    error: type[BaseException] | tuple[type[BaseException], ...],
    match: str | None,
    opener: Callable[..., AbstractAsyncContextManager[object]],
    *args: Any,
    **options: Any,
) -> None:
    """Assert that an opener, or its context manager on entry, raises an error."""
    with pytest.raises(error, match=match):
        async with opener(*args, **options):
            raise AssertionError("it must not open")


async def _in_time(function: Callable[[], Awaitable[T]]) -> T:
    with trio.fail_after(SECONDS):
        return await function()


class Shared:
    """A device for many examples, in a trio thread of its own. None of them may break it.

    Hypothesis calls tests that are plain functions, again and again; opening a device for
    each call would take longer than most of them.
    """

    device: Device
    _token: trio.lowlevel.TrioToken
    _stop: trio.Event

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._start()

    def _start(self) -> None:
        self._opened: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="shared device", daemon=True)
        self._thread.start()
        if (error := self._opened.get(timeout=SECONDS)) is not None:
            raise error

    def run(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run ``function`` beside the device."""
        if not self._thread.is_alive():  # another test has broken it
            self._start()
        return trio.from_thread.run(_in_time, function, trio_token=self._token)

    def close(self) -> None:
        """Close the device."""
        if self._thread.is_alive():
            trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
            self._thread.join()

    def _serve(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 (raised in the other thread)
            self._opened.put(error)  # or nobody waits for it any more, and has seen the reason

    async def _main(self) -> None:
        async with opened(**self._options) as self.device:
            self._token = trio.lowlevel.current_trio_token()
            self._stop = trio.Event()
            self._opened.put(None)
            await self._stop.wait()


def on_shared(function: Callable[Concatenate[Device, P], Awaitable[None]]) -> Callable[..., None]:
    """Make a test of ``async def test(device, ...)``, which gets the fixture ``shared``.

    Each run must leave the device unchanged: nothing in flight, no memory in use.
    """

    @functools.wraps(function)
    def test(shared: Shared, *args: P.args, **kwargs: P.kwargs) -> None:
        async def run() -> None:
            generation, used = shared.device.generation, used_by(shared.device)
            await function(shared.device, *args, **kwargs)
            await settled(shared.device)
            assert shared.device.generation == generation
            if used_by(shared.device) > used:  # a task that is at its end may hold refs
                await trio.testing.wait_all_tasks_blocked()
            left = used_by(shared.device) - used
            assert left <= 0, f"{left} bytes are still in use"

        shared.run(run)

    signature = inspect.signature(function)
    first, *others = signature.parameters.values()
    assert first.name == "device"
    parameters = [first.replace(name="shared"), *others]
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return test


async def settled(device: Device) -> None:
    """Wait until no op is in flight, those of cancelled callers included."""
    while device.statistics().in_flight:
        await trio.lowlevel.checkpoint()


def used_by(device: Device) -> int:
    """Bytes in use on a device, once everything that is garbage has been collected.

    Without the workspaces that libraries keep from op to op.
    """
    if _held(device):
        collect_garbage()  # tracebacks of expected errors hold refs in cycles
    return _held(device)


def _held(device: Device) -> int:
    kept = sum(
        library.statistics().workspace
        for library in (
            *(device.blaslt, device.cub, device.dnn, device.fft),
            *(device.linalg, device.sparse, device.tensor),
        )
    )
    while device.statistics().memory.dropped:
        """Each look frees some."""
    return device.statistics().memory.used - kept


def descriptors() -> int:
    """Return the number of this process's descriptors."""
    return len([*Path("/proc/self/fd").iterdir()])


def stop_process(pid: int) -> None:
    """Have a process do nothing more: all of its threads have stopped when this returns.

    One of them has to be run to see the signal, and meanwhile the others go on.
    """
    os.kill(pid, signal.SIGSTOP)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # that thread has ended
            while (task / "stat").read_bytes().rpartition(b")")[2].split()[0] != b"T":
                os.sched_yield()


@contextmanager
def no_descriptors(left: int = 0) -> Iterator[None]:
    """This process can open no more than ``left`` further descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + left, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(left):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


class Tensor:
    """An array of a library that is not NumPy."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside groups, however deep."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from leaves(part)
    else:
        yield error


def same_bits(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays are equal in shape, dtype and every bit (NaNs included)."""
    return (
        one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    )


async def cancelled_at(step: int, function: Callable[[], Awaitable[object]]) -> bool:
    """Call ``function`` and cancel it when it waits for the ``step``-th time.

    Returns:
        True if the call got that far; it was cancelled then, or finished in spite of it.
    """
    with trio.CancelScope() as scope:
        stepped = Stepped(function(), step, before=scope.cancel)
        await stepped
    return stepped.waits >= step


async def interrupted_at(
    step: int, function: Callable[[], Awaitable[T]], interlude: Callable[[], Awaitable[object]]
) -> tuple[bool, T]:
    """Call ``function``; when it has waited for the ``step``-th time, let something else happen.

    That is what happens when other tasks run first: the result is there, but the world has changed
    by the time the task gets to see it.

    Returns:
        True if the call got that far, and its result.
    """
    stepped = Stepped(function(), step, after=interlude)
    result = await stepped
    return stepped.waits >= step, result


class Stepped(Generic[T]):
    """Awaits something, and does something else around its n-th wait."""

    def __init__(
        self,
        inner: Awaitable[T],
        step: int,
        *,
        before: Callable[[], object] = lambda: None,
        after: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._inner = inner.__await__()
        self._step = step
        self._before = before
        self._after = after
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, T]:
        answer: Any = None
        while True:
            try:
                trap = self._inner.send(answer)
            except StopIteration as stop:
                result: T = stop.value
                return result
            self.waits += 1
            if self.waits == self._step:
                self._before()
            answer = yield trap
            if self.waits == self._step and self._after is not None:
                try:
                    yield from _shielded(self._after).__await__()
                except BaseException:
                    self._inner.close()  # or it kept its locks, and all others waiting
                    raise


async def _shielded(function: Callable[[], Awaitable[object]]) -> None:
    # A scope of what is stepped through may be cancelled meanwhile, which is not for this to see.
    with trio.fail_after(SECONDS, shield=True):
        await function()


class Gate:
    """A kernel that occupies its lane, and the buffer it writes, until it is let through.

    On the CPU a function waits for a byte. On CUDA each launch has a ticket, and spins until the
    number in a page that program and device share is larger; after some seconds it gives up.
    """

    _SOURCE: Final = """
        extern "C" __global__ void hold(
            float* cells, unsigned long long page, long long ticket, int fault
        ) {
            long long begin = clock64();
            volatile long long* let_through = (volatile long long*)page;
            if (ticket)
                while (*let_through < ticket && clock64() - begin < 40000000000) { }
            cells[0] += 1;
            if (fault) *(volatile int*)(size_t)(page ? 16 : 32) = 1;
        }
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        os.mkfifo(self.path)
        # For both directions, so that neither this nor the function waits for the other to open.
        self._fd = os.open(self.path, os.O_RDWR)
        self._tickets = self._opened = 0
        # Of shared memory, because a driver cannot lock the pages of every file system.
        self._shared = tempfile.NamedTemporaryFile(dir="/dev/shm")  # noqa: SIM115
        os.truncate(self._shared.name, mmap.PAGESIZE)
        self._page = mmap.mmap(self._shared.fileno(), mmap.PAGESIZE)
        self._register = _register(self._shared.name, mmap.PAGESIZE)

    async def kernel(self, device: Device) -> Callable[..., Awaitable[None]]:
        """The kernel as a function of a float32 buffer, and whether to end in a fault.

        It is loaded, so calling it submits an op at once.
        """
        kernel = await device.nvrtc.compile(self._SOURCE, "hold", cpu=_hold(str(self.path)))
        page, generation = await self._show(device), device.generation

        async def launch(cells: Any, *, fault: bool = False) -> None:
            nonlocal page, generation
            if generation != device.generation:
                page, generation = await self._show(device), device.generation
            self._tickets += 1
            await kernel.launch(1, 1, cells, page, self._tickets, int(fault))

        await kernel.launch(1, 1, await device.zeros(1, np.float32), page, 0, 0)
        return launch

    async def _show(self, device: Device) -> int:
        """Have the device see the page; on a GPU only."""
        if not ON_CUDA:
            return 0
        pointer: int = await device.run(self._register, lane="gate")
        await device.close_lane("gate")
        return pointer

    def open(self, times: int = 1) -> None:
        """Let kernels through."""
        os.write(self._fd, b"." * times)
        self._opened += times
        self._page[:8] = self._opened.to_bytes(8, "little")

    def close(self) -> None:
        """Let whoever still waits through, for good."""
        self.open(1000)
        os.close(self._fd)
        self._shared.close()


def _register(path: str, size: int) -> Callable[[], int]:
    # A function made here travels to the host by value: the host need not find this module.
    def register() -> int:
        import ctypes
        import os

        from cuda.bindings import driver

        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        fd = os.open(path, os.O_RDWR)
        try:  # it stays mapped for as long as the host lives, since a kernel may look at it
            address = libc.mmap(None, size, 3, 1, fd, 0)
        finally:
            os.close(fd)
        (status,) = driver.cuMemHostRegister(address, size, driver.CU_MEMHOSTREGISTER_DEVICEMAP)
        assert status == 0, status
        status, pointer = driver.cuMemHostGetDevicePointer(address, 0)
        assert status == 0, status
        return int(pointer)

    return register


def _hold(path: str) -> Callable[[Any, object, int, int], None]:
    def hold(cells: Any, page: object, ticket: int, fault: int) -> None:
        if ticket:
            fd = os.open(path, os.O_RDONLY)
            try:
                os.read(fd, 1)
            finally:
                os.close(fd)
        cells[0] += 1
        if fault:
            simulate("illegal_address", None)

    return hold
