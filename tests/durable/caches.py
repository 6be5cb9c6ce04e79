"""A durable paged cache beside a model that knows what each row of its memory holds."""

from __future__ import annotations

import random
from typing import Any, Final, final

import numpy as np

from atomr_accel import ContextPoisoned, Device, GpuRefStale, OutOfMemory, Recording

from .scribbling import Scribbler

HEADS, SIZE, PAGE, PAGES, LAYERS = 2, 16, 4, 24, 2
_SHAPE: Final = (LAYERS, PAGES, PAGE, HEADS, SIZE)
COLUMNS: Final = 16

Array = np.ndarray[Any, Any]


def rows_of(cache: Any, sequence: int, layer: int, first: int, count: int) -> list[int]:
    """Return the numbers of rows of a sequence in memory."""
    pages = cache.pages(sequence)
    places = range(first, first + count)
    return [(layer * PAGES + pages[at // PAGE]) * PAGE + at % PAGE for at in places]


@final
class ModelledCache:
    """A durable cache, and the rows that its memory has and should have."""

    def __init__(self, device: Device, cache: Any, draw: random.Random) -> None:
        self.device: Final = device
        self.cache: Final = cache
        self.draw: Final = draw
        self.numbers: Final = np.random.default_rng(draw.getrandbits(64))
        self.sequences: list[int] = [cache.new(), cache.new()]
        # By number of the row: what is there, and what ops have written.
        self.content = [np.zeros((LAYERS * PAGES * PAGE, HEADS * SIZE), np.float16) for _ in "kv"]
        self.proven = [each.copy() for each in self.content]
        self.recording: Recording | None = None
        self.step: tuple[Any, ...] = ()

    @classmethod
    async def make(cls, device: Device, draw: random.Random) -> ModelledCache:
        """Make a cache, empty."""
        made = await device.dnn.kv_cache(
            PAGES, PAGE, HEADS, SIZE, layers=LAYERS, dtype="float16", durable=True
        )
        return cls(device, made, draw)

    def _fresh(self, count: int, new: int) -> tuple[Array, Array]:
        shape = (count, new, HEADS, SIZE)
        k, v = (self.numbers.uniform(-1, 1, shape).astype(np.float16) for _ in "kv")
        return k, v

    def _chosen(self) -> list[int]:
        return [each for each in self.sequences if self.draw.random() < 0.6] or self.sequences[:1]

    def _pages(self, sequences: list[int]) -> dict[int, tuple[int, ...]]:
        return {each: self.cache.pages(each) for each in sequences}

    def _copied(self, before: dict[int, tuple[int, ...]]) -> None:
        """Pages that a write has replaced by copies have the content of the old ones."""
        for sequence, old in before.items():
            for source, target in zip(old, self.cache.pages(sequence), strict=False):
                if source == target:
                    continue
                for side in (*self.content, *self.proven):
                    pages = side.reshape(LAYERS, PAGES, PAGE, -1)
                    pages[:, target] = pages[:, source]

    def _written(
        self, sequences: list[int], layer: int, lengths: dict[int, int], k: Array, v: Array
    ) -> None:
        for at, sequence in enumerate(sequences):
            rows = rows_of(self.cache, sequence, layer, lengths[sequence], k.shape[1])
            for side, new in enumerate((k, v)):
                self.content[side][rows] = new[at].reshape(len(rows), -1)
                self.proven[side][rows] = new[at].reshape(len(rows), -1)

    async def change(self) -> None:
        """Do something at random."""
        draw = self.draw
        way = draw.choice(["append", "append", "attend", "grow", "replay", "fork", "trim", "free"])
        if way == "fork" and len(self.sequences) < 5:
            self.sequences.append(self.cache.fork(draw.choice(self.sequences)))
        elif way == "free" and len(self.sequences) > 2:
            self.cache.free(self.sequences.pop(draw.randrange(len(self.sequences))))
        elif way == "trim":
            one = draw.choice(self.sequences)
            least = min(self.cache.length(one, layer) for layer in range(LAYERS))
            self.cache.trim(one, draw.randint(least // 2, least))
        else:
            await self.append(way)

    async def append(self, way: str) -> None:
        """Append rows to some sequences in one of the ways."""
        cache, device, draw = self.cache, self.device, self.draw
        sequences = self._chosen()
        layer = draw.randrange(LAYERS)
        new = 1 if way == "replay" else draw.randint(1, 6)
        k, v = self._fresh(len(sequences), new)
        k_ref, v_ref = await device.put(k), await device.put(v)
        before, lengths = (
            self._pages(sequences),
            {each: cache.length(each, layer) for each in sequences},
        )
        try:
            if way in ("grow", "replay"):
                await self._grow(sequences, layer, new, k_ref, v_ref, replays=way == "replay")
            elif way == "attend":
                q = await device.put(np.ones((len(sequences), 1, HEADS, SIZE), np.float16))
                await cache.attend(q, sequences, k_ref, v_ref, layer=layer)
            else:
                await cache.append(sequences, k_ref, v_ref, layer=layer)
        except OutOfMemory:
            cache.trim(sequences[0], 0)
            return
        self._copied(before)
        self._written(sequences, layer, lengths, k, v)

    async def _grow(
        self, sequences: list[int], layer: int, new: int, k: Any, v: Any, *, replays: bool
    ) -> None:
        device, cache = self.device, self.cache
        q = await device.put(np.ones((len(sequences), 1, HEADS, SIZE), np.float16))
        with cache.growing(sequences, new, layer=layer, columns=COLUMNS) as rows:
            lengths, table = await device.put(rows.lengths), await device.put(rows.table)
            caches = cache.k[layer], cache.v[layer]
            options: dict[str, Any] = {"cache_seqlens": lengths, "block_table": table}
            if replays:
                async with device.record(q, k, v, lengths, table) as recording:
                    recording.dnn.flash_attention_with_kvcache(q, *caches, k, v, **options)
                await recording.replay()
                return
            async with device.batch() as batch:
                batch.dnn.flash_attention_with_kvcache(q, *caches, k, v, **options)

    async def scribble(self, scribbler: Scribbler) -> None:
        """Bytes have changed behind the program's back."""
        side = self.draw.randrange(2)
        content = self.content[side].reshape(-1).view(np.uint8)
        start = self.draw.randrange(len(content))
        data = self.numbers.bytes(min(self.draw.choice([1, 4, 100]), len(content) - start))
        await scribbler((self.cache.k, self.cache.v)[side], start, data)
        content[start : start + len(data)] = np.frombuffer(data, np.uint8)

    def _first_lost(self, sequence: int) -> int | None:
        """Return the first token of which a row is not what ops have written."""
        found = []
        for layer in range(LAYERS):
            rows = rows_of(self.cache, sequence, layer, 0, self.cache.length(sequence, layer))
            for content, proven in zip(self.content, self.proven, strict=True):
                differs = content[rows].view(np.uint8) != proven[rows].view(np.uint8)
                found += np.flatnonzero(differs.any(1)).tolist()[:1]
        return min(found, default=None)

    async def in_flight(self) -> Any:
        """Append while the device fails; return what checks it afterwards, if it fails, too."""
        sequences, layer = self._chosen(), self.draw.randrange(LAYERS)
        new = self.draw.randint(1, 6)
        k, v = self._fresh(len(sequences), new)
        before = self._pages(sequences)
        lengths = {each: self.cache.length(each, layer) for each in sequences}
        try:
            refs = await self.device.put(k), await self.device.put(v)
            await self.cache.append(sequences, *refs, layer=layer)
        except (ContextPoisoned, GpuRefStale):
            return sequences, layer, lengths, before, k, v
        except OutOfMemory:
            return None
        self._copied(before)
        self._written(sequences, layer, lengths, k, v)
        return None

    async def recover(self, failed: Any = None) -> int:
        """Recover after a fault, and compare with the model; return the number of lost tokens."""
        cache = self.cache
        doubtful = {}
        if failed is not None:
            sequences, layer, lengths, before, k, v = failed
            doubtful = {each: (layer, lengths[each], at) for at, each in enumerate(sequences)}
        expected = {}
        for each in self.sequences:
            if each not in doubtful:
                longest = max(cache.length(each, at) for at in range(LAYERS))
                expected[each] = longest, self._first_lost(each)
        told = await cache.recover()
        assert set(told) == set(self.sequences)
        for each, (longest, first) in expected.items():
            kept = longest if first is None else min(longest, first)
            one = told[each]
            assert (one.length, one.lost) == (kept, longest - kept), (each, one, longest, first)
            assert one.changed == (first is not None), (each, one, first)
        if failed is not None:
            self._copied(before)
        for each, (at, length, place) in doubtful.items():
            found = cache.length(each, at)
            if found > length:  # all of the new rows have been proven
                assert found <= length + k.shape[1]
                rows = rows_of(cache, each, at, length, found - length)
                for side, new in enumerate((k, v)):
                    self.content[side][rows] = new[place, : found - length].reshape(len(rows), -1)
                    self.proven[side][rows] = self.content[side][rows]
        await self.check()
        return sum(one.lost for one in told.values())

    async def check(self) -> None:
        """Compare the rows of all sequences with the model."""
        for side, ref in enumerate((self.cache.k, self.cache.v)):
            memory = (await self.device.get(ref)).reshape(-1, HEADS * SIZE)
            for each in self.sequences:
                for layer in range(LAYERS):
                    rows = rows_of(self.cache, each, layer, 0, self.cache.length(each, layer))
                    assert memory[rows].tobytes() == self.proven[side][rows].tobytes(), each
