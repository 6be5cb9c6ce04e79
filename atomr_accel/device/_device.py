"""``open_device`` and what it yields."""

from __future__ import annotations

import operator
import warnings
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import trio

from .._errors import CpuFallbackWarning, DeviceUnavailable
from ..actors import Backoff, ChildSpec, Directive, Intensity, open_supervisor
from ..backends._registry import find_backend
from ..lanes import uninterrupted
from ..libraries._op import Awaited
from ..libraries._table import CALLED, Libraries
from ..memory import GpuRef, MemoryScope, refuse
from ._context import Context
from ._core import DeviceCore, Startup, is_passing
from ._event import Event
from ._retry import T, Ts, retry
from ._run import Functions
from ._settings import Completion, StreamStrategy, check_settings, stream_plan
from ._standby import Standby
from .batches._batch import Batch
from .batches._record import Program
from .data._methods import Data
from .data._pinned import Pinned
from .data._transfer import TransferStatistics
from .interop._exports import Exports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from ..actors import SupervisorStatistics
    from ..backends import Backend
    from ..backends._registry import BackendName
    from ..lanes import Isolation, LaneStatistics, PinnedStatistics
    from ..memory import MemoryStatistics
    from ..wire import DeviceInfo

_RESTART_BACKOFF: Final = Backoff(initial=0.0, base=0.1, factor=2.0, maximum=2.0)


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """A device at one moment.

    Attributes:
        state: ``"ready"``, ``"rebuilding"`` or ``"lost"``.
        generation: the present generation.
        faults: how many contexts have failed.
        last_fault: the last of them in one line, or None.
        host_pid: the host's process id; None without one.
        in_flight: ops that are not answered yet.
        memory: where the device's memory is.
        transfers: the long transfers that are under way.
        pinned: the pool of page-locked arrays.
        lanes: the open lanes.
        startup: how long the present context took to come up.
        standby: whether a warm host is ready for the next rebuild.
        supervisor: restarts of the context, and the window they are counted in.
    """

    state: str
    generation: int
    faults: int
    last_fault: str | None
    host_pid: int | None
    in_flight: int
    memory: MemoryStatistics
    transfers: tuple[TransferStatistics, ...]
    pinned: PinnedStatistics
    lanes: tuple[LaneStatistics, ...]
    startup: Startup | None
    standby: bool
    supervisor: SupervisorStatistics


