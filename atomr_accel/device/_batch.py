"""Batches: GPU work as a nursery.

Calls inside the block return refs at once. Ops go to the host in bunches while the block
still runs; leaving it waits for all of them, and an error raises there.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import trio

from .._dtypes import as_dtype
from .._errors import ContextPoisoned, Unsupported
from ..lanes import uninterrupted
from ..libraries import LaneSpec, usable
from ..libraries.nvrtc import COMPILER
from ..memory import GpuRef, as_shape
from ._core import Shape
from ._transfer import SMALL, as_host_array

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, MutableSequence
    from types import TracebackType

    from ..host import Message
    from ..lanes import Op, Port
    from ..libraries.nvrtc import Kernel
    from ..memory import Block, MemoryMap
    from ._core import DeviceCore
    from ._device import Device


_MOST_BUNCHED: Final = 32
"""Ops after which a bunch goes to the host, so that it works while the block still runs.

The first bunches are smaller, each twice the last: the device begins with the block.
"""


_SLICE: Final = 512
"""Ops and buffers that are looked at in a turn of the loop, when the block is left."""


@final
class Submitted:
    """What ``submit`` gives a facade inside a batch: there is nothing to wait for yet."""

    async def wait(self) -> None:
        """Return at once; results come with the end of the batch."""


_SUBMITTED: Final = Submitted()


def drive(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a facade's call to its end without waiting for anything.

    Facades check, allocate and submit without awaiting in between, and what they await
    otherwise a collector answers at once. So one step runs them through.
    """
    try:
        call.send(None)
    except StopIteration as end:
        return end.value
    call.close()
    raise Unsupported("this call waits for the device in between, so it cannot be in a batch")


@uninterrupted
class Synchronous:
    """A facade whose methods return at once: ``batch.blas.gemm(a, b)``.

    What a facade hands out to call methods of, such as a random generator, is one too.
    Attributes are read, and set, as on the facade itself.
    """

    def __init__(self, facade: Any, submitter: Collector) -> None:
        # A copy shares the facade's plans and state, but not the device.
        bound = copy.copy(facade)
        bound._device = submitter
        vars(self).update(_facade=facade, _bound=bound)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self!r} has no public attribute {name!r}")
        attribute = getattr(self._bound, name)
        if not callable(attribute):
            return attribute
        submitter = self._bound._device
        take = submitter.take

        @trio.lowlevel.enable_ki_protection
        def call(*args: Any, **kwargs: Any) -> Any:
            if take is not None:
                args = tuple(map(take, args))
                kwargs = {key: take(value) for key, value in kwargs.items()}
            result = attribute(*args, **kwargs)
            if inspect.iscoroutine(result):
                result = drive(result)
            return _synchronous(result, submitter)

        vars(self)[name] = call
        return call

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._facade, name, value)
        setattr(self._bound, name, value)

    def __repr__(self) -> str:
        return repr(self._facade)


def _synchronous(result: Any, submitter: Collector) -> Any:
    """What a call gives, with methods that return at once where they would be awaited."""
    if type(result) is GpuRef:
        return result
    if type(result) is list:
        return [_synchronous(item, submitter) for item in result]
    if getattr(result, "_device", None) is submitter:
        return Synchronous(result, submitter)
    return result


