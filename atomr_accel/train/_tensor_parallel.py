"""Tensor parallel training: each matrix is cut into parts, which compute one batch together."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Literal, Unpack, final

import numpy as np
import trio
from numpy.lib.array_utils import normalize_axis_index

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
from ._state import ModelLayout, word_digest
from ._tape import Tape
from ._trainer import (
    FAULTS,
    ReplicasDiffer,
    TrainerOptions,
    TrainStep,
    checked_ranks,
    each_rank,
    opened,
)
from ._trees import optree
from ._values import TapeValue

SplitOf = int | Literal["summed"] | None
"""Form of a parameter in the parts: cut along an axis, whole, or whole and used on cut rows."""


class _PartExchange:
    """Exchanges of buffers between parts: the n-th of one is the n-th of all others."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._given: dict[int, list[Any]] = {}
        self._complete: dict[int, trio.Event] = {}
        self._left: list[int | None] = [None] * count

    async def exchange(self, part: int, number: int, kind: str, ref: GpuRef) -> list[GpuRef]:
        """Give a buffer, and return those of all parts in their order."""
        given = self._given.setdefault(number, [None] * self._count)
        complete = self._complete.setdefault(number, trio.Event())
        given[part] = kind, ref
        self._check(number)
        if all(each is not None for each in given):
            complete.set()
        await complete.wait()
        refs = [each[1] for each in given]
        self._left[part] = number
        if all(left is not None and left >= number for left in self._left):
            self._given.pop(number, None)
            self._complete.pop(number, None)
        return refs

    def finish(self, part: int) -> None:
        """Note that a part exchanges no more."""
        self._left[part] = 1 << 62
        for number in self._given:
            self._check(number)

    def _check(self, number: int) -> None:
        given = self._given[number]
        kinds = {(each[0], each[1].shape) for each in given if each is not None}
        missing = any(each is None and self._left[at] == 1 << 62 for at, each in enumerate(given))
        if len(kinds) > 1 or missing:
            found = ", ".join(sorted(f"{kind} of {shape}" for kind, shape in kinds))
            raise ValueError(
                f"all parts must exchange the same, in the same order, not {found}"
                f"{' and nothing' if missing else ''}; let nothing depend on part.index"
            )


