"""Base of all trainers: steps that are repeated after a fault, files, statistics."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import trio

from .._dtypes import as_dtype
from .._errors import AccelError, ContextPoisoned, DeviceLost, GpuRefStale, said_of
from ..actors import Place, Service, serving
from ..actors.nursery import PlainNursery
from ..actors.util import check_instance
from ..device import Device
from ..wire.options import count, real, set_fields
from ._data import TrainingData
from ._files import read_snapshot, write_snapshot
from ._optimizers import Optimizer
from ._schedules import LossScale
from ._state import ModelLayout
from ._trees import optree

FAULTS: Final = (ContextPoisoned, GpuRefStale, DeviceLost)


class LossNotFinite(AccelError):
    """The loss, or a gradient, of a step is infinite or NaN. Parameters and state are unchanged.

    Attributes:
        step: number of the step.
        rank: the rank whose loss it is, or None if only the gradients are not finite.
    """

    _fields = ("step", "rank")

    def __init__(self, message: str, *, step: int, rank: int | None) -> None:
        super().__init__(message)
        self.step = step
        self.rank = rank


class ReplicasDiffer(AccelError):
    """Replicas have other bits than each other, and no majority tells which are right.

    Attributes:
        step: the number of steps that were made.
        ranks: the ranks that were compared.
    """

    _fields = ("step", "ranks")

    def __init__(self, message: str, *, step: int, ranks: tuple[int, ...]) -> None:
        super().__init__(message)
        self.step = step
        self.ranks = ranks


class TrainStep(NamedTuple):
    """A step that was made.

    Attributes:
        number: its number, from 0.
        loss: mean loss of the batch, before the step.
        norm: norm of all gradients, before clipping. It is infinite or NaN if the step was skipped.
        repeats: how often it was repeated because of faults.
        skipped: whether gradients were not finite, and the loss scale has shrunk instead.
        staleness: updates that others have made since its parameters were read; 0 but with a
            parameter server.
    """

    number: int
    loss: float
    norm: float
    repeats: int
    skipped: bool = False
    staleness: int = 0


@dataclass(frozen=True)
class TrainerStatistics:
    """A trainer at one moment. Metrics have its numbers, if the trainer has a place in a system.

    Attributes:
        steps: number of steps that were made.
        loss: loss of the last step; NaN before the first.
        norm: norm of its gradients.
        scale: the present loss scale; 1 without one.
        repeats: how often steps were repeated.
        restored: how often a part of the model was copied from a peer or a snapshot.
        skipped: steps with gradients that were not finite.
        snapshot: number of steps in the snapshot on the host.
        ranks: numbers of the ranks that still take part.
        corrupt: ranks whose parameters differed from the majority, once for each time.
    """

    steps: int
    loss: float
    norm: float
    scale: float
    repeats: int
    restored: int
    skipped: int
    snapshot: int
    ranks: tuple[int, ...]
    corrupt: tuple[int, ...]


class Trainer(Service, ABC):
    """Base of all trainers."""

    def __init__(
        self,
        optimizer: Optimizer,
        layout: ModelLayout,
        options: TrainerOptions,
    ) -> None:
        self._optimizer = optimizer
        self._layout = layout
        self._options = options
        self._batches: dict[int, Any] = {}  # of the steps since the snapshot
        self._saved = 0
        self._made = 0
        self._repeats = self._restored = self._skipped = 0
        self._corrupt: list[int] = []
        self._scale = options.loss_scale
        self._scales: dict[int, tuple[float, int]] = {}  # before each step since the snapshot
        self._last = (math.nan, math.nan)
        self._turn = trio.Lock()
        self._end: BaseException | None = None

    # --- what a program does with it --------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of steps that were made, also while the devices repeat some of them."""
        return self._made

    async def run(
        self, data: Iterable[Any] | AsyncIterable[Any]
    ) -> AsyncGenerator[TrainStep, None]:
        """Make a step with each batch, and yield it.

        Args:
            data: batches: trees of NumPy arrays with the same first dimension, which the number
                of shards divides. Of `TrainingData`, the batches from ``steps`` on.

        Raises:
            LossNotFinite: a loss or gradient is infinite or NaN; nothing was changed.
            ReplicasDiffer: replicas differ, and no majority is right.
            DeviceLost, ContextPoisoned: no device is left, or a step has failed ``attempts`` times.
            trio.ClosedResourceError: the trainer is closed.
        """
        self._check_open()
        check_batches(data)
        if isinstance(data, TrainingData):
            data = data.since(self.steps)
        if isinstance(data, AsyncIterable):
            async for batch in data:
                yield await self.make_step(batch)
        else:
            for batch in data:
                yield await self.make_step(batch)

    @abstractmethod
    async def make_step(self, batch: Any) -> TrainStep:
        """Make one step; arguments and errors are those of ``run``."""

    async def params(self) -> Any:
        """Return the parameters as a tree of NumPy arrays; masters, if they have 16 bits.

        Raises:
            DeviceLost, ContextPoisoned: no device has the model.
            trio.ClosedResourceError: the trainer is closed.
        """
        async with self._in_turn():
            (flat,), _ = await self._flats(1)
        return self._layout.tree(flat)

    async def save(
        self, path: str | os.PathLike[str], *, data: TrainingData | None = None, note: Any = None
    ) -> int:
        """Write parameters, optimizer state and the number of steps into a file of safetensors.

        Steps go on once the arrays are in host memory, so a task can save in the background. The
        file is replaced as a whole, when the new one is on the disk.

        Args:
            path: the file.
            data: what the trainer runs on; `restore` checks that it is the same.
            note: a value for `restore` to return, as in JSON: the state of a random generator, say.

        Returns:
            The number of steps in it.

        Raises:
            Unsupported: masters that are neither float32 nor float64.
            TypeError: a note that JSON has not.
            DeviceLost, ContextPoisoned: no device has the model.
            OSError: the file cannot be written.
            trio.ClosedResourceError: the trainer is closed.
        """
        json.dumps(note)
        if data is not None:
            check_instance("data", data, TrainingData)
        async with self._in_turn():
            flats, step = await self._flats(1 + self._optimizer.slots)
        key = None if data is None else data.key
        about = {**self._about(), "step": step, "data": key, "note": note}
        if self._scale is not None:
            about["scale"] = (self._scale.value, self._scale.good)
        await trio.to_thread.run_sync(write_snapshot, Path(path), self._layout, flats, about)
        return step

    async def restore(
        self, path: str | os.PathLike[str], *, data: TrainingData | None = None
    ) -> Any:
        """Go on where a file was saved. With the same shards and data the bits are the same.

        ::

            await trainer.restore("run.safetensors", data=data)
            async for made in trainer.run(data):
                ...

        Args:
            path: the file.
            data: what the trainer will run on, if it was saved with some.

        Returns:
            The note that it was saved with.

        Raises:
            SnapshotDamaged: the file is truncated or changed; the trainer is unchanged.
            SnapshotForeign: it is of another model, optimizer or data; the trainer is unchanged.
            DeviceLost, ContextPoisoned: a device failed meanwhile; the trainer is unchanged.
            OSError: the file cannot be read.
            trio.ClosedResourceError: the trainer is closed.
        """
        if data is not None:
            check_instance("data", data, TrainingData)
        expected = self._about() if data is None else {**self._about(), "data": data.key}
        flats, about = await trio.to_thread.run_sync(
            read_snapshot, Path(path), self._layout, 1 + self._optimizer.slots, expected
        )
        async with self._in_turn():
            await self._install(flats, about["step"])
            self._saved = self._made = about["step"]
            self._batches.clear()
            self._scales.clear()
            if self._scale is not None and "scale" in about:
                self._scale.value, self._scale.good = about["scale"]
        return about["note"]

    def statistics(self) -> TrainerStatistics:
        """The trainer at this moment."""
        return TrainerStatistics(
            steps=self.steps,
            loss=self._last[0],
            norm=self._last[1],
            scale=1.0 if self._scale is None else self._scale.value,
            repeats=self._repeats,
            restored=self._restored,
            skipped=self._skipped,
            snapshot=self._saved,
            ranks=tuple(rank for rank, _ in self._ranks()),
            corrupt=tuple(self._corrupt),
        )

    def depth(self) -> int:
        """Steps in progress or waiting."""
        return self._turn.statistics().tasks_waiting + self._turn.locked()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse all that follows; see ``Service.ended``."""
        if self._end is None:
            text = "the trainer is closed: its block was left, or its actor has ended"
            self._end = trio.ClosedResourceError(text)
            self._end.__cause__ = None if isinstance(cause, trio.Cancelled) else cause

    def _check_open(self) -> None:
        if self._end is not None:
            raise self._end

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        async with self._turn:
            self._check_open()
            yield

    def _about(self) -> dict[str, Any]:
        """Facts that must be equal in a snapshot's file."""
        return {"optimizer": type(self._optimizer).__name__, "dtype": self._layout.dtype.name}

    async def begin(self, params: Any) -> None:
        """Put the model on all devices."""
        zeros = np.zeros(self._layout.size, self._layout.master_dtype)
        await self._install([self._layout.flat(params), *[zeros] * self._optimizer.slots], 0)

    # --- what each trainer does in its own way ----------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Free the snapshots."""

    @abstractmethod
    def _ranks(self) -> Sequence[tuple[int, Device]]:
        """Return the ranks that still take part."""

    @abstractmethod
    async def _repair(self) -> None:
        """Have a valid model on all ranks, that of a peer or of a snapshot."""

    @abstractmethod
    async def _read(self, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        """Return the first buffers of the whole model as arrays, and its number of steps."""

    @abstractmethod
    async def _install(self, flats: Sequence[np.ndarray[Any, Any]], step: int) -> None:
        """Replace the model on all ranks, and the snapshot with it, or change nothing."""

    # --- steps ------------------------------------------------------------------------------

    async def _flats(self, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        """Return the first buffers of the whole model as arrays, and its number of steps."""
        failures = 0
        while True:
            try:
                await self._repair()
                return await self._read(count)
            except FAULTS:
                failures += 1
                if failures >= self._options.attempts:
                    raise

    def _forget(self, step: int) -> None:
        """Forget what repeats the steps before a snapshot."""
        self._saved = step
        self._batches = {n: each for n, each in self._batches.items() if n >= step}
        self._scales = {n: each for n, each in self._scales.items() if n >= step}

    def _checked_losses(self, number: int, losses: Iterable[tuple[int, float]]) -> None:
        """Raise if a loss of a rank is not finite."""
        for rank, value in losses:
            if not math.isfinite(value):
                raise LossNotFinite(
                    f"the loss of step {number} on rank {rank} must be finite, not {value}; the "
                    "parameters are those before the step",
                    step=number,
                    rank=rank,
                )

    def _clipped(self, norm: float) -> float:
        """Return the factor that clips gradients of a norm."""
        clip = self._options.clip
        return 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))


