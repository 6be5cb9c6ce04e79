"""Settings of a node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

MARGIN: Final = 0.8
"""Part of a lease during which its node trusts it, so that clocks may differ by a tenth in rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings of a node. Those of shards must be the same on all nodes of a cluster.

    Attributes:
        lease: seconds until the leases of a node that is gone expire. They are renewed four times
            as often.
        shards: groups of entities; each is leased as a whole.
        load: most shards of a node, as a multiple of the mean.
        heartbeat: seconds between questions whether the other side of a connection is alive.
        silence: seconds without any sign of life after which a connection counts as lost.
        window: messages that a node takes from one connection before it has answered them.
        outbox: messages to one node that wait for their turn.
        buffer: messages to one shard that wait while it is handed over.
        frame: most bytes of a message to another node.
    """

    lease: float = 10.0
    shards: int = 64
    load: float = 1.25
    heartbeat: float = 1.0
    silence: float = 3.0
    window: int = 256
    outbox: int = 4096
    buffer: int = 1024
    frame: int = 64 << 20

    def __post_init__(self) -> None:
        for name in ("lease", "heartbeat", "silence"):
            value: object = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise ValueError(f"{name} must be seconds above 0, not {value!r}")
        for name in ("shards", "window", "outbox", "buffer", "frame"):
            count: object = getattr(self, name)
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"{name} must be at least 1, not {count!r}")
        load: object = self.load
        if not isinstance(load, (int, float)) or not 1 <= load < 1e9:
            raise ValueError(f"load must be a multiple of the mean from 1 on, not {self.load!r}")
        if self.silence <= self.heartbeat:
            raise ValueError(
                f"silence must be longer than heartbeat ({self.heartbeat} s), not {self.silence}"
            )


def check_name(what: str, name: object) -> str:
    """Return a name that can stand in a certificate and a key."""
    if not isinstance(name, str):
        raise TypeError(f"{what} must be text, not {name!r}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} must be of lower-case letters, digits and '-', at most 63, not {name!r}"
        )
    return name
