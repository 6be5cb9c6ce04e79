"""Data parallel training that repeats a step after a fault, with the same bits."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Unpack, final

import numpy as np
import trio

from .._errors import AccelError, ContextPoisoned, DeviceLost, GpuRefStale, said_of
from ..actors import Place, Service, serving
from ..actors.nursery import PlainNursery
from ..arrays import GpuRef
from ..device import Device, Snapshot
from ._data import TrainingData
from ._files import read_snapshot, write_snapshot
from ._optimizers import Optimizer
from ._state import ModelLayout, ModelState
from ._tape import grad
from ._trees import optree

GradientStep = Callable[[Device, Any, Any], Awaitable[tuple[GpuRef, Any]]]
"""An async function of a device, the parameters and a shard of a batch: the loss and gradients."""

_FAULTS: Final = (ContextPoisoned, GpuRefStale, DeviceLost)


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
        norm: norm of all gradients, before clipping.
        repeats: how often it was repeated because of faults.
    """

    number: int
    loss: float
    norm: float
    repeats: int


class TrainerStatistics(NamedTuple):
    """A trainer at one moment.

    Attributes:
        steps: number of steps that were made.
        ranks: numbers of the ranks that still take part.
        repeats: how often steps were repeated.
        restored: how often a replica was copied from a peer or a snapshot.
        corrupt: ranks whose replica differed from the majority, once for each time.
        snapshot: number of steps in the snapshot on the host.
    """

    steps: int
    ranks: tuple[int, ...]
    repeats: int
    restored: int
    corrupt: tuple[int, ...]
    snapshot: int


def gradient_step(function: Callable[..., Any]) -> GradientStep:
    """Return a trainer's step for a function of a tape, the parameters and a shard of the batch.

    Args:
        function: as for `grad`; its loss is a mean over the shard.
    """

    async def step(device: Device, params: Any, batch: Any) -> tuple[GpuRef, Any]:
        return await grad(device, function)(params, batch)

    return step


class _ModelReplica:
    """A rank: a device and its copy of the model; None before it has one that is valid."""

    def __init__(self, rank: int, device: Device) -> None:
        self.rank: Final = rank
        self.device: Final = device
        self.state: ModelState | None = None

    @property
    def valid(self) -> ModelState | None:
        """The model, unless a fault has taken it."""
        state = self.state
        if state is None or any(each.is_stale for each in state.buffers):
            return None
        return state