class LockstepTrainer(Trainer):
    """A trainer whose ranks make each step together."""

    @property
    @abstractmethod
    def _reached(self) -> int:
        """Number of steps that the model on the devices has made, after a repair."""

    async def make_step(self, batch: Any) -> TrainStep:
        """Make one step; see ``Trainer.make_step``."""
        shards = self._split(batch)
        async with self._in_turn():
            return await self._make(shards)

    @abstractmethod
    def _split(self, batch: Any) -> Any:
        """Check a batch, and return it as steps use it."""

    @abstractmethod
    async def _attempt(self, number: int) -> TrainStep:
        """Make the next step on all ranks, or raise a fault and change nothing."""

    @abstractmethod
    async def _after(self, steps: int) -> None:
        """Compare replicas and take a snapshot, if it is time; a fault waits for the next step."""

    async def _make(self, prepared: Any) -> TrainStep:
        # A fault may have taken the model, so what is kept for repeats tells how far it had come.
        kept = max(self._batches, default=-1) + 1
        number, failures = max(self._reached, self._saved, kept), 0
        self._batches[number] = prepared
        try:
            while True:
                try:
                    await self._repair()
                    self._note_scale(self._reached)
                    made = await self._attempt(self._reached)
                except FAULTS as error:
                    failures += 1
                    self._repeats += 1
                    if failures >= self._options.attempts or all(
                        d.closed for _, d in self._ranks()
                    ):
                        error.add_note(f"step {number} has failed {failures} times")
                        raise
                    continue
                if made.number == number:
                    break
        except BaseException:
            del self._batches[number]  # it was not made
            raise
        self._made = number + 1
        self._last = made.loss, made.norm
        self._skipped += made.skipped
        await self._after(number + 1)
        return made._replace(repeats=failures)

    def _note_scale(self, number: int) -> None:
        """Have the loss scale of a step, also of one that is repeated."""
        scale = self._scale
        if scale is None:
            return
        if number in self._scales:
            scale.value, scale.good = self._scales[number]
        else:
            self._scales[number] = scale.value, scale.good

    def _skips(self, number: int, norm: float) -> bool:
        """Tell the loss scale about gradients; return whether the step is skipped."""
        finite = math.isfinite(norm)
        if not finite and (self._scale is None or self._scale.value <= 1):
            raise LossNotFinite(
                f"gradients of step {number} must be finite, and have norm {norm}; the parameters "
                "are those before the step",
                step=number,
                rank=None,
            )
        if self._scale is not None:
            self._scale.note(finite=finite)
        return not finite


