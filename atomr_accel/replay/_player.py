"""``replay_journal``: makes the calls of a journal again, and compares."""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from .._dtypes import native
from .._errors import AccelError, is_awaitable
from ..actors.util import check_instance
from ..arrays import GpuRef
from ..memory import Hold
from ..wire.options import count
from ._compare import TOLERANCES, Compared, Deviation, check_tolerance, deviation
from ._describe import digest
from ._doubts import Doubts
from ._entries import ArrayValue, Brought, HandleValue, Outside, Ref
from ._reading import JournalCall, Recorded, reading
from ._restore import Missing, Restorer, check_replaced, handles_of, refs_given, refs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..device import Device
    from ..memory import Block
    from ._entries import CallEntry
    from ._storage import Storage

_COLLECTORS: Final = ("batch", "record")
_NO_OPS: Final = ("put", "copy", "run", "replay", "call")
_SECTIONS: Final = ("when", "loop")
_REFUSED: Final = ("GpuRefStale", "GpuRefSealed")
_GONE: Final = ("GpuRefStale", "ContextPoisoned")
_READ_ONLY: Final = ("get", "share", "export", "seal", "make_durable", "unseal", "free")


@dataclass(frozen=True, slots=True)
class Difference:
    """An output or outcome of a replayed call that differs from the recorded one.

    Attributes:
        call: the number of the call.
        text: the call, as ``read_journal`` shows it.
        where: the output that differs: ``"result"``, ``"args[1]"`` or ``"out"``; ``""`` if the
            outcome of the call differs.
        deviation: the size of the difference; None if only hashes are known, or if the outcome
            differs.
        message: the difference in one line.
    """

    call: int
    text: str
    where: str
    deviation: Deviation | None
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Skipped:
    """A call that was not made again.

    Attributes:
        call: its number.
        text: the call, as ``read_journal`` has it.
        reason: why.
    """

    call: int
    text: str
    reason: str

    def __str__(self) -> str:
        return f"call {self.text}: {self.reason}"


@dataclass(slots=True)
class Report:
    """Result of a replay.

    Attributes:
        calls: the number of calls that were made again.
        compared: the number of outputs that were compared.
        methods: the comparisons for each method: ``"blas.gemm"``, ``"device.get"``, or ``"launch"``
            for a kernel without a name.
        differences: the differences from the journal, in the order of the calls. If the journal has
            the contents of outputs, each call starts from the recorded ones, so a difference
            belongs to that call alone.
        skipped: the calls that could not be made again, and those that depend on them.
        complete: whether the journal was closed, and starts at its first call.
    """

    calls: int = 0
    compared: int = 0
    methods: dict[str, Compared] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    complete: bool = True

    @property
    def same(self) -> bool:
        """True if all calls were made again, and all outputs are as recorded."""
        return not self.differences and not self.skipped

    def __str__(self) -> str:
        lines = [f"{self.calls} calls, {self.compared} outputs compared: "]
        lines[0] += "all as recorded" if self.same else f"{len(self.differences)} differ"
        if self.skipped:
            lines[0] += f", {len(self.skipped)} skipped"
        return "\n".join([*lines, *map(str, self.differences), *map(str, self.skipped)])


async def replay_journal(
    path: str | os.PathLike[str] | Storage,
    device: Device,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    inputs: Mapping[bytes, np.ndarray[Any, Any]] | None = None,
    tolerance: float | Mapping[str, float] | None = None,
) -> Report:
    """Make the calls of a journal again, one after the other, and compare their results.

    Calls of a batch are awaited one by one, with the same results; recordings are recorded and
    replayed. Calls that ended in a fault follow later calls that ended well. A cancelled call is
    skipped: the content of the buffers it may have written is taken from the journal, or counts as
    unknown.

    Args:
        path: the journal's file or storage.
        device: an open device of any backend. It should be a fresh one, without a journal.
        functions: replacements for functions that cannot be imported or have changed, by qualified
            name, with the module or without.
        inputs: arrays by their hashes, for a journal without contents; see ``content_hash``.
        tolerance: the allowed difference of elements, as a fraction of the largest one of their
            array; a dict has one for each dtype's name. By default 0 on the backend that recorded
            (equal bit for bit), and ``TOLERANCES`` on others.

    Returns:
        The differences, and the calls that could not be made again.

    Raises:
        TypeError: ``tolerance`` is neither a number nor a dict of numbers.
        ValueError: a tolerance is negative or NaN, or has an unknown dtype; or the journal calls no
            function of a given name.
    """
    may_differ = check_tolerance(tolerance)
    check_replaced(device, functions, inputs)
    async with reading(path) as recorded:
        player = Player(recorded, device, functions or {}, inputs or {}, may_differ)
        await player.play(None)
        player.restorer.require_all_replaced()
        return player.report


