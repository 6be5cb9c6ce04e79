"""Trainers of models that are cut into parts, each on one device, with snapshots of all parts."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import trio

from .._errors import DeviceLost
from ..device import Device, Snapshot
from ._optimizers import Optimizer
from ._state import ModelLayout, ModelState, taken
from ._trainer import FAULTS, LockstepTrainer, TrainerOptions, each_rank


@final
class ModelPart:
    """A part of a model: its layout, and its state once a device has it."""

    def __init__(self, number: int, layout: ModelLayout, rank: int, device: Device) -> None:
        self.number: Final = number
        self.layout: Final = layout
        self.rank = rank
        self.device = device
        self.state: ModelState | None = None

    def valid_at(self, step: int | None = None) -> bool:
        """Tell whether the part is there, and has made a number of steps."""
        state = self.state
        return (
            state is not None
            and not self.device.closed
            and not state.lost
            and step in (None, state.step)
        )


class PartedTrainer(LockstepTrainer):
    """A trainer whose parts are all needed: after a fault they go back to a snapshot of all.

    The parts do not depend on the devices. A device has several, if there are more of them.
    """

    def __init__(
        self,
        ranks: Sequence[tuple[int, Device]],
        optimizer: Optimizer,
        layout: ModelLayout,
        options: TrainerOptions,
        layouts: Sequence[ModelLayout],
    ) -> None:
        super().__init__(optimizer, layout, options)
        self._live = list(ranks)
        self._parts = [ModelPart(n, each, *ranks[0]) for n, each in enumerate(layouts)]
        self._place()
        self._snapshots: list[list[Snapshot]] = []  # of all parts, the newest last; two at most

    @property
    def _reached(self) -> int:
        found = {each.state.step if each.state and each.valid_at() else -1 for each in self._parts}
        return found.pop() if len(found) == 1 and -1 not in found else self._saved

    def close(self) -> None:
        """Free the snapshots."""
        for group in self._snapshots:
            for each in group:
                each.close()
        self._snapshots.clear()

    def _ranks(self) -> list[tuple[int, Device]]:
        return self._live

    def _place(self) -> None:
        """Give each device parts that follow each other."""
        for (rank, device), numbers in zip(
            self._live, np.array_split(np.arange(len(self._parts)), len(self._live)), strict=True
        ):
            for number in numbers.tolist():
                self._parts[number].rank, self._parts[number].device = rank, device

    def _mine(self, rank: int) -> list[ModelPart]:
        return [each for each in self._parts if each.rank == rank]

    # --- the whole model --------------------------------------------------------------------

    @abstractmethod
    def _cut(self, whole: Any) -> list[Any]:
        """Cut a tree of all parameters into a tree for each part."""

    @abstractmethod
    def _joined(self, trees: Sequence[Any]) -> Any:
        """Return the tree of all parameters."""

    async def _read(self, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        flats = []
        for at in range(count):
            trees = []
            for part in self._parts:
                assert part.state is not None
                flat = await part.device.get(part.state.buffers[at])
                trees.append(part.layout.tree(flat))
            flats.append(self._layout.flat(self._joined(trees)))
        return flats, self._reached

    async def _install(self, flats: Sequence[np.ndarray[Any, Any]], step: int) -> None:
        cuts = [self._cut(self._layout.tree(flat)) for flat in flats]
        self._leave_out()
        made = [
            await ModelState.put(
                *(part.device, part.layout),
                [part.layout.flat(cut[part.number]) for cut in cuts],
                step,
            )
            for part in self._parts
        ]
        snapshots = await taken(made)
        self.close()
        self._snapshots.append(snapshots)
        for part, state in zip(self._parts, made, strict=True):
            part.state = state

    # --- steps ------------------------------------------------------------------------------

    async def _norm(self, totals: Sequence[Any], share: float) -> float:
        """Return the norm of all gradients."""
        norms = [0.0] * len(self._parts)

        async def measure(part: ModelPart, total: Any) -> None:
            assert part.state is not None
            norms[part.number] = await part.state.norm(total, share)

        await each_rank([(measure, p, t) for p, t in zip(self._parts, totals, strict=True)])
        return math.sqrt(sum(each * each for each in norms))

    async def _update(self, number: int, totals: Sequence[Any], share: float, norm: float) -> bool:
        """Have all parts make a step, and return whether it was skipped."""
        skipped = self._skips(number, norm)
        share *= self._clipped(norm)

        async def update(part: ModelPart, total: Any) -> None:
            state = part.state
            assert state is not None
            if skipped:
                state.step += 1
                return
            part.state = None  # half of it may be written
            await state.update(self._optimizer, total, share)
            part.state = state

        with trio.CancelScope(shield=True):  # all parts make the step, or it is repeated
            await each_rank([(update, p, t) for p, t in zip(self._parts, totals, strict=True)])
        return skipped

    # --- faults -----------------------------------------------------------------------------

    def _leave_out(self) -> None:
        """Give the parts of devices that are lost for good to the others."""
        live = [(rank, device) for rank, device in self._live if not device.closed]
        if not live:
            raise DeviceLost("all devices of the trainer are lost")
        if len(live) < len(self._live):
            self._live = live
            self._place()

    async def _repair(self) -> None:
        self._leave_out()
        step = self._reached
        if all(each.valid_at(step) and each.state.device is each.device for each in self._parts):  # type: ignore[union-attr]
            return
        for part, snapshot in zip(self._parts, self._snapshots[-1], strict=True):
            state = part.state
            if state and state.device is part.device and part.valid_at(self._saved):
                continue
            buffers = await part.device.restore(snapshot)
            part.state = ModelState(part.layout, part.device, buffers, self._saved)
            self._restored += 1

    async def _after(self, steps: int) -> None:
        every = self._options.digest_every
        try:
            if every is not None and steps % every == 0:
                await self._compare(steps)
            if steps % self._options.snapshot_every == 0 and self._reached == steps:
                older = self._snapshots.pop(0) if len(self._snapshots) == 2 else []
                try:
                    states = [each.state for each in self._parts if each.state is not None]
                    self._snapshots.append(await taken(states))
                finally:
                    for each in older:
                        each.close()
                self._forget(steps)
        except FAULTS:
            return

    async def _compare(self, steps: int) -> None:  # noqa: ARG002 (of those that compare)
        """Compare what several parts have; by default they have nothing in common."""
        await trio.lowlevel.checkpoint()
