"""Execution of requests: at once, or after waiting for memory, lanes and answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import numpy as np
import trio

from ._request import DurableRoom, Pending, Preparing, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..arrays import GpuRef
    from ..memory import Epoch
    from ._call_template import CallTemplate
    from ._library import DeviceView, OpSubmitter, Submitted
    from ._request import HostObjects, Preparer, Submission

T = TypeVar("T")


@final
class ImmediatePreparer(Preparing):
    """Preparer of requests that find all they need; the device has one."""

    __slots__ = ("home", "host_objects", "memory", "try_empty")

    def __init__(self, device: OpSubmitter) -> None:
        self.home: Final[DeviceView] = device
        self.host_objects: Final[HostObjects] = device
        self.memory: Final = device.memory
        self.try_empty: Final = device.try_empty

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer, if memory is free right now."""
        made = self.try_empty(shape, dtype, math.prod(shape) * dtype.itemsize)
        if made is None:
            raise Pending((shape, dtype))
        return made

    def perform(self, request: Request[T]) -> T | None:
        """Raise ``Pending``: no answer has arrived yet."""
        raise Pending(request)


@final
class WaitingPreparer(Preparing):
    """Preparer of a request that had to wait: it keeps the results of the waits."""

    __slots__ = (
        *("_answered", "_answers", "_by_key", "_device", "_given", "_made"),
        *("home", "host_objects", "memory"),
    )

    def __init__(self, device: OpSubmitter) -> None:
        self._device = device
        self.home: Final[DeviceView] = device
        self.host_objects: Final[HostObjects] = device
        self.memory: Final = device.memory
        self._made: list[GpuRef] = []
        self._answers: list[tuple[Epoch, Any]] = []
        self._by_key: dict[Hashable, tuple[Epoch, Any]] = {}
        self._given = self._answered = 0

    def output(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> GpuRef:
        """Return an uninitialised buffer; the one made at this point before, if still valid."""
        if self._given < len(self._made):
            ref = self._made[self._given]
            known = ref.shape == shape and ref.dtype is dtype
            if known and ref.block.epoch is self.memory.epoch:
                self._given += 1
                return ref
            del self._made[self._given :]
        made = self._device.try_empty(shape, dtype, math.prod(shape) * dtype.itemsize)
        if made is None:
            raise Pending((shape, dtype))
        self._made.append(made)
        self._given += 1
        return made

    def perform(self, request: Request[T]) -> T | None:
        """Return the answer; one of an older generation does not count."""
        if request.key is not None:
            found_epoch, answer = self._by_key.get(request.key, (None, None))
            if found_epoch is not self.memory.epoch:
                raise Pending(request)
            return answer
        if self._answered < len(self._answers):
            epoch, answer = self._answers[self._answered]
            if epoch is self.memory.epoch:
                self._answered += 1
                found: T = answer
                return found
            del self._answers[self._answered :]
        raise Pending(request)

    async def provide(self, wanted: Any) -> None:
        """Wait for the missing thing, and begin again."""
        if isinstance(wanted, Request):
            epoch = self.memory.epoch
            answer = await perform(self._device, wanted)
            if wanted.key is None:
                self._answers.append((epoch, answer))
            else:
                self._by_key[wanted.key] = epoch, answer
        elif isinstance(wanted, DurableRoom):  # which is dropped here, and free for the request
            await self._device.empty((wanted.nbytes,), np.uint8, durable=True)
        elif isinstance(wanted, tuple):
            self._made.append(await self._device.empty(*wanted))
        else:
            await self._device.open_lane(wanted)
        self._given = self._answered = 0


@final
class _Nothing:
    """Stands for the op if there is nothing to execute."""

    async def wait(self) -> None:
        """Return after a checkpoint."""
        await trio.lowlevel.checkpoint()


_NOTHING: Final = _Nothing()


@final
class _Together:
    """An op with those before and after it."""

    def __init__(self, op: Submitted, before: list[Any], after: list[Any]) -> None:
        self._op = op
        self._before = before
        self._after = after

    async def wait(self) -> Any:
        """Wait for all ops; return the answer of the main one.

        Cancellation withdraws the main op and the ops after it, because only their effects are
        visible to others. Ops before it are not withdrawn, since the main op may be on its way.
        """
        try:
            answer = await self._op.wait()
        except trio.Cancelled:
            after = [op for op in self._after if op is not _NOTHING]
            if not any(op.sent for op in after):
                for op in after:
                    op.withdraw()
            raise
        for op in (*self._before, *self._after):
            if op is not _NOTHING:
                await op.wait()
        return answer


def submit(
    device: OpSubmitter, request: Request[T], preparer: Preparer
) -> tuple[Submission[T], Submitted]:
    """Submit a request now.

    Returns:
        The submission, and the op on its way.

    Raises:
        Pending: the request has to wait for something first.
    """
    submission = request.prepare(preparer)
    port = device.ports.get(request.lane.name)
    if port is None:
        raise Pending(request.lane)
    op: Submitted
    if submission.before or submission.after:
        op = _submit_all(device, request, submission, preparer)
    elif submission.message is None:
        op = _NOTHING
    else:
        if submission.sent is not None:
            submission.sent()
        op = device.submit(
            port, request.name, submission.message, submission.reads, submission.writes
        )
    if submission.placed is not None:
        submission.placed()
    return submission, op


def _submit_all(
    device: OpSubmitter,
    request: Request[T],
    submission: Submission[T],
    preparer: Preparer,
) -> Submitted:
    """Submit a request with the requests before and after it, once all are known to be ready."""
    steps = submission.steps(request, preparer)
    for each, _ in steps:
        if each.lane.name not in device.ports:
            raise Pending(each.lane)
    if submission.sent is not None:
        submission.sent()
    ops: list[Any] = [
        _NOTHING
        if made.message is None
        else device.submit(
            device.ports[each.lane.name], each.name, made.message, made.reads, made.writes
        )
        for each, made in steps
    ]
    at = next(at for at, (_, made) in enumerate(steps) if made is submission)
    return _Together(ops[at], ops[:at], ops[at + 1 :])


def send(
    device: OpSubmitter, template: CallTemplate, refs: list[GpuRef], words: list[int]
) -> tuple[Any, Submitted] | None:
    """Submit a call by its template; return its result, and the op on its way.

    None where something has to be waited for first: then it is made in full.
    """
    ports = device.ports
    if not template.lanes <= ports.keys():
        return None
    try:
        addresses, blocks, result = template.call(device.first_try, refs, words)
    except Pending:
        return None
    if len(template.ops) == 1:
        only = template.ops[0]
        return result, only.submit(device, ports[only.lane], addresses, blocks)
    ops = [each.submit(device, ports[each.lane], addresses, blocks) for each in template.ops]
    return result, _Together(ops[template.own], ops[: template.own], ops[template.own + 1 :])


async def result(submission: Submission[T], op: Submitted) -> T:
    """Wait for a submission; return its result."""
    answer = await op.wait()
    if submission.done is not None:
        submission.done()
    if submission.finish is not None:
        return submission.finish(answer)
    given: Any = answer if submission.result is None else submission.result
    return given  # type: ignore[no-any-return]


async def perform(
    device: OpSubmitter, request: Request[T], submitted: Callable[[], object] | None = None
) -> T:
    """Carry out a request: submit it, with nothing awaited since it was prepared, and wait.

    Args:
        device: the device that carries it out.
        request: the request to carry out.
        submitted: called as soon as it has its place in the program's order.

    Returns:
        Its result.
    """
    preparer: Preparer = device.first_try
    while True:
        try:
            submission, op = submit(device, request, preparer)
        except Pending as pending:
            wanted: Any = pending.wanted
        else:
            if submitted is not None:
                submitted()
            return await result(submission, op)
        if not isinstance(preparer, WaitingPreparer):
            preparer = WaitingPreparer(device)
        await preparer.provide(wanted)
