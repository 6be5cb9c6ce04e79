"""``device.run``: the program's own functions on lanes of their own in the host."""

from __future__ import annotations

import inspect
import itertools
import logging
import math
import pickle
from contextlib import suppress
from enum import Enum
from functools import partial
from types import BuiltinMethodType, CoroutineType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, final

import numpy as np
import trio

from ..._dtypes import DTYPES
from ..._errors import AccelError, GpuRefStale, said_of
from ...arrays import GpuRef, repeats
from ...libraries.run.wire.messages import (
    Buffer,
    CallFunction,
    Fetch,
    ForgetCall,
    Initialize,
    Keep,
    Left,
    Supply,
)
from ...libraries.run.wire.pickling import PickleTooLarge, TakesLong, dumps, loads
from ...memory import Block, block_at
from ...ops import LaneSpec, Request, require_readable
from ...wire import SLAB_SHIFT, CloseLane
from ...wire.trace import current_traceparent
from ..data._bulk import Bulk
from ..data.transfer import in_thread
from ._culprit import add_culprit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ...lanes import Op, Piece, Port
    from ...libraries.run.wire.pickling import Bytes
    from ...memory import Epoch
    from ..core import DeviceCore

_EXECUTORS: Final = {
    "cpu": "atomr_accel.libraries.run.host._cpu:CpuRunner",
    "cuda": "atomr_accel.libraries.run.host._cuda:CudaRunner",
}

MOST: Final = 64 << 20
"""Bytes that a function and its arguments may take."""

_MOST_CALLED: Final = 1024
"""Functions of which it is noted that they were called."""

_PICKLERS: Final = 4
"""Threads that pickle and unpickle at once, for one device."""

_PIECE: Final = 1 << 17
"""Bytes of arguments that travel in one message."""

_RESULTS: Final = LaneSpec("results", _EXECUTORS, own_thread=True)
"""Fetches what calls have left, also while their own lanes are busy with others."""

_PLAIN: Final = (bool, int, float, complex, str, bytes)

_log = logging.getLogger("atomr_accel.device")

_T = TypeVar("_T")


class OnDevice(Protocol):
    """An array of PyTorch, JAX or another library that follows the array API's standard.

    Such an array becomes a ref when it is a result. NumPy arrays stay NumPy arrays: they give their
    device by plain numbers.
    """

    def __dlpack_device__(self) -> tuple[Enum, Any]:
        """Return the device type and the device's index."""


_numbers: Final = itertools.count(1)


