"""Batches in an order that is a function of a seed, and iterables that run ahead."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, final

import numpy as np
import trio

from .._errors import said_of
from ..actors.nursery import PlainNursery
from ._trees import optree

T = TypeVar("T")

_END: Final = object()


@final
class TrainingData:
    """Batches of arrays in memory, in a new order in each epoch.

    ::

        data = train.TrainingData({"x": x, "y": y}, rows=64, seed=0, epochs=3)
        async for made in trainer.run(data):
            ...

    Batch ``n`` is a function of the seed and ``n``, with any version of NumPy. So its number is all
    that a run needs to go on in the middle of an epoch. Rows that are left at the end of an epoch
    are in none of its batches.

    Args:
        arrays: a tree of NumPy arrays with the same first dimension.
        rows: rows of a batch.
        seed: number of the order, from 0 to below 2**64.
        epochs: how often each row comes.
        shuffle: whether rows change their order.
        part: index and count of programs that each take an equal part of every batch.
    """

    def __init__(
        self,
        arrays: Any,
        *,
        rows: int,
        seed: int = 0,
        epochs: int = 1,
        shuffle: bool = True,
        part: tuple[int, int] = (0, 1),
    ) -> None:
        self._leaves, self._form = optree.tree_flatten(arrays)
        if not self._leaves:
            raise ValueError("arrays must have at least one array, not none")
        for leaf in self._leaves:
            if not isinstance(leaf, np.ndarray) or not leaf.ndim:
                raise TypeError(
                    f"arrays must be NumPy arrays with a dimension of rows, not {said_of(leaf)}"
                )
        lengths = {len(leaf) for leaf in self._leaves}
        if len(lengths) > 1:
            raise ValueError(f"arrays must have one first dimension, not {sorted(lengths)}")
        (self._length,) = lengths
        if not 1 <= rows <= self._length:
            raise ValueError(
                f"rows must be from 1 to the {self._length} rows of the arrays, not {rows}"
            )
        if not 0 <= seed < 1 << 64:
            raise ValueError(f"seed must be from 0 to below 2**64, not {seed}")
        if epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {epochs}")
        index, count = part
        if not 0 <= index < count or rows % count:
            raise ValueError(
                f"part must be an index below a count that divides the {rows} rows, not {part}"
            )
        self._rows, self._seed, self._epochs, self._shuffle = rows, seed, epochs, shuffle
        self._part = part
        self._order: tuple[int, np.ndarray[Any, Any]] | None = None  # of the last epoch asked for

    @property
    def key(self) -> dict[str, Any]:
        """Facts that decide the order of rows, for snapshots."""
        return {
            "length": self._length,
            "rows": self._rows,
            "seed": self._seed,
            "shuffle": self._shuffle,
        }

    def __len__(self) -> int:
        """Number of batches in all epochs."""
        return self._length // self._rows * self._epochs

    def __getitem__(self, number: int) -> Any:
        """Return one batch, a copy."""
        if not 0 <= number < len(self):
            raise IndexError(f"number must be from 0 to below {len(self)}, not {number}")
        epoch, at = divmod(number, self._length // self._rows)
        index, count = self._part
        size = self._rows // count
        start = at * self._rows + index * size
        chosen = self._order_of(epoch)[start : start + size]
        return optree.tree_unflatten(self._form, [leaf[chosen] for leaf in self._leaves])

    def __iter__(self) -> Iterator[Any]:
        """Iterate over all batches."""
        return self.since(0)

    def since(self, number: int) -> Iterator[Any]:
        """Iterate over the batches from one on: with ``trainer.steps``, those that are left."""
        for at in range(number, len(self)):
            yield self[at]

    def _order_of(self, epoch: int) -> np.ndarray[Any, Any]:
        if not self._shuffle:
            return np.arange(self._length)
        cached = self._order
        if cached is None or cached[0] != epoch:
            # NumPy promises the bits of a generator, but not the order that it makes of them.
            bits = np.random.Philox(key=np.array([self._seed, epoch], np.uint64))
            keys = bits.random_raw(self._length)
            cached = self._order = epoch, np.argsort(keys, kind="stable")
        return cached[1]


@asynccontextmanager
async def prefetched(
    data: Iterable[T] | AsyncIterable[T], *, ahead: int = 2
) -> AsyncIterator[AsyncIterable[T]]:
    """Read an iterable ahead of its use: in a worker thread, or a task if it is async.

    ::

        async with train.prefetched(data.since(trainer.steps)) as batches:
            async for made in trainer.run(batches):
                ...

    An error of the iterable cancels the block and leaves it.

    Args:
        data: what to read.
        ahead: how many items may wait.
    """
    if ahead < 1:
        raise ValueError(f"ahead must be at least 1, not {ahead}")
    # One more is read while the others wait.
    send, receive = trio.open_memory_channel[T](ahead - 1)

    async def read() -> None:
        async with send:
            if isinstance(data, AsyncIterable):
                async for item in data:
                    await send.send(item)
                return
            items = iter(data)
            while True:
                made: Any = await trio.to_thread.run_sync(next, items, _END)
                if made is _END:
                    return
                await send.send(made)

    async with PlainNursery() as nursery:
        nursery.start_soon(read)
        async with receive:
            yield receive
        nursery.cancel_scope.cancel()
