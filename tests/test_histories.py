"""The checker of histories."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .histories import UNKNOWN, Operation, linearizable


def register(state: int, action: tuple[Any, ...]) -> tuple[Any, int]:
    if action[0] == "write":
        return None, action[1]
    return state, state


def write(value: int, called: float, returned: float) -> Operation:
    unknown = returned == math.inf
    return Operation(("write", value), UNKNOWN if unknown else None, called, returned)


def read(value: int, called: float, returned: float) -> Operation:
    return Operation(("read",), value, called, returned)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([], True),
        ([write(1, 1, 2), read(1, 3, 4)], True),
        ([write(1, 1, 2), read(0, 3, 4)], False),  # stale
        ([write(1, 1, 4), read(0, 2, 3)], True),
        ([write(1, 1, 6), read(1, 2, 3), read(0, 4, 5)], False),  # back in time
        ([write(1, 1, math.inf), read(1, 2, 3), read(1, 4, 5)], True),
        ([write(1, 1, math.inf), read(0, 2, 3), read(1, 4, 5)], True),
        ([write(1, 1, math.inf), read(1, 2, 3), read(0, 4, 5)], False),
        ([read(1, 1, 2), write(1, 3, 4)], False),  # before it was written
        ([write(1, 1, 5), write(2, 2, 6), read(1, 3, 4), read(2, 7, 8)], True),
        ([write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)], False),  # a lost write
    ],
)
def test_known_histories(operations: list[Operation], expected: bool) -> None:
    assert linearizable(operations, 0, register) is expected


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 4), st.booleans(), st.integers(0, 2)),
        max_size=5,
    )
)
def test_it_agrees_with_trying_all_orders(drawn: list[tuple[int, int, bool, int]]) -> None:
    operations = [
        (write if writes else read)(value, start + at / 10, start + length + at / 10 + 0.05)
        for at, (start, length, writes, value) in enumerate(drawn)
    ]
    assert linearizable(operations, 0, register) == any(
        fits(order) for order in itertools.permutations(operations)
    )


def fits(order: tuple[Operation, ...]) -> bool:
    state = 0
    for at, each in enumerate(order):
        if any(later.returned < each.called for later in order[at + 1 :]):
            return False
        result, state = register(state, each.action)
        if result != each.result:
            return False
    return True
