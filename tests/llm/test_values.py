"""Requests and pieces are values: equal after crossing a process, and never changed."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.llm import SamplingOptions, TokenPiece, TokenRequest, TokenScore

NUMBERS = st.floats(-2, 2)
TOKENS = st.integers(0, 2**17)
SCORES = st.builds(TokenScore, TOKENS, NUMBERS)
OPTIONS = st.builds(
    SamplingOptions,
    temperature=NUMBERS,
    top_k=st.integers(0, 100),
    logit_bias=st.dictionaries(TOKENS, NUMBERS, max_size=3),
    seed=st.none() | st.integers(0, 2**63),
    stop=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    max_tokens=st.none() | st.integers(1, 100),
    grammar=st.none() | st.text(max_size=5),
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    SCORES,
    OPTIONS,
    st.builds(
        TokenRequest,
        prompt=st.lists(TOKENS, min_size=1, max_size=5).map(tuple),
        sampling=OPTIONS,
        priority=st.integers(),
        key=st.text(max_size=5),
    ),
    st.builds(
        TokenPiece,
        token=TOKENS,
        text=st.text(max_size=5),
        logprob=st.none() | NUMBERS,
        top=st.lists(SCORES, max_size=3).map(tuple),
        finish=st.sampled_from(["stop", "length", "tool_calls", None]),
    ),
)


@settings(max_examples=30)
@given(VALUES)
def test_values_cross_processes_and_stay(value: Any) -> None:
    there = pickle.loads(pickle.dumps(value))
    assert there == value
    for each in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(value, each.name, None)
    assert value == there


def test_requests_share_no_default() -> None:
    one, other = TokenRequest(prompt=(1,)), TokenRequest(prompt=(1,))
    assert one == other
    assert one.sampling.logit_bias is not other.sampling.logit_bias