@dataclass(frozen=True)
class TrainerOptions:
    """Options of all trainers; see `open_data_parallel`."""

    clip: float | None = None
    snapshot_every: int = 10
    digest_every: int | None = None
    attempts: int = 4
    loss_scale: LossScale | None = None

    def __post_init__(self) -> None:
        for name in ("snapshot_every", "digest_every", "attempts"):
            value = getattr(self, name)
            if value is not None or name != "digest_every":
                set_fields(self, **{name: count(value, name)})
        if self.clip is not None:
            set_fields(self, clip=real(self.clip, "clip", above=0, infinity=True))
        if self.loss_scale is not None:
            check_instance("loss_scale", self.loss_scale, LossScale)


@asynccontextmanager
async def opened(trainer: Trainer, params: Any, place: Place) -> AsyncIterator[None]:
    """Put the model on all devices, and let the trainer be an actor at a place."""
    try:
        await trainer.begin(params)
        async with serving(trainer, **place):
            yield
    finally:
        trainer.close()


def checked_ranks(devices: Sequence[Device], optimizer: Optimizer) -> list[tuple[int, Device]]:
    """Return devices with their numbers."""
    if not isinstance(devices, Sequence):
        raise TypeError(f"devices must be a sequence of devices, not {said_of(devices)}")
    for each in devices:
        check_instance("a device", each, Device)
    if not devices or len({id(each) for each in devices}) < len(devices):
        raise ValueError(f"devices must be one or more, each once, not {list(devices)}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be an Optimizer, not {said_of(optimizer)}")
    return list(enumerate(devices))