@final
@uninterrupted
class Device(Data, Libraries[Awaited]):
    """An open device: memory, libraries and kernels. Made by ``open_device``.

    Its methods may be called from any task of the ``trio.run`` that opened it; from another
    thread, by ``trio.from_thread.run``. Ops that share no buffer run concurrently; those that
    do behave as if they ran in the order in which they were called.

    Whatever is awaited may also raise:
        RuntimeError: it was called in another thread.
        ContextPoisoned: the device failed while the op was in flight. It is being rebuilt.
        DeviceLost: the device is gone for good, or its block was left.

    Attributes:
        blas: linear algebra (cuBLAS).
        blaslt: products with epilogues, scales and narrow types (cuBLASLt).
        dnn: neural networks' operations and graphs of them (cuDNN).
        fft: Fourier transforms (cuFFT).
        nvrtc: kernels compiled at run time (NVRTC).
        rng: random numbers (cuRAND).
    """

    def __init__(self, core: DeviceCore, supervisor: Any) -> None:
        self._core = self._device = core
        self._supervisor = supervisor
        self._functions = Functions(core)
        self._add_libraries(core)

    def __repr__(self) -> str:
        return f"<Device {self._core.name}, {self._core.state}, generation {self.generation}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.name} cannot be pickled or copied: a device stays in the trio.run that opened "
            "it. Pass refs, which arrive in device.run as arrays, and call the device around that"
        )

    @property
    def name(self) -> str:
        """Such as ``"cuda:0"``."""
        return self._core.name

    @property
    def backend(self) -> str:
        """The backend's name: ``"cuda"``, ``"cpu"``, or what another package brings."""
        return self._core.backend

    @property
    def isolation(self) -> Isolation:
        """``"process"`` or ``"thread"``."""
        return self._core.isolation

    @property
    def info(self) -> DeviceInfo:
        """What the device says of itself."""
        info = self._core.info
        assert info is not None  # set before the device is handed out
        return info

    @property
    def generation(self) -> int:
        """Starts at 1 and grows by one whenever a context fails."""
        return self._core.memory.generation

    @property
    def closed(self) -> bool:
        """Whether it is gone for good: its block was left, or the device was lost."""
        return self._core.state == "lost"

    # --- functions ---------------------------------------------------------------------------

    async def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        lane: str = "run",
        init: Callable[[], Any] | None = None,
    ) -> Any:
        """Call a Python function in the host, with buffers as arrays.

        The way to bring CuPy, PyTorch or JAX code under supervision: a fault in it ends the
        host, not the program. On CUDA a ref arrives as an object that speaks DLPack and the
        CUDA array interface, so ``torch.as_tensor(x)`` or ``cupy.asarray(x)`` see the buffer
        itself, and NumPy's functions raise ``TypeError``; on the CPU backend as a NumPy array.
        All that the function has queued on the device is waited for. It may write to buffers
        that are not sealed: that is also how a result stays on the device with either backend.
        Arrays it is given are good for the call; those that ``init`` is given, for as long as
        the lane's state.

        Functions of one lane run one after the other, on a thread of their own, until
        ``close_lane``. What they are given and return is pickled. Large arguments are read on
        their way, so leave them as they are until the call has ended.

        Args:
            function: imported by the host where it can be, otherwise pickled by value, by
                cloudpickle; it does not see the program's variables change. With ``init`` it
                gets the state first.
            *args: refs, and values that can be pickled, with refs anywhere inside.
            lane: its name; lanes run side by side.
            init: makes the lane's state, such as a loaded model, before the first call of
                each generation, and again when another ``init`` is given; partials of the
                same function with the same arguments count as the same. Pass it sealed refs,
                which survive rebuilds: ``functools.partial(load_model, weights)``.

        Returns:
            What the function returns. Arrays in the device's memory become new refs, other
            values are pickled; NumPy arrays stay what they are, of any class and size.

        Raises:
            Exception: what the function, or ``init``, raised, with the host's traceback as a
                note. A ``RemoteError`` stands for what cannot be raised here.
            GpuRefStale: a ref of an older generation, or freed.
            ContextPoisoned: the device failed meanwhile, or the function ended the host.
            TypeError: no callable, or what cannot be pickled.
            ValueError: more than 64 MiB of arguments, refs not counted.
        """
        return await self._functions.run(function, args, lane, init)

    async def retry(
        self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts, attempts: int = 4
    ) -> T:
        """Call an async function, and again after a fault, as soon as the device is back.

        ::

            async def infer(x: np.ndarray) -> np.ndarray:
                y = await device.blas.gemm(await device.put(x), weights)  # sealed weights
                return await device.get(y)


            answer = await device.retry(infer, x)

        Everything that is to be done again belongs in the function: buffers that were made
        outside of it, and are not sealed, are gone after a fault.

        Args:
            function: what to call. It may have had some of its effects when it is called again.
            *args: for it.
            attempts: how often it is called at most.

        Returns:
            What it returned.

        Raises:
            ContextPoisoned, GpuRefStale: the last attempt ended so; notes tell how the earlier
                ones did. ``GpuRefStale`` comes at once if there was no fault during the call.
            DeviceLost: the device is gone for good.
            Exception: whatever else the function raised. It is not called again then. A group
                of exceptions is what all in it are.
        """
        return await retry(self._core, function, args, attempts)

    async def close_lane(self, lane: str) -> None:
        """End a lane of ``run``: its state, its thread and what else it has in the host.

        A lane costs a thread and some descriptors for as long as it is open, so programs that
        make up names as they go close them. Calls that have begun are waited for. The next
        call on the name opens it anew, and waits until it is closed. Closing what is not open
        does nothing.

        Args:
            lane: its name.

        Raises:
            ContextPoisoned: the device failed meanwhile; the lane is closed.
            TypeError: not a name.
        """
        await self._functions.close(lane)

    # --- programs ------------------------------------------------------------------------

    def event(self) -> Event:
        """A point in a lane's work, to wait for and to measure time between (``cuEventCreate``).

        Returns:
            An event that is not recorded yet.
        """
        return Event(self._core)

    def batch(self) -> Batch:
        """A nursery for GPU work: ``async with device.batch() as batch:``.

        Inside, ``batch.blas.gemm(a, b)`` and its like return refs at once and await
        nothing; the block leaves when all of it has finished, and an error raises there.

        Returns:
            The batch, to be entered once.
        """
        return Batch(self)

    def record(self, *inputs: GpuRef) -> Program:
        """Record a program: ``async with device.record(x) as program:``.

        Inside, calls are as in a batch, but nothing is executed. ``await
        program.replay(x2)`` then executes all of it, with other inputs if given: on CUDA
        as one graph launch.

        Args:
            *inputs: buffers that ``replay`` may be given others for, by position.

        Returns:
            The program, to be entered once and replayed as often as need be.

        Raises:
            TypeError: an input is no GpuRef.
        """
        for at, ref in enumerate(inputs):
            if not isinstance(ref, GpuRef):
                raise refuse(ref, self._core.memory, f"input {at} of record")
        return Program(self, inputs)

    # --- watching ------------------------------------------------------------------------

    def watch_generation(self) -> AbstractAsyncContextManager[AsyncIterator[int]]:
        """Be told of every new generation from now on.

        ``async with device.watch_generation() as changes:`` gives an async iterator of
        generation numbers, which ends with the device. A number comes as soon as the old
        generation is over; ops then wait by themselves until the new one is up.
        """
        return self._watch()

    @asynccontextmanager
    async def _watch(self) -> AsyncIterator[AsyncIterator[int]]:
        with self._core.watch() as changes:
            yield changes

    def statistics(self) -> DeviceStatistics:
        """A snapshot of the device, its memory and its lanes."""
        core = self._core
        return DeviceStatistics(
            state=core.state,
            generation=self.generation,
            faults=core.faults,
            last_fault=str(core.last_fault) if core.last_fault else None,
            host_pid=core.host_pid,
            in_flight=len(core.in_flight),
            memory=core.memory.statistics(),
            transfers=tuple(
                TransferStatistics(transfer.name, transfer.nbytes, transfer.done)
                for transfer in core.transfers
            ),
            pinned=core.pinned.statistics(),
            lanes=tuple(port.statistics() for port in core.ports.values()),
            startup=core.startup,
            standby=core.standby is not None and core.standby.warm,
            supervisor=self._supervisor.statistics(),
        )


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def open_device(
    index: int = 0,
    *,
    backend: BackendName | str = "auto",
    isolation: Isolation = "process",
    max_restarts: int = 3,
    restart_period: float = 60.0,
    backoff: Backoff = _RESTART_BACKOFF,
    standby: bool | None = None,
    op_deadline: float | None = None,
    memory_limit: int | None = None,
    pinned_limit: int = 1 << 30,
    streams: StreamStrategy = "per_actor",
    stream_pool: int = 4,
    priorities: Mapping[str, int] | None = None,
    completion: Completion | None = None,
    deterministic: bool = False,
) -> AsyncIterator[Device]:
    """Open a device for the length of an ``async with`` block.

    Inside the block the device comes back by itself after a fault, under a new
    generation. Once it has failed more than ``max_restarts`` times in ``restart_period``
    seconds, the block is cancelled and ``DeviceLost`` leaves it, in an exception group as
    from any nursery.

    Args:
        index: which device.
        backend: ``"auto"`` takes CUDA where a driver and a device answer, otherwise the
            CPU with a ``CpuFallbackWarning``. ``"cuda"`` and ``"cpu"`` insist.
        isolation: ``"process"`` runs the vendor's libraries in a child process, so that a
            fault does not touch the program. ``"thread"`` runs them in threads of this
            process; a sticky fault is then final.
        max_restarts: failures to recover from within ``restart_period``.
        restart_period: seconds.
        backoff: how long to wait before a restart; not at all before the first.
        standby: keep a second, warm host process, which makes rebuilds about twice as
            fast and costs some 100 MB of memory but nothing on the device. By default
            where a host is slow to start: on CUDA, under ``isolation="process"``.
        op_deadline: seconds after which an op at the head of its lane counts as hung: its
            host is killed, the op and what was in flight with it fail with
            ``KernelHung``, and the device recovers as from any fault. Nothing else ends a
            kernel that never finishes. Compiling is not counted. Needs
            ``isolation="process"``.
        memory_limit: bytes of device memory that buffers may take at most, with results,
            workspaces and work areas; by default all there is. Beyond that, ``OutOfMemory`` is
            raised. It is taken in pieces of 2 MiB and more. What the vendors' libraries take for
            themselves is not counted.
        pinned_limit: bytes that arrays of ``device.pinned`` may take together.
        streams: ``"per_actor"`` gives each lane streams of its own, ``"pooled"`` shares
            ``stream_pool`` of them, ``"single"`` runs everything on one.
        stream_pool: how many streams ``"pooled"`` shares.
        priorities: stream priority by lane name (``"blas"``, ``"kernels"``, ...); lower
            runs first, 0 is the default.
        completion: how a lane learns that work is done: ``"polled"``, ``"blocking"``,
            ``"hybrid"`` (polls, then naps; the default in a host process) or
            ``"callback"`` (a host function that needs no GIL). Under
            ``isolation="thread"`` only the second (the default there) and the last are
            good neighbours.
        deterministic: have the same calls give the same bits on the same kind of device,
            whatever else is in flight. By default small products that are in flight together
            are launched together, which may add up in another order, and libraries may choose
            what is fastest: algorithms that differ from run to run, or, where a program asks
            for ``autotune``, those that win a race. With this nothing of the kind is done, and
            ``autotune`` is a ``ValueError``. Small products and some gradients take longer.

    Raises:
        RuntimeError: trio does not run here, but asyncio, say: see ``from_asyncio``.
        DeviceUnavailable: there is no such device; the message says what was looked for.
        LibraryMissing: the backend's own library is not installed.
        TypeError: an argument of a wrong type, such as a number as text.
        ValueError: an argument out of its range, or a priority for a lane that there is not.
        ExceptionGroup: around whatever leaves the block; ``DeviceLost`` in it if the device
            was lost.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            "open_device is for programs of trio, and this runs under another event loop; in "
            "asyncio or Jupyter: `async with atomr_accel.from_asyncio(open_device(0)) as gpu:`"
        )
    check_settings(
        index=index,
        backend=backend,
        isolation=isolation,
        max_restarts=max_restarts,
        restart_period=restart_period,
        backoff=backoff,
        standby=standby,
        op_deadline=op_deadline,
        memory_limit=memory_limit,
        pinned_limit=pinned_limit,
    )
    plan = stream_plan(
        streams=streams,
        stream_pool=stream_pool,
        priorities=priorities,
        completion=completion,
        isolation=isolation,
        op_deadline=op_deadline,
        deterministic=deterministic,
    )
    unavailable: DeviceUnavailable | None = None
    for candidate in _candidates(backend):
        absent = candidate.why_absent()
        if absent is not None:
            unavailable = DeviceUnavailable(f"{candidate.name}:{index} cannot be opened: {absent}")
            continue
        if unavailable is not None:
            warnings.warn(CpuFallbackWarning(f"running on the CPU: {unavailable}"), stacklevel=3)
        core = DeviceCore(
            candidate,
            operator.index(index),  # NumPy's numbers do not travel to a host
            isolation,
            op_deadline=op_deadline,
            plan=plan,
            memory_limit=memory_limit,
        )
        core.pinned = Pinned(core, pinned_limit)
        core.exports = Exports(core)
        try:
            async with open_supervisor(
                core.name,
                decider=_decide_final if isolation == "thread" else _decide,
                intensity=Intensity(restarts=max_restarts, within=restart_period),
                backoff=backoff,
                escalation=core.lose,
            ) as supervisor:
                context = ChildSpec("context", partial(_run_context, core))
                try:
                    await supervisor.start_child(context)
                except DeviceUnavailable as error:
                    unavailable = error
                else:
                    wanted = candidate.slow_start if standby is None else standby
                    if wanted and isolation == "process":
                        core.standby = Standby(core)
                        await supervisor.start_child(ChildSpec("standby", core.standby.run))
                    try:
                        yield Device(core, supervisor)
                        await core.verdict()
                    finally:
                        core.closing = True
                    return
        finally:
            core.close()
            with trio.CancelScope(shield=True):
                await core.bury_all()
                await core.exports.close()
    assert unavailable is not None
    raise unavailable


# These know nothing of trio: hosts import them, too, or what lies beside them.
for _called in (*CALLED, MemoryScope):
    uninterrupted(_called)


async def _run_context(core: DeviceCore, *, task_status: trio.TaskStatus[None]) -> None:
    try:
        await Context(core).run(task_status=task_status)
    except Exception as error:
        # A device that is being closed needs no other context. Nothing is hidden by this:
        # whatever was in flight has had the fault for its answer.
        if not (core.closing and is_passing(error)):
            raise


def _candidates(backend: str) -> list[Backend]:
    return [find_backend(name) for name in (("cuda", "cpu") if backend == "auto" else (backend,))]


def _decide(error: BaseException) -> Directive:
    return Directive.RESTART if is_passing(error) else Directive.ESCALATE


def _decide_final(_error: BaseException) -> Directive:
    return Directive.ESCALATE
