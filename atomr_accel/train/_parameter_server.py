"""Asynchronous training: workers compute gradients, and one device makes the steps."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Unpack, final

import numpy as np
import trio

from .._errors import DeviceLost, said_of
from ..actors import Place
from ..actors.nursery import PlainNursery
from ..device import Device, Snapshot
from ..wire.options import count
from ._data import TrainingData
from ._optimizers import Optimizer
from ._state import ModelLayout, ModelState, taken
from ._steps import GradientStep
from ._trainer import (
    FAULTS,
    LossNotFinite,
    Trainer,
    TrainerOptions,
    TrainStep,
    check_batches,
    checked_ranks,
    cut_rows,
    opened,
)
from ._trees import optree


class _BatchFeed:
    """Batches of one run, and the results that it waits for."""

    def __init__(self) -> None:
        self.open = 0
        self.results: deque[TrainStep | BaseException] = deque()

    def deliver(self, result: TrainStep | BaseException) -> None:
        self.open -= 1
        self.results.append(result)


class _GradientJob:
    """A batch whose gradient is wanted. Without a feed its step is a repetition."""

    def __init__(self, batch: Any, feed: _BatchFeed | None) -> None:
        self.batch = batch
        self.feed = feed
        self.failures = 0


@final
class ParameterServer(Trainer):
    """A trainer; see `open_parameter_server`."""

    def __init__(
        self,
        ranks: Sequence[tuple[int, Device]],
        step: GradientStep,
        optimizer: Optimizer,
        layout: ModelLayout,
        options: TrainerOptions,
        staleness: int,
    ) -> None:
        super().__init__(optimizer, layout, options)
        self._live = list(ranks)
        self._step = step
        self._staleness = staleness
        self._state: ModelState | None = None
        self._snapshots: list[Snapshot] = []  # the newest last; two at most
        self._jobs: deque[_GradientJob] = deque()
        self._repeated: set[_GradientJob] = set()  # steps that were undone, until made again
        self._feeds: set[_BatchFeed] = set()
        self._begun: dict[int, int] = {}  # steps made when a rank began with its gradient
        self._lives = 0  # of the model: each goes back to a snapshot, or comes from a file
        self._changed = trio.Event()

    async def run(
        self, data: Iterable[Any] | AsyncIterable[Any]
    ) -> AsyncGenerator[TrainStep, None]:
        """Have a step made with each batch, and yield it.

        Steps come in the order in which they were made. If the loop ends early, gradients that are
        being computed still make their steps.

        Args:
            data: as for ``Trainer.run``.

        Raises:
            LossNotFinite: a loss or gradient is infinite or NaN; it made no step.
            DeviceLost, ContextPoisoned: no device is left, or a batch has failed ``attempts``
                times.
            trio.ClosedResourceError: the trainer is closed.
        """
        self._check_open()
        check_batches(data)
        feed = _BatchFeed()
        self._feeds.add(feed)
        try:
            if isinstance(data, TrainingData):
                data = data.since(self.steps)
            async with aclosing(_asynchronous(data)) as batches:
                async for batch in batches:
                    self._add(batch, feed)
                    # One more than there are workers waits, so that none is idle.
                    while feed.open > len(self._live):
                        yield await self._result(feed)
            while feed.open or feed.results:
                yield await self._result(feed)
        finally:
            self._drop(feed)

    async def make_step(self, batch: Any) -> TrainStep:
        """Make one step; see ``Trainer.make_step``."""
        feed = _BatchFeed()
        self._feeds.add(feed)
        try:
            self._add(batch, feed)
            return await self._result(feed)
        finally:
            self._drop(feed)

    def depth(self) -> int:
        """Gradients that wait or are being computed."""
        return len(self._jobs) + len(self._begun)

    def close(self) -> None:
        """Free the snapshots."""
        for each in self._snapshots:
            each.close()
        self._snapshots.clear()

    # --- jobs -------------------------------------------------------------------------------

    def _add(self, batch: Any, feed: _BatchFeed) -> None:
        self._check_open()
        cut_rows(batch, 1, "parts")
        feed.open += 1
        self._jobs.append(_GradientJob(batch, feed))
        self._wake()

    async def _result(self, feed: _BatchFeed) -> TrainStep:
        await trio.lowlevel.checkpoint_if_cancelled()
        # The last result of a feed comes when the model has the steps of all batches again.
        while not feed.results or (self._repeated and not feed.open):
            await self._changed.wait()
        result = feed.results.popleft()
        if isinstance(result, BaseException):
            raise result
        return result

    def _drop(self, feed: _BatchFeed) -> None:
        self._feeds.discard(feed)
        self._jobs = deque(job for job in self._jobs if job.feed is not feed)

    def _wake(self) -> None:
        before, self._changed = self._changed, trio.Event()
        before.set()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse all that waits; see ``Service.ended``."""
        super().ended(cause)
        assert self._end is not None
        self._refuse(self._end)

    def _refuse(self, error: BaseException) -> None:
        self._end = error
        for job in self._jobs:
            if job.feed is not None:
                job.feed.deliver(error)
        if self._repeated:
            for feed in self._feeds:
                feed.results.append(error)
        self._jobs.clear()
        self._repeated.clear()
        self._wake()

    # --- workers ----------------------------------------------------------------------------

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Have a worker on each device."""
        async with PlainNursery() as nursery:
            self._begun.clear()
            for rank, device in self._live:
                nursery.start_soon(self._work, rank, device)
            task_status.started()
            await trio.sleep_forever()

    async def _work(self, rank: int, device: Device) -> None:
        while not device.closed:
            while not self._may_begin():
                await self._changed.wait()
            job = self._jobs.popleft()
            self._begun[rank] = self.steps
            try:
                made = await self._make(rank, device, job)
            except FAULTS as error:
                self._failed(job, error, device)
            except Exception as error:
                if job.feed is None:
                    self._repeated.discard(job)
                    raise  # a repetition has failed in another way than at first
                job.feed.deliver(error)
            except BaseException:
                self._jobs.appendleft(job)
                raise
            else:
                if job.feed is not None and made is not None:
                    job.feed.deliver(made)
            finally:
                del self._begun[rank]
                self._wake()
        self._live = [each for each in self._live if each[0] != rank]
        if not self._live:
            self._refuse(DeviceLost("all devices of the trainer are lost"))

    def _may_begin(self) -> bool:
        """Tell whether all gradients under way stay within the bound if another one begins.

        The oldest may see all others make their steps before it.
        """
        if not self._jobs:
            return False
        if not self._begun:
            return True
        return self.steps + len(self._begun) - min(self._begun.values()) <= self._staleness

    def _failed(self, job: _GradientJob, error: Exception, device: Device) -> None:
        self._repeats += 1
        job.failures += not device.closed
        if job.failures >= self._options.attempts and job.feed is not None:
            error.add_note(f"the gradient of a batch has failed {job.failures} times")
            job.feed.deliver(error)
        else:
            self._jobs.appendleft(job)

    async def _make(self, rank: int, device: Device, job: _GradientJob) -> TrainStep | None:
        """Compute a gradient and make its step; None if the model has changed its life."""
        async with self._turn:
            await self._repair()
            state = self._state
            assert state is not None
            halves = self._layout.dtype != self._layout.master_dtype
            flat = await device.copy(state.buffers[-1 if halves else 0])
            life, version = self._lives, state.step
        mine = ModelState(self._layout, device, [flat], version)
        leaves, form = optree.tree_flatten(job.batch)
        shard = optree.tree_unflatten(form, [await device.put(leaf) for leaf in leaves])
        loss, grads = await self._step(device, mine.params, shard)
        gradient = await mine.gathered(grads)
        value = float(await device.get(loss))
        self._checked_losses(self.steps, [(rank, value)])
        norm = await mine.norm(gradient, 1.0)
        if not np.isfinite(norm):
            raise LossNotFinite(
                f"gradients of step {self.steps} on rank {rank} must be finite, and have norm "
                f"{norm}; the parameters are those before the step",
                step=self.steps,
                rank=rank,
            )
        async with self._turn:
            await self._repair()
            if life != self._lives:
                if job.feed is not None or job in self._repeated:
                    self._jobs.appendleft(job)
                return None
            made = await self._apply(device, job, gradient, version, value, norm)
            self._repeated.discard(job)
            return made

    async def _apply(
        self,
        device: Device,
        job: _GradientJob,
        gradient: Any,
        version: int,
        loss: float,
        norm: float,
    ) -> TrainStep:
        state = self._state
        assert state is not None
        number = state.step
        stale = number - version
        here = gradient if device is state.device else await state.device.copy(gradient)
        with trio.CancelScope(shield=True):
            self._state = None  # half of it may be written
            self._batches[number] = job.batch
            try:
                rate = 1 / (1 + stale)
                await state.update(self._optimizer, here, self._clipped(norm), rate=rate)
            except BaseException:
                del self._batches[number]
                raise
            self._state = state
            self._made = state.step
            if state.step % self._options.snapshot_every == 0:
                await self._save_state(state)
        self._last = loss, norm
        return TrainStep(number, loss, norm, job.failures, staleness=stale)

    # --- the model --------------------------------------------------------------------------

    def _ranks(self) -> list[tuple[int, Device]]:
        return self._live

    async def _read(self, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        state = self._state
        assert state is not None
        return await state.read(count)

    def _server(self) -> Device:
        for _, device in self._live:
            if not device.closed:
                return device
        raise DeviceLost("all devices of the trainer are lost")

    async def _install(self, flats: Sequence[np.ndarray[Any, Any]], step: int) -> None:
        state = await ModelState.put(self._server(), self._layout, flats, step)
        (made,) = await taken([state])
        self.close()
        self._snapshots.append(made)
        self._state = state
        self._made = step
        self._lives += 1
        self._jobs = deque(job for job in self._jobs if job.feed is not None)
        self._repeated.clear()

    async def _repair(self) -> None:
        """Go back to the snapshot if the model is lost, and have the steps since made again."""
        state = self._state
        if state is not None and not state.device.closed and not state.lost:
            return
        device = self._server()
        buffers = await device.restore(self._snapshots[-1])
        self._state = ModelState(self._layout, device, buffers, self._saved)
        self._made = self._saved
        self._lives += 1
        self._restored += 1
        again = [_GradientJob(batch, None) for _, batch in sorted(self._batches.items())]
        self._batches.clear()
        self._jobs.extendleft(reversed(again))
        self._repeated.update(again)
        self._begun = dict.fromkeys(self._begun, self._saved)
        self._wake()

    async def _save_state(self, state: ModelState) -> None:
        older = self._snapshots.pop(0) if len(self._snapshots) == 2 else None
        try:
            made = await taken([state])
        except FAULTS:
            return  # the step was made; the next one finds what is lost
        finally:
            if older is not None:
                older.close()
        self._snapshots += made
        self._forget(state.step)


async def _asynchronous(data: Iterable[Any] | AsyncIterable[Any]) -> AsyncGenerator[Any, None]:
    if isinstance(data, AsyncIterable):
        async for batch in data:
            yield batch
    else:
        for batch in data:
            yield batch


@asynccontextmanager
async def open_parameter_server(
    devices: Sequence[Device],
    step: GradientStep,
    params: Any,
    optimizer: Optimizer,
    *,
    staleness: int,
    clip: float | None = None,
    snapshot_every: int = 10,
    attempts: int = 4,
    **place: Unpack[Place],
) -> AsyncIterator[ParameterServer]:
    """Train one model with workers that do not wait for each other.

    ::

        async with train.open_parameter_server(
            devices, step, params, train.SGD(lr=0.01), staleness=len(devices) - 1
        ) as trainer:
            async for made in trainer.run(batches):
                print(made.number, made.loss, made.staleness)

    A worker on each device copies the parameters, computes the gradient of a whole batch, and its
    step is made on the first device that is left. Meanwhile others may have made steps: their
    number is the gradient's staleness, and the learning rate of its step is divided by one more
    than that. A worker waits before it begins if staleness could come above the bound. With
    ``staleness=0`` there is one gradient at a time, and the steps are those of one device, to the
    bit. Otherwise the result depends on the order in which workers are ready.

    A gradient whose device fails is computed again, with the parameters of that time. If the model
    itself is lost, it goes back to the snapshot in host memory, and batches since then make their
    steps once more. So a fault changes the order of steps, within the same bound of staleness.

    ``step`` computes the loss and the gradients of a batch; see `gradient_step`. ``staleness`` is
    the largest number of steps between reading parameters and using their gradient, and
    ``attempts`` says how often the gradient of a batch may fail. Other arguments are those of
    `open_data_parallel`.
    """
    ranks = checked_ranks(devices, optimizer)
    if not callable(step):
        raise TypeError(f"step must be an async function, not {said_of(step)}")
    staleness = count(staleness, "staleness", 0)
    options = TrainerOptions(clip, snapshot_every, None, attempts)
    layout = ModelLayout(params, optimizer)
    trainer = ParameterServer(ranks, step, optimizer, layout, options, staleness)
    async with opened(trainer, params, place):
        yield trainer
