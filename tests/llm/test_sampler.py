"""Choices of tokens, compared with a plain implementation; grammars."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from atomr_accel.llm import GrammarInvalid, RequestAtFault, SamplingOptions, TokenScore
from atomr_accel.llm._sampler import (
    GrammarCompiler,
    GrammarState,
    TokenSampler,
    check_sampling,
    score,
    uniform,
)

from .. import seeds
from .byte_tokenizer import END, byte_tokenizer

OPTIONS = st.builds(
    SamplingOptions,
    temperature=st.sampled_from((0.0, 0.3, 1.0, 2.5)),
    top_k=st.sampled_from((0, 1, 3, 100)),
    top_p=st.sampled_from((1.0, 0.9, 0.4, 1e-9)),
    min_p=st.sampled_from((0.0, 0.05, 0.9)),
    presence_penalty=st.sampled_from((0.0, 1.5, -1.0)),
    frequency_penalty=st.sampled_from((0.0, 0.7)),
    repetition_penalty=st.sampled_from((1.0, 1.3, 0.5)),
    logit_bias=st.dictionaries(st.integers(0, 11), st.sampled_from((-math.inf, 3.0, -2.5))),
)


def expected(
    options: SamplingOptions, prompt: list[int], text: list[int], logits: list[float]
) -> list[float]:
    """Return the probabilities, one rule after the other."""
    found = list(logits)
    for token in {*prompt, *text}:
        penalty = options.repetition_penalty
        found[token] = found[token] / penalty if found[token] > 0 else found[token] * penalty
    for token, times in Counter(text).items():
        found[token] -= options.presence_penalty + times * options.frequency_penalty
    for token, bias in options.logit_bias.items():
        found[token] += bias
    order = sorted(range(len(found)), key=lambda token: (-found[token], token))
    if options.temperature == 0:
        return [float(token == order[0]) for token in range(len(found))]
    weights = [math.exp((each - found[order[0]]) / options.temperature) for each in found]
    order = [token for token in order if weights[token] >= options.min_p]
    if options.top_k:
        order = order[: options.top_k]
    total = sum(weights[token] for token in order)
    kept: list[int] = []
    mass = 0.0
    for token in order:
        if kept and mass >= options.top_p * total * (1 - 1e-14):
            break
        kept.append(token)
        mass += weights[token]
    total = sum(weights[token] for token in kept)
    stay = set(kept)
    return [weights[token] / total if token in stay else 0.0 for token in range(len(found))]


@settings(max_examples=60)
@given(
    OPTIONS,
    st.lists(st.floats(-9, 9, width=32), min_size=12, max_size=12),
    st.lists(st.integers(0, 11), max_size=5),
    st.lists(st.integers(0, 11), max_size=5),
)
def test_probabilities_are_those_of_a_plain_implementation(
    options: SamplingOptions, logits: list[float], prompt: list[int], text: list[int]
) -> None:
    if all(options.logit_bias.get(token) == -math.inf for token in range(12)):
        return
    sampler = TokenSampler(options, prompt, seed=1)
    for token in text:
        sampler.add(token)
    row = np.array(logits, np.float32)
    found = sampler.probabilities(row)
    np.testing.assert_allclose(found, expected(options, prompt, text, logits), atol=1e-12)
    for position in range(20):
        assert found[sampler.choose(row, position)] > 0


@pytest.mark.parametrize("top_k", [0, 2, 700])
@pytest.mark.parametrize("top_p", [1.0, 0.999, 0.3])
def test_many_tokens_are_as_few(top_k: int, top_p: float) -> None:
    row = seeds.rng().standard_normal(1500).round(1).astype(np.float32)  # with ties
    options = SamplingOptions(top_k=top_k, top_p=top_p)
    found = TokenSampler(options, (), seed=1).probabilities(row)
    np.testing.assert_allclose(found, expected(options, [], [], row.tolist()), atol=1e-12)


def test_tokens_are_chosen_as_often_as_they_are_likely() -> None:
    sampler = TokenSampler(SamplingOptions(), (), seed=seeds.draw() >> 1)
    row = seeds.rng().standard_normal(8).astype(np.float32)
    number = 4000
    seen = np.bincount([sampler.choose(row, at) for at in range(number)], minlength=8)
    chance = sampler.probabilities(row)
    off = (seen - number * chance) / np.sqrt(number * chance * (1 - chance))
    assert np.abs(off).max() < 4.5


def test_a_choice_is_a_function_of_seed_and_position() -> None:
    row = np.zeros(1000, np.float32)
    first, second = (TokenSampler(SamplingOptions(), (), seed=5) for _ in range(2))
    forwards = [first.choose(row, at) for at in range(20)]
    assert [second.choose(row, at) for at in reversed(range(20))] == forwards[::-1]
    other = TokenSampler(SamplingOptions(), (), seed=6)
    assert [other.choose(row, at) for at in range(20)] != forwards
    assert len({uniform(3, at) for at in range(100)}) == 100
    assert all(0 <= uniform(-3, at) < 1 for at in range(100))


def test_the_draw_never_picks_a_token_of_no_weight() -> None:
    row = np.array([0.0, -2000.0, -2000.0], np.float32)
    sampler = TokenSampler(SamplingOptions(), (), seed=0)
    assert {sampler.choose(row, at) for at in range(50)} == {0}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(bad: float, temperature: float) -> None:
    row = np.array([0.0, bad, 1.0], np.float32)
    with pytest.raises(RequestAtFault, match="finite"):
        TokenSampler(SamplingOptions(temperature=temperature), (), 0).choose(row, 3)


def test_biases_that_leave_no_token_are_refused() -> None:
    options = SamplingOptions(logit_bias={0: -math.inf, 1: -math.inf})
    with pytest.raises(RequestAtFault, match="no token is left"):
        TokenSampler(options, (), 0).choose(np.zeros(2, np.float32), 0)


@pytest.mark.parametrize("penalty", [1e-100, 1e100])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.filterwarnings("error")
def test_scores_stay_finite_at_the_ends_of_the_ranges(penalty: float, sign: float) -> None:
    options = SamplingOptions(
        temperature=5e-324,
        repetition_penalty=penalty,
        presence_penalty=sign * 1e100,
        frequency_penalty=sign * 1e100,
        logit_bias={0: sign * -1e100, 1: sign * 1e100},
    )
    check_sampling(options, 3, texts=False)
    sampler = TokenSampler(options, (0, 1), seed=0)
    for _ in range(9):
        sampler.add(0)
    for size in (1.0, 3e38):
        row = np.array([size, -size, 0], np.float32)
        assert sampler.choose(row, 0) in range(3)


@given(st.lists(st.floats(-5, 5, width=16), min_size=6, max_size=6), st.integers(0, 6))
@settings(max_examples=50)
def test_logprobs_are_before_sampling(logits: list[float], number: int) -> None:
    total = math.log(sum(map(math.exp, logits)))
    own, top = score(np.array(logits, np.float32), 2, number)
    assert own == pytest.approx(logits[2] - total)
    order = sorted(range(6), key=lambda token: (-logits[token], token))[:number]
    assert [each.token for each in top] == order
    assert all(isinstance(each, TokenScore) for each in top)
    assert [each.logprob for each in top] == pytest.approx([logits[at] - total for at in order])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", -0.1), ("temperature", math.nan), ("temperature", "1"), ("top_k", -1)),
        *(("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1), ("presence_penalty", math.inf)),
        *(("frequency_penalty", math.nan), ("repetition_penalty", 0.0), ("seed", 2**63)),
        *(("seed", 0.5), ("stop", "x"), ("stop", ("",)), ("stop", (1,)), ("max_tokens", 0)),
        *(("logprobs", -1), ("logprobs", 101), ("ignore_eos", 1), ("grammar", 3)),
        *(("logit_bias", {320: 1.0}), ("logit_bias", {0: math.nan}), ("logit_bias", {0: 1e101})),
        *(("presence_penalty", -1e101), ("frequency_penalty", -1e308)),
        *(("repetition_penalty", 1e-101), ("repetition_penalty", 5e-324)),
    ],
)
def test_options_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    options = replace(SamplingOptions(), **{field: value})
    with pytest.raises((ValueError, TypeError), match=field):
        check_sampling(options, 320, texts=True)


@pytest.mark.parametrize("options", [{"stop": ("x",)}, {"grammar": "start: /a/"}])
def test_texts_need_a_tokenizer(options: Any) -> None:
    check_sampling(SamplingOptions(**options), 320, texts=True)
    with pytest.raises(ValueError, match="tokenizer"):
        check_sampling(SamplingOptions(**options), 320, texts=False)


# --- grammars


def _text_by(grammar: GrammarState, seed: int, most: int = 300) -> str:
    """Return a text of random tokens that follows a grammar."""
    sampler = TokenSampler(SamplingOptions(), (), seed, grammar)
    rng = np.random.default_rng(seed)
    tokens: list[int] = []
    for position in range(most):
        token = sampler.choose(rng.standard_normal(400, np.float32), position)
        ended = sampler.add(token)
        if token != END:
            tokens.append(token)
        if ended:
            break
    return byte_tokenizer().decode(tokens)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_tokenizer(), 400, [END])


@pytest.mark.parametrize("seed", range(3))
def test_texts_follow_a_json_schema(compiler: GrammarCompiler, seed: int) -> None:
    from llguidance import LLMatcher

    schema = {
        "type": "object",
        "properties": {
            "name": {"enum": ["weather", "time"]},
            "size": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
        },
        "required": ["name", "size"],
        "additionalProperties": False,
    }
    grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})
    found = json.loads(_text_by(compiler.compile(grammar), seed))
    assert found["name"] in ("weather", "time")
    assert all(isinstance(each, bool) for each in found["size"])


@pytest.mark.parametrize("seed", range(3))
def test_texts_follow_a_regex_and_a_lark_grammar(compiler: GrammarCompiler, seed: int) -> None:
    from llguidance import LLMatcher

    pattern = r"(größer|[0-9]{2,5}) als"
    assert re.fullmatch(
        pattern, _text_by(compiler.compile(LLMatcher.grammar_from_regex(pattern)), seed)
    )
    text = _text_by(
        compiler.compile('start: "(" word ("," word){1,3} ")"\nword: /[a-c]{1,3}/'), seed
    )
    assert re.fullmatch(r"\([a-c]{1,3}(,[a-c]{1,3}){1,3}\)", text)


@pytest.mark.parametrize("grammar", ["start: missing", "", '{"grammars": 3}', 'start: "a'])
def test_grammars_that_are_none_are_refused(compiler: GrammarCompiler, grammar: str) -> None:
    with pytest.raises(GrammarInvalid, match="grammar must be"):
        compiler.compile(grammar)


def test_grammars_that_no_text_can_follow_are_refused_before_the_first_step(
    compiler: GrammarCompiler,
) -> None:
    with pytest.raises(GrammarInvalid, match="grammar must be") as caught:
        compiler.compile("start: start")
    assert "<state>" not in str(caught.value)
    schema = LLMatcher.grammar_from_json_schema({"$ref": "#"})
    with pytest.raises(GrammarInvalid, match=r"a \$ref of a schema, may refer to itself"):
        compiler.compile(schema)
