"""``Device``: what programs hold of an open device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Never, NoReturn, final, overload

from .._errors import said_of
from ..actors.blocks import opens
from ..arrays import GpuRef, ref_error
from ..lanes import uninterrupted
from ..libraries.facades import Libraries
from ..ops import Awaited, recorded_call
from ._statistics import DeviceStatistics
from .batches.batch import Batch
from .batches.record import Recording
from .calls._event import Event
from .calls._requests import Requests
from .calls._retry import T, Ts, retry
from .data._methods import MemoryMethods, transfers_of
from .data._progress import TransferStatistics
from .health import Health, HealthCheck

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from ..actors import ActorRef
    from ..lanes import Isolation
    from ..ops import Recent
    from ..wire import DeviceInfo
    from ._open import System
    from .calls._run import OnDevice
    from .health import WatchedGpus
from .core import DeviceCore


@final
@uninterrupted
class Device(MemoryMethods, Libraries[Awaited]):
    """An open device: memory, libraries and kernels. Made by ``open_device``.

    Its methods may be called from any task of the ``trio.run`` that opened it, and from another
    thread with ``trio.from_thread.run``. Ops that share no buffer run concurrently. Ops that share
    a buffer behave as if they ran in the order of the calls.

    All async methods may also raise: RuntimeError: the method was called in another thread.
    ContextPoisoned: the device failed while the op was in flight. It is being rebuilt. DeviceLost:
    the device is gone for good, or its block was left. TypeError, ValueError: bad arguments, before
    anything is sent. GpuRefStale: a ref of an older generation, or freed. GpuRefSealed: a sealed
    ref to be written. OutOfMemory: the device has too little memory.

    Attributes:
        array: NumPy's functions for making, joining, sorting and counting arrays.
        blas: linear algebra (cuBLAS).
        blaslt: products with epilogues, scales and narrow types (cuBLASLt).
        cub: reductions, scans, sorts and selections (CUB).
        cutlass: products with tiles, schedules and epilogues of choice (CUTLASS).
        dnn: neural networks' operations and graphs of them (cuDNN).
        engine: models in ONNX files (onnxruntime).
        fft: Fourier transforms (cuFFT).
        flash_attention: attention by flash-attn's names (cuDNN, or kernels of this package).
        linalg: factorizations, systems and eigenvalues (cuSOLVER).
        nvrtc: kernels compiled at run time (NVRTC).
        rng: random numbers (cuRAND).
        sparse: sparse matrices (cuSPARSE, cuDSS).
        sparselt: products with matrices half of whose elements are zero (cuSPARSELt).
        tensor: sums of products along any axes (cuTENSOR; einsum without it, too).
        xp: the names of the Array API standard.
        core: the device for libraries (``ops.DeviceView``) and instruments (``WatchedDevice``).
            Programs do not need it.
        requests: the same libraries, whose methods make requests: messages to their actors.
    """

    def __init__(self, core: DeviceCore, ref: ActorRef) -> None:
        self.core: DeviceCore = core
        self.home: DeviceCore = core
        self._ref = ref
        self._host_calls = core.host_calls
        self._health = HealthCheck(core)
        self._add_libraries(core, transfers_of(core))
        self.requests: Final = Requests(core, self, self)

    def __repr__(self) -> str:
        state = self.core.lifecycle.state
        return f"<Device {self.name}, {state}, generation {self.generation}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.name} cannot be pickled or copied: a device stays in the trio.run that opened "
            "it. Pass refs, which arrive in device.run as arrays, and call the device around that"
        )

    @property
    def name(self) -> str:
        """Name of the device, such as ``"cuda:0"``.

        A second device of that index has the name ``"cuda:0 (2)"`` while the first is open.
        """
        return self.core.name

    @property
    def backend(self) -> str:
        """The backend's name: ``"cuda"``, ``"cpu"``, or what another package brings."""
        return self.core.backend

    @property
    def isolation(self) -> Isolation:
        """``"process"`` or ``"thread"``."""
        return self.core.isolation

    @property
    def info(self) -> DeviceInfo:
        """Properties of the device."""
        info = self.core.info
        assert info is not None  # set before the device is handed out
        return info

    @property
    def generation(self) -> int:
        """Starts at 1 and grows by one whenever a context fails."""
        return self.core.memory.generation

    @property
    def closed(self) -> bool:
        """True if the device is gone for good: its block was left, or the device was lost."""
        return self.core.lifecycle.state == "lost"

    # --- as an actor -------------------------------------------------------------------------

    @property
    def ref(self) -> ActorRef:
        """The device's actor, to watch it or to stop it without leaving a block.

        Its children are the context and the libraries' actors, such as ``device.blas.ref``.
        """
        return self._ref

    @property
    def system(self) -> System:
        """The system of actors that the device belongs to."""
        system: Any = self._ref._cell.system  # only a System opens devices
        return system  # type: ignore[no-any-return]

    # --- functions ---------------------------------------------------------------------------

    @overload
    async def run(  # of a function that is not annotated
        self,
        function: Callable[..., Never],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> Any: ...
    @overload
    async def run(
        self,
        function: Callable[..., OnDevice],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> GpuRef: ...
    @overload
    async def run(
        self,
        function: Callable[..., tuple[OnDevice, ...]],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> tuple[GpuRef, ...]: ...
    @overload
    async def run(
        self,
        function: Callable[..., T],
        *args: object,
        lane: str = ...,
        init: Callable[[], object] | None = ...,
    ) -> T: ...
    @recorded_call
    async def run(
        self,
        function: Callable[..., object],
        *args: object,
        lane: str = "run",
        init: Callable[[], object] | None = None,
    ) -> object:
        """Call a Python function in the host, with buffers as arrays.

        Use it to run CuPy, PyTorch or JAX code under supervision: a fault in the function ends the
        host, not the program. On CUDA a ref arrives as an object with DLPack and the CUDA array
        interface. ``torch.as_tensor(x)`` and ``cupy.asarray(x)`` then use the buffer itself, and
        NumPy's functions raise ``TypeError``. On the CPU backend a ref arrives as a NumPy array.
        The call waits for all work that the function has queued on the device. The function may
        write to buffers that are not sealed, and can so leave a result on the device with either
        backend. Arrays that the function gets are valid during the call. Those that ``init`` gets
        are valid for as long as the lane's state.

        Functions of one lane run one after the other, on a thread of their own, until
        ``close_lane``. Arguments and results are pickled. Large arguments are read during the
        transfer, so do not change them until the call has ended.

        Args:
            function: the function. The host imports it if it can; otherwise cloudpickle pickles it
                by value, and it does not see changes of the program's variables. With ``init`` it
                gets the state first.
            *args: refs, and values that can be pickled, with refs anywhere inside.
            lane: its name; lanes run side by side.
            init: makes the lane's state, such as a loaded model, before the first call of each
                generation, and again when another ``init`` is given. Partials of the same function
                with the same arguments count as the same, and so do functions that one ``lambda``
                or ``def`` makes with the same variables around it. Pass sealed refs, which survive
                rebuilds: ``functools.partial(load_model, weights)``. If all its refs are sealed, a
                hot standby calls it as well, in advance.

        Returns:
            The function's result. Arrays in the device's memory become new refs, other values are
            pickled. NumPy arrays stay NumPy arrays, of any class and size. Type checkers see a ref
            for an array of another library, and for each in a tuple of them, assuming device
            memory. In other containers they see the function's own return type.

        Raises:
            Exception: the error of the function or of ``init``, with the host's traceback as a
                note. An error that cannot be raised here becomes a ``RemoteError``.
            ContextPoisoned: the device failed meanwhile, or the function ended the host.
            TypeError: the function is not callable, or an argument or the result cannot be pickled.
            ValueError: more than 64 MiB of arguments, refs not counted.
        """
        return await self._host_calls.run(function, args, lane, init)

    async def retry(
        self, function: Callable[[*Ts], Awaitable[T]], *args: *Ts, attempts: int = 4
    ) -> T:
        """Call an async function, and again after a fault, as soon as the device is back.

        ::

            async def infer(x: np.ndarray) -> np.ndarray:
                y = await device.blas.gemm(await device.put(x), weights)  # sealed weights
                return await device.get(y)


            answer = await device.retry(infer, x)

        Put all work to repeat into the function, because buffers that were made outside of it and
        are not sealed are gone after a fault. If a fault has ended several calls, they are repeated
        in the order in which they were made.

        Args:
            function: the function to call. It may have had some of its effects when it is called
                again.
            *args: its arguments.
            attempts: the largest number of calls.

        Returns:
            The function's result.

        Raises:
            ContextPoisoned, GpuRefStale: the error of the last attempt, with notes on the earlier
                ones. ``GpuRefStale`` is raised at once if no fault happened during the call, and
                ``KernelHung`` if an op of this call has hung (``error.culprit``).
            Exception: any other error of the function, which is then not called again. An exception
                group leads to another call if all errors in it do.
        """
        return await retry(self.core, function, args, attempts)

    @recorded_call
    async def close_lane(self, lane: str) -> None:
        """End a lane of ``run``: its state, its thread and all its objects in the host.

        An open lane costs a thread and some descriptors, so programs that keep creating lane names
        should close them. This waits for calls that have begun. The next call on the name waits
        until the lane is closed, and opens it again. Closing a lane that is not open does nothing.

        Args:
            lane: its name.

        Raises:
            ContextPoisoned: the device failed meanwhile; the lane is closed.
        """
        await self._host_calls.close(lane)

    # --- recordings ------------------------------------------------------------------------

    def event(self) -> Event:
        """A point in a lane's work, to wait for and to measure time between (``cuEventCreate``).

        Returns:
            An event that is not recorded yet.
        """
        return Event(self.core)

    def batch(self) -> Batch:
        """Open a nursery for GPU work: ``async with device.batch() as batch:``.

        Inside the block, methods such as ``batch.blas.gemm(a, b)`` return refs at once, without
        ``await``. The block ends when all ops have finished, and raises their errors.

        Returns:
            The batch, to be entered once.
        """
        return Batch(self)

    def record(self, *inputs: GpuRef, shared: bool = False) -> Recording:
        """Record calls: ``async with device.record(x) as recording:``.

        Calls inside the block return at once, as in a batch, but are only recorded. ``await
        recording.replay(x2)`` then executes all of them, with other inputs if given: on CUDA as one
        graph launch.

        Args:
            *inputs: buffers that ``replay`` can replace by others, by position. A buffer that is
                given twice is one input, and replaced by one.
            shared: whether several tasks may replay the recording. All replays write the same
                results, so these tasks must take turns: hold a ``trio.Lock`` from ``replay`` until
                the results are read or copied. By default only the task that replays the recording
                first may replay it, unless the recording makes no results.

        Returns:
            The recording, to be entered once and replayed any number of times.
        """
        if not isinstance(shared, bool):
            raise TypeError(f"shared must be True or False, not {said_of(shared)}")
        for at, ref in enumerate(inputs):
            if not isinstance(ref, GpuRef):
                raise ref_error(ref, self.core.memory, f"input {at} of record")
        return Recording(self, inputs, shared=shared)

    # --- watching ------------------------------------------------------------------------

    @opens
    async def watch_generation(self) -> AsyncIterator[AsyncIterator[int]]:
        """Report every new generation from now on.

        ``async with device.watch_generation() as changes:`` gives an async iterator of generation
        numbers, which ends with the device. A number comes as soon as the old generation is over.
        Ops then wait by themselves until the new one is ready.
        """
        with self.core.lifecycle.watch() as changes:
            yield changes

    def clear_caches(self) -> None:
        """Empty all caches of ``statistics().caches``; plans and kernels on disk stay.

        The next call of each signature is prepared in full. Hosts drop the plans that the program
        no longer knows, after the ops in flight.
        """
        for table in self._tables().values():
            table.clear()

    def _tables(self) -> dict[str, Recent[Any, Any]]:
        return {"device.templates": self.call_templates.known, **super()._tables()}

    async def health(self, within: float = 5.0, *, gpus: WatchedGpus | None = None) -> Health:
        """Check the device's health, for the probes of an orchestrator.

        ::

            health = await device.health(within=2)
            status = 200 if health.ready else 503

        If no op has finished lately, the device is asked to write and read a few bytes, and this
        waits for that. A device that hangs is thus not ready, although its program runs.

        Args:
            within: seconds within which an op must have finished, and the limit of the wait.
            gpus: readings of its GPU, for errors of its memory: an `NvmlMonitor` of ``open_nvml``.

        Returns:
            The health, and the reasons if something is wrong. It never raises because of the
            device's state.
        """
        return await self._health.check(within, gpus)

    def statistics(self) -> DeviceStatistics:
        """A snapshot of the device, its memory and its lanes."""
        core, lifecycle = self.core, self.core.lifecycle
        assert core.place.supervisor is not None  # set before the device is handed out
        return DeviceStatistics(
            state=lifecycle.state,
            generation=self.generation,
            faults=lifecycle.faults,
            last_fault=str(lifecycle.last_fault) if lifecycle.last_fault else None,
            host_pid=core.host_pid,
            in_flight=len(core.in_flight),
            memory=core.memory.statistics(),
            durable=core.durables.statistics(),
            transfers=tuple(
                TransferStatistics(transfer.name, transfer.nbytes, transfer.done)
                for transfer in core.transfers
            ),
            pinned=core.pinned.statistics(),
            lanes=tuple(port.statistics() for port in core.ports.values()),
            startup=core.startup,
            standby=None if core.standby is None else core.standby.statistics(),
            supervisor=core.place.supervisor.statistics(),
            caches={name: table.statistics(name) for name, table in self._tables().items()},
        )
