"""Preparation of call templates, on stand-ins for a call's buffers."""

from __future__ import annotations

import itertools
import math
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..arrays import GpuRef
from ..arrays.expressions import Expression, apart, joined
from ..lanes import MessageTemplate
from ..memory import block_at, part_of
from ..wire import MOST_TEMPLATES, PLACE, filled_fields, plain
from ._call_template import CallTemplate, OpTemplate, picker
from ._request import Answered
from ._staging import on_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

    from ..memory import Block
    from ..wire import Message
    from ._library import DeviceView
    from ._request import HostObjects, Preparer, Request, Submission

_MOST_BYTES: Final = 1 << 12
"""Larger messages have no templates: to copy them takes longer than to make them."""

_MOST_OPS: Final = 24
"""Calls of more messages gain little by templates: each takes one in the host."""

_numbers: Final = itertools.count()
"""Numbers of templates, by which hosts know their messages."""


class NoTemplate(Exception):
    """A call depends on more than its signature."""


class UndeclaredAddress(TypeError):
    """A message has an address in a field that is not declared as an ``Address``."""


@final
class _Hole:
    """Stands for a value that each call fills in, in the messages of a template.

    Args:
        values: the kind of value: the addresses of the call's refs, those of the blocks that it
            obtains, or the words of its numbers.
        at: its index among values of that kind.
        offset: bytes to add to it.
    """

    __slots__ = ("at", "offset", "values")

    def __init__(self, values: int, at: int, offset: int = 0) -> None:
        self.values: Final = values
        self.at: Final = at
        self.offset: Final = offset

    def __add__(self, offset: int) -> _Hole:
        return _Hole(self.values, self.at, self.offset + offset)

    __radd__ = __add__

    def __index__(self) -> int:
        """Raise ``NoTemplate``: the number is in something that the call makes of it."""
        raise NoTemplate


_REFS: Final = 0
_OBTAINED: Final = 1
_WORDS: Final = 2