@final
class TensorPart:
    """A part of a model in one step: its tape, and its exchanges with the other parts.

    Methods that are async are collective: all parts call them in the same order. Values are either
    *whole*, the same on all parts, or *cut*. Outside of these methods a part computes alone.

    Attributes:
        index: number of the part.
        count: number of parts.
        tape: the tape of the part, for ops; see `Tape`.
    """

    def __init__(
        self, index: int, devices: Sequence[Device], tape: Tape, meeting: _PartExchange
    ) -> None:
        self.index: Final = index
        self.count: Final = len(devices)
        self.tape: Final = tape
        self._devices = devices
        self._device = devices[index]
        self._meeting = meeting
        self._number = 0
        self._open: Any = None

    # --- products ---------------------------------------------------------------------------

    async def column(
        self, x: Any, w: Any, bias: Any = None, *, sequence: int | None = None
    ) -> TapeValue:
        """Multiply by a matrix whose columns are cut, axis 1 in ``split``.

        Args:
            x: whole, of shape (..., k); with ``sequence`` cut along that axis.
            w: the part of the matrix, of shape (k, n / count).
            bias: its part, of shape (n / count,).
            sequence: the axis of rows that ``x`` is cut along.

        Returns:
            Columns of the product, cut, of shape (..., n / count).
        """
        x = self.shared(x) if sequence is None else await self.gathered(x, sequence)
        made = x @ w
        return self.tape.evaluate(made if bias is None else made + bias)  # type: ignore[no-any-return]

    async def row(
        self, x: Any, w: Any, bias: Any = None, *, sequence: int | None = None
    ) -> TapeValue:
        """Multiply by a matrix whose rows are cut, axis 0 in ``split``.

        Args:
            x: columns, cut, of shape (..., k / count).
            w: the part of the matrix, of shape (k / count, n).
            bias: whole, of shape (n,). With ``sequence`` it is ``"summed"`` in ``split``.
            sequence: the axis of rows that the result is cut along.

        Returns:
            The whole product, of shape (..., n); with ``sequence`` cut along that axis.
        """
        product = self.tape.evaluate(x @ w)
        made = await (
            self.total(product) if sequence is None else self.scattered(product, sequence)
        )
        return made if bias is None else self.tape.evaluate(made + bias)  # type: ignore[no-any-return]

    # --- exchanges --------------------------------------------------------------------------

    def shared(self, x: Any) -> Any:
        """Return a whole value for cut computations. Its gradients are added over the parts."""
        x = self._settled(x)
        return self._noted(x, x.ref, self._added) if isinstance(x, TapeValue) else x

    async def total(self, x: Any) -> Any:
        """Add up the values of all parts, and return the whole sum."""
        x = self._settled(x)
        made = await self._reopened(self._added, _ref_of(x))

        async def back(grad: GpuRef) -> GpuRef:
            await trio.lowlevel.checkpoint()
            return grad

        return self._noted(x, made, back)

    async def gathered(self, x: Any, axis: int) -> Any:
        """Join values that are cut along an axis, for cut computations.

        The gradients are added over the parts, and each has its own rows of them.
        """
        x, axis = self._cut_along(x, axis)
        made = await self._reopened(partial(self._joined, axis=axis), _ref_of(x))
        return self._noted(x, made, partial(self._added_part, axis=axis))

    async def scattered(self, x: Any, axis: int) -> Any:
        """Add up the values of all parts, and return this part's rows along an axis."""
        x, axis = self._divided(x, axis)
        made = await self._reopened(partial(self._added_part, axis=axis), _ref_of(x))
        return self._noted(x, made, partial(self._joined, axis=axis))

    def cut(self, x: Any, axis: int) -> Any:
        """Return this part's rows along an axis of a whole value."""
        x, axis = self._divided(x, axis)
        made = self.tape.batch.copy(_ref_of(x)[self._own(x.shape, axis)])
        return self._noted(x, made, partial(self._joined, axis=axis))

    async def whole(self, x: Any, axis: int) -> Any:
        """Join values that are cut along an axis, for computations that all parts repeat."""
        x, axis = self._cut_along(x, axis)
        made = await self._reopened(partial(self._joined, axis=axis), _ref_of(x))

        async def back(grad: GpuRef) -> GpuRef:
            return await self._device.copy(grad[self._own(grad.shape, axis)])

        return self._noted(x, made, back)

    # --- how --------------------------------------------------------------------------------

    def _settled(self, x: Any) -> Any:
        return self.tape.evaluate(x) if isinstance(x, Expression) else x

    def _cut_along(self, x: Any, axis: int) -> tuple[Any, int]:
        x = self._settled(x)
        return x, normalize_axis_index(axis, x.ndim)

    def _divided(self, x: Any, axis: int) -> tuple[Any, int]:
        x, axis = self._cut_along(x, axis)
        if x.shape[axis] % self.count:
            raise ValueError(
                f"axis {axis} must have a multiple of {self.count} elements, the number of parts, "
                f"not {x.shape[axis]}"
            )
        return x, axis

    def _own(self, shape: Sequence[int], axis: int) -> Any:
        size = shape[axis] // self.count
        return (slice(None),) * axis + (slice(self.index * size, (self.index + 1) * size),)

    def _noted(self, x: Any, made: GpuRef, back: Callable[[GpuRef], Awaitable[GpuRef]]) -> Any:
        if not isinstance(x, TapeValue):
            return made

        async def pull(grads: Sequence[GpuRef | None]) -> Sequence[Any]:
            (grad,) = grads
            assert grad is not None
            return (await back(grad),)

        return self.tape.note((made,), (x,), pull, waits=True)[0]

    async def _others(self, kind: str, ref: GpuRef) -> list[GpuRef]:
        number, self._number = self._number, self._number + 1
        return await self._meeting.exchange(self.index, number, kind, ref)

    async def _here(self, at: int, ref: GpuRef, key: Any = ...) -> GpuRef:
        there = self._devices[at]
        if there is self._device:
            return ref[key]
        piece = ref[key]
        if not piece.contiguous:
            piece = await there.copy(piece)
        return await self._device.copy(piece)

    async def _added(self, ref: GpuRef) -> GpuRef:
        """Return the sum over the parts, in their order."""
        refs = await self._others("a sum", ref)
        return await self._sum([await self._here(at, each) for at, each in enumerate(refs)])

    async def _added_part(self, ref: GpuRef, *, axis: int) -> GpuRef:
        """Return this part's rows of the sum over the parts."""
        refs = await self._others("a cut sum", ref)
        key = self._own(ref.shape, axis)
        return await self._sum([await self._here(at, each, key) for at, each in enumerate(refs)])

    async def _joined(self, ref: GpuRef, *, axis: int) -> GpuRef:
        """Return the rows of all parts."""
        refs = await self._others("rows", ref)
        shape = list(ref.shape)
        size, shape[axis] = shape[axis], shape[axis] * self.count
        made = await self._device.empty(tuple(shape), ref.dtype)
        for at, each in enumerate(refs):
            there = (slice(None),) * axis + (slice(at * size, (at + 1) * size),)
            await self._device.copy(await self._here(at, each), made[there])
        return made

    async def _sum(self, refs: Sequence[GpuRef]) -> GpuRef:
        if len(refs) == 1:
            return await self._device.copy(refs[0])
        total: Any = refs[0]
        for each in refs[1:]:
            total = total + each
        return await self._device.evaluate(total)

    # --- batches, which end before each exchange -----------------------------------------------

    async def begin(self) -> None:
        """Open a batch for the tape."""
        opened = self._device.batch()
        self.tape.batch = await opened.__aenter__()
        self._open = opened

    async def end(self, error: BaseException | None = None) -> None:
        """Close the batch."""
        opened, self._open = self._open, None
        if opened is not None:
            kind = None if error is None else type(error)
            await opened.__aexit__(kind, error, None)

    async def _reopened(self, exchange: Callable[[GpuRef], Awaitable[GpuRef]], ref: GpuRef) -> Any:
        await self.end()
        made = await exchange(ref if ref.contiguous else await self._device.copy(ref))
        await self.begin()
        return made

    async def gradients(self, loss: TapeValue, scale: float, wanted: Sequence[TapeValue]) -> Any:
        """Compute the gradients, with the exchanges of the forward pass in reverse."""
        seed = self.tape.batch.full((), scale, loss.dtype)
        steps = self.tape.steps_back([(loss, seed)], wanted)
        made: Any = None
        while True:
            try:
                pull, refs = steps.send(made)
            except StopIteration as end:
                return end.value
            await self.end()
            made = await pull(refs)
            await self.begin()


