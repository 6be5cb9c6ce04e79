"""Speculative decoding with caches in pages, on a device whose host really dies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atomr_accel import Device, GpuRef
from atomr_accel.patterns import (
    Draft,
    DraftTree,
    Logits,
    ModelDraft,
    Sampling,
    Tokens,
    Verdict,
    draw_token,
    judge_chain,
    open_speculative,
)
from atomr_accel.testing import poison

from ..harness import on_shared, opened
from ..seeds import rng as seeded
from .toy_models import assert_distributed

VOCABULARY, HEADS, SIZE = 12, 2, 8
PROMPT = [3, 1, 4, 1, 5]
ABSENT = -1


class Model:
    """Tables for queries, keys, values and results around one call of attention."""

    def __init__(self, device: Device, tables: dict[str, GpuRef]) -> None:
        self.device = device
        self.tables = tables
        self.caches: list[Any] = []
        self.steps = 0
        self.faults: list[int] = []

    async def __call__(self, tokens: Tokens) -> PagedText:
        if not self.caches or self.caches[-1].k.generation != self.device.generation:
            self.caches.append(await self.device.dnn.kv_cache(64, 4, HEADS, SIZE, dtype="float16"))
        text = PagedText(self, self.caches[-1])
        try:
            if len(tokens):
                await text.attend([text.kept], tokens[None])
        except BaseException:
            text.close()
            raise
        return text


class PagedText:
    """A text in pages. Each node is a fork of its parent, so that branches share pages."""

    def __init__(self, model: Model, cache: Any) -> None:
        self.model = model
        self.cache = cache
        self.kept = cache.new()
        self.nodes: list[int] = []

    async def attend(self, sequences: list[int], tokens: Tokens) -> GpuRef:
        """Append tokens, (sequences, new), and compute logits behind each."""
        device = self.model.device
        ids = await device.put(tokens.reshape(-1))
        q, k, v = [
            (await device.array.take(self.model.tables[name], ids, axis=0)).reshape(
                *tokens.shape, HEADS, SIZE
            )
            for name in "qkv"
        ]
        y = await self.cache.attend(q, sequences, k, v, causal=True)
        return await device.blas.gemm(y.reshape(tokens.size, HEADS * SIZE), self.model.tables["o"])

    async def forward(self, tokens: Tokens, parents: Tokens) -> Logits:
        first = len(self.nodes)
        self.nodes += [ABSENT] * len(tokens)
        rows: dict[int, NDArray[np.float32]] = {}
        while len(rows) < len(tokens):  # level by level
            level = [
                at
                for at, parent in enumerate(parents.tolist())
                if at not in rows and (parent < 0 or self.nodes[parent] != ABSENT)
            ]
            for at in level:
                parent = int(parents[at])
                before = self.kept if parent < 0 else self.nodes[parent]
                self.nodes[first + at] = self.cache.fork(before)
            there = self.nodes[first:]
            logits = await self.attend([there[at] for at in level], tokens[level, None])
            rows |= zip(level, await self.model.device.get(logits), strict=True)
        self.model.steps += 1
        if self.model.steps in self.model.faults:
            raise await poison(self.model.device)
        return np.stack([rows[at] for at in range(len(tokens))])

    def keep(self, path: Tokens) -> None:
        if path.size:
            self.cache.free(self.kept)
            self.kept = self.nodes[path[-1]]
            self.nodes[path[-1]] = ABSENT
        for node in self.nodes:
            if node != ABSENT:
                self.cache.free(node)
        self.nodes.clear()

    def close(self) -> None:
        self.keep(np.empty(0, np.int64))
        self.cache.free(self.kept)


@pytest.mark.slow
async def test_caches_in_pages_are_forked_and_trimmed_and_made_anew() -> None:
    rng = seeded()
    texts: list[list[int]] = []

    async with opened() as device:
        made = {name: rng.normal(0, 1, (VOCABULARY, HEADS * SIZE)) for name in "qkvo"}
        made["o"] = made["o"].T
        made["near"] = made["o"] + rng.normal(0, 0.2, made["o"].shape)
        w = {
            name: await device.put(array.astype(np.float16), sealed=True)
            for name, array in made.items()
        }
        for faults, drafts, branching in (
            ([], None, ()),
            ([], ModelDraft, (3, 2)),
            ([2], ModelDraft, (2,)),
        ):
            target, small = Model(device, w), Model(device, w | {"o": w["near"]})
            target.faults = faults
            draft: Draft | None = None if drafts is None else drafts(small)
            async with open_speculative(
                target, draft, sampling=Sampling(temperature=0), length=3, branching=branching
            ) as decoder:
                texts.append([token async for token in decoder.generate(PROMPT, max_tokens=12)])
            seen = decoder.statistics()
            assert seen.retries == len(faults)
            assert (seen.steps == 12) == (draft is None)
            for cache in target.caches + small.caches:
                assert cache.statistics().used == 0
                assert len(cache) == 0
        assert device.generation == 2
    assert texts == [texts[0]] * 3


@on_shared
async def test_tokens_are_drawn_and_judged_on_the_device(device: Device) -> None:
    """Each row is a step of its own: a draft and its replacement."""
    rng, rows = seeded(), 4000
    logits, other = (rng.normal(0, 1, 6).astype(np.float32) for _ in range(2))
    logits[4], other[1] = -np.inf, -np.inf

    def noise() -> np.ndarray[Any, np.dtype[np.float32]]:
        return rng.exponential(size=(rows, 6)).astype(np.float32)

    target, draft, first, second, numbers = [
        await device.put(array)
        for array in (
            np.tile(logits, (rows, 1)),
            np.tile(other, (rows, 1)),
            noise(),
            noise(),
            np.arange(6),
        )
    ]
    top = await device.put(np.full((rows, 1), np.sort(logits)[-3]))
    for sampling, options in (
        (Sampling(temperature=0.8), {}),
        (Sampling(temperature=1.5, top_k=3), {"least": top}),
    ):
        q, drawn = await device.evaluate(
            *draw_token(draft, first, temperature=sampling.temperature)
        )
        likely, instead = await device.evaluate(
            *judge_chain(
                target, q, drawn, second, numbers, temperature=sampling.temperature, **options
            )
        )
        tokens, chance, others = [await device.get(each) for each in (drawn, likely, instead)]
        p = sampling.probabilities(logits)
        of_draft = Sampling(temperature=sampling.temperature).probabilities(other)
        np.testing.assert_allclose(chance, (p / np.maximum(of_draft, 1e-30))[tokens], rtol=1e-4)
        assert_distributed(Counter(tokens.tolist()), of_draft)
        kept = rng.random(rows) < chance
        assert_distributed(Counter(np.where(kept, tokens, others).tolist()), p)

    none = await device.put(np.zeros((rows, 6), np.float32))
    _, bonus = await device.evaluate(*judge_chain(target, none, drawn, first, numbers))
    assert_distributed(
        Counter((await device.get(bonus)).tolist()), Sampling().probabilities(logits)
    )
    likely, instead = await device.evaluate(
        *judge_chain(target, q, drawn, first, numbers, temperature=0)
    )
    best = int(logits.argmax())
    assert set((await device.get(instead)).tolist()) == {best}
    np.testing.assert_array_equal(await device.get(likely), tokens == best)


@pytest.mark.parametrize("temperature", [1.0, 0])
@on_shared
async def test_logits_without_a_distribution_are_no_verdict(
    device: Device, temperature: float
) -> None:
    broken = np.zeros((5, 3), np.float32)
    broken[0], broken[1, 2], broken[2, 0], broken[3] = np.nan, np.nan, np.inf, -np.inf
    logits, q, noise, drafts, numbers = [
        await device.put(array)
        for array in (
            broken,
            np.full((5, 3), 1 / 3, np.float32),
            seeded().exponential(size=(5, 3)).astype(np.float32),
            np.array([0, 1, 0, 0, 0]),
            np.arange(3),
        )
    ]
    made = judge_chain(logits, q, drafts, noise, numbers, temperature=temperature)
    likely, instead = [await device.get(each) for each in await device.evaluate(*made)]
    assert instead[:4].tolist() == [-1] * 4
    assert 0 <= instead[4] < 3
    assert likely[4] == 1
    for row in range(4):
        tree = DraftTree()
        tree.add(0)
        with pytest.raises(ValueError, match="behind 0 drafts are of no distribution"):
            Verdict(likely[row : row + 1], instead[[row, 4]]).decide(tree, seeded())
    if temperature:
        drawn = draw_token(logits, noise, temperature=temperature)
        chances, tokens = [await device.get(each) for each in await device.evaluate(*drawn)]
        assert np.isnan(chances[:4]).all()
        assert tokens[:4].tolist() == [-1] * 4
        assert tokens[4] >= 0
