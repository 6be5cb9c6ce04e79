"""Traces: prepared ops for all calls with one signature.

Checking a call and making its message takes most of the time that an op costs the program's thread.
Calls with one signature differ only in addresses and in the numbers inside expressions. So the
second call of a signature is made on stand-ins for its buffers, and its trace is kept. The trace
has the encoded messages with places for addresses, the outputs, and the blocks that are read and
written. Later calls fill these in.

Each call asks its preparer again for the things that the traced request asked for. A request that
depends on anything besides its arguments declares that by ``Preparer.depends``. A request is never
traced if sending it changes something, or if it has to wait for an answer before it is made. A
facade sets ``traced`` to declare that its calls follow these rules.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import OrderedDict
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
import numpy as np

from .._dtypes import SCALARS
from ..arrays import GpuRef
from ..arrays.expressions import Expression, apart, joined
from ..lanes import CallTemplate
from ..memory import Block, BlockView, block_at, part_of
from ..wire import MOST_TEMPLATES, PLACE, CallByTemplate, encoder
from ._request import Answered, Pending
from ._staging import STAGED, on_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..memory import Epoch, MemoryMap
    from ..wire import Message
    from ._library import DeviceView, OpSubmitter
    from ._request import HostObjects, Preparer, Request, Submission, TracedPreparer

_SIGNATURES: Final = 1024
"""Largest number of signatures that a facade keeps."""

_MOST_BYTES: Final = 1 << 12
"""Messages that are larger are not traced: to copy them takes longer than to make them."""

_MOST_OPS: Final = 24
"""Calls of more messages gain little by it: each takes a template in the host."""

_MOST_ARGUMENTS: Final = 64
_MOST_OBTAINED: Final = 64
_LONGEST_TEXT: Final = 64
_numbers: Final = itertools.count()
"""Numbers of traces, by which hosts know their messages."""

_PLAIN: Final = frozenset({int, bool, type(None)})
_SEALED: Final = object()
_SHARED: Final = object()
_VIEWS: Final = object()

Key = tuple[object, ...]


class Untraceable(Exception):
    """A call depends on more than its signature."""


@final
class _Hole:
    """Stands for an address of a stand-in, in a message that is traced.

    It is encoded as a number that takes all of 64 bits, as no other does.
    """

    __slots__ = ("_at", "_numbers", "_offset")

    def __init__(self, numbers: _Numbers, at: int, offset: int = 0) -> None:
        self._numbers = numbers
        self._at = at
        self._offset = offset

    def __add__(self, offset: int) -> _Hole:
        return _Hole(self._numbers, self._at, self._offset + offset)

    __radd__ = __add__

    def __index__(self) -> int:
        return self._numbers.number(self._at, self._offset)


@final
class _Numbers:
    """The numbers that holes are encoded as.

    Attributes:
        places: the encoded holes: the index of the address, and the offset from it.
        salt: makes them other numbers.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[int, int], int] = {}
        self.salt = 0

    def marker(self, at: int, offset: int) -> bytes:
        """Return the encoded form of a hole in a message."""
        return b"\xcf" + self.number(at, offset).to_bytes(8, "big")

    def number(self, at: int, offset: int) -> int:
        """Return the number of a hole."""
        if abs(offset) >= 1 << 40:
            raise Untraceable
        place = self.places.setdefault((at, offset), len(self.places))
        return 1 << 63 | (self.salt ^ place) << 8 | 0xA5