@final
class _PackedCall:
    """A function and its arguments, pickled but for the buffers in them."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], *, quick: bool) -> None:
        self.refs: list[GpuRef] = []
        try:
            self.data, self.parts = dumps((function, args), self._take, most=MOST, quick=quick)
        except PickleTooLarge:
            raise ValueError(
                f"the function and its arguments may be {MOST} bytes when pickled, and are more; "
                "put large arrays on the device and pass the refs"
            ) from None
        except TakesLong:
            raise
        except Exception as error:

            def pickles(thing: Any) -> bool:
                try:
                    dumps(thing, _without_refs, most=MOST, quick=quick)
                except (TakesLong, PickleTooLarge):
                    return True  # as far as was seen
                except Exception:  # noqa: BLE001 (what it is was raised before)
                    return False
                return True

            add_culprit(error, function, args, pickles)
            raise

    def _take(self, thing: Any) -> int | None:
        if type(thing) is not GpuRef:
            check_is_there(thing)
            return None
        self.refs.append(thing)
        return len(self.refs) - 1

    def lies_in(self, slabs: set[int]) -> bool:
        """Return True if all its buffers are in the given slabs."""
        return all(ref.addressable_block.address >> SLAB_SHIFT in slabs for ref in self.refs)

    def kept(self) -> _PackedCall:
        """This, for a later time: without memory that others may change."""
        self.parts = [np.array(part) for part in self.parts]
        return self

    def supply(self, core: DeviceCore, port: Port, name: str, ticket: int) -> list[Op]:
        """Submit the parts, for the call that follows.

        They wait here until the socket takes them, and are read from the caller's memory then.
        """
        return [
            core.submit(
                port,
                f"{name}: arguments",
                Supply(ticket, number, len(part), start, part[start : start + _PIECE].data),
            )
            for number, part in enumerate(self.parts)
            for start in range(0, len(part), _PIECE)
        ]

    def bind(self, core: DeviceCore) -> tuple[tuple[Buffer, ...], list[Block], list[Block]]:
        """Return the present buffers, the blocks that the op reads, and those that it may write."""
        buffers: list[Buffer] = []
        reads: list[Block] = []
        writes: list[Block] = []
        for number, ref in enumerate(self.refs):
            block = require_readable(ref, core.memory, f"ref {number}", strided=True)
            strides = ref.own_strides
            fixed = block.sealed or (strides is not None and repeats(ref.shape, strides))
            buffers.append(Buffer(block.address, ref.shape, ref.dtype.name, fixed, strides))
            # The function may do anything with a buffer.
            (reads if block.sealed else writes).append(block)
        return tuple(buffers), reads, writes


@final
class _RunLane:
    """The program's record of a lane: its state, the state's origin, and its users.

    Attributes:
        spec: the lane.
        source: the initializer that made the state.
        init: the initializer, packed.
        number: the state's number.
        epoch: the epoch in which the state was made.
        made: the op that made the state.
        good: whether the op that makes the present state has succeeded.
        settled: set when that op is answered.
        order: a block that stands for the state, so that calls depend on the op that makes it.
        users: number of calls in progress.
        idle: set when no calls are in progress, while a task waits for that.
        closing: set when the lane is closed, while a task closes it.
    """

    def __init__(self, name: str) -> None:
        self.spec = LaneSpec(name, _EXECUTORS, own_thread=True)
        self.init: _PackedCall | None = None
        self.source: object = None
        self.number = 0
        self.good = False
        self.epoch: Epoch | None = None
        self.made: Op | None = None
        self.order: Block
        self.settled: trio.Event
        self.users = 0
        self.idle: trio.Event | None = None
        self.closing: trio.Event | None = None

    def leave(self) -> None:
        """A call is over."""
        self.users -= 1
        if not self.users and self.idle is not None:
            self.idle.set()

    def packed(self, source: object) -> _PackedCall | None:
        """Return the packed form of ``source`` if it made the state, else None."""
        return self.init if self.init is not None and _same(source, self.source) else None

    def has(self, core: DeviceCore, init: _PackedCall) -> bool:
        """Return True if the state exists and was made by ``init``."""
        failed = self.made is not None and self.made.answered and self.made.error is not None
        return init is self.init and self.epoch is core.memory.epoch and not failed

    def initialize(
        self, core: DeviceCore, port: Port, init: _PackedCall, source: object
    ) -> tuple[int, list[Block], list[Block]]:
        """Make the state for later calls, unless it exists.

        Returns:
            The state's number, and the blocks that it reads, and may write.
        """
        buffers, reads, writes = init.bind(core)
        if self.has(core, init):
            return self.number, [*reads, self.order], writes
        if self.epoch is not core.memory.epoch:
            self.order = block_at(core.memory, 0, 0)
        message = Initialize(next(_numbers), init.data, buffers)
        name = f"{self.spec.name} init"
        init.supply(core, port, name, message.state)
        self.made = core.submit(port, name, message, reads, [*writes, self.order])
        self.init, self.source = init, source
        self.number, self.epoch = message.state, core.memory.epoch
        self.follow(core)
        return self.number, [*reads, self.order], writes

    def follow(self, core: DeviceCore) -> None:
        """Note the result of the op that makes the state, once it is answered."""
        made = self.made
        assert made is not None
        self.good = False
        self.settled = settled = trio.Event()

        def answered() -> None:
            if made is self.made and made.error is None:
                self.good = True
                core.changed()
            settled.set()

        made.when_answered(answered)

    def repeat(self, core: DeviceCore, port: Port, other: _RunLane) -> bool:
        """Make the state of a lane, if it was made before and needs only memory mapped here."""
        if other.init is None or not other.good or other.init is self.init:
            return False
        try:
            self.initialize(core, port, other.init, other.source)
        except (AccelError, TypeError, ValueError):
            return False  # it takes what does not outlive a host
        return True

    def is_of(self, ports: Mapping[str, Port]) -> bool:
        """Return True if its state, if any, is in the present lane. Lanes may be reopened."""
        port = ports.get(self.spec.name)
        return port is not None and (self.made is None or self.made.port is port)

    def take_over(self, core: DeviceCore, other: _RunLane) -> None:
        """Have the state that another host has made, which is the device's own now."""
        made = other.made
        if made is None or other.init is None or (made.answered and made.error is not None):
            return
        if self.init is None or _same(self.source, other.source):
            self.init, self.source = other.init, other.source
        if self.init is other.init:
            self.number, self.made, self.order = other.number, made, other.order
            self.epoch = core.memory.epoch
            self.follow(core)


