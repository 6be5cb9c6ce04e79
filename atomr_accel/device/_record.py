"""Recorded programs: collected once, replayed often, on CUDA as a graph."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from .._dtypes import as_dtype
from .._errors import ContextPoisoned, DeviceLost, Unsupported
from ..host import encoder
from ..libraries import LaneSpec, usable, writable
from ..libraries.programs import Describe, Forget, Record, Replay, Step
from ..memory import Block, GpuRef, LateAddress
from ._batch import Collector, Submitted
from ._core import Shape, as_shape

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from ..host import Message
    from ..lanes import Op, Port
    from ..libraries.nvrtc import Kernel
    from ._device import Device

PROGRAMS: Final = LaneSpec(
    "programs",
    {
        "cpu": "atomr_accel.libraries.programs._cpu:CpuPrograms",
        "cuda": "atomr_accel.libraries.programs._cuda:CudaPrograms",
    },
)

_numbers: Final = itertools.count(1)
_COLLECTED: Final = Submitted()


@final
class Program(Collector):
    """Collects ops inside ``async with device.record() as program:``, to be replayed.

    Recording executes nothing: the refs that calls return have content once the program
    was replayed. ``replay`` may use other buffers in the place of those it was recorded
    with. A program owns the buffers it has made; they stay valid for as long as it does.

    After a rebuild a program makes itself anew, with the same refs for its results, if
    the buffers it reads are sealed or replaced; otherwise ``replay`` raises
    ``GpuRefStale``.
    """

    def __init__(self, device: Device, inputs: tuple[GpuRef, ...]) -> None:
        super().__init__(device)
        self._number = next(_numbers)
        self._inputs = inputs
        self._prepare: list[tuple[str, str, Message]] = []
        self._steps: list[tuple[str, str, Message]] = []
        self._twins: dict[GpuRef, GpuRef] = {}
        self._bound: dict[Block, GpuRef] = {}
        self._made: dict[Block, int] = {}
        self._read: set[Block] = set()
        self._written: set[Block] = set()
        self._sent: tuple[Any, ...] | None = None
        self._recorded: Op | None = None
        self._place = self.memory.promise()  # keeps what the host does with it in order
        self._open = False

    async def __aenter__(self) -> Program:
        await self._core.ready()
        self.ports = {name: spec for name, (spec, _) in self._core.lanes.items()}
        self._open = True
        for ref in self._inputs:
            self.take(ref)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._open = False
        if error is None:
            await self._prepared()

    # --- collecting -----------------------------------------------------------------------

    def take(self, argument: Any) -> Any:
        """A ref as the program knows it: by a twin whose address is looked up late."""
        if isinstance(argument, (list, tuple)):
            return type(argument)(self.take(item) for item in argument)
        if not isinstance(argument, GpuRef) or argument._block in self._made:
            return argument
        twin = self._twins.get(argument)
        if twin is None:
            block = usable(argument, self.memory, "argument")
            stand_in = self.memory.promise()
            stand_in.sealed, stand_in.epoch = block.sealed, block.epoch
            twin = self._twins[argument] = argument.on_block(stand_in)
            self._bound[stand_in] = argument
        return twin

    def _adopt(self, kernel: Kernel) -> Kernel:
        twin = super()._adopt(kernel)
        twin._loaded = None  # programs have executors of their own
        return twin

    def empty(self, shape: Shape, dtype: Any = np.float64) -> GpuRef:
        """A buffer of the program."""
        kind, sizes = as_dtype(dtype), as_shape(shape)
        return self.try_empty(sizes, kind, kind.itemsize * int(np.prod(sizes, dtype=np.int64)))

    def try_empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> GpuRef:
        """A buffer of the program, whose memory comes at the end of the block."""
        block = self.memory.promise()
        self._made[block] = nbytes
        return GpuRef(block, shape, dtype, nbytes)

    def submit(
        self,
        port: Any,
        name: str,
        message: Message,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
    ) -> Submitted:
        """Take an op into the program."""
        if not self._open:
            raise RuntimeError("this recording has ended; replay it, or record another")
        step = (port.executors[self.backend], name, message)
        (self._prepare if getattr(message, "prepares", False) else self._steps).append(step)
        self._read.update(reads)
        self._written.update(writes)
        return _COLLECTED

    # --- replaying ------------------------------------------------------------------------

    async def replay(self, *inputs: GpuRef, replace: Mapping[GpuRef, GpuRef] | None = None) -> None:
        """Execute the program and wait until it has finished.

        Args:
            *inputs: in the place of those given to ``device.record``, in order.
            replace: further buffers by those they stand for, read or written.

        Raises:
            ValueError: a buffer of another shape or device, or too many inputs.
            TypeError: a buffer of another dtype.
            GpuRefStale: a buffer whose generation is over.
            GpuRefSealed: a sealed buffer in the place of one that is written.
        """
        if self._open:
            raise RuntimeError("replay a program after its block, not inside it")
        if len(inputs) > len(self._inputs):
            raise ValueError(
                f"replay got {len(inputs)} inputs, but {len(self._inputs)} were recorded"
            )
        wanted = {**dict(zip(self._inputs, inputs, strict=False)), **(replace or {})}
        for old in wanted:
            if old not in self._twins:
                raise ValueError(f"{old!r} is no buffer that this program was recorded with")
        await self._prepared()
        port = await self._core.open_lane(PROGRAMS)
        # From here on nothing is awaited until both ops are submitted.
        reads: list[Block] = []
        writes: list[Block] = []
        addresses: list[Any] = []
        for stand_in, recorded in self._bound.items():
            ref = wanted.get(recorded, recorded)
            if ref.shape != recorded.shape:
                raise ValueError(f"{ref!r} has not the shape of {recorded!r}, which it replaces")
            if ref.dtype != recorded.dtype:
                raise TypeError(f"{ref!r} has not the dtype of {recorded!r}, which it replaces")
            written = stand_in in self._written
            check = writable if written else usable
            block = check(ref, self.memory, "a buffer of the program")
            (writes if written else reads).append(block)
            stand_in.address = block.address
            addresses.append(block.address)
        writes += [*self._made, self._place]
        self._forget_dropped(port)
        binding = (self.memory.epoch, *addresses)
        if binding != self._sent:
            record = Record(self._number, self._encode(self._prepare), self._encode(self._steps))
            self._recorded = self._core.submit(port, "program.record", record, reads, writes)
            self._sent = binding
        record_op = self._recorded
        assert record_op is not None
        try:
            await self._core.submit(
                port, "program.replay", Replay(self._number), reads, writes
            ).wait()
        except (ContextPoisoned, DeviceLost):
            raise
        except Exception as error:
            if record_op.error is None:
                raise
            # There was nothing to replay; the reason is why.
            if self._recorded is record_op:
                self._sent = None
            raise record_op.error from error.__cause__

    def __del__(self) -> None:
        if self._sent is not None:
            self._core.dropped_programs.append((self._sent[0], self._number, self._place))

    def _forget_dropped(self, port: Port) -> None:
        """Have the host release the programs that were garbage collected."""
        dropped = self._core.dropped_programs
        while dropped:
            epoch, number, place = dropped.popleft()
            if epoch is self.memory.epoch:
                self._core.submit(port, "program.forget", Forget(number), (), (place,))

    async def dot(self) -> str:
        """The program as a graph in the DOT language, as the backend holds it."""
        port = await self._core.open_lane(PROGRAMS)
        if self._sent is None or self._sent[0] is not self.memory.epoch:
            raise Unsupported("a program has no graph before its first replay")
        message = Describe(self._number)
        text: str = await self._core.submit(port, "program.dot", message, (self._place,)).wait()
        return text

    def _encode(self, steps: list[tuple[str, str, Message]]) -> tuple[Step, ...]:
        return tuple(
            Step(executor, name, encoder.encode(message)) for executor, name, message in steps
        )

    async def _prepared(self) -> None:
        """Have memory for the program's buffers in the present generation."""
        while True:
            await self._core.ready()
            block = next(
                (b for b in self._made if b.size == 0 or b.epoch is not self.memory.epoch), None
            )
            if block is None:
                return
            if block.size:  # of a generation that is over
                block.retire()
            block.epoch, block.generation = self.memory.epoch, self.memory.generation
            block.address = LateAddress(block)
            if not self.memory.provide(block, self._made[block]):
                await self._core.grow(self._made[block])