@final
class TracedOp(msgspec.Struct, frozen=True):
    """A message of a trace.

    Attributes:
        lane: the lane that executes it.
        name: the op's name.
        template: the message, with places for addresses.
        holes: picks the addresses for the places from all addresses.
        offsets: bytes to add to these addresses; None if all are zero.
        reads: picks the blocks that it reads from all blocks.
        writes: picks the blocks that it writes.
    """

    lane: str
    name: str
    template: CallTemplate
    holes: Callable[[Sequence[int]], Sequence[int]]
    offsets: tuple[int, ...] | None
    reads: Callable[[Sequence[Block]], Sequence[Block]]
    writes: Callable[[Sequence[Block]], Sequence[Block]]

    def submit(
        self, device: OpSubmitter, port: Any, addresses: Sequence[int], blocks: Sequence[Block]
    ) -> Any:
        """Submit the op of a call on these blocks by ``port``."""
        given = tuple(self.holes(addresses))
        if self.offsets is not None:
            given = tuple(map(operator.add, given, self.offsets))
        template = self.template
        return device.submit(
            port,
            self.name,
            template,
            self.reads(blocks),
            self.writes(blocks),
            CallByTemplate(template.number, given),
        )


@final
class Trace(msgspec.Struct, frozen=True):
    """Prepared ops for calls of one signature.

    Attributes:
        epoch: the generation in which it was made; plans and kernels may be gone after it.
        lanes: the lanes that execute the ops.
        ops: their messages, one right after the other.
        own: the index of the call's own op; the ops before and after it are the steps that it
            needs.
        outputs: shapes, dtypes and bytes of the buffers that each call makes.
        obtain: functions that make the other blocks that each call asks for.
        checks: return whether conditions outside the signature still hold.
        result: makes the result from all refs.
        finish: makes the result from the answer and from the value of ``result``, if the result
            depends on the answer.
    """

    epoch: Epoch
    lanes: frozenset[str]
    ops: tuple[TracedOp, ...]
    own: int
    outputs: tuple[tuple[tuple[int, ...], np.dtype[Any], int], ...]
    obtain: tuple[Callable[[Preparer], Block], ...]
    checks: tuple[Callable[[], bool], ...]
    result: Callable[[Sequence[GpuRef]], Any]
    finish: Callable[[Any, Any], Any] | None

    def holds(self) -> bool:
        """Return whether the trace still holds for calls in its generation."""
        for check in self.checks:  # noqa: SIM110 - this is a hot path
            if not check():
                return False
        return True

    def call(
        self, preparer: TracedPreparer, refs: list[GpuRef], words: list[int]
    ) -> tuple[Sequence[int], Sequence[Block], Any]:
        """Return one call's addresses and blocks, which fill its ops, and its result.

        Raises:
            Pending: the call has to wait for something.
        """
        for shape, dtype, nbytes in self.outputs:
            made = preparer.try_empty(shape, dtype, nbytes)
            if made is None:
                raise Pending((shape, dtype))
            refs.append(made)
        # Loops, because a comprehension costs a call.
        blocks: list[Block] = []
        addresses: list[int] = []
        for ref in refs:
            block = ref._block
            if isinstance(block, BlockView):
                addresses.append(block.whole.address + block.start)
                blocks.append(block.whole)  # later code asks whole blocks, which answer sooner
            else:
                addresses.append(block.address)
                blocks.append(block)
        for obtain in self.obtain:
            block = obtain(preparer)
            addresses.append(block.address)
            blocks.append(block)
        return addresses + words if words else addresses, blocks, self.result(refs)