async def state_at(
    path: str | os.PathLike[str] | Storage,
    number: int,
    device: Device,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    inputs: Mapping[bytes, np.ndarray[Any, Any]] | None = None,
) -> dict[int, GpuRef]:
    """Return the buffers that the program held right after a call, by replaying up to there.

    Args:
        path: the journal's file or storage.
        number: the number of the call; 0 for the beginning.
        device: as for ``replay_journal``.
        functions: as for ``replay_journal``.
        inputs: as for ``replay_journal``.

    Returns:
        A ref to each whole buffer by its number in the journal, with the shape and dtype of its
        first mention.
    """
    number = count(number, "number", 0)
    check_replaced(device, functions, inputs)
    async with reading(path) as recorded:
        last = recorded.calls[-1].call.number if recorded.calls else 0
        if number > last:
            raise ValueError(f"number must be one of a call, which go up to {last}, not {number}")
        player = Player(recorded, device, functions or {}, inputs or {}, None)
        await player.play(number)
        return {at: ref for at, ref in player.restorer.buffers.items() if not ref.is_stale}


def content_hash(array: np.ndarray[Any, Any]) -> bytes:
    """Return the hash by which journals identify an array: of its bytes in C order.

    The bytes of numbers are in the order of this machine, whatever that of the array.
    """
    check_instance("array", array, np.ndarray)
    return digest(np.ascontiguousarray(native(array)).reshape(-1).view(np.uint8).data)


@final
class ReplayedCollector:
    """A batch or a recording that is being made again.

    Attributes:
        recording: the recording, or None for a batch.
        sections: the open sections of a recording.
        raised: the errors of calls in a batch, which the end of the batch explains.
        made: the buffers that its calls returned.
        cause: the reason why replays of a recording write unknown content; None if they write as
            recorded.
        kept: copies of buffers that were freed in the block of a batch, by number. Deferred calls
            of the batch still used them, and follow later in the journal.
    """

    def __init__(self, recording: Any) -> None:
        self.recording: Final = recording
        self.sections: Final[list[Any]] = []
        self.raised: Final[dict[str, tuple[JournalCall, Exception]]] = {}
        self.made: Final[list[int]] = []
        self.cause: str | None = None
        self.kept: Final[dict[int, GpuRef]] = {}


