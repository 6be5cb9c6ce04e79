"""The recorder of a device: it carries out the device's calls and records each at its place."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final

import msgspec
import numpy as np
import trio

from .._dtypes import as_dtype
from .._errors import AccelError, ContextPoisoned, DeviceLost
from ..arrays import GpuRef
from ..device.batches.batch import Batch, BatchResult
from ..device.data.arrays import copying
from ..device.data.transfer import download
from ..libraries.array.evaluate import Fused
from ..libraries.rng.generator import Generator as Draws
from ..ops import Pending, Request, on_any_views, perform, submit
from ._describe import Describer, ObjectNumbers, identity_of, is_device, message_of, refs_in
from ._entries import (
    ArrayValue,
    Brought,
    CallEntry,
    ContentEntry,
    DoneEntry,
    DroppedEntry,
    HandleValue,
    Items,
    OutputEntry,
    Outside,
)
from ._writer import SMALL, WaitingEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from ..device.batches.collector import Collector
    from ..device.core import DeviceCore
    from ..memory import Block
    from ..ops import Facade, Preparer, Submission
    from ._entries import Value
    from ._writer import JournalWriter

T = TypeVar("T")

_NAMES: Final = {
    "launching": "launch",
    "copying": "copy",
    "_zeros_durable": "zeros",
    "_full_durable": "full",
}
"""Public names of calls whose requests have other names."""

_NOT_COMPARED: Final = {"empty", "managed", "empty_like"}
"""Calls whose results have no content yet."""

_PLACED_AT_END: Final = {"free", "close_lane"}
"""Calls that have their effect once they are over, not when they submit an op."""

_WITHOUT_OUTPUTS: Final = {
    *("get", "free", "seal", "make_durable", "prefetch", "advise", "attach", "export", "share"),
    *("close_lane", "leave", "when", "loop", "end", "launch_", "batch", "record"),
}
"""Methods that are no ops and write no buffers of the program."""

_OF_RECORDINGS: Final = ("replay", "call", "when", "loop", "end")
"""Methods of recordings."""

_MOST_SNAPSHOTS: Final = 256
"""Copies that may be on their way before calls wait."""


@final
class _Note:
    """A call that is being recorded."""

    __slots__ = (
        *("args", "arrays", "collector", "fetches", "given", "kwargs", "large", "method"),
        *("number", "owner", "seen", "state", "submission", "target"),
    )

    def __init__(self, method: str, owner: Any, collector: int) -> None:
        self.method = method
        self.owner = owner
        self.collector = collector
        self.number = 0
        self.target: str | HandleValue = "device"
        self.args: tuple[Value, ...] = ()
        self.kwargs: dict[str, Value] = {}
        self.given: list[tuple[str, GpuRef]] = []  # the buffers among its arguments
        self.arrays: list[tuple[ArrayValue, np.ndarray[Any, Any]]] = []
        self.state: Value = None
        self.submission: Submission[Any] | None = None
        self.seen: set[str] = set()  # outputs that were copied
        self.large: WaitingEntry | None = None  # what looks at memory of the program
        self.fetches: list[_Note] = []  # what a replay fetches: each a `get` right after it


class _RecordedBuffer(NamedTuple):
    """A buffer of a recording, which has content once that was replayed."""

    number: int
    block: weakref.ref[Block]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int


@final
class Notes:
    """The value of ``DeviceCore.recorder`` while a journal is open.

    Attributes:
        open: whether calls are recorded. Refs of batches that outlive the journal still call this
            object.
        position: the number of the last call.
    """

    def __init__(
        self, core: DeviceCore, writer: JournalWriter, nursery: trio.Nursery, *, results: bool
    ) -> None:
        self.open: bool = True
        self.position: int = 0
        self._core: Final = core
        self._writer: Final = writer
        self._nursery: Final = nursery
        self._results: Final = results
        self._numbers: Final = ObjectNumbers()
        # The methods that tasks are in, and the nurseries that they had open before.
        self._inside: Final[dict[trio.lowlevel.Task, tuple[_Note, list[trio.Nursery]]]] = {}
        self._collectors: Final[dict[object, int]] = {}  # those whose block is open
        self._placing: Final[dict[object, dict[_Note, Callable[[], None]]]] = {}
        self._fetched: Final[
            dict[object, list[tuple[_Note, BatchResult[np.ndarray[Any, Any]]]]]
        ] = {}
        self._made: Final[weakref.WeakKeyDictionary[object, list[_RecordedBuffer]]] = (
            weakref.WeakKeyDictionary()
        )
        self._snapshots = 0
        self._fewer: Final = trio.lowlevel.ParkingLot()

    # --- what facades call ------------------------------------------------------------------

    async def awaited(
        self,
        make: Callable[..., Request[T]],
        facade: Facade[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Carry out an op in full, and note it as soon as it has its place."""
        core = self._core
        if not self._notes_calls():
            return await perform(core, on_any_views(make, facade, args, kwargs))
        note = await self._begin(make.__name__, facade, args, kwargs)
        if note is None:
            return await perform(core, on_any_views(make, facade, args, kwargs))
        try:
            request = self._told(on_any_views(make, facade, args, kwargs), facade, note)
            result = await perform(core, request, partial(self._place, note))
        except BaseException as error:
            self._failed(note, error)
            raise
        self._done(note, result)
        if note.large is not None:
            await self._writer.written(note.large)  # then the arrays are the caller's again
        return result

    def collected(
        self,
        make: Callable[..., Request[T]],
        facade: Facade[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        collector: Collector | None = None,
    ) -> T:
        """Take a call into a batch or a recording, and note it."""
        into: Any = facade.home if collector is None else collector
        if not self._notes_calls() or not self._knows(into):
            result: T = into.collect(make, facade, args, kwargs)
            return result
        self._writer.require_room()
        note = self._described(make.__name__, facade, args, kwargs, into)

        def told(owner: Any, *given: Any, **named: Any) -> Request[T]:
            return self._told(make(owner, *given, **named), facade, note)

        # A traced call would be sent without its request, so a batch takes it in full.
        collect = super(Batch, into).collect if type(into) is Batch else into.collect
        try:
            result = collect(told, facade, args, kwargs)
        except BaseException as error:
            self._failed(note, error)
            raise
        self._collected(note, result, into)
        return result

    def described(
        self,
        request: Request[T],
        make: Callable[..., Request[T]],
        facade: Facade[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Request[T]:
        """Wrap a request so that each time it runs is recorded."""
        if not self._notes_calls():
            return request
        prepare = request.prepare
        name = make.__name__

        def told(preparer: Preparer) -> Submission[T]:
            submission = prepare(preparer)
            if not self._notes_calls():
                return submission
            collector = (
                preparer.home
                if is_device(preparer.home) and preparer.home is not self._core
                else None
            )
            note = self._described(name, facade, args, kwargs, collector)
            note.submission = submission
            note.state = self._state(facade)
            if collector is not None:
                self._number(submission.result)
            return self._noting(submission, note)

        return Request(request.lane, request.name, told, request.key)

    async def method(
        self,
        method: Callable[..., Coroutine[Any, Any, T]],
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Call an async method and record it as a whole, at its first op."""
        task = trio.lowlevel.current_task()
        if task in self._inside or not self._notes_calls():
            return await method(owner, *args, **kwargs)
        name = method.__name__
        args, kwargs = _as_read(name, args, kwargs)
        note = await self._begin(name, owner, *_as_noted(name, args, kwargs))
        if note is None or not await self._begin_fetches(note, _fetched(name, kwargs)):
            return await method(owner, *args, **kwargs)
        self._inside[task] = note, [*task.child_nurseries]
        try:
            result = await method(owner, *args, **kwargs)
        except BaseException as error:
            self._failed(note, error)
            raise
        finally:
            del self._inside[task]
        self._done(note, None if note.fetches else result)
        arrays: Any = [result] if isinstance(result, np.ndarray) else result
        for at, fetch in enumerate(note.fetches):
            self._done(fetch, arrays[at])
        for each in (note, *note.fetches):
            if each.large is not None:
                await self._writer.written(each.large)  # then the arrays are the caller's again
        return result

    def submitted(self) -> None:
        """Note the method that has submitted an op: in this task, or in one that this is for."""
        if not self._inside:
            return
        try:
            task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        except RuntimeError:  # outside of tasks
            return
        nursery: trio.Nursery | None = None
        while task is not None and task not in self._inside:
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        if task is not None:
            note, others = self._inside[task]  # in whose nurseries are tasks of the program
            if note.method not in _PLACED_AT_END and nursery not in others:
                self._place(note)

    def lost(self, block: Block) -> None:
        """Note that a durable buffer is stale from here on."""
        self._numbers.lose(block)

    def step(
        self,
        method: Callable[..., T],
        collector: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> T:
        """Call a method of a batch or a recording, and note it."""
        inside = trio.lowlevel.current_task() in self._inside
        if inside or not self._notes_calls() or not self._knows(collector):
            return method(collector, *args, **kwargs)
        self._writer.require_room()
        args, kwargs = _as_read(method.__name__, args, kwargs)
        note = self._described(method.__name__, collector, args, kwargs, collector)
        try:
            result = method(collector, *args, **kwargs)
        except BaseException as error:
            self._failed(note, error)
            raise
        if isinstance(result, BatchResult):  # it has its value when the block is left
            self._fetched.setdefault(collector, []).append((note, result))
            self._collected(note, None, collector, args, kwargs)
        else:
            self._collected(note, result, collector, args, kwargs)
        return result

    def entered(self, collector: Any) -> None:
        """Note that the block of a batch or a recording begins."""
        if self._notes_calls():
            kind = "batch" if type(collector) is Batch else "record"
            inputs = () if kind == "batch" else collector._inputs
            note = self._described(kind, collector.made_on, inputs, {}, None)
            self._collectors[collector] = self._numbers.add_handle(identity_of(collector))
            self._place(note)
            self._done(note, collector)

    def left(self, collector: Any, error: BaseException | None, *, body: bool) -> None:
        """Note that the block of a batch or a recording has ended, and whether itself raised."""
        number = self._collectors.get(collector)
        if number is None or not self._notes_calls():
            return
        placing = self._placing.pop(collector, {})
        if error is not None and not body:
            # Those from the one that failed on have no place: it fails again when all are made.
            for placed in [*placing.values()]:
                placed()
        note = _Note("leave", collector, 0)
        note.target = HandleValue(number)
        self._place(note)
        if error is None:
            for got, later in self._fetched.pop(collector, ()):
                self._output(got, "result", later.value.copy())
            self._done(note, None)
        else:
            self._failed(note, error, body=body)
        self._collectors.pop(collector)
        self._fetched.pop(collector, None)

    def chosen(self, collector: Any, kind: str, flag: Any) -> None:
        """Note that a section of a recording begins on which a flag decides."""
        self._section(collector, kind, flag)

    def section_ended(self, collector: Any) -> None:
        """Note that the last such section ends."""
        self._section(collector, "end")

    def _section(self, collector: Any, method: str, *args: Any) -> None:
        if self._notes_calls() and self._knows(collector):
            note = self._described(method, collector, args, {}, collector)
            self._place(note)
            self._done(note, None)

    @property
    def copies(self) -> int:
        """Copies for the journal that have not arrived."""
        return self._snapshots

    async def settled(self) -> None:
        """Wait until the copies for the journal have arrived."""
        while self._snapshots:
            await self._fewer.park()

    # --- beginning --------------------------------------------------------------------------

    def _notes_calls(self) -> bool:
        return self.open and self._writer.error is None

    def _knows(self, collector: object) -> bool:
        """Return True for a batch, and for a recording whose start was recorded."""
        return type(collector) is Batch or collector in self._collectors

    async def _room(self) -> None:
        await self._writer.room()
        while self._snapshots > _MOST_SNAPSHOTS:
            await self._fewer.park()

    async def _begin(
        self, name: str, facade: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Note | None:
        """Begin the note of an awaited call, once there is room for it and memory for its copies.

        Returns:
            None if the journal has ended in the meantime; then the call goes on without it.
        """
        await self._room()
        for _, ref in refs_in([args, kwargs], ""):
            block = ref.block.base
            if self._notes_calls() and not self._numbers.of_block(block) and not ref.is_stale:
                room = await self._core.empty(block.nbytes, np.uint8)
                if self._notes_calls() and not self._numbers.of_block(block) and not ref.is_stale:
                    self._bring(ref, self._numbers.add_block(block), room)
        return self._described(name, facade, args, kwargs, None) if self._notes_calls() else None

    async def _begin_fetches(self, note: _Note, refs: Iterable[GpuRef]) -> bool:
        """Begin the notes of what a replay fetches; return False if the journal has ended."""
        for ref in refs:
            fetch = await self._begin("get", note.owner.made_on, (ref,), {})
            if fetch is None:
                return False
            note.fetches.append(fetch)
        return True

    def _described(
        self, name: str, facade: Any, args: Any, kwargs: dict[str, Any], collector: object
    ) -> _Note:
        inside = self._collectors.get(collector, 0) if collector is not None else 0
        note = _Note(_NAMES.get(name, name), facade, inside)

        def keep(array: ArrayValue, data: np.ndarray[Any, Any]) -> None:
            # The caller of an async call can wait until a large array is written.
            copied = data.nbytes <= SMALL or collector is not None
            note.arrays.append((array, data.copy() if copied else data))

        describer = Describer(self._numbers, self._bring, keep)
        if (
            collector is not None and facade is collector and not note.collector
        ) or note.method in _OF_RECORDINGS:
            note.target = describer.handle(facade, self._bring)
        else:
            note.target = describer.target(facade)
        note.args = tuple(map(describer.argument, args))
        note.kwargs = {key: describer.argument(value) for key, value in kwargs.items()}
        if self._results and note.method not in _WITHOUT_OUTPUTS:
            for at, value in enumerate(args):
                note.given += refs_in(value, f"args[{at}]")
            for key, value in kwargs.items():
                note.given += refs_in(value, key)
        return note

    def _bring(self, thing: Any, number: int, room: GpuRef | None = None) -> None:
        """Record a buffer or a facade that no call of the journal has made."""
        if isinstance(thing, GpuRef):
            self._bring_buffer(thing, number, room)
        elif isinstance(thing, Draws):
            self._add(Brought(number, "generator", self._state(thing)))
        elif isinstance(thing, Fused):
            describer = Describer(self._numbers, self._bring, lambda _array, _data: None)
            self._add(Brought(number, "fused", describer.argument(thing._function)))
        else:
            self._add(Brought(number, type(thing).__name__))

    def _bring_buffer(self, ref: GpuRef, number: int, room: GpuRef | None) -> None:
        block = ref.block.base
        whole = ref.contiguous and not ref.block.offset and ref.nbytes == block.nbytes
        if not whole:
            uint8 = as_dtype(np.uint8)
            ref = GpuRef(block, (block.nbytes,), uint8, block.nbytes)
        describer = Describer(self._numbers, self._bring, lambda _array, _data: None)
        described: Any = describer.argument(ref)
        self._add(Outside(described, ref.sealed, ref.durable))
        if not ref.is_stale:
            seen = room if room is None or not whole else _like(room, ref)
            self._copy(
                ref, lambda array, data: self._add(ContentEntry(number, array), array, data), seen
            )

    def _state(self, facade: Any) -> Value:
        """Return the state of a generator; None for other facades."""
        if not isinstance(facade, Draws):
            return None
        describer = Describer(self._numbers, self._bring, lambda _array, _data: None)
        return describer.argument(facade.state)

    def _told(self, request: Request[T], facade: Any, note: _Note) -> Request[T]:
        """Wrap a request so that it leaves its submission in a note."""
        prepare = request.prepare

        def told(preparer: Preparer) -> Submission[T]:
            note.submission = submission = prepare(preparer)
            note.state = self._state(facade)  # which submitting it will change
            return submission

        return Request(request.lane, request.name, told, request.key)

    def _noting(self, submission: Submission[T], note: _Note) -> Submission[T]:
        """Wrap a submission so that it is recorded as soon as it has its place."""
        finish = submission.finish

        def placed() -> None:
            self._place(note)
            if finish is None:
                self._done(note, submission.result, outcome="sent")

        def finished(answer: Any) -> T:
            assert finish is not None
            result = finish(answer)
            self._done(note, result)
            return result

        return msgspec.structs.replace(
            submission, placed=placed, finish=None if finish is None else finished
        )

    # --- in its place -----------------------------------------------------------------------

    def _place(self, note: _Note) -> None:
        """Note that a call has its place in the program's order."""
        if note.number or not self.open:
            return
        dead = self._numbers.take_dead()
        if dead:
            self._add(DroppedEntry(dead))
        self.position += 1
        note.number = self.position
        entry = CallEntry(
            note.number,
            note.target,
            note.method,
            note.args,
            note.kwargs,
            note.collector,
            self._core.memory.generation,
            note.state,
        )
        self._noted(note, WaitingEntry(entry, tuple(note.arrays)))
        if self._results and note.submission is not None:
            self._copy_outputs(note, note.submission.result)
        for fetch in note.fetches:
            self._place(fetch)

    def _copy_outputs(self, note: _Note, result: Any) -> None:
        """Copy the outputs of a call, before a later op can overwrite them."""
        if note.method in _WITHOUT_OUTPUTS or note.method in _NOT_COMPARED or self._records(note):
            return
        submission = note.submission
        # Ops that were submitted since may write there as well.
        late = self.position != note.number + len(note.fetches)
        if not (late and submission is None):
            written = None if submission is None else {each.base for each in submission.writes}
            for where, ref in note.given:
                strided = submission is not None and not ref.contiguous
                if not ref.sealed and (written is None or ref.block.base in written or strided):
                    self._copy_output(note, where, ref)
        given = {ref.block.base for _, ref in note.given}
        for where, ref in refs_in(result, "result"):
            if not (late and ref.block.base in given):
                self._copy_output(note, where, ref)
        if note.method == "replay" and not late:
            for collector in (note.owner, *note.owner.called):
                for made in self._made.get(collector, ()):
                    block = made.block()
                    if block is not None:
                        ref = GpuRef(block, made.shape, made.dtype, made.nbytes)
                        self._copy_output(note, f"#{made.number}", ref)

    def _copy_output(self, note: _Note, where: str, ref: GpuRef) -> None:
        if where in note.seen or ref.is_stale:
            return
        note.seen.add(where)
        self._copy(ref, lambda array, data: self._output(note, where, data, array))

    def _records(self, note: _Note) -> bool:
        """Return True if a call is in a recording, which executes nothing."""
        collector = next(
            (at for at, number in self._collectors.items() if number == note.collector), None
        )
        return collector is not None and type(collector) is not Batch

    def _collected(self, note: _Note, result: Any, collector: Any, *given: Any) -> None:
        """Note a call of a batch or a recording once it has its place there."""
        self._number(result)

        placing = self._placing.setdefault(collector, {})

        def placed(_given: Any = given) -> None:  # what it is given is not dropped before it
            placing.pop(note, None)
            if not placing:
                self._placing.pop(collector, None)
            self._done(note, result, outcome="sent")
            if type(collector) is not Batch:
                for _, ref in refs_in(result, "result"):
                    self._note_made(collector, ref)

        placing[note] = placed
        collector.when_placed(placed)

    def _number(self, result: Any) -> None:
        """Number the results of a collected call, which other calls may use before it is placed."""
        describer = Describer(self._numbers, self._bring, lambda _array, _data: None)
        describer.result(result)

    def _note_made(self, collector: Any, ref: GpuRef) -> None:
        """Remember a buffer that a recording makes, to be looked at when it was replayed.

        Not what stands for one that it was given: ops on that one would not wait for the copy.
        """
        block = ref.block.base
        if ref.contiguous and block in collector._made:
            number = self._numbers.of_block(block)
            made = _RecordedBuffer(number, weakref.ref(block), ref.shape, ref.dtype, ref.nbytes)
            self._made.setdefault(collector, []).append(made)

    def _done(self, note: _Note, result: Any, outcome: str = "ok") -> None:
        """Note how a call has ended."""
        self._place(note)
        if not self.open:
            return
        if note.method == "get" and outcome == "ok":
            self._add(DoneEntry(note.number))
            self._output(note, "result", np.asarray(result))
            return
        entry, arrays = self._told_of_result(note, result, outcome)
        if self._results:
            self._copy_outputs(note, result)
        self._writer.add(WaitingEntry(entry, arrays))

    def _told_of_result(
        self, note: _Note, result: Any, outcome: str
    ) -> tuple[DoneEntry, tuple[tuple[ArrayValue, np.ndarray[Any, Any]], ...]]:
        """Return the end of a call with copies of its arrays, as the program may change those."""
        arrays: list[tuple[ArrayValue, np.ndarray[Any, Any]]] = []
        describer = Describer(
            self._numbers, self._bring, lambda array, data: arrays.append((array, data.copy()))
        )
        return DoneEntry(note.number, outcome, describer.result(result)), tuple(arrays)

    def _failed(self, note: _Note, error: BaseException, *, body: bool = False) -> None:
        if not self.open:
            return
        if note.fetches and not note.number:  # refused, perhaps because of what it should fetch
            note.kwargs["get"] = Items("list", tuple(each.args[0] for each in note.fetches))
            note.fetches.clear()
        for fetch in note.fetches:
            self._add(DoneEntry(fetch.number, "cancelled"))
        if isinstance(error, Exception):
            self._place(note)
            described = type(error).__name__, message_of(error)
            fault = isinstance(error, ContextPoisoned | DeviceLost)
            self._add(DoneEntry(note.number, "error", None, described, fault, body))
        elif note.number:  # otherwise nothing has happened
            if self._results and note.submission is None:
                self._copy_outputs(note, None)
            self._add(DoneEntry(note.number, "cancelled"))

    def _output(
        self, note: _Note, where: str, data: np.ndarray[Any, Any], array: ArrayValue | None = None
    ) -> None:
        array = array or ArrayValue(as_dtype(data.dtype).name, data.shape)
        held = data.copy() if data.nbytes <= SMALL else data
        self._noted(note, WaitingEntry(OutputEntry(note.number, where, array), ((array, held),)))

    def _noted(self, note: _Note, waiting: WaitingEntry) -> None:
        """Have an entry of a call written, and know if it looks at memory of the program."""
        if any(data.nbytes > SMALL for _, data in waiting.arrays):
            note.large = waiting
        self._writer.add(waiting)

    def _add(
        self, entry: Any, array: ArrayValue | None = None, data: np.ndarray[Any, Any] | None = None
    ) -> None:
        arrays = () if array is None or data is None else ((array, data),)
        self._writer.add(WaitingEntry(entry, arrays))

    # --- copies -----------------------------------------------------------------------------

    def _copy(
        self,
        ref: GpuRef,
        have: Callable[[ArrayValue, np.ndarray[Any, Any]], object],
        room: GpuRef | None = None,
    ) -> None:
        """Copy a buffer on the device at once, and fetch the copy in the background.

        Without memory for a copy, the journal goes without it.
        """
        core = self._core
        try:
            submission, op = submit(core, copying(core, ref, room), core.first_try)
        except (Pending, AccelError, RuntimeError, TypeError, ValueError):
            return  # there is no room, or nothing to be read
        copy = submission.result
        assert copy is not None
        self._snapshots += 1
        self._nursery.start_soon(self._fetch, op, copy, have, name="journal (fetching)")

    async def _fetch(
        self, op: Any, copy: GpuRef, have: Callable[[ArrayValue, np.ndarray[Any, Any]], object]
    ) -> None:
        try:
            await op.wait()
            host = np.empty(copy.shape, copy.dtype)
            await download(self._core, copy, host)
        except Exception:  # noqa: BLE001, S110 - the content is lost with the device
            pass
        else:
            have(ArrayValue(as_dtype(host.dtype).name, host.shape), host)
        finally:
            self._snapshots -= 1
            self._fewer.unpark_all()


def _like(room: GpuRef, ref: GpuRef) -> GpuRef:
    """Return ``room`` with the shape and dtype of a ref that has the same size in bytes."""
    return GpuRef(room.block, ref.shape, ref.dtype, ref.nbytes)


def _as_read(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments, with the array that ``put`` reads made once, so that it is noted as it goes."""
    if name != "put" or not args or isinstance(args[0], np.ndarray):
        return args, kwargs
    try:
        return (np.asarray(args[0]), *args[1:]), kwargs
    except Exception:  # noqa: BLE001 - the call itself raises the error
        return args, kwargs


def _as_noted(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments to record, without arrays that ``get`` fills and buffers to fetch."""
    if name == "get":
        return args[:1], {key: value for key, value in kwargs.items() if key != "out"}
    if _fetched(name, kwargs):
        return args, {key: value for key, value in kwargs.items() if key != "get"}
    return args, kwargs


def _fetched(name: str, kwargs: dict[str, Any]) -> Sequence[GpuRef]:
    """Return the buffers that a replay fetches; none if they are not buffers."""
    get = kwargs.get("get") if name == "replay" else None
    refs: Any = [get] if isinstance(get, GpuRef) else get
    if isinstance(refs, Sequence) and all(isinstance(each, GpuRef) for each in refs):
        return refs
    return ()