def check_batches(data: object) -> None:
    """Raise unless there are batches in it."""
    if not isinstance(data, (Iterable, AsyncIterable)):
        raise TypeError(f"data must be an iterable of batches, not {said_of(data)}")


def cut_rows(batch: Any, count: int, kind: str) -> list[Any]:
    """Cut a batch into parts of equal numbers of rows."""
    leaves, form = optree.tree_flatten(batch)
    if not leaves:
        raise ValueError("a batch must have at least one array, not none")
    for leaf in leaves:
        if not isinstance(leaf, np.ndarray):
            raise TypeError(f"a batch must be a tree of NumPy arrays, not {said_of(leaf)}")
        as_dtype(leaf.dtype)
    rows = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
    if len(rows) > 1:
        raise ValueError(f"arrays of a batch must have one first dimension, not {sorted(rows)}")
    (found,) = rows
    if not found or found % count:
        raise ValueError(
            f"rows of a batch must be a multiple of {count}, the number of {kind}, and "
            f"not 0, not {found}"
        )
    parts = [np.split(leaf, count) for leaf in leaves]
    return [optree.tree_unflatten(form, [part[at] for part in parts]) for at in range(count)]


async def each_rank(calls: Sequence[tuple[Callable[..., Awaitable[None]], Any, Any]]) -> None:
    """Call functions for all ranks side by side. A fault of one does not cancel the others."""
    faults: list[Exception] = []

    async def one(function: Callable[..., Awaitable[None]], replica: Any, given: Any) -> None:
        try:
            await function(replica, given)
        except FAULTS as error:
            faults.append(error)

    async with PlainNursery() as nursery:
        for call in calls:
            nursery.start_soon(one, *call)
    if faults:
        raise faults[0]
