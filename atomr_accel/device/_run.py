"""``device.run``: the program's own functions on lanes of their own in the host."""

from __future__ import annotations

import itertools
import math
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from .._dtypes import DTYPES
from .._errors import GpuRefStale, said_of
from ..libraries import LaneSpec, usable
from ..libraries.run import Buffer, Call, Fetch, Forget, Initialize, Keep, dumps, loads
from ..memory import Block, GpuRef
from ._bulk import Bulk

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..lanes import Op, Piece, Port
    from ..memory import Epoch
    from ._core import DeviceCore

_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.run._cpu:CpuRunner",
    "cuda": "atomr_accel.libraries.run._cuda:CudaRunner",
}

MOST: Final = 64 << 20
"""Bytes that a function and its arguments may take as a message."""

_PLAIN: Final = (bool, int, float, complex, str, bytes)

_numbers: Final = itertools.count(1)


@final
class _Packed:
    """A function and its arguments as a message, but for the buffers in them."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.refs: list[GpuRef] = []
        self.data = dumps((function, args), self._take)
        if len(self.data) > MOST:
            raise ValueError(
                f"the function and its arguments are {len(self.data)} bytes when pickled, but may "
                f"be {MOST}; put large arrays on the device and pass the refs"
            )

    def _take(self, thing: Any) -> int | None:
        if type(thing) is not GpuRef:
            if isinstance(thing, CoroutineType):
                raise TypeError(f"cannot pickle a {said_of(thing)}")
            return None
        self.refs.append(thing)
        return len(self.refs) - 1

    def bind(self, core: DeviceCore) -> tuple[tuple[Buffer, ...], list[Block], list[Block]]:
        """The buffers as they are now; the blocks that the op reads, and may write."""
        buffers: list[Buffer] = []
        reads: list[Block] = []
        writes: list[Block] = []
        for number, ref in enumerate(self.refs):
            block = usable(ref, core.memory, f"ref {number}")
            buffers.append(Buffer(block.address, ref.shape, ref.dtype.name, block.sealed))
            # Nobody tells what the function does with a buffer.
            (reads if block.sealed else writes).append(block)
        return tuple(buffers), reads, writes


@final
class _Lane:
    """What is known of a lane: its state, and who made it.

    Attributes:
        spec: the lane.
        source: what made the state.
        init: the same, packed.
        number: the state's number.
        epoch: the epoch in which it was made.
        made: the op that made it.
        order: stands for the state among buffers, so that calls come after what makes it.
    """

    def __init__(self, name: str) -> None:
        self.spec = LaneSpec(name, _EXECUTORS)
        self.init: _Packed | None = None
        self.source: object = None
        self.number = 0
        self.epoch: Epoch | None = None
        self.made: Op | None = None
        self.order: Block

    def pack(self, init: Callable[[], Any]) -> _Packed:
        """``init`` as a message; the same one as before, if it is the same."""
        if self.init is None or not _same(init, self.source):
            return _Packed(init, ())
        return self.init

    def initialize(
        self, core: DeviceCore, port: Port, init: _Packed, source: object
    ) -> tuple[int, list[Block], list[Block]]:
        """See to it that the calls that follow find the state.

        Returns:
            The state's number, and the blocks that it reads, and may write.
        """
        if self.init is not None and _same(source, self.source):
            init = self.init
        buffers, reads, writes = init.bind(core)
        failed = self.made is not None and self.made.answered and self.made.error is not None
        if init is self.init and self.epoch is core.memory.epoch and not failed:
            return self.number, [*reads, self.order], writes
        if self.epoch is not core.memory.epoch:
            self.order = Block(core.memory, 0, 0, core.memory.epoch)
        message = Initialize(next(_numbers), init.data, buffers)
        name = f"{self.spec.name} init"
        self.made = core.submit(port, name, message, reads, [*writes, self.order])
        self.init, self.source = init, source
        self.number, self.epoch = message.state, core.memory.epoch
        return self.number, [*reads, self.order], writes


@final
class Functions:
    """Runs functions for one device."""

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._lanes: dict[str, _Lane] = {}

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        lane: str,
        init: Callable[[], Any] | None,
    ) -> Any:
        """See ``Device.run``."""
        core = self._core
        if not callable(function):
            raise TypeError(f"run(function, *args) takes a callable, not {said_of(function)}")
        if init is not None and not callable(init):
            raise TypeError(f"init must be callable, not {type(init).__name__}")
        _check_name(lane)
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = _Lane("run" if lane == "run" else f"run.{lane}")
        packed = _Packed(function, args)
        packed.bind(core)
        maker = known.pack(init) if init is not None else None
        port = await core.open_lane(known.spec)
        buffers, reads, writes = packed.bind(core)
        state = 0
        if maker is not None:
            state, also_reads, also_writes = known.initialize(core, port, maker, init)
            reads += also_reads
            writes += also_writes
        epoch = core.memory.epoch
        name = f"run {getattr(function, '__name__', type(function).__name__)}"
        op = core.submit(port, name, Call(state, packed.data, buffers), reads, writes)
        try:
            data, kinds, ticket = await op.wait()
        except BaseException:
            op.when_answered(lambda: self._forget(port, epoch, op))
            raise
        if not kinds:
            return loads(data, _nothing)
        try:
            arrays = [
                await (self._keep if on_device else self._fetch)(
                    port, epoch, name, ticket, index, tuple(shape), DTYPES[dtype]
                )
                for index, (on_device, shape, dtype) in enumerate(kinds)
            ]
        finally:
            self._forget(port, epoch, op)
        return loads(data, arrays.__getitem__)

    async def _keep(
        self,
        port: Port,
        epoch: Epoch,
        name: str,
        ticket: int,
        index: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> GpuRef:
        """Make a buffer of an array that the function has left on the device."""
        core = self._core
        nbytes = dtype.itemsize * math.prod(shape)
        ref = core.try_empty(shape, dtype, nbytes)
        if ref is None:
            ref = await core.empty(shape, dtype)
        self._check(epoch, name)
        message = Keep(ticket, index, ref._block.address)
        await core.submit(port, f"{name}: result", message, (), (ref._block,)).wait()
        return ref

    async def _fetch(
        self,
        port: Port,
        epoch: Epoch,
        name: str,
        ticket: int,
        index: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
    ) -> np.ndarray[Any, Any]:
        """Fetch a NumPy array that is too large to travel with the answer."""
        core = self._core
        array = np.empty(shape, dtype)
        data = array.reshape(-1).view(np.uint8)

        def submit(piece: Piece, start: int, length: int) -> Op:
            self._check(epoch, name)  # so there is a context
            message = Fetch(ticket, index, start, piece.address, length)
            return core.submit(port, f"{name}: result", message)

        await Bulk(core, data, submit, upload=False).run()
        return array

    def _check(self, epoch: Epoch, name: str) -> None:
        if self._core.memory.epoch is not epoch:
            raise GpuRefStale(f"the result of {name} is gone: {self._core.name} was rebuilt")

    def _forget(self, port: Port, epoch: Epoch, op: Op) -> None:
        """Have the host let go of arrays that it keeps for an op that was answered."""
        if self._core.memory.epoch is epoch and op.error is None and op.value is not None:
            ticket = op.value[2]
            if ticket:
                self._core.submit(port, "run: forget", Forget(ticket))


def _check_name(lane: object) -> None:
    if not isinstance(lane, str) or not lane:
        raise TypeError(f"lane must be a name, not {lane!r}")


def _same(one: object, other: object) -> bool:
    """Whether two initializers make the same state, as far as that can be told."""
    if one is other:
        return True
    if isinstance(one, partial) and isinstance(other, partial):
        return (
            _same(one.func, other.func)
            and _same(one.args, other.args)
            and _same(tuple(one.keywords.items()), tuple(other.keywords.items()))
        )
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and isinstance(one, _PLAIN) and one == other


def _nothing(number: int) -> Any:
    raise AssertionError(f"there is no array {number} in this result")
