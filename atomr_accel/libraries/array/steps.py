"""Calls that take several steps: in one message where their lanes' executors are one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np

from ..._errors import said_of
from ...arrays import GpuRef, ref_error
from ...arrays.expressions import Expression, Operand, cast
from ...ops import ARRAY_LANE as LANE
from ...ops import ARRAY_WAITS as WAITS
from ...ops import (
    AsRequests,
    D,
    Facade,
    Request,
    Submission,
    copying,
    overlap,
    require_readable,
    require_writable,
)
from ..cub import call as cub
from ..cub.wire.messages import RunCub
from .evaluate import evaluating
from .wire.indexing import CopyAll, UploadBytes
from .wire.several import ASKED, STEPS, StepSequence, StepsThenAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...ops import DeviceView, LaneSpec, Preparer
    from ...wire.copies import CopyStrided
    from ..cub.facade import Cub

T = TypeVar("T")

_MOST_UPLOADED: Final = 1 << 16
"""Bytes from the program that a call takes along."""
_FEW_UPLOADED: Final = 1 << 10
"""Bytes that a message takes along with others."""

_Made = tuple[Request[Any], Submission[Any]]


class MergeRule(NamedTuple):
    """Rule by which steps become one message, which one executor executes.

    Attributes:
        lane: the lane of the message.
        name: the name of the message.
        lanes: names of the lanes to which the single steps belong.
        kinds: the messages that it may hold.
        message: makes the message from those of the steps.
    """

    lane: LaneSpec
    name: str
    lanes: frozenset[str]
    kinds: frozenset[type]
    message: Callable[[tuple[Any, ...]], Any]

    def takes(self, step: _Made) -> bool:
        """Return whether a step may be part of the message."""
        request, submission = step
        return request.lane.name in self.lanes and type(submission.message) in self.kinds


_SEVERAL: Final = "array.several"
LAUNCHED: Final = MergeRule(
    LANE, _SEVERAL, frozenset({LANE.name, cub.LANE.name}), STEPS, StepSequence
)
_WAITED: Final = MergeRule(
    WAITS, _SEVERAL, LAUNCHED.lanes | {WAITS.name, cub.WAITING.name}, STEPS, StepSequence
)


class CallSteps:
    """The steps of a call, while it is prepared.

    Nothing is executed yet. What steps write is scratch memory, or the caller's ``out``.

    Args:
        preparer: the preparer of the call.
        cub: algorithms that steps may be.
        lane: the call's lane. Its last step is on it; otherwise an empty step is added.
        joinings: how steps become one message: by the first of these that takes all of them. The
            last one takes whatever another does.

    Attributes:
        preparer: the preparer of the call.
        cub: algorithms that steps may be.
    """

    def __init__(
        self,
        preparer: Preparer,
        cub: Cub[AsRequests],
        lane: LaneSpec = LANE,
        joinings: tuple[MergeRule, ...] = (),
    ) -> None:
        self.preparer: Final = preparer
        self.cub: Final = cub
        self._lane: Final = lane
        self._joinings = joinings or ((_WAITED if lane is WAITS else LAUNCHED),)
        self._steps: list[_Made] = []
        self._sent: list[Callable[[], None]] = []
        self._done: list[Callable[[], None]] = []

    def do(self, request: Request[T]) -> T:
        """Add a step; return its result, which has its content later."""
        submission = request.prepare(self.preparer)
        assert submission.finish is None
        self._sent += [] if submission.sent is None else [submission.sent]
        self._done += [] if submission.done is None else [submission.done]
        for each, made in submission.steps(request, self.preparer):
            if made.message is not None:
                self._add(each, Submission(made.message, tuple(made.reads), tuple(made.writes)))
        result: Any = submission.result
        return result  # type: ignore[no-any-return]

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer."""
        return self.preparer.output(shape, dtype)

    def evaluate(self, expression: Operand, out: GpuRef | None = None) -> GpuRef:
        """Compute an expression."""
        made: GpuRef = self.do(_evaluating(self.preparer.home, expression, out))
        return made

    def evaluate_all(
        self, expressions: Sequence[Operand], outs: tuple[GpuRef, ...] | None = None
    ) -> tuple[GpuRef, ...]:
        """Compute several expressions, which may share operands."""
        interpreted = self.preparer.home.capabilities.python_kernels
        made = self.do(evaluating(interpreted, tuple(expressions), outs))
        return made if len(expressions) > 1 else (made,)

    def ref(self, x: Operand, name: str = "x") -> GpuRef:
        """Return an argument as a buffer: the same, if it is one."""
        if isinstance(x, Expression):
            return self.evaluate(x)
        require_readable(x, self.preparer.memory, name, strided=True)  # type: ignore[arg-type]
        return x  # type: ignore[return-value]

    def cast(self, ref: GpuRef, dtype: np.dtype[Any]) -> GpuRef:
        """Return the elements in another dtype."""
        return ref if ref.dtype is dtype else self.evaluate(cast(ref, dtype))

    def contiguous(self, ref: GpuRef) -> GpuRef:
        """Return a C-contiguous ref with the same elements."""
        return ref if ref.contiguous else self.do(copying(ref, None))

    def flat(self, ref: GpuRef) -> GpuRef:
        """Return a ref with the same elements and one axis."""
        return self.contiguous(ref).reshape(-1)

    def last(self, ref: GpuRef, axis: int) -> GpuRef:
        """Return a C-contiguous ref with one axis moved to the end."""
        return self.contiguous(ref.moveaxis(axis, -1))

    def assign(self, *pairs: tuple[GpuRef, GpuRef]) -> None:
        """Copy sources to targets of their shapes, which share no memory with any source."""
        copies: list[CopyStrided] = []
        reads: list[Any] = []
        writes: list[Any] = []
        for source, target in pairs:
            if source.dtype is not target.dtype:
                self.evaluate(source, target)
                continue
            submission = copying(source, target).prepare(self.preparer)
            if submission.message is not None:
                copies.append(submission.message)
                reads += submission.reads
                writes += submission.writes
        if copies:
            message = copies[0] if len(copies) == 1 else CopyAll(tuple(copies))
            self.submit("array.copy", message, reads, writes)

    def submit(self, name: str, message: Any, reads: Iterable[Any], writes: Iterable[Any]) -> None:
        """Add a step of the array lane."""
        made: Submission[None] = Submission(message, tuple(reads), tuple(writes))
        self._add(Request(LANE, name, lambda _preparer: made), made)

    def _add(self, request: Request[Any], submission: Submission[Any]) -> None:
        """Add a submission as the next step."""
        self._steps.append((request, submission))

    def upload(self, array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> GpuRef:
        """A small array of the program's as a buffer."""
        if array.nbytes > _MOST_UPLOADED:
            raise ValueError(
                f"an array of {array.nbytes} bytes is too large to go along with a call; put it "
                "on the device first: await device.put(array)"
            )
        ref = self.output(array.shape, dtype)
        if ref.size:
            data = np.ascontiguousarray(array, dtype).tobytes()
            self.submit("array.upload", UploadBytes(ref.block.address, data), (), (ref.block,))
        return ref

    def result(self, result: T, last: Submission[Any] | None = None) -> Submission[T]:
        """Return the submission of all steps.

        Args:
            result: the caller's result.
            last: the last submission, on the lane of the call, if the call is a question.
        """
        steps = _joined(self._steps, self._joinings)
        if last is None:
            if not steps:
                return Submission(None, (), (), result)
            own = steps[-1][0].lane is self._lane
            last = steps.pop()[1] if own else Submission(CopyAll(()), (), ())
            last = msgspec.structs.replace(last, result=result)
        elif steps and type(last.message) in ASKED and steps[-1][0].lane is self._lane:
            last = _asking(steps.pop()[1], last)
        last = msgspec.structs.replace(
            last, sent=_all_of([*self._sent, last.sent]), done=_all_of([*self._done, last.done])
        )
        return last.around([_prepared(*each) for each in steps])


def _joined(steps: list[_Made], joinings: tuple[MergeRule, ...]) -> list[_Made]:
    """Return the same steps in fewer messages, each for one executor."""
    made: list[_Made] = []
    group: list[_Made] = []
    for step in steps:
        if joinings[-1].takes(step) and not _is_bulky(step[1].message):
            group.append(step)
            continue
        made += _together(group, joinings)
        made.append(step)
        group = []
    return made + _together(group, joinings)


def _is_bulky(message: Any) -> bool:
    return isinstance(message, UploadBytes) and len(message.data) > _FEW_UPLOADED


def _together(group: list[_Made], joinings: tuple[MergeRule, ...]) -> list[_Made]:
    """Join steps into one message, if there are any."""
    if not group:
        return []
    joining = next(each for each in joinings if all(map(each.takes, group)))
    name, (submission, *others) = group[0][0].name, [submission for _, submission in group]
    message = submission.message
    if others or isinstance(message, RunCub):
        name = joining.name
        message = joining.message(tuple([each.message for _, each in group]))
        submission = _union(message, [each for _, each in group])
    return [(Request(joining.lane, name, _unprepared), submission)]


def _asking(steps: Submission[Any], last: Submission[Any]) -> Submission[Any]:
    """Return a question with the steps before it."""
    message = steps.message
    before = message.steps if isinstance(message, StepSequence) else (message,)
    both = _union(StepsThenAnswer(before, last.message), [steps, last])
    return msgspec.structs.replace(last, message=both.message, reads=both.reads, writes=both.writes)


def _union(message: Any, parts: list[Submission[Any]]) -> Submission[Any]:
    """Return one submission with the reads and writes of several."""
    writes = dict.fromkeys([block for each in parts for block in each.writes])
    reads = dict.fromkeys([block for each in parts for block in each.reads])
    return Submission(message, tuple([block for block in reads if block not in writes]), (*writes,))


def _unprepared(_preparer: object) -> Submission[Any]:
    """Raise ``AssertionError``: steps that are prepared already cannot be prepared again."""
    raise AssertionError


def _all_of(given: list[Callable[[], None] | None]) -> Callable[[], None] | None:
    calls = [call for call in given if call is not None]
    if not calls:
        return None

    def call_all() -> None:
        for call in calls:
            call()

    return call_all


def _prepared(request: Request[Any], submission: Submission[Any]) -> Request[Any]:
    return Request(request.lane, request.name, lambda _preparer: submission)


def _evaluating(home: DeviceView, expression: Operand, out: GpuRef | None) -> Request[GpuRef]:
    return evaluating(home.capabilities.python_kernels, (expression,), out)


class ArrayPart(Facade[D]):
    """Base of the parts of ``device.array``."""

    def __init__(self, device: DeviceView, cub: Cub[Any]) -> None:
        self.home = device
        self._cub: Cub[AsRequests] = cub.as_requests(device)

    def _several(
        self, name: str, build: Callable[[CallSteps], T], lane: LaneSpec = LANE
    ) -> Request[T]:
        """Return a request of several steps."""
        cub = self._cub

        def prepare(preparer: Preparer) -> Submission[T]:
            steps = CallSteps(preparer, cub, lane)
            return steps.result(build(steps))

        return Request(lane, f"array.{name}", prepare)

    def _evaluated(self, expression: Operand, out: GpuRef | None = None) -> Request[GpuRef]:
        """Return a request that computes an expression."""
        return _evaluating(self.home, expression, out)

    def _made(self, function: Any, *args: Any) -> Operand:
        """An expression of NumPy's function."""
        if not any(isinstance(arg, Operand) for arg in args):
            raise TypeError(
                f"{function.__name__} is computed of refs and expressions, and none of the "
                "arguments is one; put it on the device first: await device.put(array)"
            )
        made: Operand = function(*args)
        return made

    def _operand(self, x: Operand, name: str = "x") -> Operand:
        """Return an argument, which has to be a ref or an expression."""
        if not isinstance(x, Operand):
            raise ref_error(x, self.home.memory, name)
        return x

    def _ref(self, x: object, name: str = "x") -> GpuRef:
        """Return an argument, which has to be a buffer."""
        if not isinstance(x, GpuRef):
            raise ref_error(x, self.home.memory, name)
        return x

    def _check_device(self, device: str | None) -> None:
        """Require that a ``device=`` of NumPy's functions names this device, or is None."""
        own = self.home.memory.device
        if device not in (None, own):
            raise ValueError(f"device must be {own!r} or None, not {device!r}; ask that device")

    def _refs(self, arrays: Sequence[GpuRef], name: str = "arrays") -> list[GpuRef]:
        """Several buffers."""
        if isinstance(arrays, Operand) or not isinstance(arrays, tuple | list):
            raise TypeError(f"{name} must be a list or tuple of refs, not {said_of(arrays)}")
        return [self._ref(each, f"{name}[{at}]") for at, each in enumerate(arrays)]


def target_of(
    steps: CallSteps,
    out: GpuRef | None,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    reads: Iterable[tuple[str, GpuRef]] = (),
    *,
    op: str,
) -> GpuRef:
    """Return the buffer for a result."""
    if out is None:
        return steps.output(shape, dtype)
    require_writable(out, steps.preparer.memory, "out", strided=True)
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, as {op} gives, not {out.shape}")
    if dtype is not out.dtype and not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"Cannot cast output from {dtype!r} to {out.dtype!r} with casting rule 'same_kind'"
        )
    for name, ref in reads:
        if overlap(out, ref):
            raise ValueError(
                f"out shares memory with {name}, which {op} does not take; give it a buffer of "
                "its own"
            )
    return out