@final
class DataParallel(Service):
    """A trainer; see `open_data_parallel`."""

    def __init__(
        self,
        devices: Sequence[Device],
        step: GradientStep,
        optimizer: Optimizer,
        layout: ModelLayout,
        *,
        shards: int,
        clip: float | None,
        snapshot_every: int,
        digest_every: int | None,
        attempts: int,
    ) -> None:
        self._replicas = [_ModelReplica(rank, device) for rank, device in enumerate(devices)]
        self._step = step
        self._optimizer = optimizer
        self._layout = layout
        self._shards = shards
        self._clip = clip
        self._snapshot_every = snapshot_every
        self._digest_every = digest_every
        self._attempts = attempts
        self._snapshots: list[Snapshot] = []  # the newest last; two at most
        self._saved = 0
        self._batches: dict[int, list[Any]] = {}  # of the steps since the snapshot
        self._repeats = self._restored = 0
        self._corrupt: list[int] = []
        self._turn = trio.Lock()

    # --- what a program does with it --------------------------------------------------------

    @property
    def steps(self) -> int:
        """Number of steps that were made."""
        return max((state.step for each in self._replicas if (state := each.valid)), default=0)

    async def run(self, data: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[TrainStep]:
        """Make a step with each batch, and yield it.

        Args:
            data: batches: trees of NumPy arrays with the same first dimension, which the number
                of shards divides. Of `TrainingData`, the batches from ``steps`` on.

        Raises:
            LossNotFinite: a loss or gradient is infinite or NaN; nothing was changed.
            ReplicasDiffer: replicas differ, and no majority is right.
            DeviceLost, ContextPoisoned: no device is left, or a step has failed ``attempts`` times.
            ValueError, TypeError: a batch of another form.
        """
        if isinstance(data, TrainingData):
            data = data.since(self.steps)
        if isinstance(data, AsyncIterable):
            async for batch in data:
                yield await self.make_step(batch)
        else:
            for batch in data:
                yield await self.make_step(batch)

    async def make_step(self, batch: Any) -> TrainStep:
        """Make one step; arguments and errors are those of ``run``."""
        shards = self._split(batch)
        async with self._turn:
            return await self._make(shards)

    async def params(self) -> Any:
        """Return the parameters as a tree of NumPy arrays; masters, if they have 16 bits."""
        async with self._turn:
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
        """
        json.dumps(note)
        async with self._turn:
            flats, step = await self._flats(1 + self._optimizer.slots)
        key = None if data is None else data.key
        about = {**self._about(), "step": step, "data": key, "note": note}
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
        """
        expected = self._about() if data is None else {**self._about(), "data": data.key}
        slots = self._optimizer.slots
        flats, about = await trio.to_thread.run_sync(
            read_snapshot, Path(path), self._layout, 1 + slots, expected
        )
        async with self._turn:
            live = [each for each in self._replicas if not each.device.closed]
            step = about["step"]
            states = [await ModelState.put(e.device, self._layout, flats, step) for e in live]
            await self._adopt(live, states)
        return about["note"]

    def statistics(self) -> TrainerStatistics:
        """The trainer at this moment."""
        return TrainerStatistics(
            self.steps,
            tuple(each.rank for each in self._replicas),
            self._repeats,
            self._restored,
            tuple(self._corrupt),
            self._saved,
        )

    def load(self) -> int:
        """Steps in progress or waiting."""
        return self._turn.statistics().tasks_waiting + self._turn.locked()

    def _about(self) -> dict[str, Any]:
        """Facts that must be equal in a snapshot's file."""
        return {"optimizer": type(self._optimizer).__name__, "dtype": self._layout.dtype.name}

    async def _flats(self, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        """Return the first buffers of the model as arrays, and its number of steps."""
        failures = 0
        while True:
            try:
                await self._repair()
                state = self._replicas[0].state
                assert state is not None
                return [await state.device.get(each) for each in state.buffers[:count]], state.step
            except _FAULTS:
                failures += 1
                if failures >= self._attempts:
                    raise

    # --- a step -----------------------------------------------------------------------------

    def _split(self, batch: Any) -> list[Any]:
        leaves, form = optree.tree_flatten(batch)
        if not leaves:
            raise ValueError("a batch must have at least one array, not none")
        for leaf in leaves:
            if not isinstance(leaf, np.ndarray):
                raise TypeError(f"a batch must be a tree of NumPy arrays, not {said_of(leaf)}")
        rows = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
        if len(rows) > 1:
            raise ValueError(f"arrays of a batch must have one first dimension, not {sorted(rows)}")
        (count,) = rows
        if not count or count % self._shards:
            raise ValueError(
                f"rows of a batch must be a multiple of {self._shards}, the number of shards, and "
                f"not 0, not {count}"
            )
        parts = [np.split(leaf, self._shards) for leaf in leaves]
        return [
            optree.tree_unflatten(form, [part[at] for part in parts]) for at in range(self._shards)
        ]

    async def _make(self, shards: list[Any]) -> TrainStep:
        number, failures = max(self.steps, max(self._batches, default=-1) + 1), 0
        self._batches[number] = shards
        try:
            while True:
                try:
                    await self._repair()
                    made = await self._attempt(self.steps)
                except _FAULTS as error:
                    failures += 1
                    self._repeats += 1
                    if failures >= self._attempts or all(r.device.closed for r in self._replicas):
                        error.add_note(f"step {number} has failed {failures} times")
                        raise
                    continue
                if made.number == number:
                    break
        except BaseException:
            del self._batches[number]  # it was not made
            raise
        await self._after(number + 1)
        return made._replace(repeats=failures)

    async def _attempt(self, number: int) -> TrainStep:
        """Make the next step on all ranks, or raise a fault and keep the valid replicas."""
        shards = self._batches[number]
        live = self._replicas
        parts = np.array_split(np.arange(self._shards), len(live))
        nodes: dict[tuple[int, int], tuple[_ModelReplica, GpuRef]] = {}
        losses: dict[int, tuple[int, float]] = {}

        async def compute(replica: _ModelReplica, mine: Sequence[int]) -> None:
            state = replica.state
            assert state is not None
            for at in mine:
                leaves, form = optree.tree_flatten(shards[at])
                refs = [await replica.device.put(leaf) for leaf in leaves]
                shard = optree.tree_unflatten(form, refs)
                loss, grads = await self._step(replica.device, state.params, shard)
                flat = await state.gathered(grads)
                losses[at] = replica.rank, float(await replica.device.get(loss))
                await self._join(nodes, (0, at), replica, flat)

        await _each(
            [(compute, each, part.tolist()) for each, part in zip(live, parts, strict=True)]
        )
        for level in range(self._shards.bit_length()):  # across ranks, in the same order
            for at in range(1, self._shards >> level, 2):
                if (level, at) in nodes:
                    await self._join(nodes, (level, at), *nodes[level, at])
        ((root, total),) = nodes.values()
        assert root.state is not None
        share = 1 / self._shards
        loss = sum(losses[at][1] for at in range(self._shards)) * share
        for rank, value in losses.values():
            if not math.isfinite(value):
                raise LossNotFinite(
                    f"the loss of step {number} on rank {rank} must be finite, not {value}; the "
                    "parameters are those before the step",
                    step=number,
                    rank=rank,
                )
        norm = await root.state.norm(total, share)
        if not math.isfinite(norm):
            raise LossNotFinite(
                f"gradients of step {number} must be finite, and have norm {norm}; the parameters "
                "are those before the step",
                step=number,
                rank=None,
            )
        if self._clip is not None:
            share *= min(1.0, self._clip / (norm + 1e-6))

        async def update(replica: _ModelReplica, _mine: Sequence[int]) -> None:
            state = replica.state
            assert state is not None
            here = total if replica is root else await replica.device.copy(total)
            replica.state = None  # half of it may be written
            await state.update(self._optimizer, here, share)
            replica.state = state

        with trio.CancelScope(shield=True):  # all ranks make the step, or it is repeated
            try:
                await _each([(update, each, ()) for each in live])
            except _FAULTS:
                if self.steps != number + 1:
                    raise
        return TrainStep(number, loss, norm, 0)

    async def _join(
        self,
        nodes: dict[tuple[int, int], tuple[_ModelReplica, GpuRef]],
        place: tuple[int, int],
        replica: _ModelReplica,
        flat: GpuRef,
    ) -> None:
        """Add up gradients along a binary tree over the shards, as far as both halves are here.

        Its form does not depend on the ranks, so neither does the sum.
        """
        level, at = place
        while at % 2 and (level, at - 1) in nodes:
            owner, left = nodes[level, at - 1]
            if owner is not replica and place not in nodes:  # others still compute
                break
            nodes.pop((level, at - 1))
            nodes.pop((level, at), None)
            right = flat if owner is replica else await owner.device.copy(flat)
            flat = await owner.device.evaluate(left + right, out=left)
            replica, level, at = owner, level + 1, at // 2
        nodes[level, at] = replica, flat

    # --- faults -----------------------------------------------------------------------------

    async def _repair(self) -> None:
        """Give each rank that lost its model, or is behind, that of a peer or of the snapshot."""
        left = [each for each in self._replicas if not each.device.closed]
        if not left:
            raise DeviceLost("all devices of the trainer are lost")
        self._replicas = left
        best = max(
            (state for each in left if (state := each.valid)), key=lambda s: s.step, default=None
        )
        for each in left:
            state = each.valid
            if state is not None and best is not None and state.step == best.step:
                continue
            if best is not None:
                buffers = [await each.device.copy(buffer) for buffer in best.buffers]
                step = best.step
            else:
                buffers = await each.device.restore(self._snapshots[-1])
                step = self._saved
            each.state = ModelState(self._layout, each.device, buffers, step)
            self._restored += 1

    async def _after(self, steps: int) -> None:
        """Compare replicas and take a snapshot, if it is time; a fault waits for the next step."""
        try:
            if self._digest_every is not None and steps % self._digest_every == 0:
                await self._compare(steps)
            if steps % self._snapshot_every == 0:
                await self._save()
        except _FAULTS:
            return

    async def _compare(self, steps: int) -> None:
        found: dict[int, int] = {}

        async def digest(replica: _ModelReplica, _mine: Sequence[int]) -> None:
            if (state := replica.valid) is not None:
                found[replica.rank] = await state.digest()

        await _each([(digest, each, ()) for each in self._replicas])
        if len(set(found.values())) < 2:
            return
        (right, votes), *_ = Counter(found.values()).most_common(1)
        if votes * 2 <= len(found):
            ranks = tuple(sorted(found))
            raise ReplicasDiffer(
                f"replicas on ranks {ranks} must be the same after step {steps - 1}, and differ "
                "without a majority; load an earlier snapshot",
                step=steps,
                ranks=ranks,
            )
        for each in self._replicas:
            if each.rank in found and found[each.rank] != right:
                self._corrupt.append(each.rank)
                each.state = None

    async def _save(self) -> None:
        """Take a snapshot into the older of two places, and forget the batches before it."""
        for each in self._replicas:
            state = each.valid
            if state is None or state.step != self.steps:
                continue
            older = self._snapshots.pop(0) if len(self._snapshots) == 2 else None
            made = await each.device.snapshot(state.buffers)
            try:
                await made.wait()
            finally:
                if older is not None:
                    older.close()
            self._snapshots.append(made)
            self._saved = state.step
            self._batches = {n: b for n, b in self._batches.items() if n >= state.step}
            return

    async def begin(self, params: Any) -> None:
        """Put the model on all devices."""
        made = [
            await ModelState.create(each.device, self._layout, params, self._optimizer)
            for each in self._replicas
        ]
        await self._adopt(self._replicas, made)

    async def _adopt(self, replicas: list[_ModelReplica], states: list[ModelState]) -> None:
        """Replace the model of all ranks at once, and the snapshot with it."""
        if not states:
            raise DeviceLost("all devices of the trainer are lost")
        made = await states[0].device.snapshot(states[0].buffers)
        try:
            await made.wait()
        except BaseException:
            made.close()
            raise
        self.close()
        self._snapshots.append(made)
        self._saved = states[0].step
        self._batches.clear()
        self._replicas = replicas
        for each, state in zip(replicas, states, strict=True):
            each.state = state

    def close(self) -> None:
        """Free the snapshots."""
        for each in self._snapshots:
            each.close()
        self._snapshots.clear()


async def _each(calls: Sequence[tuple[Callable[..., Awaitable[None]], _ModelReplica, Any]]) -> None:
    """Call functions for all ranks side by side. A fault of one does not cancel the others."""
    faults: list[Exception] = []

    async def one(
        function: Callable[..., Awaitable[None]], replica: _ModelReplica, given: Any
    ) -> None:
        try:
            await function(replica, given)
        except _FAULTS as error:
            faults.append(error)

    async with PlainNursery() as nursery:
        for call in calls:
            nursery.start_soon(one, *call)
    if faults:
        raise faults[0]


@asynccontextmanager
async def open_data_parallel(
    devices: Sequence[Device],
    step: GradientStep,
    params: Any,
    optimizer: Optimizer,
    *,
    shards: int | None = None,
    clip: float | None = None,
    snapshot_every: int = 10,
    digest_every: int | None = None,
    attempts: int = 4,
    **place: Unpack[Place],
) -> AsyncIterator[DataParallel]:
    """Train one model on several devices, each with a part of every batch.

    ::

        async with train.open_data_parallel(devices, step, params, train.AdamW(lr=1e-3)) as trainer:
            async for made in trainer.run(batches):
                print(made.number, made.loss)

    A batch is cut into ``shards``. Their gradients are added along a binary tree that does not
    depend on the devices, so on devices of one kind the result has the same bits, whichever device
    has computed which shard. After a fault, a hang (see ``op_deadline`` of ``open_device``) or
    a death of its host, a device gets the model of a peer, and the step is repeated. A device
    that is lost for good is left out, and the others compute its shards. If all lose their memory
    at once, they go back to the snapshot in host memory and repeat the steps since.

    Args:
        devices: the devices, one or more.
        step: computes the loss and the gradients of a shard; see `gradient_step`. It may run
            anything, also ``device.run``. It must give the same bits each time; open devices with
            ``deterministic=True``.
        params: a tree of NumPy arrays of one float dtype. Parameters of 16 bits have masters of
            float32.
        optimizer: what makes the steps.
        shards: parts of a batch, a power of two; by default the least that gives each device one.
        clip: the largest norm of all gradients; larger ones are scaled down.
        snapshot_every: steps between snapshots in host memory.
        digest_every: steps between comparisons of the replicas. One that differs from the majority
            is replaced; see ``statistics().corrupt``. By default they are not compared.
        attempts: how often a step may fail.
        **place: ``system``, ``name`` and ``parent``: the trainer's place in a tree of actors.

    Raises:
        ValueError: no devices, one twice, numbers out of range, or no parameters.
        TypeError: parameters that are not arrays of one float dtype.
    """
    if not devices or len({id(each) for each in devices}) < len(devices):
        raise ValueError(f"devices must be one or more, each once, not {list(devices)}")
    if not callable(step):
        raise TypeError(f"step must be an async function, not {said_of(step)}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must be an Optimizer, not {said_of(optimizer)}")
    if shards is None:
        shards = 1 << (len(devices) - 1).bit_length()
    if shards < len(devices) or shards & (shards - 1):
        raise ValueError(
            f"shards must be a power of two and at least the number of devices, {len(devices)}, "
            f"not {shards}"
        )
    for name, value in (
        ("snapshot_every", snapshot_every),
        ("digest_every", 1 if digest_every is None else digest_every),
        ("attempts", attempts),
    ):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")
    if clip is not None and not clip > 0:
        raise ValueError(f"clip must be above 0, not {clip}")
    trainer = DataParallel(
        *(devices, step, optimizer, ModelLayout(params, optimizer)),
        shards=shards,
        clip=clip,
        snapshot_every=snapshot_every,
        digest_every=digest_every,
        attempts=attempts,
    )
    try:
        await trainer.begin(params)
        async with serving(trainer, **place):
            yield trainer
    finally:
        trainer.close()