def _ref_of(x: Any) -> GpuRef:
    ref = x.ref if isinstance(x, TapeValue) else x
    if not isinstance(ref, GpuRef):
        raise TypeError(f"an exchange must get a value of the tape, not {said_of(x)}")
    return ref


@final
class TensorParallel(PartedTrainer):
    """A trainer; see `open_tensor_parallel`."""

    def __init__(
        self,
        ranks: Sequence[tuple[int, Device]],
        function: Callable[..., Awaitable[Any]],
        optimizer: Optimizer,
        layout: ModelLayout,
        options: TrainerOptions,
        layouts: Sequence[ModelLayout],
        splits: Sequence[SplitOf],
    ) -> None:
        super().__init__(ranks, optimizer, layout, options, layouts)
        self._function = function
        self._splits = splits

    def _cut(self, whole: Any) -> list[Any]:
        return cut_tree(whole, self._splits, len(self._parts))

    def _joined(self, trees: Sequence[Any]) -> Any:
        leaves = [optree.tree_leaves(tree) for tree in trees]
        made = [
            np.concatenate([each[at] for each in leaves], axis=axis)
            if isinstance(axis, int)
            else leaves[0][at]
            for at, axis in enumerate(self._splits)
        ]
        return optree.tree_unflatten(self._layout.form, made)

    def _split(self, batch: Any) -> Any:
        leaves = optree.tree_leaves(batch)
        if not leaves:
            raise ValueError("a batch must have at least one array, not none")
        for leaf in leaves:
            if not isinstance(leaf, np.ndarray):
                raise TypeError(f"a batch must be a tree of NumPy arrays, not {said_of(leaf)}")
            if not leaf.size:
                raise ValueError(f"arrays of a batch must have elements, not shape {leaf.shape}")
        return batch

    async def _attempt(self, number: int) -> TrainStep:
        batch = self._batches[number]
        meeting = _PartExchange(len(self._parts))
        devices = [each.device for each in self._parts]
        totals: list[Any] = [None] * len(self._parts)
        losses = [0.0] * len(self._parts)
        faults: list[Exception] = []

        async def work(part: ModelPart, scope: trio.CancelScope) -> None:
            try:
                losses[part.number], totals[part.number] = await self._gradients(
                    part, devices, batch, meeting
                )
            except FAULTS as error:
                faults.append(error)
                scope.cancel()

        async with PlainNursery() as nursery:
            for part in self._parts:
                nursery.start_soon(work, part, nursery.cancel_scope)
        if faults:
            raise faults[0]
        ranks = [part.rank for part in self._parts]
        self._checked_losses(number, zip(ranks, losses, strict=True))
        share = 1.0 if self._scale is None else 1 / self._scale.value
        norm = await self._norm(totals, share)
        skipped = await self._update(number, totals, share, norm)
        return TrainStep(number, losses[0], norm, 0, skipped)

    async def _gradients(
        self, part: ModelPart, devices: Sequence[Device], arrays: Any, meeting: _PartExchange
    ) -> tuple[float, GpuRef]:
        state, device = part.state, part.device
        assert state is not None
        leaves, form = optree.tree_flatten(arrays)
        batch = optree.tree_unflatten(form, [await device.put(leaf) for leaf in leaves])
        tensor = TensorPart(part.number, devices, Tape(None), meeting)
        await tensor.begin()
        try:
            params = [TapeValue(tensor.tape, leaf) for leaf in optree.tree_leaves(state.params)]
            used = [
                tensor.shared(value) if axis == "summed" else value
                for value, axis in zip(params, self._splits, strict=True)
            ]
            tree = optree.tree_unflatten(part.layout.form, used)
            loss = await self._function(tensor, tree, batch)
            if isinstance(loss, Expression):
                loss = tensor.tape.evaluate(loss)
            if not isinstance(loss, TapeValue) or loss.shape != () or not is_float(loss.dtype):
                raise TypeError(
                    "the function must return one float that depends on the parameters, shape (), "
                    f"not {said_of(loss)}; take the mean: np.mean(losses)"
                )
            scale = 1.0 if self._scale is None else self._scale.value
            grads = await tensor.gradients(loss, scale, params)
        except BaseException as error:
            await tensor.end(error)
            raise
        await tensor.end()
        meeting.finish(part.number)
        flat = await state.gathered(optree.tree_unflatten(part.layout.form, grads))
        return float(await device.get(loss.ref)), flat

    async def _norm(self, totals: Sequence[Any], share: float) -> float:
        """Return the norm of all gradients; parameters that all parts have count once."""
        squares = [0.0] * len(self._parts)

        async def measure(part: ModelPart, total: Any) -> None:
            trees = optree.tree_leaves(part.layout.tree(total))
            async with part.device.batch() as batch:
                found = [
                    batch.get(batch.evaluate(np.sum(np.square(leaf * share))))
                    for leaf, axis in zip(trees, self._splits, strict=True)
                    if isinstance(axis, int) or part.number == 0
                ]
            squares[part.number] = sum(float(each.value) for each in found)

        await each_rank([(measure, p, t) for p, t in zip(self._parts, totals, strict=True)])
        return float(np.sqrt(sum(squares)))

    async def _compare(self, steps: int) -> None:
        """Compare the parameters that all parts have whole."""
        common = [at for at, axis in enumerate(self._splits) if not isinstance(axis, int)]
        if not common or len(self._parts) == 1:
            return
        found: dict[int, tuple[int, ...]] = {}

        async def digest(part: ModelPart, _given: Any) -> None:
            assert part.state is not None
            leaves = [
                each
                for buffer in part.state.buffers
                for at, each in enumerate(optree.tree_leaves(part.layout.tree(buffer)))
                if at in common
            ]
            async with part.device.batch() as batch:
                made = [batch.get(word_digest(each)) for each in leaves]
            found[part.number] = tuple(int(each.value) for each in made)

        await each_rank([(digest, each, None) for each in self._parts])
        if len(set(found.values())) < 2:
            return
        (right, votes), *_ = Counter(found.values()).most_common(1)
        if votes * 2 <= len(found):
            ranks = tuple(sorted({part.rank for part in self._parts}))
            raise ReplicasDiffer(
                f"what parts on ranks {ranks} have in common must be the same after step "
                f"{steps - 1}, and differs without a majority; load an earlier snapshot",
                step=steps,
                ranks=ranks,
            )
        for part in self._parts:
            if found[part.number] != right:
                self._corrupt.append(part.rank)
                part.state = None