@final
class Player:
    """Makes the calls of one journal again.

    Attributes:
        report: the findings so far.
        restorer: the buffers and facades that exist now.
    """

    def __init__(
        self,
        recorded: Recorded,
        device: Device,
        functions: Mapping[str, Callable[..., Any]],
        inputs: Mapping[bytes, np.ndarray[Any, Any]],
        tolerance: float | Mapping[str, float] | None,
    ) -> None:
        self._recorded: Final = recorded
        self._device: Final = device
        self._inputs: Final = inputs
        self._elsewhere: Final = device.backend != recorded.backend
        if tolerance is None:
            tolerance = TOLERANCES if self._elsewhere else {}
        self._tolerance: Final = tolerance
        self._collectors: Final[dict[int, ReplayedCollector]] = {}
        self._not_begun: Final[dict[int, str]] = {}  # recordings that could not be, and why
        self._left_out: Final[dict[int, set[int]]] = {}  # buffers of skipped calls, by collector
        self._spoilt: Final = {  # batches that did not end well, and how that was
            recall.call.target.id: recall.done
            for recall in recorded.calls
            if recall.call.method == "leave" and isinstance(recall.call.target, HandleValue)
            if recall.done is not None and recall.done.outcome != "ok"
        }
        self._generation = 1
        complete = recorded.complete and recorded.first == 1
        self.report: Final = Report(complete=complete)
        self.restorer: Final = Restorer(self._content, functions)
        self._doubts: Final = Doubts(self.restorer.buffers)

    async def _content(self, array: ArrayValue) -> np.ndarray[Any, Any] | None:
        given = self._inputs.get(array.hash)
        return native(given) if given is not None else await self._recorded.array(array)

    async def play(self, until: int | None) -> None:
        """Make the calls again.

        Args:
            until: the number of the last one; None: all.
        """
        instruments = self._device.core.instruments
        instruments.add(self._doubts)
        try:
            await self._play(until)
        finally:
            instruments.remove(self._doubts)

    async def _play(self, until: int | None) -> None:
        calls = self._recorded.calls
        if until is not None:
            calls = tuple(each for each in calls if each.call.number <= until)
        later = taken_down(calls)
        for _, generation in groupby(calls, key=lambda each: each.call.generation):
            there = [*generation]
            postponed = [each for each in there if each.call.number in later]
            for recall in there:
                await self._before(recall, drop=not postponed)
                if recall.call.number not in later:
                    await self._try(recall)
            for recall in postponed:
                await self._try(recall)
            for recall in there if postponed else ():
                self._drop(recall)
        for number in [*self._collectors]:
            await self._leave(number)

    async def _try(self, recall: JournalCall) -> None:
        """Make a call again, or say why that cannot be."""
        try:
            with self._kept(recall):
                await self._call(recall)
        except Missing as missing:
            self._skip(recall, str(missing))

    @contextmanager
    def _kept(self, recall: JournalCall) -> Iterator[None]:
        """Restore the buffers that a batch kept, for one of its deferred calls."""
        collector, buffers = self._collectors.get(recall.call.collector), self.restorer.buffers
        if collector is None or not collector.kept or _looks_again(recall):
            yield
            return
        others = {number: buffers.get(number) for number in collector.kept}
        buffers.update(collector.kept)
        try:
            yield
        finally:
            for number, ref in others.items():
                if ref is None:
                    del buffers[number]
                else:
                    buffers[number] = ref

    async def _keep(self, freed: CallEntry) -> None:
        """Copy the buffers that a call frees, for batches that still use them."""
        buffers, given = self.restorer.buffers, refs_given(freed).values()
        numbers = {ref.id for ref in given if ref.id in buffers and not buffers[ref.id].is_stale}
        batches = {at: each for at, each in self._collectors.items() if each.recording is None}
        for recall in self._recorded.calls if numbers and batches else ():
            collector = batches.get(recall.call.collector)
            if collector is None or recall.call.number < freed.number or _looks_again(recall):
                continue
            for ref in refs_given(recall.call).values():
                if ref.id in numbers and ref.id not in collector.kept:
                    block = buffers[ref.id].block.base
                    whole = GpuRef(block, (block.nbytes,), np.dtype(np.uint8), block.nbytes)
                    collector.kept[ref.id] = await self._device.copy(whole)

    # --- before a call ----------------------------------------------------------------------

    def _drop(self, recall: JournalCall) -> None:
        """Drop the buffers that the program had dropped before a call."""
        for number in recall.dropped:
            self.restorer.buffers.pop(number, None)

    async def _before(self, recall: JournalCall, *, drop: bool) -> None:
        if drop:
            self._drop(recall)
        if recall.call.generation != self._generation:
            self._generation = recall.call.generation
            for number, ref in [*self.restorer.buffers.items()]:
                if not (ref.sealed or ref.durable):
                    del self.restorer.buffers[number]
                    self.restorer.lost[number] = "a fault has taken it"
        for entry in recall.brought:
            try:
                await self._bring(entry)
            except Missing as missing:
                if isinstance(entry, Outside):
                    self.restorer.lost[entry.ref.id] = str(missing)

    async def _bring(self, entry: Outside | Brought) -> None:
        """Make a buffer or a facade that existed before the journal."""
        restorer, device = self.restorer, self._device
        if isinstance(entry, Outside):
            array = self._recorded.contents.get(entry.ref.id)
            if array is None:
                raise Missing("it was there before the journal, which has not got its content")
            content = await restorer.array(array)
            restorer.buffers[entry.ref.id] = await device.put(
                content, sealed=entry.sealed, durable=entry.durable
            )
        elif entry.kind == "generator":
            state: Any = await restorer.value(entry.made_of)
            generator = device.rng.default_rng(
                kind=state["kind"], ordering=state["ordering"], dimensions=state["dimensions"]
            )
            restorer.handles[entry.id] = generator
        elif entry.kind == "fused":
            restorer.handles[entry.id] = device.fuse(await restorer.value(entry.made_of))

    # --- a call -----------------------------------------------------------------------------

    async def _call(self, recall: JournalCall) -> None:
        call, done = recall.call, recall.done
        if call.collector in self._not_begun:
            raise Missing(f"recording #{call.collector}: {self._not_begun[call.collector]}")
        if call.method in _COLLECTORS and call.target == "device":
            await self._enter(recall)
            return
        if call.method == "leave" and isinstance(call.target, HandleValue):
            await self._left(recall)
            return
        spoilt = self._spoilt.get(call.collector)
        if done is not None and "cancelled" in (done.outcome, spoilt and spoilt.outcome):
            await self._skip_cancelled(recall)
            return
        if done is not None and done.error[0] in _REFUSED and recall.overlapped:
            return  # the call did nothing, because of other calls
        stale = done is not None and (done.error[0] in _GONE or self._went_down(call))
        try:
            args = [await self.restorer.value(each) for each in call.args]
            kwargs = {name: await self.restorer.value(each) for name, each in call.kwargs.items()}
            method = await self._method(recall)
        except Missing:
            if not stale:
                raise
            return  # a missing object is refused again
        error: Exception | None = None
        result: Any = None
        self._doubts.cause = cause = self._cause(recall)
        if call.method == "free":
            await self._keep(call)
        holds = [*self._holds(recall, args)]
        try:
            made = method(*args, **kwargs)
            result = await made if is_awaitable(made) else made
        except Exception as raised:  # noqa: BLE001 - it is compared
            error = raised
        finally:
            self._doubts.cause = None
            for hold in holds:
                hold.release()
        self.report.calls += 1
        if (done is not None and done.fault) or self._went_down(call):
            self._doubt_durable(call)
        if self._ended_alike(recall, error) and error is None:
            await self._compare(recall, result, cause)

    def _doubt_durable(self, call: CallEntry) -> None:
        """Mark durable buffers as unknown after a call with a fault, which may not have written."""
        for given in refs_given(call).values():
            ref = self.restorer.buffers.get(given.id)
            if ref is not None and ref.durable:
                self._doubts.add(given.id, f"call {call.number} ended in a fault")

    def _holds(self, recall: JournalCall, args: Iterable[Any]) -> Iterator[Hold]:
        """Hold the blocks of a refused move, which deferred calls of a batch kept in use."""
        batch = any(each.recording is None for each in self._collectors.values())
        if batch and recall.call.method in ("seal", "make_durable") and _is_refused(recall):
            yield from (Hold(ref.block) for ref in args if isinstance(ref, GpuRef))

    def _went_down(self, call: CallEntry) -> bool:
        """Return True if a call is in a batch that a fault ended, perhaps before the call ran."""
        spoilt = self._spoilt.get(call.collector)
        return spoilt is not None and spoilt.fault

    def _cause(self, recall: JournalCall) -> str | None:
        """Return the reason why a call writes unknown content even from known inputs."""
        call = recall.call
        cause = None
        if call.state is not None and self._elsewhere:
            cause = "backends draw other random numbers"
        elif call.collector in self._spoilt:
            cause = f"batch #{call.collector} did not end well"
        elif call.method in ("replay", "call") and isinstance(call.target, HandleValue):
            cause = self._cause_within(call)
        collector = self._collectors.get(call.collector)
        if cause is not None and collector is not None and collector.recording is not None:
            collector.cause = cause
        return cause

    def _cause_within(self, call: CallEntry) -> str | None:
        """Return the reason why a recording writes unknown content, such as a missing call."""
        cause = None
        for number in self._parts(call):
            found = self._collectors[number].cause
            if found is not None:
                cause = found
                for each in self._left_out.get(number, ()):
                    self._doubts.add(each, found)
        if cause is not None:
            self._write_anything(call, cause)
        return cause

    def _write_anything(self, call: CallEntry, reason: str) -> None:
        """Mark all buffers that a call may write as unknown."""
        for ref in refs_given(call).values():
            self._doubts.add(ref.id, reason)
        for number in self._parts(call) if call.method == "replay" else ():
            recording = self._collectors[number].recording
            for stand_in, bound in recording.inputs_bound.items():
                if stand_in in recording._written:
                    self._doubts.add_block(bound.block, reason)
            for made in recording._made:
                self._doubts.add_block(made, reason)

    def _parts(self, call: CallEntry) -> list[int]:
        """Return the numbers of the recordings that a call replays, or takes into another one."""
        given = handles_of([call.target, *call.args])
        whole = [self._collectors.get(number) for number in given]
        found = [each.recording for each in whole if each is not None and each.recording]
        parts = {part for each in found for part in (each, *each.called)}
        return [at for at, each in self._collectors.items() if each.recording in parts]

    async def _method(self, recall: JournalCall) -> Callable[..., Any]:
        """Return the method to call again."""
        call = recall.call
        collector = self._collectors.get(call.collector)
        owner: Any = (
            self._device
            if collector is None or collector.recording is None
            else collector.recording
        )
        if isinstance(call.target, HandleValue):
            known = self._collectors.get(call.target.id)
            if known is not None:
                return self._of_collector(known, call.method)
            thing: Any = self.restorer.handle(call.target)
            if owner is not self._device:
                thing = owner.using(thing)
        else:
            thing = owner if call.target == "device" else getattr(owner, call.target)
        if call.state is not None:
            thing.state = await self.restorer.value(call.state)
        found: Callable[..., Any] = getattr(thing, call.method)
        return found

    def _of_collector(self, collector: ReplayedCollector, method: str) -> Callable[..., Any]:
        if method in _SECTIONS:

            def begin(flag: GpuRef) -> None:
                section = getattr(collector.recording, method)(flag)
                section.__enter__()
                collector.sections.append(section)

            return begin
        if method == "end":
            return lambda: collector.sections.pop().__exit__(None, None, None)
        if collector.recording is None:
            raise Missing("it is of a batch that has no such method")
        found: Callable[..., Any] = getattr(collector.recording, method)
        return found

    async def _enter(self, recall: JournalCall) -> None:
        call, done = recall.call, recall.done
        assert done is not None
        assert isinstance(done.result, HandleValue)
        recording = None
        if call.method == "record":
            inputs = [await self.restorer.value(each) for each in call.args]
            recording = await self._device.record(*inputs, shared=True).__aenter__()
            self.restorer.handles[done.result.id] = recording
        self._collectors[done.result.id] = ReplayedCollector(recording)

    async def _left(self, recall: JournalCall) -> None:
        """End the block of a batch or a recording."""
        assert isinstance(recall.call.target, HandleValue)
        done = recall.done
        number = recall.call.target.id
        collector = self._collectors.get(number)
        if collector is None:
            raise Missing("nothing tells how its block began")
        if collector.recording is not None:
            await self._leave(number)
            self._collectors[number] = collector  # it is replayed from now on
            return
        del self._collectors[number]
        body = done is not None and done.body  # then the ends of its calls are unknown
        if done is None or done.outcome == "ok":
            wanted: str | None = ""
        else:
            wanted = done.error[0] or None
            for made in collector.made:
                self.restorer.buffers.pop(made, None)
                self.restorer.lost[made] = "its batch did not end well"
        several = body or wanted in (None, "ExceptionGroup")
        for name, (culprit, error) in collector.raised.items():
            if name != wanted and not several:
                self._differs(culprit, f"raised {name}: {error}")
        if wanted and not collector.raised and done is not None and not (body or done.fault):
            self._differs(recall, f"ended well, and did not raise {wanted}")

    async def _leave(self, number: int) -> None:
        collector = self._collectors.pop(number)
        if collector.recording is not None and collector.recording._open:
            await collector.recording.__aexit__(None, None, None)

    # --- how it has ended -------------------------------------------------------------------

    def _ended_alike(self, recall: JournalCall, error: Exception | None) -> bool:
        """Return True if a call ended as recorded; report another outcome as a difference."""
        done, collector = recall.done, self._collectors.get(recall.call.collector)
        if done is None:
            return False
        name = "" if error is None else type(error).__name__
        if done.outcome == "sent" and error is not None and collector is not None:
            if not (name in _GONE and self._went_down(recall.call)):
                collector.raised[name] = recall, error
            self._forget(recall, f"call {recall.call.number} has raised {name}")
            return False
        wanted = done.error[0] if done.outcome == "error" else ""
        if name == wanted or (done.fault and (error is None or isinstance(error, AccelError))):
            return True
        if self._doubts.among(self._blocks_given(recall.call)) is None:
            how = f"raised {name}: {error}" if name else f"ended well, and did not raise {wanted}"
            self._differs(recall, how)
        if error is not None:
            self._forget(recall, f"call {recall.call.number} has raised {name}")
        return False

    def _skip(self, recall: JournalCall, reason: str) -> None:
        """Skip a call, and forget the buffers that it made or wrote."""
        self.report.skipped.append(Skipped(recall.call.number, str(recall), reason))
        self._forget(recall, f"call {recall.call.number} was skipped")

    async def _skip_cancelled(self, recall: JournalCall) -> None:
        """Go on without a call that was cancelled: it happened, or not."""
        call = recall.call
        collector = (
            self._collectors.get(call.target.id) if isinstance(call.target, HandleValue) else None
        )
        reason = f"call {call.number} was cancelled"
        for number in [] if collector is None else collector.made:
            self._doubts.add(number, reason)
        if call.method == "replay":
            self._write_anything(call, reason)
        given = {} if call.method in _READ_ONLY else refs_given(call)
        for where, ref in given.items():
            array = recall.outputs.get(where)
            was = None if array is None else await self._content(array)
            if was is not None and ref.id in self.restorer.buffers:
                await self._set(ref, was)
            elif array is not None or not self._recorded.header.results or call.method in _NO_OPS:
                self._doubts.add(ref.id, reason)

    def _forget(self, recall: JournalCall, reason: str) -> None:
        """Mark the results of a call as lost, and the buffers that it may write as unknown."""
        call, done = recall.call, recall.done
        if done is not None:
            for _, ref in refs_of(done.result):
                if ref.id not in self.restorer.buffers:
                    self.restorer.lost[ref.id] = reason
        if call.method == "record" and done is not None and isinstance(done.result, HandleValue):
            self._not_begun[done.result.id] = reason
        collector = self._collectors.get(call.collector)
        if collector is not None:
            collector.cause = reason
        if call.method not in _READ_ONLY:
            self._write_anything(call, reason)
            left_out = self._left_out.setdefault(call.collector, set())
            left_out.update(ref.id for ref in refs_given(call).values())

    # --- what it has given ------------------------------------------------------------------

    async def _compare(self, recall: JournalCall, result: Any, cause: str | None) -> None:
        """Register the results of a call under their numbers, and compare its outputs."""
        call, done = recall.call, recall.done
        assert done is not None
        try:
            self.restorer.bind(done.result, None if call.method == "get" else result)
        except TypeError as error:
            self._differs(recall, f"gave something else: {error}")
            return
        given, made = refs_given(call), dict(refs_of(done.result, "result"))
        collector = self._collectors.get(call.collector)
        if collector is not None:
            own = {ref.id for ref in given.values()}
            collector.made.extend(ref.id for ref in made.values() if ref.id not in own)
        recorded = collector is not None and collector.recording is not None
        overwrites = call.method == "fill" or (call.method == "put" and "out" in call.kwargs)
        for ref in given.values() if overwrites and cause is None and not recorded else ():
            self._doubts.settle(self.restorer.ref(ref))
        places = {**given, **made}
        for where, array in recall.outputs.items():
            if call.method == "get":
                doubtful = cause or self._doubts.among(self._blocks_given(call))
                await self._compare_one(recall, where, array, result, None, doubtful)
                continue
            whole = where.startswith("#")
            place = Ref(int(where[1:]), array.dtype, array.shape) if whole else places.get(where)
            if place is not None and place.id in self.restorer.buffers:
                there = self.restorer.ref(place)
                doubtful = cause or self._doubts.among([there.block.base])
                now = await self._device.get(there)
                await self._compare_one(recall, where, array, now, place, doubtful)

    def _blocks_given(self, call: CallEntry) -> list[Block]:
        """Return the blocks of the existing buffers among a call's arguments."""
        given = [self.restorer.buffers.get(ref.id) for ref in refs_given(call).values()]
        return [ref.block.base for ref in given if ref is not None]

    async def _compare_one(
        self,
        recall: JournalCall,
        where: str,
        array: ArrayValue,
        now: Any,
        ref: Ref | None,
        doubtful: str | None,
    ) -> None:
        """Compare one output. If it differs, restore the recorded content if that is known."""
        was = await self._content(array)
        if was is None:
            same = content_hash(now) == array.hash
            if doubtful is None:
                self._count(recall, 0.0 if same else math.inf)
                if not same:
                    self._differs(recall, "is another; the journal has its hash alone", where)
            return
        if now.shape != was.shape or now.dtype != was.dtype:
            if doubtful is None:
                what = f"is {now.dtype} {now.shape}, not {was.dtype} {was.shape}"
                self._count(recall, math.inf)
                self._differs(recall, what, where)
            return
        tolerance = self._tolerance
        if not isinstance(tolerance, float):
            tolerance = tolerance.get(array.dtype, 0.0)
        share, found = deviation(was, now, tolerance)
        if doubtful is None:
            self._count(recall, share)
            if found is not None:
                self._differs(recall, str(found), where, found)
        if ref is not None and was.tobytes() != now.tobytes():
            await self._set(ref, was)
        elif ref is not None:
            self._doubts.settle(self.restorer.ref(ref))

    def _count(self, recall: JournalCall, share: float) -> None:
        """One more output was compared."""
        call = recall.call
        name = f"{call.target}.{call.method}" if isinstance(call.target, str) else call.method
        method = self.report.methods.setdefault(name, Compared())
        method.outputs += 1
        method.largest = max(method.largest, share)
        self.report.compared += 1

    async def _set(self, described: Ref, content: np.ndarray[Any, Any]) -> None:
        """Set a buffer to the recorded content."""
        ref = self.restorer.ref(described)
        if not ref.sealed:
            await self._device.put(content, out=ref)
            self._doubts.settle(ref)

    def _differs(
        self, recall: JournalCall, what: str, where: str = "", found: Deviation | None = None
    ) -> None:
        text = str(recall)
        message = f"call {text}: {f'{where}: ' if where else ''}{what}"
        self.report.differences.append(Difference(recall.call.number, text, where, found, message))