@final
class TemplateMaker:
    """The preparer of a call whose template is made."""

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

    @property
    def host_objects(self) -> HostObjects:
        """Raise ``NoTemplate``: templates keep things for later ops by ``obtain`` only."""
        raise NoTemplate

    def make(
        self,
        make: Callable[..., Request[Any]],
        facade: object,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        staged: bool = False,
    ) -> CallTemplate:
        """Return the template of calls like this one, with staging copies if ``staged``.

        Raises:
            NoTemplate: such calls differ in more than their signature has.
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
            first = self._words
            self._words += len(words)
            holes = [_Hole(_WORDS, at) for at in range(first, self._words)]
            return joined(value, [self._stand_in(ref) for ref in held], holes)
        if type(value) is not GpuRef:
            if not hasattr(type(value), "split_refs"):
                return value
            _, held = value.split_refs()
            return value.with_refs([self._stand_in(ref) for ref in held])
        whole, offset = value.block.base, value.block.offset
        made = self._stand_ins.get(whole)
        if made is None:  # what stands for the first of its views is where that begins
            hole = _Hole(_REFS, len(self._refs), -offset)
            made = self._stand_ins[whole] = block_at(self.memory, hole, 0)
            made.epoch, made.sealed = whole.epoch, whole.sealed
        ref = value.on_block(part_of(made, offset) if value.block is not whole else made)
        self._refs.append(ref)
        return ref

    def _block(self, values: int, at: int) -> Block:
        return block_at(self.memory, _Hole(values, at), 0)

    # --- what the request asks for --------------------------------------------------------

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return a stand-in for a buffer that each call makes."""
        nbytes = math.prod(shape) * dtype.itemsize
        ref = GpuRef(self._block(_REFS, len(self._refs)), shape, dtype, nbytes)
        self._refs.append(ref)
        self._outputs.append((shape, dtype, nbytes))
        return ref

    def obtain(self, make: Callable[[Preparer], Block]) -> Block:
        """Return a stand-in for a block that each call asks for."""
        block = self._block(_OBTAINED, len(self._obtain))
        self._obtain.append(make)
        self._obtained.append(block)
        return block

    def stand_in(self, ref: GpuRef) -> GpuRef:
        """Return ``ref`` if it is one of the call's own; the signature has no others."""
        whole = ref.block.base
        if not any(
            whole is each for each in (*[ref.block.base for ref in self._refs], *self._obtained)
        ):
            raise NoTemplate(repr(ref))
        return ref

    def depends(self, still: Callable[[], bool]) -> None:
        """Keep the check: each call repeats it."""
        self._checks.append(still)

    def perform(self, request: Request[Any]) -> Any:
        """Raise ``NoTemplate``: the answer to one request may change the next."""
        raise NoTemplate(request.name)

    # --- what becomes of it ---------------------------------------------------------------

    def _finish(self, request: Request[Any]) -> CallTemplate:
        submission = request.prepare(self)
        finish = submission.finish
        if finish is not None:
            if not isinstance(finish, Answered):
                raise NoTemplate
            submission = msgspec.structs.replace(submission, finish=None, result=finish.refs)
        if submission.message is None:
            raise NoTemplate
        parts = submission.steps(request, self)
        if len(parts) > _MOST_OPS:
            raise NoTemplate
        own = next(at for at, (_, made) in enumerate(parts) if made is submission)
        count = len(self._refs)
        starts = (0, count, count + len(self._obtained))  # of each kind of values in a call
        places = {ref.block: at for at, ref in reversed([*enumerate(self._refs)])}
        places |= {block: count + at for at, block in enumerate(self._obtained)}
        ops = [
            self._op(each, made, starts, places, answers=made is submission and finish is not None)
            for each, made in parts
            if made.message is not None
        ]
        return CallTemplate(
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
        starts: Sequence[int],
        places: dict[Block, int],
        *,
        answers: bool,
    ) -> OpTemplate:
        """Return an op of the template, with the indices of its blocks and of its addresses."""
        message = submission.message
        if message.required or (message.returns is None) is answers:
            raise NoTemplate
        if message.bulky or message.lasting or message.everywhere or message.pickles:
            raise NoTemplate
        if submission.sent or submission.done or submission.finish:
            raise NoTemplate
        encoded, holes = _with_places(message)
        return OpTemplate(
            request.lane.name,
            request.name,
            MessageTemplate(
                next(_numbers) % MOST_TEMPLATES,
                msgspec.Raw(encoded),
                message.returns,
                message.unchecked,
            ),
            picker([starts[hole.values] + hole.at for hole in holes]),
            tuple([hole.offset for hole in holes]) if any(hole.offset for hole in holes) else None,
            picker([places[block] for block in submission.reads]),
            picker([places[block] for block in submission.writes]),
        )

    def _result(self, result: Any) -> Callable[[Sequence[GpuRef]], Any]:
        """Return a function that makes the result from a call's refs."""
        if result is None:
            return _nothing
        if isinstance(result, GpuRef):
            return self._one(result)
        kind: Any = type(result)
        if kind not in (tuple, list) and not hasattr(kind, "_make"):
            raise NoTemplate
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
            if ref.block is result.block and result.own_strides is None:
                shape, dtype, nbytes = result.shape, result.dtype, result.nbytes
                return lambda refs: GpuRef(refs[at].block, shape, dtype, nbytes)
        begin = result.block.base, result.block.offset
        for at, ref in enumerate(self._refs):
            if (ref.block.base, ref.block.offset) == begin:  # a view of all of it, as ref.T is
                return lambda refs: result.on_block(refs[at].addressable_block)
        raise NoTemplate


def _with_places(message: Message) -> tuple[bytes, list[_Hole]]:
    """Encode a message with places instead of holes; return it with the hole at each place."""
    holes: list[_Hole] = []

    def place(value: Any) -> Any:
        if type(value) is not _Hole:
            return plain(value)
        holes.append(value)
        return PLACE | (len(holes) - 1)

    encoded = msgspec.msgpack.Encoder(enc_hook=place).encode(message)
    if holes != [each for each in filled_fields(message) if type(each) is _Hole]:
        raise UndeclaredAddress(
            f"{type(message).__name__} must declare all fields that hold addresses; annotate them "
            "with atomr_accel.wire.Address"
        )
    markers = [b"\xcf" + (PLACE | at).to_bytes(8, "big") for at in range(len(holes))]
    if len(encoded) > _MOST_BYTES or any(encoded.count(marker) > 1 for marker in markers):
        raise NoTemplate
    return encoded, holes


def _nothing(_refs: Sequence[GpuRef]) -> None:
    """Return None, the result of calls without one."""
