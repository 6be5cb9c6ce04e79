"""Places of shards on nodes: consistent hashing with bounded loads."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

_POINTS: Final = 64
"""Points of a node on the ring."""


def hash_of(text: str) -> int:
    """Return a number of 64 bits that is the same on all nodes."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def shard_of(kind: str, key: str, shards: int) -> int:
    """Return the shard of an entity."""
    return hash_of(f"{kind}/{key}") % shards


@lru_cache(maxsize=4096)
def _points_of(node: str) -> tuple[tuple[int, str], ...]:
    return tuple((hash_of(f"{node}#{number}"), node) for number in range(_POINTS))


@lru_cache(maxsize=16)
def _shard_hashes(shards: int) -> tuple[int, ...]:
    return tuple(hash_of(f"shard {number}") for number in range(shards))


@lru_cache(maxsize=256)
def _placed(nodes: tuple[str, ...], shards: int, load: float) -> tuple[str, ...]:
    ring = sorted(point for node in nodes for point in _points_of(node))
    places = [place for place, _ in ring]
    most = math.ceil(load * shards / len(nodes))
    count = dict.fromkeys(nodes, 0)
    owners = []
    for place in _shard_hashes(shards):
        at = bisect_right(places, place)
        while count[node := ring[at % len(ring)][1]] >= most:
            at += 1
        count[node] += 1
        owners.append(node)
    return tuple(owners)


def placement(nodes: Sequence[str], shards: int, load: float) -> tuple[str, ...]:
    """Return the node of each shard.

    The nearest point after the shard's on a ring decides, among the nodes that are not full: at
    most ``load`` times the mean. The result is the same on all nodes, for any order of names.
    Without nodes the result is empty.
    """
    return _placed(tuple(sorted(set(nodes))), shards, load) if nodes else ()