def signature(
    form: tuple[object, ...], memory: MemoryMap, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Key, list[GpuRef], list[int]] | None:
    """Return the signature of a call, and the values in which calls with that signature differ.

    These values are its buffers, to which the buffers that it makes are added, and the numbers in
    its expressions, in words of four bytes.

    A call without a signature gives None. Such a call has lists or other values, or buffers that no
    call may use; the call itself then raises the error. A value that holds buffers may be taken
    apart: ``_apart()`` returns the rest of the value, and the buffers, and ``_joined(refs)`` the
    value with other buffers. Expressions are taken apart as well, with their numbers.
    """
    parts: list[object] = [*form]
    refs: list[GpuRef] = []
    words: list[int] = []
    blocks: list[Block] = []
    views = False
    epoch, sealed_epoch = memory.epoch, memory.sealed_epoch
    given: Iterable[Any] = args
    if kwargs:
        parts += (*kwargs, len(args))
        given = [*args, *kwargs.values()]
    for value in given:
        kind = type(value)
        if kind is GpuRef:
            block = value._block
            if isinstance(block, BlockView):  # a view: alignment and overlaps depend on its start
                views = True
                parts.append(block.start)
                parts.append(value._strides)
                block = block.whole
            if block.epoch is not epoch and block.epoch is not sealed_epoch:
                return None
            if block.sealed:  # also one that is of this generation, while it is being filled
                parts.append(_SEALED)
            parts.append(value.shape)
            parts.append(value.dtype)
            refs.append(value)
            blocks.append(block)
            continue
        if kind is Expression:
            rest, held, numbers = apart(value)
            for ref in held:
                seen = _seen(ref, memory, parts)
                if seen is None:
                    return None
                views = views or seen
            refs += held
            blocks += [ref._block.base for ref in held]
            words += numbers
            parts.append(rest)
            continue
        if kind is float:
            if value == 0.0 or math.isnan(value):  # both have a sign, and NaN equals nothing
                parts.append(kind)
                parts.append((repr(value), math.copysign(1.0, value)))
                continue
        elif kind is tuple:
            if not all(map(_is_int, value)):
                return None
        elif kind is str:
            if len(value) > _LONGEST_TEXT:
                return None
        elif kind is type:
            if value not in SCALARS:  # a function that is fused may read its attributes
                return None
        elif kind not in _PLAIN and not isinstance(value, np.dtype):
            if not hasattr(kind, "_flatten"):
                return None
            rest, held = value._flatten()
            for ref in held:
                seen = _seen(ref, memory, parts)
                if seen is None:
                    return None
                views = views or seen
            refs += held
            blocks += [ref._block.base for ref in held]
            value = rest  # noqa: PLW2901 - what is left of it
        parts.append(kind)
        parts.append(value)
    if views:
        parts.append(_VIEWS)
        parts += map(blocks.index, blocks)
    elif len(blocks) > 1 and len(set(blocks)) < len(blocks):
        parts.append(_SHARED)
        parts += map(blocks.index, blocks)
    return tuple(parts), refs, words


def _seen(ref: object, memory: MemoryMap, parts: list[object]) -> bool | None:
    """Add a buffer inside an argument; whether it is a view, and None if no call may use it."""
    if type(ref) is not GpuRef:
        return None
    block = ref._block
    view = type(block) is not Block
    if view:
        parts += (block.offset, ref._strides)
        block = block.base
    if block.epoch is not memory.epoch and block.epoch is not memory.sealed_epoch:
        return None
    if block.sealed:
        parts.append(_SEALED)
    parts += (ref.shape, ref.dtype)
    return view


def _is_int(value: object) -> bool:
    return type(value) is int


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """A cache of a device's calls.

    Attributes:
        name: the library whose call templates these are.
        entries: number of signatures that are kept.
        limit: largest number of them; a new one then replaces the least recently used.
        hits: calls that a template has made.
        misses: calls that were prepared in full although their signature can be kept, and calls
            that have made a template.
    """

    name: str
    entries: int
    limit: int
    hits: int
    misses: int


