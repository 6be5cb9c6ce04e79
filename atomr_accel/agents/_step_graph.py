"""Runs of step graphs: steps in parallel, checkpoints, questions to people, and streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, final

import numpy as np
import trio

from .._errors import said_of
from ..actors import Message, Place, Service, handler, serving
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor, check_instance
from ..device.data.in_turn import InTurn
from ..wire.options import count, text
from ._checkpoints import CheckpointTable, SavedStep
from ._errors import FilesForeign, StepsExceeded, ThreadBusy, ThreadUnknown
from ._steps import START, StepGraph, StepNode, StepPlan, decode, encode

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from .. import Device, GpuRef
    from ..device.batches.record import Recording

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class StepResult(Generic[S]):
    """A run that has ended, or that waits for answers.

    Attributes:
        state: the state after the last step.
        steps: the number of steps so far.
        asked: questions by the node that asked; empty if the run has ended.
    """

    state: S
    steps: int
    asked: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StepUpdate:
    """An event of a stream.

    Attributes:
        step: the step, from 1.
        node: the node.
        update: the fields that the node has set; None for an event that it emitted itself.
        emitted: what the node emitted by `StepContext.emit`.
    """

    step: int
    node: str
    update: Mapping[str, Any] | None
    emitted: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraphStatistics:
    """Statistics of a step graph, at one moment.

    Attributes:
        running: runs in progress.
        runs: runs so far, resumed ones included.
        steps: steps that ended.
        failed: runs that raised an error.
        asked: runs that ended in a question.
        recordings: recordings of device nodes that were made.
    """

    running: int
    runs: int
    steps: int
    failed: int
    asked: int
    recordings: int


class RunSteps(Message[StepResult[Any]]):
    """A run by message; see `StepRunner.run`."""

    state: Any
    thread: str = "main"


class ResumeSteps(Message[StepResult[Any]]):
    """A run that continues, by message; see `StepRunner.resume`."""

    thread: str = "main"
    answers: Mapping[str, Any] = {}


class _StepAsked(BaseException):
    """Leaves a node that asks; not an `Exception`, so that nodes do not handle it by chance."""

    def __init__(self, question: Any) -> None:
        super().__init__(question)
        self.question = question


def _question_of(left: BaseException, name: str) -> _StepAsked | None:
    """Return the question in what left a node, also of a task in its nursery, or None."""
    if isinstance(left, _StepAsked):
        return left
    assert isinstance(left, BaseExceptionGroup)
    asked, others = left.split(_StepAsked)
    if asked is None or others is not None:
        return None
    if len(asked.exceptions) > 1:
        raise ValueError(f"node {name!r} must ask one question at a time, not several") from left
    return _question_of(asked.exceptions[0], name)


@final
class StepContext:
    """The second argument of a node: its step, its questions and its events.

    Attributes:
        step: the number of the step, from 1.
        thread: the thread of the run.
    """

    def __init__(
        self, step: int, thread: str, answers: Sequence[Any], emit: Callable[[Any], None]
    ) -> None:
        self.step = step
        self.thread = thread
        self._answers = [*answers]
        self._emit = emit

    def ask(self, question: Any) -> Any:
        """Return a person's answer to a question.

        Without an answer the run ends here, and its result has the question. Resumed with an
        answer, the node begins again from its first line. So do nothing before that may not be done
        twice. A node that asks several times gets its answers in the order of its questions. So of
        the tasks of a node only one may ask.

        Args:
            question: plain values.
        """
        if self._answers:
            return self._answers.pop(0)
        raise _StepAsked(question)

    def emit(self, event: Any) -> None:
        """Send an event to whoever streams the run, such as a word of an answer."""
        self._emit(event)


@dataclass(slots=True)
class _RecordedStep:
    """A recording of device nodes, for arrays of certain shapes."""

    inputs: tuple[GpuRef, ...]
    recording: Recording
    outputs: tuple[GpuRef, ...]


@final
class StepRunner(Service, Generic[S], metaclass=NoPublicConstructor):
    """Runs a step graph, as `open_step_graph` returns it.

    Once the block was left, methods raise `Closed`.
    """

    _made_by = "open_step_graph"

    def __init__(
        self, plan: StepPlan[S], device: Device | None, path: Path | None, max_steps: int
    ) -> None:
        self._plan = plan
        self._device = device
        self._path = path
        self._max_steps = max_steps
        self._turns = InTurn()
        self._table: CheckpointTable
        self._busy: dict[str, bytes] = {}
        self._recorded: dict[tuple[object, ...], _RecordedStep] = {}
        self._recording = trio.Lock()
        self._counts = dict.fromkeys(("runs", "steps", "failed", "asked", "recordings"), 0)

    async def run(self, state: S, *, thread: str = "main") -> StepResult[S]:
        """Run the graph from its beginning.

        Args:
            state: the state to begin with.
            thread: the name under which the steps are kept. Its earlier steps are forgotten.

        Returns:
            The state at the end, or at the first step with a question.

        Raises:
            TypeError: a state of another class, a field of another type.
            StepsExceeded: the run took more steps than its limit.
            ThreadBusy: a run of this thread is in progress; or another program has begun one of it
                meanwhile, or forgotten it, so that this one ends.
            FilesFailed, FilesDamaged: the file of checkpoints.
        """
        return await self._begin(state, thread, None)

    async def resume(
        self,
        thread: str = "main",
        answers: Mapping[str, Any] | None = None,
        *,
        step: int | None = None,
    ) -> StepResult[S]:
        """Continue a run from its last step: with answers, or after an error or a kill.

        Nodes that had ended in a step that failed do not run again.

        Args:
            thread: its name.
            answers: the answers, by the node that asked.
            step: an earlier step to replay from. All nodes after it run again, and ask again. Later
                steps are forgotten.

        Raises:
            ThreadUnknown: nothing is kept of this thread, or not that step.
            ValueError: an answer for a node that has not asked.
            FilesForeign: the thread is of a graph with other nodes, or of another state.
        """
        return await self._continue(thread, {} if answers is None else answers, step, None)

    @asynccontextmanager
    async def stream(
        self, state: S, *, thread: str = "main"
    ) -> AsyncIterator[AsyncIterator[StepUpdate]]:
        """Run the graph, and iterate over what its nodes set and emit.

        ::

            async with runner.stream(Talk("why?")) as updates:
                async for update in updates:
                    print(update.node, update.update or update.emitted)

        Leaving the block before the end cancels the run, which can be resumed. Nodes do not wait
        for the reader. Errors and arguments are those of `run`.
        """
        send, receive = trio.open_memory_channel[StepUpdate](float("inf"))

        async def work() -> None:
            with send:
                await self._begin(state, thread, send.send_nowait)

        async with PlainNursery() as nursery:
            nursery.start_soon(work)
            with receive:
                yield receive
            nursery.cancel_scope.cancel()

    async def history(self, thread: str = "main") -> list[StepResult[S]]:
        """Return the run after each step that is kept, from step 0.

        Raises:
            FilesDamaged: the file of checkpoints cannot be read.
            FilesForeign: the thread's state is of another class.
        """
        text(thread, "thread", 1)
        kept = await self._turns.run(self._table.history, thread)
        return [self._result(saved) for saved in kept]

    async def forget(self, thread: str = "main") -> None:
        """Forget the steps of a thread.

        Raises:
            ThreadBusy: a run of this thread is in progress.
        """
        text(thread, "thread", 1)
        with self._only(thread):
            await self._turns.run(self._table.forget, thread)

    # --- runs -------------------------------------------------------------------------------

    async def _begin(
        self, state: S, thread: str, send: Callable[[StepUpdate], None] | None
    ) -> StepResult[S]:
        checked = self._plan.state.check(state)
        text(thread, "thread", 1)
        with self._only(thread):
            data = self._plan.state.encode(checked)
            active, _ = self._plan.after([START], partial(self._plan.state.decode, data), {})
            saved = SavedStep(0, data, active)
            self._busy[thread] = await self._turns.run(self._table.begin, thread, saved)
            return await self._steps(thread, saved, send)

    async def _continue(
        self,
        thread: str,
        answers: Mapping[str, Any],
        step: int | None,
        send: Callable[[StepUpdate], None] | None,
    ) -> StepResult[S]:
        text(thread, "thread", 1)
        if step is not None:
            step = count(step, "step", 0)
        check_instance("answers", answers, Mapping)
        with self._only(thread):
            saved = await self._turns.run(self._table.load, thread, step)
            if saved is None:
                which = "" if step is None else f" step {step} of"
                raise ThreadUnknown(f"nothing is kept of{which} the thread {thread!r}")
            unknown = [name for name in saved.active if name not in self._plan.nodes]
            if unknown:
                raise FilesForeign(
                    f"the thread {thread!r} goes on with nodes that this graph has not: "
                    f"{', '.join(unknown)}; resume it with the graph that it was run with"
                )
            if step is not None and not answers:  # its nodes run again, and ask again
                saved = SavedStep(saved.step, saved.state, saved.active, saved.arrived)
            for node in answers:
                if node not in saved.asked:
                    there = ", ".join(map(repr, saved.asked)) or "none"
                    raise ValueError(
                        f"answers must be for nodes that asked ({there}), not {node!r}"
                    )
            kept = {
                node: [
                    *saved.answers.get(node, ()),
                    *([encode(answers[node])] if node in answers else ()),
                ]
                for node in {*saved.answers, *answers}
            }
            begun = SavedStep(
                saved.step, saved.state, saved.active, saved.arrived, saved.updates, {}, kept
            )
            self._busy[thread] = await self._turns.run(self._table.begin, thread)
            if answers or step is not None:
                await self._save(thread, begun)
            return await self._steps(thread, begun, send)

    @contextmanager
    def _only(self, thread: str) -> Iterator[None]:
        if thread in self._busy:
            raise ThreadBusy(f"a run of the thread {thread!r} is in progress")
        self._busy[thread] = b""
        try:
            yield
        finally:
            del self._busy[thread]

    async def _save(self, thread: str, saved: SavedStep) -> None:
        await self._turns.run(self._table.save, thread, saved, self._busy[thread])

    def _result(self, saved: SavedStep) -> StepResult[S]:
        asked = {node: decode(question) for node, question in saved.asked.items()}
        return StepResult(self._plan.state.decode(saved.state), saved.step, asked)

    async def _steps(
        self, thread: str, saved: SavedStep, send: Callable[[StepUpdate], None] | None
    ) -> StepResult[S]:
        self._counts["runs"] += 1
        limit = saved.step + self._max_steps
        try:
            while saved.active and not saved.asked:
                if saved.step >= limit:
                    raise StepsExceeded(
                        f"the run took {self._max_steps} steps and is not at its end; raise "
                        "max_steps, or resume it"
                    )
                saved = await self._step(thread, saved, send)
        except Exception:
            self._counts["failed"] += 1
            raise
        self._counts["asked"] += bool(saved.asked)
        return self._result(saved)

    async def _step(
        self, thread: str, saved: SavedStep, send: Callable[[StepUpdate], None] | None
    ) -> SavedStep:
        """Run the active nodes that have no update yet, and keep the results."""
        fields = self._plan.state
        updates = {
            name: fields.check_update(name, decode(data)) for name, data in saved.updates.items()
        }
        asked: dict[str, bytes] = {}
        number = saved.step + 1

        def emit(name: str, event: Any) -> None:
            if send is not None:
                send(StepUpdate(number, name, None, event))

        async def work(name: str) -> None:
            node = self._plan.nodes[name]
            answers = [decode(data) for data in saved.answers.get(name, ())]
            # Each node has a state of its own: what it changes in place, no other sees.
            state = fields.decode(saved.state)
            try:
                made = await node.retry(
                    partial(self._call, node, state, number, thread, answers, partial(emit, name))
                )
            except (_StepAsked, BaseExceptionGroup) as left:
                question = _question_of(left, name)
                if question is None:
                    raise
                asked[name] = encode(question.question)
                return
            update = fields.check_update(name, made)
            # As it would be after a kill: reducers see the same, and nodes share no object.
            updates[name] = fields.check_update(name, decode(encode(update)))
            if send is not None:
                send(StepUpdate(number, name, update))

        def partly() -> SavedStep:
            return SavedStep(
                saved.step, saved.state, saved.active, saved.arrived,
                {name: encode(update) for name, update in updates.items()}, asked, saved.answers,
            )  # fmt: skip

        try:
            async with PlainNursery() as nursery:
                for name in saved.active:
                    if name not in updates:
                        nursery.start_soon(work, name)
        except BaseException:
            if len(updates) > len(saved.updates):
                asked.clear()  # they ask again
                with trio.CancelScope(shield=True):
                    await self._save(thread, partly())
            raise
        if asked:
            after = partly()
        else:
            before = fields.decode(saved.state)
            state = fields.join(before, [(name, updates[name]) for name in saved.active])
            arrived = {number: frozenset(names) for number, names in saved.arrived.items()}
            data = fields.encode(state)
            active, waiting = self._plan.after(saved.active, partial(fields.decode, data), arrived)
            joins = {number: sorted(names) for number, names in waiting.items()}
            after = SavedStep(number, data, active, joins)
            self._counts["steps"] += 1
        await self._save(thread, after)
        return after

    async def _call(
        self,
        node: StepNode,
        state: S,
        number: int,
        thread: str,
        answers: list[Any],
        emit: Callable[[Any], None],
    ) -> Any:
        if node.reads is not None:
            return await self._on_device(node, state)
        made = node.function(state, StepContext(number, thread, answers, emit))
        if not isinstance(made, Awaitable):
            raise TypeError(f"node {node.name!r} must be async, not return {said_of(made)} at once")
        return await made

    # --- device nodes -----------------------------------------------------------------------

    async def _on_device(self, node: StepNode, state: S) -> dict[str, Any]:
        assert self._device is not None
        assert node.reads is not None
        for field in node.reads:
            if getattr(state, field) is None:
                raise TypeError(f"field {field} must be an array for node {node.name!r}, not None")
        arrays = [np.asarray(getattr(state, field)) for field in node.reads]
        shapes = [(array.shape, array.dtype) for array in arrays]
        async with self._recording:  # a recording has one set of buffers
            key = (node.name, *shapes)
            known = self._recorded.get(key)
            if known is None or any(ref.is_stale for ref in known.inputs):
                known = self._recorded[key] = await self._record(node, arrays)
            else:
                for array, ref in zip(arrays, known.inputs, strict=True):
                    await self._device.put(array, out=ref)
            await known.recording.replay()
            made = [await self._device.get(ref) for ref in known.outputs]
        return dict(zip(node.writes, made, strict=True))

    async def _record(self, node: StepNode, arrays: Sequence[Any]) -> _RecordedStep:
        assert self._device is not None
        inputs = tuple([await self._device.put(array) for array in arrays])
        async with self._device.record(*inputs, shared=True) as recording:
            made = node.function(recording, *inputs)
        outputs = made if isinstance(made, tuple) else (made,)
        if len(outputs) != len(node.writes):
            raise ValueError(
                f"node {node.name!r} must return {len(node.writes)} buffers, not {len(outputs)}"
            )
        self._counts["recordings"] += 1
        return _RecordedStep(inputs, recording, outputs)

    # --- the service ------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[None]:
        self._table = await self._turns.run(CheckpointTable, self._path)
        try:
            await trio.lowlevel.checkpoint_if_cancelled()  # which threads do not notice
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._turns.run(self._table.close)

    async def call(self, item: Any, **options: Any) -> StepResult[S]:
        """Run the graph from the state of a `Call`, with its options. See `run`."""
        return await self.run(item, **options)

    def depth(self) -> int:
        """Runs in progress."""
        return len(self._busy)

    def statistics(self) -> StepGraphStatistics:
        """Return the statistics of this moment."""
        return StepGraphStatistics(running=len(self._busy), **self._counts)

    @handler
    async def _on_run(self, message: RunSteps) -> StepResult[Any]:
        return await self.run(message.state, thread=message.thread)

    @handler
    async def _on_resume(self, message: ResumeSteps) -> StepResult[Any]:
        return await self.resume(message.thread, message.answers)


def open_step_graph(
    graph: StepGraph[S],
    *,
    device: Device | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    max_steps: int = 25,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[StepRunner[S]]:
    """Open a step graph, to run it.

    Use ``async with open_step_graph(graph, checkpoints="talks.sqlite") as runner:``. After each
    step the state is kept, durably if there is a file. A run that ended in an error, with the
    program, or with a question continues from there.

    Args:
        graph: the graph, which is checked here. Later changes of it have no effect.
        device: the device of device nodes.
        checkpoints: a file for the steps of all threads, made if it is missing. Without one they
            are kept in memory. Several programs may have it open, and the program that runs or
            resumes a thread last has it.
        max_steps: the maximum of steps of a run, counted again when it is resumed.
        **place: ``system=``, ``name=`` and ``parent=``, which make it an actor. It answers
            `RunSteps` and `ResumeSteps`.

    Raises:
        TypeError, ValueError: an argument is wrong, or the graph, see `StepGraph.plan`.
        FilesForeign, FilesDamaged, FilesFailed: the file cannot be used.
    """
    check_instance("graph", graph, StepGraph)
    plan = graph.plan()
    if device is None and any(node.reads is not None for node in plan.nodes.values()):
        raise ValueError("device must be a device for device nodes, not None")
    path = None if checkpoints is None else Path(checkpoints)
    kind: type[StepRunner[S]] = StepRunner
    runner = kind.construct(plan, device, path, count(max_steps, "max_steps"))
    return _opened(runner, place)


@asynccontextmanager
async def _opened(runner: StepRunner[S], place: Place) -> AsyncIterator[StepRunner[S]]:
    async with runner._opened(), serving(runner, **place):
        yield runner