@final
class HostCalls:
    """Calls functions of the program in the host, for one device."""

    def __init__(self, core: DeviceCore) -> None:
        self._core = core
        self._lanes: dict[str, _RunLane] = {}
        self._threads = trio.CapacityLimiter(_PICKLERS)
        self._called: set[tuple[str, str | None]] = set()

    @property
    def in_use(self) -> bool:
        """True if the host has lanes for functions."""
        return bool(self._lanes)

    async def run(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        lane: str,
        init: Callable[[], Any] | None,
    ) -> Any:
        """Implement ``Device.run``."""
        if not callable(function):
            raise TypeError(f"run(function, *args) takes a callable, not {said_of(function)}")
        if init is not None and not callable(init):
            raise TypeError(f"init must be callable, not {type(init).__name__}")
        _check_plain("run", function)
        _check_plain("init", init)
        _check_name(lane)
        while (known := self._known(lane)).closing is not None:
            await known.closing.wait()
        known.users += 1
        try:
            return await self._run(known, function, args, init)
        finally:
            known.leave()

    async def close(self, lane: str) -> None:
        """Implement ``Device.close_lane``."""
        _check_name(lane)
        known = self._lanes.get(lane)
        if known is None:
            await trio.lowlevel.checkpoint()
            return
        while known.closing is not None:
            await known.closing.wait()
            if self._lanes.get(lane) is not known:
                return  # else whoever was closing it was cancelled
        known.closing = trio.Event()
        try:
            while known.users:
                known.idle = trio.Event()
                await known.idle.wait()
            while True:
                context = await self._core.ready()
                await context.wait_opening(known.spec.name)
                if self._core.serving is context:  # else it is the next one that has the lane
                    break
            port = self._core.ports.get(known.spec.name)
        except BaseException:
            known.closing.set()
            known.closing = None
            raise
        if port is None:
            self._closed(lane, known)
            return
        # Once this is sent, the lane will be closed, even if the caller is cancelled.
        op = self._core.submit(port, f"{known.spec.name} close", CloseLane())
        op.when_answered(lambda: self._closed(lane, known))
        await op.wait()
        await port.wait_ended()

    # --- of a standby -------------------------------------------------------------------------

    async def repeat(self, whole: HostCalls, mapped: set[int]) -> None:
        """Make the states of another device's lanes, if they need only the slabs mapped here."""
        for lane, own in list(self._lanes.items()):
            if not own.is_of(self._core.ports):
                del self._lanes[lane]
        for lane, other in list(whole._lanes.items()):
            port = self._core.ports.get(other.spec.name)
            if port is None or other.init is None:
                continue
            own = self._known(lane)
            if own.init is not other.init:  # it may hold refs that are dropped everywhere else
                own.init = own.source = None
            if not other.init.lies_in(mapped):
                continue
            if own.repeat(self._core, port, other):
                await own.settled.wait()
                await trio.lowlevel.checkpoint_if_cancelled()  # it may be another's by now
                if not own.good and own.made is not None:
                    _log.warning(
                        "%s: a standby cannot have the state of lane %r: %s",
                        self._core.name,
                        lane,
                        repr(own.made.error),
                        extra=self._core.log_fields(own.made.error, lane=other.spec.name),
                    )

    def keep_states(self, before: Epoch, mapped: set[int]) -> None:
        """Keep states in another epoch of the same host, if they need only the mapped slabs.

        Args:
            before: the last epoch, whose plain memory was given up.
            mapped: the sealed slabs there.
        """
        for lane in self._lanes.values():
            if lane.epoch is before and lane.init is not None and lane.init.lies_in(mapped):
                lane.epoch = self._core.memory.epoch

    def take_over(self, shadow: HostCalls, ports: Mapping[str, Port]) -> None:
        """Go on with the states that were made in a host that is the device's own now."""
        for lane, other in shadow._lanes.items():
            if other.spec.name in self._core.lanes and other.is_of(ports):
                self._known(lane).take_over(self._core, other)
        shadow.forget()

    def forget(self) -> None:
        """Drop all objects of the program, because the host is over."""
        self._lanes.clear()

    def _known(self, lane: str) -> _RunLane:
        known = self._lanes.get(lane)
        if known is None:
            known = self._lanes[lane] = _RunLane("run" if lane == "run" else f"run.{lane}")
        return known

    def _closed(self, lane: str, known: _RunLane) -> None:
        """End a lane that has no more calls."""
        self._core.remove_lane(known.spec.name)
        self._lanes.pop(lane, None)
        assert known.closing is not None
        known.closing.set()

    # --- a call -------------------------------------------------------------------------------

    async def _run(
        self,
        known: _RunLane,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        init: Callable[[], Any] | None,
    ) -> Any:
        core = self._core
        packed = await self._pack(function, args)
        packed.bind(core)
        maker = None
        if init is not None:
            maker = known.packed(init) or (await self._pack(init, ())).kept()
        name = f"run {getattr(function, '__name__', type(function).__name__)}"
        port = await core.open_lane(known.spec)
        buffers, reads, writes = packed.bind(core)
        state = 0
        if maker is not None:
            maker = known.packed(init) or maker  # another call may have been first
            state, also_reads, also_writes = known.initialize(core, port, maker, init)
            reads += also_reads
            writes += also_writes
        epoch = core.memory.epoch
        ticket = next(_numbers)
        supplies = packed.supply(core, port, name, ticket)
        call = CallFunction(ticket, state, packed.data, buffers, current_traceparent())
        op = core.submit(port, name, call, reads, writes)
        try:
            data, arrays, sizes = await op.wait()
            self._note(known, function)
        except BaseException as error:
            if isinstance(error, TypeError) and init is None and known.init is not None:
                error.add_note(
                    f"lane {known.spec.name!r} has a state, which functions get only with the "
                    "init that made it: pass init=, too"
                )
            for supply in supplies:
                supply.withdraw()
            if not op.answered or op.error is None:
                known.users += 1
                op.when_answered(lambda: self._abandoned(known, port, epoch, ticket))
            raise
        finally:
            core.tell_output()
        if not arrays and not sizes:
            return loads(data, [], _nothing)
        try:
            idle = await core.open_lane(_RESULTS)
            refs = [
                await self._keep(idle, epoch, name, ticket, index, array)
                for index, array in enumerate(arrays)
            ]
            parts = [
                await self._fetch(idle, epoch, name, ticket, part, nbytes)
                for part, nbytes in enumerate(sizes)
            ]
        finally:
            self._forget(port, epoch, ticket)
        if data:
            return loads(data, parts, refs.__getitem__)
        return await self._in_thread(partial(loads, data, parts, refs.__getitem__))

    async def _pack(self, function: Callable[..., Any], args: tuple[Any, ...]) -> _PackedCall:
        """Pickle a function and arguments, in a thread if it would block the loop for long."""
        with suppress(TakesLong):
            return _PackedCall(function, args, quick=True)
        return await self._in_thread(partial(_PackedCall, function, args, quick=False))

    async def _in_thread(self, function: Callable[[], _T]) -> _T:
        return await in_thread(function, self._threads, abandon=True)

    async def _keep(
        self, port: Port, epoch: Epoch, name: str, ticket: int, index: int, array: Left
    ) -> GpuRef:
        """Make a buffer of an array that the function has left on the device."""
        core = self._core
        dtype = DTYPES[array.dtype]
        ref = core.try_empty(array.shape, dtype, dtype.itemsize * math.prod(array.shape))
        if ref is None:
            ref = await core.empty(array.shape, dtype)
        self._check(epoch, name)
        message = Keep(ticket, index, ref.block.address)
        await core.submit(port, f"{name}: result", message, (), (ref.block,)).wait()
        return ref

    async def _fetch(
        self, port: Port, epoch: Epoch, name: str, ticket: int, part: int, nbytes: int
    ) -> Bytes:
        """Fetch a part of the result that is too large for the answer."""
        core = self._core
        data = np.empty(nbytes, np.uint8)

        def submit(piece: Piece, start: int, length: int) -> Op:
            self._check(epoch, name)  # so there is a context
            message = Fetch(ticket, part, start, piece.address, length)
            return core.submit(port, f"{name}: result", message)

        await Bulk(core, data, submit, upload=False).run()
        return data

    def _note(self, known: _RunLane, function: object) -> None:
        """Update standbys after the first call of a function, which may have imported modules."""
        called = known.spec.name, getattr(function, "__qualname__", None)
        new = self._core.standby is not None and called not in self._called
        if new and len(self._called) < _MOST_CALLED:
            self._called.add(called)
            self._core.changed()

    def _check(self, epoch: Epoch, name: str) -> None:
        if self._core.memory.epoch is not epoch:
            raise GpuRefStale(f"the result of {name} is gone: {self._core.name} was rebuilt")

    def _abandoned(self, known: _RunLane, port: Port, epoch: Epoch, ticket: int) -> None:
        """End a call whose caller has left."""
        self._forget(port, epoch, ticket)
        known.leave()

    def _forget(self, port: Port, epoch: Epoch, ticket: int) -> None:
        """Have the host drop the objects that it keeps for a call."""
        if self._core.memory.epoch is epoch:
            self._core.submit(port, "run: forget", ForgetCall(ticket))