@final
class Traces:
    """Traces of a facade's calls by signature, shared by all copies of the facade."""

    def __init__(self) -> None:
        self._hits = self._misses = 0
        self._known: OrderedDict[Key, Trace | int] = (
            OrderedDict()
        )  # how many calls there were, without a trace

    def find(
        self,
        make: Callable[..., Request[Any]],
        facade: object,
        home: DeviceView,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Trace, list[GpuRef], list[int]] | None:
        """Return the trace of a call and its own values, or None if it has to be made in full.

        Args:
            make: makes its request.
            facade: the object whose method is called.
            home: the device, batch or recording on which it is called.
            args: its positional arguments.
            kwargs: its arguments by name.
        """
        memory = home.memory
        known = signature((make, home.call_mode), memory, args, kwargs)
        if known is None:
            return None
        key, refs, words = known
        found = self._known.get(key)
        calls = 1
        if type(found) is Trace:
            if found.epoch is memory.epoch and (not found.checks or found.holds()):
                self._hits += 1
                self._known.move_to_end(key)
                return found, refs, words
        elif found is None:
            self._keep(key, calls)
            return None
        else:
            calls = found
        # A call that cannot be traced now may be traceable later, when the things that it needs
        # exist. So it is tried again and again, each time after twice as many calls.
        if calls & (calls - 1):
            self._keep(key, calls + 1)
            return None
        try:
            try:
                traced = _Tracer(home).trace(make, facade, args, kwargs)
            except STAGED:
                traced = _Tracer(home).trace(make, facade, args, kwargs, staged=True)
        except Exception:  # noqa: BLE001 - the call is made in full next, and raises what is wrong
            self._keep(key, calls + 1)
            return None
        self._keep(key, traced)
        return traced, refs, words

    def statistics(self, name: str) -> CacheStatistics:
        """Return a snapshot.

        Args:
            name: the name of the library.
        """
        return CacheStatistics(name, len(self._known), _SIGNATURES, self._hits, self._misses)

    def _keep(self, key: Key, value: Trace | int) -> None:
        """Keep a value, in the place of the least recently used one."""
        self._misses += 1
        self._known[key] = value
        self._known.move_to_end(key)
        if len(self._known) > _SIGNATURES:
            self._known.popitem(last=False)


