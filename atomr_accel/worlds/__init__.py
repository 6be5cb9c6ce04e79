"""Worlds: collectives over devices, which survive the death of a rank.

``async with open_world([device0, device1]) as world:`` and then
``await world.all_reduce([x0, x1])``.
"""

from ._collectives import Collectives
from ._recorded import WorldRecording
from ._together import CollectedCollectives, CollectiveGroup, WorldBatch
from ._world import World, WorldStatistics, open_world

__all__ = [
    "CollectedCollectives",
    "CollectiveGroup",
    "Collectives",
    "World",
    "WorldBatch",
    "WorldRecording",
    "WorldStatistics",
    "open_world",
]
