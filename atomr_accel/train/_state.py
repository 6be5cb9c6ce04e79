"""Parameters and optimizer state of a model on one device, in flat buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import ml_dtypes
import numpy as np

from .._dtypes import is_float
from .._errors import said_of
from ..arrays import GpuRef
from ..arrays.expressions import cast, index
from ._optimizers import Optimizer
from ._schedules import rate_of
from ._trees import optree

if TYPE_CHECKING:
    from ..device import Device, Snapshot

ALIGNED: Final = 64
"""Elements, a multiple of which each parameter begins at. Kernels want 16 bytes at least."""

_HALVES: Final = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class ParameterPlace(NamedTuple):
    """Place of one parameter in the flat buffers.

    Attributes:
        name: its path in the tree, with dots.
        start: its first element in the flat buffers.
    """

    name: str
    shape: tuple[int, ...]
    start: int


@final
class ModelLayout:
    """Form of a model, the same on all devices.

    Attributes:
        form: the form of the tree.
        places: the parameters, in the order of the tree.
        size: number of elements of a flat buffer, those between parameters included.
        decayed: number of elements that weight decay shrinks; they come first.
        gaps: first element and end of each part of a flat buffer that has elements between
            parameters. They are always zero.
        dtype: the parameters' dtype.
        master_dtype: the dtype of the optimizer: float32 for parameters of 16 bits.
    """

    def __init__(self, params: Any, optimizer: Optimizer) -> None:
        leaves, form = optree.tree_flatten(params)
        if not leaves:
            raise ValueError("params must have at least one array, not none")
        paths = optree.treespec_paths(form)
        kinds: list[np.dtype[Any]] = []
        flags: list[bool] = []
        for path, leaf in zip(paths, leaves, strict=True):
            where = ".".join(str(key) for key in path) or "params"
            if not isinstance(leaf, np.ndarray):
                raise TypeError(f"{where} must be a NumPy array, not {said_of(leaf)}")
            if not is_float(leaf.dtype):
                raise TypeError(f"{where} must be floats, not {leaf.dtype.name}")
            kinds.append(leaf.dtype)
            decays = optimizer.decays
            flags.append(decays is None or bool(decays(path, leaf.shape)))
        if len(set(kinds)) > 1:
            names = ", ".join(sorted({kind.name for kind in kinds}))
            raise TypeError(
                f"params must have one dtype, not {names}; bfloat16 parameters have masters of "
                "float32 by themselves"
            )
        if not sum(leaf.size for leaf in leaves):
            raise ValueError("params must have at least one element, not none")
        starts = [0] * len(leaves)
        ends: list[int] = []
        gaps: list[tuple[int, int]] = []
        at = 0
        for flag in (True, False):
            mine = [number for number in range(len(leaves)) if flags[number] is flag]
            # Those that leave a gap come last, so that the gaps of all are in one part.
            mine.sort(key=lambda number: leaves[number].size % ALIGNED > 0)
            even = at
            for number in mine:
                size = leaves[number].size
                starts[number] = at
                at += -(-size // ALIGNED) * ALIGNED
                if size % ALIGNED == 0:
                    even = at
            ends.append(at)
            if even < at:
                gaps.append((even, at))
        self.decayed: Final = ends[0]
        self.form: Final = form
        self.size: Final = at
        self.gaps: Final = tuple(gaps)
        self.dtype: Final = kinds[0]
        self.master_dtype: Final = np.dtype(np.float32) if kinds[0] in _HALVES else kinds[0]
        self.places: Final = tuple(
            ParameterPlace(".".join(str(key) for key in path) or "params", leaf.shape, start)
            for path, leaf, start in zip(paths, leaves, starts, strict=True)
        )

    def flat(self, params: Any) -> np.ndarray[Any, Any]:
        """Return a tree of arrays as one, in the dtype of the masters."""
        made = np.zeros(self.size, self.master_dtype)
        for place, leaf in zip(self.places, optree.tree_leaves(params), strict=True):
            made[place.start : place.start + leaf.size] = leaf.ravel()
        return made

    def tree(self, flat: Any) -> Any:
        """Return the views of a flat buffer, or array, as a tree."""
        leaves = [
            flat[place.start : place.start + math.prod(place.shape)].reshape(place.shape)
            for place in self.places
        ]
        return optree.tree_unflatten(self.form, leaves)


@final
class ModelState:
    """Parameters and optimizer state on one device.

    Attributes:
        layout: the form of the model.
        device: the device of the buffers.
        buffers: the masters, the optimizer's slots, and the parameters of 16 bits if there are any.
        step: number of steps it has made.
    """

    def __init__(
        self, layout: ModelLayout, device: Device, buffers: Sequence[GpuRef], step: int
    ) -> None:
        self.layout: Final = layout
        self.device: Final = device
        self.buffers: Final = tuple(buffers)
        self.step: int = step
        self.params: Final = layout.tree(
            self.buffers[0] if layout.dtype == layout.master_dtype else self.buffers[-1]
        )

    @staticmethod
    async def create(
        device: Device, layout: ModelLayout, params: Any, optimizer: Optimizer
    ) -> ModelState:
        """Put a model on a device, with fresh optimizer state."""
        zeros = np.zeros(layout.size, layout.master_dtype)
        flats = [layout.flat(params), *(zeros for _ in range(optimizer.slots))]
        return await ModelState.put(device, layout, flats, 0)

    @staticmethod
    async def put(
        device: Device, layout: ModelLayout, flats: Sequence[np.ndarray[Any, Any]], step: int
    ) -> ModelState:
        """Put a model on a device, with the optimizer state of a step.

        Args:
            device: the device.
            layout: the form of the model.
            flats: the masters and the optimizer's slots, each an array of ``layout.size``.
            step: number of steps that it has made.
        """
        buffers = [await device.put(flat) for flat in flats]
        if layout.dtype != layout.master_dtype:
            buffers.append(await device.put(flats[0].astype(layout.dtype)))
        return ModelState(layout, device, buffers, step)

    @property
    def lost(self) -> bool:
        """True if a fault has taken it."""
        return any(each.is_stale for each in self.buffers)

    async def read(self, count: int) -> tuple[list[np.ndarray[Any, Any]], int]:
        """Return the first buffers as arrays, and the number of steps."""
        return [await self.device.get(each) for each in self.buffers[:count]], self.step

    async def gathered(self, grads: Any) -> GpuRef:
        """Return a tree of gradients as one flat buffer in the dtype of the masters."""
        leaves, form = optree.tree_flatten(grads)
        if form != self.layout.form:
            raise ValueError(f"grads must have the form of the parameters, not {form}")
        for place, leaf in zip(self.layout.places, leaves, strict=True):
            if not isinstance(leaf, GpuRef) or leaf.shape != place.shape:
                found = leaf.shape if isinstance(leaf, GpuRef) else said_of(leaf)
                raise ValueError(
                    f"gradient of {place.name} must have shape {place.shape}, not {found}"
                )
        whole = self._whole(leaves)
        async with self.device.batch() as batch:
            flat = batch.empty(self.layout.size, self.layout.master_dtype)
            if whole is not None:  # which has anything in the gaps
                batch.evaluate(cast(whole, flat.dtype), out=flat)
            for start, end in self.layout.gaps:
                batch.fill(flat[start:end], 0)
            for place, leaf in zip(self.layout.places, leaves, strict=True):
                if whole is not None and not any(a <= place.start < b for a, b in self.layout.gaps):
                    continue
                there = flat[place.start : place.start + leaf.size].reshape(place.shape)
                if leaf.dtype == flat.dtype:
                    batch.copy(leaf, there)
                else:
                    batch.evaluate(cast(leaf, flat.dtype), out=there)
        return flat

    def _whole(self, leaves: Sequence[GpuRef]) -> GpuRef | None:
        """Return the buffer whose views in the model's places these are, or None.

        Recorded steps make such; to gather many gradients takes longer than to compute them.
        """
        dtype, first = leaves[0].dtype, leaves[0].block
        begin = first.offset - self.layout.places[0].start * dtype.itemsize
        for place, leaf in zip(self.layout.places, leaves, strict=True):
            if (
                leaf.dtype != dtype
                or leaf.block.base != first.base
                or leaf.block.offset != begin + place.start * dtype.itemsize
                or not leaf.contiguous
            ):
                return None
        if not 0 <= begin <= first.base.nbytes - self.layout.size * dtype.itemsize:
            return None
        return leaves[0].with_layout((self.layout.size,), (dtype.itemsize,), begin - first.offset)

    async def norm(self, flat: GpuRef, factor: float) -> float:
        """Return the norm of all gradients, each multiplied by a factor.

        It is infinite or NaN if one of them is.
        """
        total = await self.device.get(await self.device.evaluate(np.sum(np.square(flat * factor))))
        return math.sqrt(float(total)) if total >= 0 else math.nan

    async def update(
        self, optimizer: Optimizer, flat: GpuRef, factor: float, *, rate: float = 1.0
    ) -> None:
        """Make one step.

        Args:
            optimizer: the one that the state was created for.
            flat: the gradients.
            factor: what the gradients are multiplied by.
            rate: what the learning rate is multiplied by.
        """
        layout, size = self.layout, self.layout.size
        lr = rate * rate_of(optimizer.lr, self.step)
        halves = layout.dtype != layout.master_dtype
        count = 1 + optimizer.slots
        async with self.device.batch() as batch:
            for start, end, decay in (
                (0, layout.decayed, optimizer.weight_decay),
                (layout.decayed, size, 0.0),
            ):
                if start == end:
                    continue
                part = [each[start:end] for each in self.buffers]
                g = flat[start:end] * factor
                made = optimizer.update(part[0], g, part[1:count], self.step, lr, decay)
                if halves:
                    made = (*made, cast(made[0], layout.dtype))
                outs = tuple(part)
                batch.evaluate(*made, out=outs if len(outs) > 1 else outs[0])
        self.step += 1

    async def digest(self) -> int:
        """Return a number that tells whether two replicas are the same to the bit."""
        async with self.device.batch() as batch:
            parts = [batch.get(word_digest(buffer)) for buffer in self.buffers]
        return hash(tuple(int(part.value) for part in parts))


async def taken(states: Sequence[ModelState]) -> list[Snapshot]:
    """Return complete snapshots of all states."""
    made: list[Snapshot] = []
    try:
        for state in states:
            made.append(await state.device.snapshot(state.buffers))  # noqa: PERF401 - closed below
        for each in made:
            await each.wait()
    except BaseException:
        for each in made:
            each.close()
        raise
    return made


def word_digest(buffer: GpuRef) -> Any:
    """Return the sum of all words, each times its own odd number, modulo 2**64."""
    words = buffer.reshape(-1).view(np.dtype(f"u{buffer.dtype.itemsize}"))
    odd = cast(index(words.shape, 0) * 2 + 1, np.dtype(np.uint64))
    return np.sum(cast(words, np.dtype(np.uint64)) * odd)
