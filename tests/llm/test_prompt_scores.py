"""Scores of prompts: they are those of the model's logits, whatever else happens."""

from __future__ import annotations

import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel.llm import (
    LanguageModel,
    LanguageModelServer,
    SamplingOptions,
    TokenPiece,
    TokenRequest,
    open_language_model,
    serve_language_model,
)
from atomr_accel.llm._token_text import TokenText
from atomr_accel.testing import poison

from .. import seeds
from ..harness import opened
from .stand_in import Reply, ask
from .tiny import TinyModel, make_folder, reference, tokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from atomr_accel import Device

TINY = TinyModel(context=64)
CLOSE = 1e-4


@asynccontextmanager
async def served(
    path: Path, *, isolation: str = "thread", **options: Any
) -> AsyncIterator[tuple[Device, LanguageModel, LanguageModelServer]]:
    """A device, a tiny model and its server."""
    folder = make_folder(path / "tiny", TINY)
    given = {"page_size": 4, "pages": 64, "dtype": np.float32, **options}
    with trio.fail_after(100):
        async with (
            opened(isolation=isolation) as device,
            open_language_model(device, folder, model_name="toy", **given) as model,
            serve_language_model(model) as server,
        ):
            yield device, model, server


@functools.cache
def log_softmax(tokens: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the logarithms of probabilities after each token, by NumPy in float64."""
    logits = reference(TINY, tokens)[1]
    wide = logits - logits.max(-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))


def check(logprobs: Any, tokens: tuple[int, ...], number: int, begin: int = 0) -> None:
    """Check the scores of tokens from ``begin`` on, in the form of completions."""
    known = log_softmax(tokens)
    texts = [TokenText(tokenizer())(token)[0] for token in tokens]
    assert set(logprobs) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(logprobs["tokens"]) == len(tokens) - begin
    for at, (text, offset, logprob, tops) in enumerate(
        zip(
            logprobs["tokens"],
            logprobs["text_offset"],
            logprobs["token_logprobs"],
            logprobs["top_logprobs"],
            strict=True,
        ),
        begin,
    ):
        assert text == texts[at]
        assert offset == sum(map(len, texts[begin:at]))
        if at == 0:
            assert (logprob, tops) == (None, None)
            continue
        expected = known[at - 1]
        assert logprob == pytest.approx(expected[tokens[at]], abs=CLOSE)
        assert tops[text] == logprob  # the token's own is always there
        best = np.sort(expected)[::-1][:number]
        np.testing.assert_allclose(sorted(tops.values(), reverse=True)[:number], best, atol=CLOSE)
        assert len(tops) in (number, number + 1)


def letters(rng: np.random.Generator, number: int) -> tuple[int, ...]:
    """Return tokens whose texts are different ASCII letters."""
    known = tokenizer().get_vocab()
    alphabet = [known[letter] for letter in "abcdefghijklmnopqrstuvwxyz"]
    return tuple(int(each) for each in rng.choice(alphabet, number))


async def posted(server: LanguageModelServer, **body: object) -> Reply:
    """Send a completion as lm-eval does."""
    given = {"model": "toy", "max_tokens": 1, "logprobs": 1, "echo": True, "seed": 1234}
    reply = await ask(server, "/v1/completions", {"temperature": 0, **given, **body})
    assert reply.status == 200, reply.body
    return reply


async def test_requests_of_harnesses_get_the_scores_of_the_logits(tmp_path: Path) -> None:
    rng = np.random.default_rng(seeds.draw())
    prompts = [letters(rng, size) for size in (1, 2, 5, 30, 30)]
    prompts[4] = (*prompts[3][:20], *prompts[4][20:])
    async with served(tmp_path) as (_, model, server):
        answer = (await posted(server, prompt=prompts)).json()
        choices = sorted(answer["choices"], key=lambda each: each["index"])
        for prompt, choice in zip(prompts, choices, strict=True):
            assert len(choice["logprobs"]["tokens"]) == len(prompt) + 1
            assert choice["text"].startswith(tokenizer().decode(list(prompt)))
            following = int(log_softmax(prompt)[-1].argmax())
            check(choice["logprobs"], (*prompt, following), 1)
        assert answer["usage"]["completion_tokens"] == len(prompts)
        # In chunks, with what the cache has, and without a token after the prompt.
        text = "".join(tokenizer().decode([token]) for token in prompts[3])
        several: tuple[str | tuple[int, ...], ...] = (prompts[3], text)
        for given in several:
            (choice,) = (
                await posted(server, prompt=given, max_tokens=0, logprobs=3, stop="\n")
            ).json()["choices"]
            tokens = given if isinstance(given, tuple) else tokenizer().encode(text).ids
            check(choice["logprobs"], tuple(tokens), 3)
            assert (choice["text"], choice["finish_reason"]) == (text, "length")
        assert model.statistics().pages_used == 0


async def test_streams_begin_with_the_echo_and_its_scores(tmp_path: Path) -> None:
    prompt = letters(np.random.default_rng(seeds.draw()), 9)
    async with served(tmp_path, step_tokens=4, step_sequences=3) as (_, _, server):
        for most in (0, 3):
            reply = await posted(server, prompt=prompt, max_tokens=most, stream=True, logprobs=2)
            whole = (await posted(server, prompt=prompt, max_tokens=most, logprobs=2)).json()
            choices = [event["choices"][0] for event in reply.events]
            (expected,) = whole["choices"]
            assert "".join(each["text"] for each in choices) == expected["text"]
            merged: dict[str, list[Any]] = {name: [] for name in expected["logprobs"]}
            for choice in choices:
                for name, values in (choice["logprobs"] or {}).items():
                    merged[name] += values
            assert merged == expected["logprobs"]
            assert choices[-1]["finish_reason"] == expected["finish_reason"]
            assert len(merged["tokens"]) == len(prompt) + most


async def test_without_scores_or_echo_no_tokens_are_an_empty_answer(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, _, server):
        for echo, text in ((True, "the cat"), (False, "")):
            reply = await posted(server, prompt="the cat", max_tokens=0, echo=echo, logprobs=None)
            (choice,) = reply.json()["choices"]
            assert choice == {
                "index": 0, "text": text, "logprobs": None, "finish_reason": "length",
            }  # fmt: skip
            assert reply.json()["usage"]["completion_tokens"] == 0
        reply = await posted(server, prompt="the cat", max_tokens=2, echo=False)
        (choice,) = reply.json()["choices"]
        tokens = tuple(tokenizer().encode("the cat").ids)
        for _ in range(2):
            tokens = (*tokens, int(log_softmax(tokens)[-1].argmax()))
        check(choice["logprobs"], tokens, 1, begin=len(tokens) - 2)


async def all_of(model: LanguageModel, request: TokenRequest) -> list[TokenPiece]:
    """Return the pieces of a request."""
    async with model.generate(request) as pieces:
        return [piece async for piece in pieces]


@pytest.mark.slow
async def test_faults_and_other_streams_change_no_score(tmp_path: Path) -> None:
    rng = np.random.default_rng(seeds.draw())
    beginning = letters(rng, 14)
    requests = [
        TokenRequest(
            prompt=(*beginning, *letters(rng, 1 + number % 5)),
            sampling=SamplingOptions(
                prompt_logprobs=(None, 2, 2, 0)[number % 4],
                max_tokens=(3, 0, 4, 1)[number % 4],
                logprobs=1,
                seed=number,
                ignore_eos=True,
            ),
        )
        for number in range(8)
    ]
    room = {"pages": 24, "step_tokens": 9, "step_sequences": 5}
    async with served(tmp_path, isolation="process", **room) as (device, model, _):
        expected = [await all_of(model, request) for request in requests]
        for request, pieces in zip(requests, expected, strict=True):
            scored = request.sampling.prompt_logprobs is not None
            told = [piece for piece in pieces if piece.prompt]
            assert [piece.token for piece in told] == [*request.prompt] * scored
            assert len(pieces) == len(told) + (request.sampling.max_tokens or 0)
            assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
            assert pieces[-1].finish == "length"
            known = log_softmax(request.prompt)
            for at, piece in enumerate(told[1:], 1):
                assert piece.logprob == pytest.approx(known[at - 1][piece.token], abs=CLOSE)
        hurt = False

        async def one(number: int) -> None:
            last = False
            while not last:  # until one has begun after the fault
                last = hurt
                assert await all_of(model, requests[number]) == expected[number]

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(one, number)
            await trio.testing.wait_all_tasks_blocked()
            await poison(device)
            hurt = True
        assert (noticed := model.statistics().faults)
        await poison(device)  # between two steps: the next one finds an empty cache
        assert await all_of(model, requests[0]) == expected[0]
        assert model.statistics().faults > noticed


async def test_no_tokens_need_scores_of_the_prompt(tmp_path: Path) -> None:
    async with served(tmp_path) as (_, model, _):
        with pytest.raises(ValueError, match="max_tokens"):
            await all_of(model, TokenRequest(prompt=(1,), sampling=SamplingOptions(max_tokens=0)))
        with pytest.raises(ValueError, match="prompt_logprobs"):
            options = SamplingOptions(prompt_logprobs=-1)
            await all_of(model, TokenRequest(prompt=(1,), sampling=options))


async def test_offsets_leave_out_special_tokens_and_any_row_may_be_asked_for(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (_device, model, server):
        for token in (3, model.vocabulary - 1):
            more = {"echo": False, "max_tokens": 4, "logit_bias": {str(token): 100}}
            reply = await posted(server, prompt="the cat", ignore_eos=True, **more)
            (choice,) = reply.json()["choices"]
            assert choice["text"] == ""
            assert choice["logprobs"]["text_offset"] == [0, 0, 0, 0]
            assert len(set(choice["logprobs"]["tokens"])) == 1
        first = tokenizer().encode("the cat").ids[0]
        asked = [first, 3, first, model.vocabulary - 1]
        (choice,) = (await posted(server, prompt=asked)).json()["choices"]
        text, special = (tokenizer().id_to_token(token) for token in asked[:2])
        assert text is not None
        assert special is not None
        assert choice["text"].startswith(f"{text}{special}{text}")
        between = len(text + special)
        ends = [between, between + len(text), between + len(text)]
        assert choice["logprobs"]["text_offset"] == [0, len(text), *ends]
        beyond = model.vocabulary
        outside: list[dict[str, Any]] = [{"logit_bias": {str(beyond): 1}}, {"prompt": [beyond]}]
        for more in outside:
            reply = await ask(server, "/v1/completions", {"model": "toy", "prompt": "a", **more})
            assert (reply.status, reply.error["code"]) == (400, "invalid_value")
            assert f" of {next(iter(more))} must be" in reply.error["message"]