def _check_plain(what: str, function: object) -> None:
    """Refuse async functions and generator functions, which cannot run in the host."""
    called = inspect.getattr_static(type(function), "__call__", None)  # of an object
    for one in (function, called):
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            kind = "an async one"
        elif inspect.isgeneratorfunction(one):
            kind = "a generator function"
        else:
            continue
        raise TypeError(
            f"{what} takes a plain function, not {kind}: {function!r} would run in the host, "
            "where there is no trio; call it here, or make it an ordinary `def` that returns"
        )


def check_is_there(argument: object) -> None:
    """Refuse arguments that are not results yet: coroutines and requests."""
    if isinstance(argument, CoroutineType):
        raise TypeError(f"cannot pickle what the function was given, a {said_of(argument)}")
    if isinstance(argument, Request):
        raise TypeError(
            "arguments of the function must be values or results, not the request "
            f"{argument.name}: carry it out first, as in `x = await "
            "device.blas.ref.ask(request)`, and pass that"
        )


def _without_refs(thing: Any) -> int | None:
    return 0 if type(thing) is GpuRef else None


def _check_name(lane: object) -> None:
    if not isinstance(lane, str) or not lane:
        raise TypeError(f"lane must be a name, not {lane!r}")


def _same(one: object, other: object) -> bool:
    """Return True if two initializers make the same state, as far as can be determined."""
    if one is other:
        return True
    if isinstance(one, partial) and isinstance(other, partial):
        return (
            _same(one.func, other.func)
            and _same(one.args, other.args)
            and _same(tuple(one.keywords.items()), tuple(other.keywords.items()))
        )
    if isinstance(one, (MethodType, BuiltinMethodType)):  # a new object each time
        return one == other
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        # A lambda in a loop is a new function each time.
        return (
            one.__code__ is other.__code__
            and one.__globals__ is other.__globals__
            and _same(_bound_in(one), _bound_in(other))
        )
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and isinstance(one, _PLAIN) and one == other


def _bound_in(function: FunctionType) -> tuple[object, ...]:
    """Return the defaults of a function and the variables that it has from around it.

    Identities stand for values that are not plain, because a function may refer to itself.
    """
    found: list[object] = [*(function.__defaults__ or ())]
    for name, default in (function.__kwdefaults__ or {}).items():
        found += name, default
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is not assigned yet
            found.append(cell)
    return tuple([each if isinstance(each, _PLAIN) else (id(each),) for each in found])


def _nothing(number: int) -> Any:
    raise pickle.UnpicklingError(f"there is no array {number} in this result")