@final
class _Tracer:
    """The preparer of a call that is traced."""

    def __init__(self, home: DeviceView) -> None:
        self.home: Final = home
        self.memory: Final = home.memory
        self._stand_ins: dict[Block, Block] = {}
        self._refs: list[GpuRef] = []
        self._words = 0
        self._obtained: list[Block] = []
        self._outputs: list[tuple[tuple[int, ...], np.dtype[Any], int]] = []
        self._obtain: list[Callable[[Preparer], Block]] = []
        self._checks: list[Callable[[], bool]] = []
        self._numbers: Final = _Numbers()

    @property
    def host_objects(self) -> HostObjects:
        """Raise ``Untraceable``: a traced call keeps things for later ops by ``obtain`` only."""
        raise Untraceable

    def trace(
        self,
        make: Callable[..., Request[Any]],
        facade: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        staged: bool = False,
    ) -> Trace:
        """Return the trace of calls like this one, with the copies that staging adds if ``staged``.

        Raises:
            Untraceable: such calls differ in more than their signature has.
            Exception: the call fails.
        """
        given = tuple([self._stand_in(value) for value in args])
        named = {name: self._stand_in(value) for name, value in kwargs.items()}
        if staged:
            return self._finish(on_copies(make, facade, given, named))
        return self._finish(make(facade, *given, **named))

    def _stand_in(self, value: Any) -> Any:
        """Return the stand-in of an argument."""
        if type(value) is Expression:
            _, held, words = apart(value)
            first = _MOST_ARGUMENTS + _MOST_OBTAINED + self._words
            self._words += len(words)
            holes = [_Hole(self._numbers, first + at) for at in range(len(words))]
            return joined(value, [self._stand_in(ref) for ref in held], holes)
        if type(value) is not GpuRef:
            if not hasattr(type(value), "_flatten"):
                return value
            _, held = value._flatten()
            return value._unflatten([self._stand_in(ref) for ref in held])
        whole, offset = value._block.base, value._block.offset
        made = self._stand_ins.get(whole)
        if made is None:  # what stands for the first of its views is where that begins
            hole = _Hole(self._numbers, len(self._refs), -offset)
            made = self._stand_ins[whole] = block_at(self.memory, hole, 0)
            made.epoch, made.sealed = whole.epoch, whole.sealed
        ref = value.on_block(part_of(made, offset) if value._block is not whole else made)
        self._refs.append(ref)
        return ref

    def _block(self, at: int) -> Block:
        return block_at(self.memory, _Hole(self._numbers, at), 0)

    # --- what the request asks for --------------------------------------------------------

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return a stand-in for a buffer that each call makes."""
        nbytes = math.prod(shape) * dtype.itemsize
        ref = GpuRef(self._block(len(self._refs)), shape, dtype, nbytes)
        self._refs.append(ref)
        self._outputs.append((shape, dtype, nbytes))
        return ref

    def obtain(self, make: Callable[[Preparer], Block]) -> Block:
        """Return a stand-in for a block that each call asks for."""
        block = self._block(_MOST_ARGUMENTS + len(self._obtain))
        self._obtain.append(make)
        self._obtained.append(block)
        return block

    def stand_in(self, ref: GpuRef) -> GpuRef:
        """Return ``ref`` if it is one of the call's own; the signature has no others."""
        whole = ref._block.base
        if not any(
            whole is each for each in (*[ref._block.base for ref in self._refs], *self._obtained)
        ):
            raise Untraceable(repr(ref))
        return ref

    def depends(self, still: Callable[[], bool]) -> None:
        """Keep the check: each call repeats it."""
        self._checks.append(still)

    def perform(self, request: Request[Any]) -> Any:
        """Raise ``Untraceable``: the answer to one request may change the next."""
        raise Untraceable(request.name)

    # --- what becomes of it ---------------------------------------------------------------

    def _finish(self, request: Request[Any]) -> Trace:
        submission = request.prepare(self)
        finish = submission.finish
        if finish is not None:
            if not isinstance(finish, Answered):
                raise Untraceable
            submission = msgspec.structs.replace(submission, finish=None, result=finish.refs)
        if submission.message is None:
            raise Untraceable
        parts = submission.steps(request, self)
        if len(parts) > _MOST_OPS:
            raise Untraceable
        own = next(at for at, (_, made) in enumerate(parts) if made is submission)
        refs, count = self._refs, len(self._refs)
        obtained = len(self._obtained)
        if count > _MOST_ARGUMENTS or obtained > _MOST_OBTAINED:
            raise Untraceable
        at_of = {at: at for at in range(count)}
        at_of |= {_MOST_ARGUMENTS + at: count + at for at in range(obtained)}
        words = _MOST_ARGUMENTS + _MOST_OBTAINED
        at_of |= {words + at: count + obtained + at for at in range(self._words)}
        places = {ref._block: at for at, ref in reversed([*enumerate(refs)])}
        places |= {block: count + at for at, block in enumerate(self._obtained)}
        ops = [
            self._op(each, made, at_of, places, answers=made is submission and finish is not None)
            for each, made in parts
            if made.message is not None
        ]
        return Trace(
            self.memory.epoch,
            frozenset([each.lane for each in ops]),
            tuple(ops),
            own - sum(made.message is None for _, made in parts[:own]),
            tuple(self._outputs),
            tuple(self._obtain),
            tuple(self._checks),
            self._result(submission.result),
            None if finish is None else finish.make,
        )

    def _op(
        self,
        request: Request[Any],
        submission: Submission[Any],
        at_of: dict[int, int],
        places: dict[Block, int],
        *,
        answers: bool,
    ) -> TracedOp:
        """Return an op of the trace, with the indices of its blocks and of its addresses."""
        message = submission.message
        if message.required or (message.returns is None) is answers:
            raise Untraceable
        if message.bulky or message.lasting or message.everywhere or message.pickles:
            raise Untraceable
        if submission.sent or submission.done or submission.finish:
            raise Untraceable
        encoded, holes = self._template(message)
        return TracedOp(
            request.lane.name,
            request.name,
            CallTemplate(next(_numbers) % MOST_TEMPLATES, msgspec.Raw(encoded), message.returns),
            picker([at_of[at] for at, _ in holes]),
            tuple([offset for _, offset in holes]) if any(offset for _, offset in holes) else None,
            picker([places[block] for block in submission.reads]),
            picker([places[block] for block in submission.writes]),
        )

    def _template(self, message: Message) -> tuple[bytes, list[tuple[int, int]]]:
        """Encode a message with places instead of addresses; return it with the hole at each place.

        Encoded twice with other numbers in its holes, it differs there and nowhere else.
        """
        numbers = self._numbers
        numbers.salt = 0x5_1DE5_ACC0
        one = encoder.encode(message)
        markers = {hole: numbers.marker(*hole) for hole in numbers.places}
        numbers.salt = 0xA_E21A_533F
        other = bytearray(encoder.encode(message))
        if len(one) != len(other) or len(one) > _MOST_BYTES:
            raise Untraceable
        found: dict[int, tuple[int, int]] = {}
        for hole, before in markers.items():
            marker = numbers.marker(*hole)
            start = other.find(marker)
            while start >= 0:
                if not one.startswith(before, start):
                    raise Untraceable
                found[start + 1] = hole
                start = other.find(marker, start + len(marker))
        places = sorted(found)
        template = bytearray(one)
        for at, start in enumerate(places):
            template[start : start + 8] = other[start : start + 8] = _place(at)
        marked = [b"\xcf" + _place(at) for at in range(len(places))]
        if template != other or any(template.count(each) > 1 for each in marked):
            raise Untraceable
        if _count_places(msgspec.msgpack.decode(template)) != len(places):
            raise Untraceable
        return bytes(template), [found[start] for start in places]

    def _result(self, result: Any) -> Callable[[Sequence[GpuRef]], Any]:
        """Return a function that makes the result from a call's refs."""
        if result is None:
            return _nothing
        if isinstance(result, GpuRef):
            return self._one(result)
        kind: Any = type(result)
        if kind not in (tuple, list) and not hasattr(kind, "_make"):
            raise Untraceable
        parts: list[Callable[[Sequence[GpuRef]], GpuRef | None]] = [
            _nothing if ref is None else self._one(ref) for ref in result
        ]
        make: Callable[[Iterable[GpuRef | None]], Any] = getattr(kind, "_make", kind)
        return lambda refs: make([part(refs) for part in parts])

    def _one(self, result: GpuRef) -> Callable[[Sequence[GpuRef]], GpuRef]:
        for at, ref in enumerate(self._refs):
            if ref is result:
                return itemgetter(at)
        for at, ref in enumerate(self._refs):
            if ref._block is result._block and result._strides is None:
                shape, dtype, nbytes = result.shape, result.dtype, result.nbytes
                return lambda refs: GpuRef(refs[at]._block, shape, dtype, nbytes)
        begin = result._block.base, result._block.offset
        for at, ref in enumerate(self._refs):
            if (ref._block.base, ref._block.offset) == begin:  # a view of all of it, as ref.T is
                return lambda refs: result.on_block(refs[at]._addressable_block)
        raise Untraceable


def _place(at: int) -> bytes:
    """Return the bytes that stand for an address."""
    return (PLACE | at).to_bytes(8, "big")


def _count_places(value: object) -> int:
    """Count the numbers that read as places, including those that are not places."""
    if isinstance(value, (list, tuple)):
        return sum(map(_count_places, value))
    if isinstance(value, dict):
        return _count_places([*value, *value.values()])
    return isinstance(value, int) and value >= PLACE


def _nothing(_refs: Sequence[GpuRef]) -> None:
    """Return None, the result of calls without one."""


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks the items at these positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    first = positions[0] if positions else 0
    return itemgetter(slice(first, first + len(positions)))
