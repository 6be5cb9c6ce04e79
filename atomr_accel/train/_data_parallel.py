"""Data parallel training that repeats a step after a fault, with the same bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Unpack, final

import numpy as np
import trio

from .._errors import DeviceLost, OutOfMemory, said_of
from ..actors import Place
from ..arrays import GpuRef
from ..device import Device, Snapshot
from ._optimizers import Optimizer
from ._schedules import LossScale
from ._state import ModelLayout, ModelState, taken
from ._steps import GradientStep
from ._trainer import (
    FAULTS,
    LockstepTrainer,
    ReplicasDiffer,
    TrainerOptions,
    TrainStep,
    checked_ranks,
    cut_rows,
    each_rank,
    opened,
)
from ._trees import optree


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
        return None if state is None or state.lost else state


@final
class DataParallel(LockstepTrainer):
    """A trainer; see `open_data_parallel`."""

    def __init__(
        self,
        ranks: Sequence[tuple[int, Device]],
        step: GradientStep,
        optimizer: Optimizer,
        layout: ModelLayout,
        options: TrainerOptions,
        shards: int,
    ) -> None:
        super().__init__(optimizer, layout, options)
        self._replicas = [_ModelReplica(rank, device) for rank, device in ranks]
        self._step = step
        self._shards = shards
        self._snapshot: Snapshot | None = None  # the newest that is complete
        self._moving: tuple[Snapshot, int] | None = None  # the next one, and its step

    @property
    def _reached(self) -> int:
        return max((state.step for each in self._replicas if (state := each.valid)), default=0)

    def _ranks(self) -> list[tuple[int, Device]]:
        return [(each.rank, each.device) for each in self._replicas]

    async def _read(self, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        state = self._replicas[0].state
        assert state is not None
        return await state.read(count)

    async def _install(self, flats: Sequence[np.ndarray[Any, Any]], step: int) -> None:
        live = [each for each in self._replicas if not each.device.closed]
        if not live:
            raise DeviceLost("all devices of the trainer are lost")
        states = [await ModelState.put(e.device, self._layout, flats, step) for e in live]
        (made,) = await taken(states[:1])
        self.close()
        self._snapshot = made
        self._replicas = live
        for each, state in zip(live, states, strict=True):
            each.state = state

    # --- a step -----------------------------------------------------------------------------

    def _split(self, batch: Any) -> list[Any]:
        return cut_rows(batch, self._shards, "shards")

    async def _attempt(self, number: int) -> TrainStep:
        shards = self._batches[number]
        live = self._replicas
        parts = np.array_split(np.arange(self._shards), len(live))
        nodes: dict[tuple[int, int], tuple[_ModelReplica, GpuRef]] = {}
        losses: dict[int, tuple[int, float]] = {}
        scale = {} if self._scale is None else {"scale": self._scale.value}

        async def compute(replica: _ModelReplica, mine: Sequence[int]) -> None:
            state = replica.state
            assert state is not None
            for at in mine:
                leaves, form = optree.tree_flatten(shards[at])
                refs = [await replica.device.put(leaf) for leaf in leaves]
                shard = optree.tree_unflatten(form, refs)
                loss, grads = await self._step(replica.device, state.params, shard, **scale)
                flat = await state.gathered(grads)
                losses[at] = replica.rank, float(await replica.device.get(loss))
                await self._join(nodes, (0, at), replica, flat)

        await each_rank(
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
        self._checked_losses(number, losses.values())
        if self._scale is not None:
            share /= self._scale.value
        norm = await root.state.norm(total, share)
        skipped = self._skips(number, norm)
        share *= self._clipped(norm)

        async def update(replica: _ModelReplica, _mine: Sequence[int]) -> None:
            state = replica.state
            assert state is not None
            if skipped:
                state.step += 1
                return
            here = total if replica is root else await replica.device.copy(total)
            replica.state = None  # half of it may be written
            await state.update(self._optimizer, here, share)
            replica.state = state

        with trio.CancelScope(shield=True):  # all ranks make the step, or it is repeated
            try:
                await each_rank([(update, each, ()) for each in live])
            except FAULTS:
                if self._reached != number + 1:
                    raise
        return TrainStep(number, loss, norm, 0, skipped)

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
        left = [each for each in self._replicas if not each.device.closed]
        if not left:
            raise DeviceLost("all devices of the trainer are lost")
        self._replicas = left
        best = max(
            (state for each in left if (state := each.valid)), key=lambda s: s.step, default=None
        )
        if best is None:
            await self._settle()
        for each in left:
            state = each.valid
            if state is not None and best is not None and state.step == best.step:
                continue
            if best is not None:
                buffers = [await each.device.copy(buffer) for buffer in best.buffers]
                step = best.step
            else:
                assert self._snapshot is not None
                buffers = await each.device.restore(self._snapshot)
                step = self._saved
            each.state = ModelState(self._layout, each.device, buffers, step)
            self._restored += 1

    async def _after(self, steps: int) -> None:
        every = self._options.digest_every
        try:
            if every is not None and steps % every == 0:
                await self._compare(steps)
            if steps % self._options.snapshot_every == 0:
                await self._save()
            elif self._moving is not None and self._moving[0].statistics().state != "moving":
                await self._settle()
        except FAULTS:
            return

    async def _compare(self, steps: int) -> None:
        found: dict[int, int] = {}

        async def digest(replica: _ModelReplica, _mine: Sequence[int]) -> None:
            if (state := replica.valid) is not None:
                found[replica.rank] = await state.digest()

        await each_rank([(digest, each, ()) for each in self._replicas])
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
        """Take a snapshot, which moves to the host while steps go on."""
        await self._settle()
        for each in self._replicas:
            state = each.valid
            if state is not None and state.step == self._reached:
                buffers = state.buffers
                with suppress(OutOfMemory):  # else the next update waits until all is on the host
                    buffers = tuple([await each.device.copy(buffer) for buffer in buffers])
                self._moving = await each.device.snapshot(buffers), state.step
                return

    async def _settle(self) -> None:
        """Wait for the snapshot that is moving, and forget what came before it.

        If a fault has taken it, the one before is still there, with the batches since.
        """
        if self._moving is None:
            return
        made, step = self._moving
        try:
            await made.wait()
        except FAULTS:
            self._moving = None
            made.close()
            return
        self._moving = None
        if self._snapshot is not None:
            self._snapshot.close()
        self._snapshot = made
        self._forget(step)

    def close(self) -> None:
        """Free the snapshots."""
        for each in (self._snapshot, self._moving and self._moving[0]):
            if each is not None:
                each.close()
        self._snapshot = self._moving = None


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
    loss_scale: LossScale | None = None,
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
        loss_scale: a factor of the loss for gradients of float16. A step whose gradients are not
            finite changes nothing but the scale, and counts as a step. If they are not finite at a
            scale of 1 or less, that is an error.
        **place: ``system``, ``name`` and ``parent``: the trainer's place in a tree of actors.
    """
    ranks = checked_ranks(devices, optimizer)
    if not callable(step):
        raise TypeError(f"step must be an async function, not {said_of(step)}")
    if shards is None:
        shards = 1 << (len(devices) - 1).bit_length()
    if shards < len(devices) or shards & (shards - 1):
        raise ValueError(
            f"shards must be a power of two and at least the number of devices, {len(devices)}, "
            f"not {shards}"
        )
    options = TrainerOptions(clip, snapshot_every, digest_every, attempts, loss_scale)
    layout = ModelLayout(params, optimizer)
    trainer = DataParallel(ranks, step, optimizer, layout, options, shards)
    async with opened(trainer, params, place):
        yield trainer