def cut_tree(whole: Any, splits: Sequence[SplitOf], count: int) -> list[Any]:
    """Return the trees of all parts."""
    leaves, form = optree.tree_flatten(whole)
    pieces = [
        [np.ascontiguousarray(each) for each in np.split(leaf, count, axis)]
        if isinstance(axis, int)
        else [leaf] * count
        for leaf, axis in zip(leaves, splits, strict=True)
    ]
    return [optree.tree_unflatten(form, [each[at] for each in pieces]) for at in range(count)]


def _checked_splits(
    params: Any, split: Callable[[tuple[Any, ...], tuple[int, ...]], SplitOf], count: int
) -> list[SplitOf]:
    leaves, form = optree.tree_flatten(params)
    made: list[SplitOf] = []
    for path, leaf in zip(optree.treespec_paths(form), leaves, strict=True):
        axis = split(path, leaf.shape)
        where = ".".join(str(key) for key in path) or "params"
        if axis is not None and axis != "summed":
            if not isinstance(axis, int):
                raise TypeError(
                    f"split of {where} must be an axis, None or 'summed', not {said_of(axis)}"
                )
            if not 0 <= axis < len(leaf.shape) or leaf.shape[axis] % count:
                raise ValueError(
                    f"split of {where} must be an axis that {count} parts divide, not {axis} of "
                    f"shape {leaf.shape}"
                )
        made.append(axis)
    return made


