"""The feed sends the difference between two states, which makes the second from the first."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.dashboard._patch import encode, merge_patch

from .client import merged

POINTS = st.lists(st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)))
SCALARS = st.one_of(st.text(), st.integers(-5, 5), st.booleans(), st.just(1.0), POINTS)
KEYS = st.text(st.characters(), max_size=2)  # unpaired surrogates, too
STATES = st.dictionaries(
    KEYS, st.recursive(SCALARS, lambda inner: st.dictionaries(KEYS, inner, max_size=4)), max_size=4
)


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal, and of the same types."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@settings(max_examples=50)
@given(STATES, STATES)
def test_a_patch_makes_one_state_of_another(old: dict[str, Any], new: dict[str, Any]) -> None:
    sent = encode(merge_patch(old, new))
    assert same(merged(json.loads(encode(old)), json.loads(sent)), new)


@settings(max_examples=30)
@given(STATES)
def test_patch_omits_unchanged_values(state: dict[str, Any]) -> None:
    assert merge_patch(state, json.loads(encode(state))) == {}


@settings(max_examples=30)
@given(STATES)
def test_patch_is_one_line_of_ascii(state: dict[str, Any]) -> None:
    assert encode(state).isascii()
    assert len(encode(state).splitlines()) == 1


def test_patch_skips_identical_objects() -> None:
    class Shy(dict[str, Any]):
        def __iter__(self) -> Any:
            raise AssertionError

    kept = Shy(a=1)
    assert merge_patch({"kept": kept, "n": 1}, {"kept": kept, "n": 2}) == {"n": 2}
