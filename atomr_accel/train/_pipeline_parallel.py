"""Pipeline parallel training: stages on devices, and micro-batches that follow each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Unpack, final

import trio

from .._dtypes import is_float
from .._errors import said_of
from ..actors import Place
from ..actors.nursery import PlainNursery
from ..arrays import GpuRef
from ..arrays.expressions import Expression
from ..device import Device
from ._optimizers import Optimizer
from ._parts import ModelPart, PartedTrainer
from ._schedules import LossScale
from ._state import ModelLayout
from ._tape import Tape
from ._trainer import FAULTS, TrainerOptions, TrainStep, checked_ranks, cut_rows, opened
from ._trees import optree
from ._values import TapeValue


def one_forward_one_backward(rank: int, ranks: int, count: int) -> list[tuple[bool, int]]:
    """Return a rank's order of work, each whether forward and which micro-batch.

    A rank first fills the ranks after it. Then it does one backward pass for each forward pass, so
    that it keeps what at most ``ranks - rank`` micro-batches need.
    """
    ahead = min(ranks - rank - 1, count)
    order = [(True, at) for at in range(ahead)]
    for at in range(count - ahead):
        order += [(True, ahead + at), (False, at)]
    return order + [(False, at) for at in range(count - ahead, count)]


class _Passed(NamedTuple):
    """Forward pass of a micro-batch in a stage, kept for the backward pass."""

    tape: Tape
    params: list[TapeValue]
    x: TapeValue | None
    result: TapeValue


class _StageLetters:
    """Buffers that stages give each other in one step."""

    def __init__(self) -> None:
        self._there: defaultdict[Any, trio.Event] = defaultdict(trio.Event)
        self._refs: dict[Any, GpuRef] = {}

    def give(self, key: Any, ref: GpuRef) -> None:
        self._refs[key] = ref
        self._there[key].set()

    async def take(self, key: Any) -> GpuRef:
        await self._there[key].wait()
        return self._refs.pop(key)


@final
class PipelineParallel(PartedTrainer):
    """A trainer; see `open_pipeline_parallel`."""

    def __init__(
        self,
        ranks: Sequence[tuple[int, Device]],
        stages: Sequence[Callable[..., Any]],
        optimizer: Optimizer,
        layout: ModelLayout,
        options: TrainerOptions,
        layouts: Sequence[ModelLayout],
        micro_batches: int,
    ) -> None:
        super().__init__(ranks, optimizer, layout, options, layouts)
        self._stages = list(stages)
        self._count = micro_batches

    def _cut(self, whole: Any) -> list[Any]:
        return list(whole)

    def _joined(self, trees: Sequence[Any]) -> Any:
        return list(trees)

    def _split(self, batch: Any) -> list[Any]:
        return cut_rows(batch, self._count, "micro-batches")

    async def _attempt(self, number: int) -> TrainStep:
        micro = self._batches[number]
        forward, backward = _StageLetters(), _StageLetters()
        kept: dict[tuple[int, int], _Passed] = {}
        totals: list[Any] = [None] * len(self._parts)
        losses = [0.0] * self._count
        faults: list[Exception] = []

        async def ahead(part: ModelPart, at: int) -> None:
            passed, loss = await self._forward(part, micro[at], at, forward)
            kept[part.number, at] = passed
            if loss is not None:
                losses[at] = loss

        async def back(part: ModelPart, at: int) -> None:
            flat = await self._backward(part, kept.pop((part.number, at)), at, backward)
            before = totals[part.number]
            totals[part.number] = (
                flat if before is None else await part.device.evaluate(before + flat, out=before)
            )

        async def work(position: int, parts: list[ModelPart], scope: trio.CancelScope) -> None:
            try:
                for is_forward, at in one_forward_one_backward(position, len(used), self._count):
                    for part in parts if is_forward else reversed(parts):
                        await (ahead if is_forward else back)(part, at)
            except FAULTS as error:
                faults.append(error)
                scope.cancel()

        used = [parts for rank, _ in self._live if (parts := self._mine(rank))]
        async with PlainNursery() as nursery:
            for position, parts in enumerate(used):
                nursery.start_soon(work, position, parts, nursery.cancel_scope)
        if faults:
            raise faults[0]
        self._checked_losses(number, [(self._parts[-1].rank, loss) for loss in losses])
        share = 1 / self._count / (1.0 if self._scale is None else self._scale.value)
        norm = await self._norm(totals, share)
        skipped = await self._update(number, totals, share, norm)
        return TrainStep(number, sum(losses) / self._count, norm, 0, skipped)

    async def _forward(
        self, part: ModelPart, shard: Any, at: int, letters: _StageLetters
    ) -> tuple[_Passed, float | None]:
        """Compute a stage, and give its result to the next, or return the loss."""
        state, device, number = part.state, part.device, part.number
        assert state is not None
        last = number == len(self._stages) - 1
        given: Any = None
        if number == 0 or last:
            leaves, form = optree.tree_flatten(shard)
            given = optree.tree_unflatten(form, [await device.put(leaf) for leaf in leaves])
        before = None
        if number:
            before = await letters.take((number, at))
            if self._parts[number - 1].device is not device:
                before = await device.copy(before)
        leaves, form = optree.tree_flatten(state.params)
        async with device.batch() as batch:
            tape = Tape(batch)
            params = [TapeValue(tape, leaf) for leaf in leaves]
            x = None if before is None else TapeValue(tape, before)
            args = [given if x is None else x, *([given] if last else [])]
            made = self._stages[number](tape, optree.tree_unflatten(form, params), *args)
            result = tape.evaluate(made) if isinstance(made, Expression) else made
            _check_result(number, result, last=last)
            if not last and not result.ref.contiguous:
                result = tape.copy(result)
        passed = _Passed(tape, params, x, result)
        if not last:
            letters.give((number + 1, at), result.ref)
            return passed, None
        return passed, float(await device.get(result.ref))

    async def _backward(
        self, part: ModelPart, passed: _Passed, at: int, letters: _StageLetters
    ) -> Any:
        """Compute the gradients of a stage; return those of parameters, and give on the others."""
        state, device, number = part.state, part.device, part.number
        assert state is not None
        slope = None
        if number < len(self._stages) - 1:
            slope = await letters.take((number, at))
            if self._parts[number + 1].device is not device:
                slope = await device.copy(slope)
        async with device.batch() as batch:
            tape = passed.tape
            tape.batch = batch
            if slope is None:
                scale = 1.0 if self._scale is None else self._scale.value
                slope = batch.full((), scale, passed.result.dtype)
            wanted = [*passed.params, *([] if passed.x is None else [passed.x])]
            grads = tape.backward([(passed.result, slope)], wanted)
        if passed.x is not None:
            letters.give((number - 1, at), grads.pop())
        return await state.gathered(optree.tree_unflatten(part.layout.form, grads))


def _check_result(number: int, result: Any, *, last: bool) -> None:
    if not isinstance(result, TapeValue) or not is_float(result.dtype):
        raise TypeError(
            f"stage {number} must return floats that depend on its parameters, not "
            f"{said_of(result)}; is it async, or without a return?"
        )
    if last and result.shape != ():
        raise ValueError(
            f"the last stage must return the loss, shape (), not {result.shape}; take the mean: "
            "np.mean(losses)"
        )


@asynccontextmanager
async def open_pipeline_parallel(
    devices: Sequence[Device],
    stages: Sequence[Callable[..., Any]],
    params: Sequence[Any],
    optimizer: Optimizer,
    *,
    micro_batches: int,
    clip: float | None = None,
    snapshot_every: int = 10,
    attempts: int = 4,
    loss_scale: LossScale | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[PipelineParallel]:
    """Train a model whose stages are on several devices.

    ::

        def first(tape, p, batch):
            return tape.dnn.gelu(tape.blas.gemm(batch["x"], p["w"]))


        def last(tape, p, hidden, batch):
            return train.mse(tape.blas.gemm(hidden, p["w"]), batch["y"])


        async with train.open_pipeline_parallel(
            devices, [first, last], [{"w": w1}, {"w": w2}], train.AdamW(lr=1e-3), micro_batches=8
        ) as trainer:
            async for made in trainer.run(batches):
                ...

    A batch is cut into micro-batches, which follow each other through the stages. Each device does
    one forward and one backward pass in turn (1F1B), and keeps what at most as many micro-batches
    need as there are devices from it on. Gradients of a stage are added in the order of the
    micro-batches. So devices of one kind give the same bits, however many they are.

    After a fault all stages go back to the snapshot in host memory, and the steps since are
    repeated: with ``snapshot_every=1`` only one. The stages of a device that is lost for good go to
    the others.

    Each device has stages that follow each other. ``stages`` are functions of a tape, the stage's
    parameters, and what the stage before has returned: one array of floats. The first gets the
    micro-batch instead. The last gets the micro-batch besides, and returns the loss, a mean over
    its rows. A single stage gets it twice. ``params`` are a tree of arrays for each stage, all of
    one float dtype. ``micro_batches`` is the number of parts of a batch. Other arguments are those
    of `open_data_parallel`.
    """
    ranks = checked_ranks(devices, optimizer)
    if not stages or len(stages) != len(params):
        raise ValueError(
            f"stages must be one or more, each with parameters, not {len(stages)} stages and "
            f"{len(params)} trees of parameters"
        )
    if micro_batches < 1:
        raise ValueError(f"micro_batches must be at least 1, not {micro_batches}")
    options = TrainerOptions(clip, snapshot_every, None, attempts, loss_scale)
    whole = list(params)
    trainer = PipelineParallel(
        *(ranks, stages, optimizer, ModelLayout(whole, optimizer), options),
        [ModelLayout(each, optimizer) for each in whole],
        micro_batches,
    )
    async with opened(trainer, whole, place):
        yield trainer
