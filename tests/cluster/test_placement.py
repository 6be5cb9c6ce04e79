"""Places of shards: bounded loads, and few moves."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from atomr_accel.cluster._placement import placement, shard_of

NODES = st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=12)


@given(NODES, st.integers(1, 128), st.floats(1.0, 3.0), st.randoms())
def test_loads_are_bounded_and_order_makes_no_difference(
    nodes: set[str], shards: int, load: float, random: object
) -> None:
    places = placement(sorted(nodes), shards, load)
    assert places == placement(sorted(nodes, reverse=True), shards, load)
    assert len(places) == shards
    assert set(places) <= nodes
    assert max(Counter(places).values()) <= math.ceil(load * shards / len(nodes))


@given(st.integers(2, 12))
def test_a_node_that_leaves_moves_few_shards_of_others(count: int) -> None:
    nodes = [f"node-{number}" for number in range(count)]
    before, after = placement(nodes, 256, 1.25), placement(nodes[1:], 256, 1.25)
    moved = sum(one != other for one, other in zip(before, after, strict=True))
    its_own = before.count(nodes[0])
    assert its_own <= moved <= its_own + 256 * 0.35


def test_without_nodes_there_are_no_places() -> None:
    assert placement([], 8, 1.25) == ()


@given(st.text(), st.text(), st.integers(1, 1000))
def test_keys_have_shards(kind: str, key: str, shards: int) -> None:
    assert 0 <= shard_of(kind, key, shards) < shards