class Collector:
    """The device as facades see it while a program is collected rather than awaited.

    It has every library of the device as an attribute, with synchronous methods.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._core: DeviceCore = device._core
        self.memory: MemoryMap = self._core.memory
        self.ports: dict[str, Any] = dict(self._core.ports)
        self._facades: dict[str, Synchronous] = {}
        self._kernels: dict[Kernel, Kernel] = {}

    def __getattr__(self, name: str) -> Any:
        facade = vars(self._device).get(name)
        if name.startswith("_") or facade is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        made = self._facades[name] = Synchronous(facade, self)
        setattr(self, name, made)
        return made

    def using(self, made: Any) -> Any:
        """Something that a library has made, such as a random generator, for this program.

        ``batch.using(generator).normal(size=1000)`` returns a ref at once. What it holds, such
        as the place in a random sequence, it shares with ``made``.

        Args:
            made: by a library of this device.

        Returns:
            The same with methods that return at once.

        Raises:
            TypeError: it is nothing that a library of this device has made.
        """
        if getattr(made, "_device", None) is not self._core:
            raise TypeError(f"{made!r} was not made by a library of {self._core.name}")
        return Synchronous(made, self)

    take: Callable[[Any], Any] | None = None
    """How arguments are taken into the program, where not as they are."""

    @property
    def backend(self) -> str:
        """The backend's name."""
        return self._core.backend

    @property
    def deterministic(self) -> bool:
        """Whether results must not depend on what else is in flight, nor on time."""
        return self._core.deterministic

    async def open_lane(self, lane: LaneSpec) -> Any:
        """Note that the lane will be needed; the note stands for its port."""
        if lane is COMPILER:
            raise Unsupported("compiling cannot be in a batch; compile before it")
        return self.ports.setdefault(lane.name, lane)

    def submit(
        self,
        port: Port | LaneSpec,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> Submitted:
        """Take an op into the program."""
        raise NotImplementedError

    def keep(self, lane: str, name: str, release: Message) -> Block:
        """What stands for something that the host keeps for a handle of the program."""
        return self._core.keep(lane, name, release)

    def launch(self, kernel: Kernel, grid: Any, block: Any, *args: Any, shared: int = 0) -> None:
        """``kernel.launch`` as part of this program; arguments and errors are those there."""
        twin = self._kernels.get(kernel)
        if twin is None:
            twin = self._kernels[kernel] = self._adopt(kernel)
            twin._device = self
        if self.take is not None:
            args = tuple(map(self.take, args))
        drive(twin.launch(grid, block, *args, shared=shared))

    def _adopt(self, kernel: Kernel) -> Kernel:
        """The kernel as this program knows it: it may be loaded here, and not elsewhere."""
        return copy.copy(kernel)


@final
@uninterrupted
class Batch(Collector):
    """Collects ops inside ``async with device.batch() as batch:``.

    Attributes are the device's libraries, whose methods return refs at once. The refs can
    be used in the batch right away, and elsewhere after it. If anything in the batch
    fails, or the block raises, all refs that the batch has made are freed.

    Calls raise what they raise outside, at once where they would before sending anything.
    The rest leaves the block: ``ContextPoisoned`` if the device fails, an op's own error, or
    an ``ExceptionGroup`` of several. A call outside the block is a ``RuntimeError``.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._ops: deque[Op] = deque()
        self._made: list[Block] = []
        self._promised: dict[Block, int] = {}
        self._later: list[Callable[[], Awaitable[None]]] = []
        self._unsent = 0
        self._bunch = 1
        self._ports_unsent: set[Port] = set()
        self._open = False

    async def __aenter__(self) -> Batch:
        await self._core.ready()
        self.ports = dict(self._core.ports)
        self._epoch = self.memory.epoch
        self._open = True
        return self

    # --- what a batch offers beside the libraries -------------------------------------------

    def empty(self, shape: Shape, dtype: Any = np.float64) -> GpuRef:
        """A buffer whose content is undefined; as ``numpy.empty``.

        Raises:
            ValueError, TypeError: as ``device.empty``.
            OutOfMemory: no device has that much.
        """
        kind, sizes = as_dtype(dtype), as_shape(shape)
        nbytes = kind.itemsize * math.prod(sizes)
        made = self.try_empty(sizes, kind, nbytes)
        assert made is not None
        return made

    def put(self, array: Any) -> GpuRef:
        """Copy an array to the device.

        Args:
            array: a NumPy array or what ``numpy.asarray`` takes. Do not change it before the
                block is left.

        Returns:
            A ref with the array's shape and dtype.

        Raises:
            TypeError: a dtype that device memory cannot hold, such as objects.
        """
        # What is long is rearranged, where it must be, at the end of the block, in a thread.
        long = isinstance(array, np.ndarray) and array.nbytes > SMALL
        host = array if long else as_host_array(array)
        ref = self.empty(host.shape, host.dtype.newbyteorder("="))

        async def transfer() -> None:
            await self._provide()
            await self._device._upload(host, ref)

        self._later.append(transfer)
        return ref

    def get(self, ref: GpuRef) -> np.ndarray[Any, Any]:
        """Copy a buffer from the device, as it is at this point of the batch.

        Args:
            ref: the buffer, or a view of a part of one.

        Returns:
            An array that holds it once the block is left.

        Raises:
            GpuRefStale: of an older generation, or freed.
        """
        usable(ref, self.memory, "ref")
        self._check()
        host = np.empty(ref.shape, ref.dtype)

        async def transfer() -> None:
            await self._provide()
            await self._device.get(ref, out=host)

        self._later.append(transfer)
        return host

    # --- what facades ask for -------------------------------------------------------------

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef:
        """A buffer; where there is no room its memory comes at the end of the block."""
        self._check()
        block = self.memory.allocate(nbytes) if not self._later else None
        if block is None:
            self._core.require_possible(nbytes)
            block = self.memory.promise()
            self._promised[block] = nbytes
        self._made.append(block)
        return GpuRef(block, shape, dtype, nbytes)

    def submit(
        self,
        port: Port | LaneSpec,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> Submitted:
        """Submit an op now, or at the end if it needs what takes a wait."""
        self._check()
        if self._later or self._promised or isinstance(port, LaneSpec):

            async def submit_later() -> None:
                await self._provide()
                lane = await self._core.open_lane(port) if isinstance(port, LaneSpec) else port
                self._check_epoch()
                self._ops.append(self._core.submit(lane, name, message, reads, writes))

            self._later.append(submit_later)
        else:
            self._ops.append(self._core.submit(port, name, message, reads, writes))
            self._unsent += 1
            self._ports_unsent.add(port)
            if self._unsent == self._bunch:
                self._send()
        return _SUBMITTED

    def _send(self) -> None:
        """Send the bunch; the next one is larger."""
        self._unsent = 0
        self._bunch = min(2 * self._bunch, _MOST_BUNCHED)
        for port in self._ports_unsent:
            port.send()
        self._ports_unsent.clear()

    def _check(self) -> None:
        if not self._open:
            raise RuntimeError("calls belong inside the batch's block, which is not entered")
        self._check_epoch()

    def _check_epoch(self) -> None:
        if self.memory.epoch is not self._epoch:
            fault = self._core.last_fault
            assert fault is not None
            raise ContextPoisoned(
                f"the batch did not finish: {fault}",
                generation=fault.generation,
                status=fault.status,
                status_name=fault.status_name,
                op=fault.op,
            ) from fault

    async def _provide(self) -> None:
        for block, nbytes in list(self._promised.items()):
            while not self.memory.provide(block, nbytes):
                await self._core.grow(nbytes)
                self._check_epoch()
            del self._promised[block]

    # --- the end ----------------------------------------------------------------------------

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._open = False
        try:
            if error is None:
                await self._finish()
            else:
                await self._spoil()
        except BaseException:
            await self._spoil()
            raise
        finally:
            await self._let_go()
        if error is not None:
            await trio.lowlevel.checkpoint()

    async def _finish(self) -> None:
        for step in self._later:
            await step()
        await self._provide()
        errors: list[Exception] = []
        for number in itertools.count(1):
            if not self._ops:
                break
            op = self._ops[0]
            failure: Exception | None = None
            if not op.answered:
                try:
                    await op.wait()
                except Exception as error:  # noqa: BLE001 - collected, and raised below
                    failure = error
            else:
                failure = op.error
            self._ops.popleft()
            if failure is not None:
                failure.add_note(f"in a batch, at {op.name}")
                if isinstance(failure, ContextPoisoned):  # which has taken the others down, too
                    raise failure
                errors.append(failure)
            if number % _SLICE == 0:
                await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        if len(errors) > 1:
            raise ExceptionGroup("several ops of a batch failed", errors)
        if errors:
            raise errors[0]
        for kernel, twin in self._kernels.items():
            kernel._loaded = twin._loaded

    async def _let_go(self) -> None:
        """Hold nothing any more: temporary buffers are free now, not when garbage is collected.

        Facades refer to their batch, so they would keep each other.
        """
        for name in self._facades:
            vars(self).pop(name, None)
        for collection in (self._facades, self._kernels, self._promised):
            collection.clear()
        for pieces in (self._ops, self._made, self._later):
            await _drop(pieces)

    async def _spoil(self) -> None:
        """Withdraw what is not under way, and refuse what the batch has made."""
        if self.memory.epoch is self._epoch:  # else the fault has taken the ops down
            for op in self._ops:
                op.withdraw()
        for number, block in enumerate(self._made, 1):
            if block.epoch is self.memory.epoch:  # those of another one are refused anyway
                self.memory.free(block)
            if number % _SLICE == 0:
                await trio.lowlevel.cancel_shielded_checkpoint()


async def _drop(pieces: MutableSequence[Any]) -> None:
    """Empty what may hold thousands, some in each turn of the loop."""
    for number in range(len(pieces), 0, -1):
        pieces.pop()
        if number % _SLICE == 0:
            await trio.lowlevel.cancel_shielded_checkpoint()
