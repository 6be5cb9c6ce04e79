"""Steps of trainers: the loss and the gradients of a shard, queued anew each time or recorded."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import trio

from .._errors import said_of
from ..arrays import GpuRef
from ..device import Device
from ._state import ALIGNED
from ._tape import checked_leaves, differentiate, grad
from ._trees import optree

if TYPE_CHECKING:
    from .. import Recording

_MOST: Final = 4
"""Recordings that a step keeps for a device. Each keeps the memory of its results in between."""

GradientStep = Callable[..., Awaitable[tuple[GpuRef, Any]]]
"""An async function of a device, the parameters and a shard of a batch: the loss and gradients.

A trainer with a loss scale calls it with ``scale=``, and the gradients are those of the loss times
that number. The loss itself is not scaled.
"""


def gradient_step(function: Callable[..., Any], *, recorded: bool = False) -> GradientStep:
    """Return a trainer's step for a function of a tape, the parameters and a shard of the batch.

    Args:
        function: as for `grad`; its loss is a mean over the shard.
        recorded: record the ops of a step once for each device and form of a batch, and replay
            them: much faster if a step has many small ops. What ``function`` does in Python, such
            as drawing a number, then happens once. Results of ops in between keep their memory, for
            up to four forms of batches.
    """
    if recorded:
        return _GradientRecordings(function)

    async def step(
        device: Device, params: Any, batch: Any, *, scale: float = 1.0
    ) -> tuple[GpuRef, Any]:
        return await grad(device, function)(params, batch, scale=scale)

    return step


class _GradientRecording(NamedTuple):
    """A step for parameters in certain buffers.

    Attributes:
        params: those buffers.
        generation: that of the recording.
        batch: what the recording reads instead of a batch.
        scale: a float32, the factor of gradients.
        recording: computes what follows.
        grads: where it leaves the gradients: views of one buffer if the parameters are.
        form: the form of the tree of gradients.
        flat: that buffer, if there is one.
    """

    params: list[GpuRef]
    generation: int
    batch: list[GpuRef]
    scale: GpuRef
    recording: Recording
    loss: GpuRef
    grads: list[GpuRef]
    form: Any
    flat: GpuRef | None

    async def replay(
        self, device: Device, batch: Sequence[GpuRef], scale: float
    ) -> tuple[GpuRef, Any]:
        """Compute the step, and return copies of its results, which the next one leaves alone."""
        async with device.batch() as before:
            for given, mine in zip(batch, self.batch, strict=True):
                before.copy(given, mine)
            before.fill(self.scale, scale)
        await self.recording.replay()
        async with device.batch() as after:
            loss = after.copy(self.loss)
            if self.flat is None:
                made = [after.copy(each) for each in self.grads]
            else:
                flat, first = after.copy(self.flat), self.flat.block.offset
                made = [
                    flat.with_layout(each.shape, each.strides, each.block.offset - first)
                    for each in self.grads
                ]
        return loss, optree.tree_unflatten(self.form, made)


class _RecordingsOfDevice(NamedTuple):
    """Recordings on a device, by the form of the batch, and who may use them."""

    lock: trio.Lock
    steps: OrderedDict[Any, _GradientRecording]


@final
class _GradientRecordings:
    """Recorded steps by device, and there by the form of the batch."""

    def __init__(self, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {said_of(function)}")
        self._function: Final = function
        self._kept: Final[weakref.WeakKeyDictionary[Device, _RecordingsOfDevice]] = (
            weakref.WeakKeyDictionary()
        )

    async def __call__(
        self, device: Device, params: Any, batch: Any, *, scale: float = 1.0
    ) -> tuple[GpuRef, Any]:
        leaves, form = checked_leaves(params)
        given, batch_form = optree.tree_flatten(batch)
        for leaf in given:
            if not isinstance(leaf, GpuRef):
                raise TypeError(f"a batch of a recorded step must be refs, not {said_of(leaf)}")
        lock, kept = self._kept.setdefault(device, _RecordingsOfDevice(trio.Lock(), OrderedDict()))
        key = form, batch_form, *((each.shape, each.dtype) for each in given)
        async with lock:
            step = kept.pop(key, None)
            if (
                step is None
                or step.generation != device.generation
                or any(mine is not now for mine, now in zip(step.params, leaves, strict=True))
            ):
                step = None  # frees its memory first
                while len(kept) >= _MOST:
                    kept.popitem(last=False)
                step = await self._record(device, params, given, batch_form)
            made = await step.replay(device, given, scale)
            kept[key] = step
        return made

    async def _record(
        self, device: Device, params: Any, given: Sequence[GpuRef], batch_form: Any
    ) -> _GradientRecording:
        leaves, form = checked_leaves(params)
        generation = device.generation
        batch = [await device.empty(each.shape, each.dtype) for each in given]
        scale = await device.full((), 1.0, "float32")
        flat = await _like_params(device, leaves)
        async with device.record(shared=True) as recording:
            tree = optree.tree_unflatten(batch_form, batch)
            loss, made = differentiate(recording, self._function, params, tree, scale=scale)
            grads: list[GpuRef] = optree.tree_leaves(made)
            if flat is not None:
                first = min(each.block.offset for each in leaves)
                places = [
                    flat.with_layout(each.shape, each.strides, each.block.offset - first)
                    for each in leaves
                ]
                for each, there in zip(grads, places, strict=True):
                    recording.copy(each, there)
                grads = places
        return _GradientRecording(
            leaves, generation, batch, scale, recording, loss, grads, form, flat
        )


async def _like_params(device: Device, params: Sequence[GpuRef]) -> GpuRef | None:
    """Return zeros like the buffer that all parameters are views of, or None if there is none."""
    if len({each.block.base for each in params}) > 1 or len({each.dtype for each in params}) > 1:
        return None
    begin = min(each.block.offset for each in params)
    end = max(each.block.offset + each.nbytes for each in params)
    itemsize = params[0].dtype.itemsize
    if not all(each.contiguous for each in params) or (end - begin) % itemsize:
        return None
    # Whole as that of a model's layout: what is between parameters, and after the last one, is 0.
    size = -(-(end - begin) // itemsize // ALIGNED) * ALIGNED
    return await device.zeros(size, params[0].dtype)
