"""Streams of real models: the same tokens in any batch, after preemptions and after faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio

from atomr_accel.llm import (
    LanguageModel,
    ModelFolder,
    SamplingOptions,
    TokenRequest,
    load_folder,
    open_language_model,
)
from atomr_accel.testing import poison

from .. import seeds
from ..harness import ON_CUDA, opened
from .tiny import TinyModel, make_folder, reference

if TYPE_CHECKING:
    from pathlib import Path

SMALL: Any = {"page_size": 4, "pages": 48}
TOLERANCE = 3e-2 if ON_CUDA else 1e-3
"""Largest error of a logarithm of a probability; models compute in bfloat16 on CUDA."""


def _requests(folder: ModelFolder, number: int, most: int) -> list[TokenRequest]:
    rng = seeds.rng()
    shared = rng.integers(0, folder.config.vocabulary, 9)
    return [
        TokenRequest(
            prompt=tuple(
                int(token)
                for token in (
                    *shared[: rng.choice((0, 9))],
                    *rng.integers(0, folder.config.vocabulary, rng.integers(1, 8)),
                )
            ),
            sampling=SamplingOptions(
                temperature=(0.0, 1.0)[at % 2],
                top_p=0.9,
                repetition_penalty=1.1,
                seed=at,
                max_tokens=most,
                ignore_eos=True,
            ),
        )
        for at in range(number)
    ]


async def _answers(
    model: LanguageModel, requests: list[TokenRequest], together: int
) -> list[tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    limit = trio.CapacityLimiter(together)

    async def ask(at: int) -> None:
        async with limit, model.generate(requests[at]) as pieces:
            found[at] = tuple([piece.token async for piece in pieces])

    async with trio.open_nursery() as nursery:
        for at in range(len(requests)):
            nursery.start_soon(ask, at)
    return [found[at] for at in range(len(requests))]


async def test_streams_are_the_same_in_any_batch_and_after_preemptions(tmp_path: Path) -> None:
    folder = load_folder(make_folder(tmp_path / "tiny"))
    requests = _requests(folder, 6, 8)
    async with opened(isolation="thread") as device:
        async with open_language_model(device, folder, prefix_cache=False, **SMALL) as model:
            alone = await _answers(model, requests, 1)
        async with open_language_model(
            device, folder, page_size=4, pages=10, step_tokens=8, step_sequences=5
        ) as model:
            assert await _answers(model, requests, 6) == alone
            assert model.name == "tiny"
            assert model.statistics().preemptions
        async with open_language_model(device, str(folder.path), **SMALL) as model:
            assert await _answers(model, requests, 6) == alone
            again = await _answers(model, requests, 6)
            assert again == alone
            assert model.statistics().cache_hits


async def test_greedy_tokens_are_those_of_the_reference(tmp_path: Path) -> None:
    tiny = TinyModel()
    folder = load_folder(make_folder(tmp_path / "tiny", tiny))
    async with (
        opened(isolation="thread") as device,
        open_language_model(device, folder, **SMALL) as model,
    ):
        request = TokenRequest(
            prompt=(3, 5, 8),
            sampling=SamplingOptions(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1),
        )
        async with model.generate(request) as pieces:
            found = [piece async for piece in pieces]
        tokens = list(request.prompt)
        for piece in found:
            logits = reference(tiny, tokens)[1][-1]
            assert logits[piece.token] == pytest.approx(logits.max(), abs=TOLERANCE)
            logprob = logits[piece.token] - np.log(np.exp(logits - logits.max()).sum())
            assert piece.logprob == pytest.approx(logprob - logits.max(), abs=TOLERANCE)
            tokens.append(piece.token)
        messages = [{"role": "user", "content": "the stream"}]
        assert model.render(messages) == folder.render(messages)


@pytest.mark.slow
async def test_streams_are_the_same_after_faults(tmp_path: Path) -> None:
    folder = load_folder(make_folder(tmp_path / "tiny"))
    requests = _requests(folder, 6, 12)
    async with opened(isolation="process", max_restarts=100) as device:
        async with open_language_model(device, folder, prefix_cache=False, **SMALL) as model:
            alone = await _answers(model, requests, 1)
        async with open_language_model(device, folder, **SMALL) as model:

            async def faults() -> None:
                async with model.generate(requests[0]) as pieces:
                    found = []
                    async for piece in pieces:
                        found.append(piece.token)
                        if len(found) in (3, 7):
                            await poison(device)
                assert tuple(found) == alone[0]

            async with trio.open_nursery() as nursery:
                nursery.start_soon(faults)
                assert await _answers(model, requests, 6) == alone
            told = model.statistics()
            assert told.recomputed
            assert (told.finished, told.failed) == (7, 0)