@asynccontextmanager
async def open_tensor_parallel(
    devices: Sequence[Device],
    function: Callable[..., Awaitable[Any]],
    params: Any,
    optimizer: Optimizer,
    *,
    split: Callable[[tuple[Any, ...], tuple[int, ...]], SplitOf],
    parts: int | None = None,
    clip: float | None = None,
    snapshot_every: int = 10,
    digest_every: int | None = None,
    attempts: int = 4,
    loss_scale: LossScale | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[TensorParallel]:
    """Train a model whose matrices are cut, so that several devices compute each batch together.

    ::

        async def model_loss(part, p, batch):
            hidden = part.tape.dnn.gelu(await part.column(batch["x"], p["up"]))
            return train.mse(await part.row(hidden, p["down"]), batch["y"])


        def split(path, shape):
            return {"up": 1, "down": 0}[path[0]]


        async with train.open_tensor_parallel(
            devices, model_loss, params, train.AdamW(lr=1e-3), split=split
        ) as trainer:
            async for made in trainer.run(batches):
                ...

    Sums over the parts are in their order, on every device. So devices of one kind give the same
    bits, however many they are: what counts is the number of parts.

    After a fault all parts go back to the snapshot in host memory, and the steps since are
    repeated: with ``snapshot_every=1`` only one. The parts of a device that is lost for good go to
    the others.

    ``function`` is an async function of a `TensorPart`, its parameters and the batch. All parts run
    it side by side, and it returns the same loss on each. ``params`` are the whole ones.

    ``split`` says how the parts have a parameter, from its path in the tree and its shape: the axis
    that is cut, or None if each part has all of it. ``"summed"`` is for one that each part has, but
    uses on rows of its own: a norm of a sequence that is cut. ``parts`` is their number, at least
    that of the devices; by default the same.

    With ``digest_every`` what all parts have is compared, and a part that differs from the majority
    comes back from the snapshot. Other arguments are those of `open_data_parallel`.
    """
    ranks = checked_ranks(devices, optimizer)
    count = len(devices) if parts is None else parts
    if count < len(devices):
        raise ValueError(
            f"parts must be at least the number of devices, {len(devices)}, not {count}"
        )
    options = TrainerOptions(clip, snapshot_every, digest_every, attempts, loss_scale)
    layout = ModelLayout(params, optimizer)
    splits = _checked_splits(params, split, count)
    layouts = [ModelLayout(each, optimizer) for each in cut_tree(params, splits, count)]
    trainer = TensorParallel(ranks, function, optimizer, layout, options, layouts, splits)
    async with opened(trainer, params, place):
        yield trainer