def taken_down(calls: Sequence[JournalCall]) -> set[int]:
    """Return the numbers of calls that ended in a fault, or are in batches that did.

    A later call of the same generation that ended well ran before the fault was seen, so it did not
    wait for these calls. The replay makes these calls last: otherwise they would end that call too.
    A call of such a batch keeps its place if later calls used its buffers and ended well.
    """
    found = {each.call.number for each in calls if each.done is not None and each.done.fault}
    batches = {
        each.call.target.id
        for each in calls
        if each.call.number in found and each.call.method == "leave"
        if isinstance(each.call.target, HandleValue)
    }
    used: set[int] = set()
    generation = 0
    for recall in reversed(calls):
        call, done = recall.call, recall.done
        if call.generation != generation:
            used, generation = set(), call.generation
        if call.collector in batches:
            touched = {ref.id for ref in refs_given(call).values()}
            touched.update(ref.id for _, ref in refs_of(None if done is None else done.result))
            if used.isdisjoint(touched):
                found.add(call.number)
        elif done is not None and done.outcome == "ok":
            used.update(ref.id for ref in refs_given(call).values())
    return found


def _looks_again(recall: JournalCall) -> bool:
    """Return True for a batch's call that needs its buffers when it runs, or that was refused."""
    return recall.call.method in ("get", "put", "run") or _is_refused(recall)


def _is_refused(recall: JournalCall) -> bool:
    return recall.done is not None and recall.done.outcome == "error"
