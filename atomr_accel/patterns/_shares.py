"""Hierarchical start-time fair queueing with token budgets, without I/O.

Each tenant has a *start tag* and a *finish tag* in its parent's virtual time. The tenant with the
smallest start tag goes next, and its start tag becomes the virtual time. Its finish tag is its
start tag plus the cost divided by the weight. Its next request starts there. A tenant that returns
after a pause starts at the virtual time, or at its own finish tag if that is later: a pause earns
nothing. When a parent has no requests waiting or in service, its virtual time jumps to the largest
finish tag.

That is the algorithm of P. Goyal, H. M. Vin, H. Cheng, "Start-time fair queueing: a scheduling
algorithm for integrated services packet switching networks", SIGCOMM 1996. It needs no knowledge of
how fast requests are served. That several are served at a time is from W. Jin, J. S. Chase,
J. Kaur, "Interposed proportional sharing for a storage service utility", SIGMETRICS 2004; a tree
of such queues from P. Goyal, X. Guo, H. M. Vin, "A hierarchical CPU scheduler for multimedia
operating systems", OSDI 1996.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from ..actors.util import check_instance
from ..wire.options import real, set_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

_KEPT = 1024
"""Maximum number of idle tenants of a group that are remembered: the latest ones."""

_LEAST: Final = 1e-100
MOST: Final = 1e100
"""The range of all amounts, so that quotients and their sums are finite. A tag that is infinite
would end the fairness of its group for good."""

_STALE = 64
"""Number of stale entries that a heap may hold in addition to as many as are live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limit on the work of a tenant: a token bucket.

    In any stretch of ``t`` seconds no more than ``burst + rate * t`` is begun. A request that costs
    more than ``burst`` waits for a full bucket, and leaves a debt.

    Attributes:
        rate: units of work a second.
        burst: the maximum number of units that an idle tenant saves up; also its initial number.
    """

    rate: float
    burst: float

    def __post_init__(self) -> None:
        set_fields(self, rate=amount(self.rate, "rate"), burst=amount(self.burst, "burst"))


class _TokenBucket:
    """The tokens of a budget."""

    __slots__ = ("budget", "stamp", "tokens")

    def __init__(self, budget: Budget) -> None:
        self.budget: Budget = budget
        self.tokens: float = budget.burst
        self.stamp: float = math.inf  # full, and not looked at yet

    def ready(self, cost: float, now: float) -> float:
        """When there will be enough: now, or later."""
        budget = self.budget
        gained = max(0.0, now - self.stamp) * budget.rate
        self.tokens = min(budget.burst, self.tokens + gained)
        self.stamp = now
        short = min(cost, budget.burst) - self.tokens
        if short <= 1e-9 * budget.burst:  # the clock's sums are rounded
            return now
        return now + short / budget.rate


class WaitingRequest:
    """A request that waits for its turn, or is served.

    Attributes:
        cost: how much work it is, as known so far.
        node: its place in the tree.
    """

    __slots__ = ("cost", "node")

    def __init__(self, node: ShareNode, cost: float) -> None:
        self.node: ShareNode = node
        self.cost: float = cost


class ShareNode:
    """A tenant, or a group of them; or, at the bottom, the requests of one.

    Attributes:
        start: where its next request starts, in its parent's virtual time, while it is ``active``.
        finish: where its latest one ended.
        active: whether it has a request that may go.
        queued: requests that wait, here and below.
        serving: requests that are served, here and below.
        work: the cost of the requests that were begun here and below.
        resting: the children that are idle, those that have been for the longest first.
    """

    __slots__ = (
        "active", "bucket", "children", "finish", "furthest", "going", "heap", "parent", "path",
        "queue", "queued", "resting", "serving", "start", "throttled", "ticket", "time", "weight",
        "work",
    )  # fmt: skip

    def __init__(
        self, path: str, parent: ShareNode | None, weight: float, bucket: _TokenBucket | None
    ) -> None:
        self.path: str = path
        self.parent: ShareNode | None = parent
        self.weight: float = weight
        self.bucket: _TokenBucket | None = bucket
        self.children: dict[str, ShareNode] = {}
        self.resting: OrderedDict[str, None] = OrderedDict()
        self.queue: OrderedDict[WaitingRequest, None] = OrderedDict()
        self.heap: list[tuple[float, int, ShareNode]] = []
        self.time: float = 0.0
        self.furthest: float = 0.0
        self.start: float = 0.0
        self.finish: float = 0.0
        self.ticket: int = -1
        self.active: bool = False
        self.throttled: bool = False
        self.going: int = 0
        self.queued: int = 0
        self.serving: int = 0
        self.work: float = 0.0

    def up(self) -> Iterator[ShareNode]:
        """This one and all above it."""
        node: ShareNode | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def name(self) -> str:
        """By what its parent knows it."""
        return self.path.rpartition("/")[2]

    @property
    def idle(self) -> bool:
        """True if no request waits or is served here."""
        return not (self.queued or self.serving)


class Shares:
    """Fair shares of work without I/O, by which `FairShare` gives turns. It reads no clock.

    A request is ``add``-ed, begun by ``next``, and ``end``-ed when it was served.

    Args:
        weights: shares by paths of tenants, relative to their siblings; 1 for others.
        budgets: limits by paths; of all for the empty path.
    """

    def __init__(self, weights: Mapping[str, float], budgets: Mapping[str, Budget]) -> None:
        self._order = count()
        self._weights: dict[str, float] = {}
        self._buckets = {
            path if path == "" else check_path(path): _TokenBucket(budget)
            for path, budget in budgets.items()
        }
        self._throttled: list[tuple[float, int, ShareNode]] = []
        self.root: ShareNode = ShareNode("", None, 1.0, self._buckets.get(""))
        self.weigh(weights)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Change weights, for requests that are begun from now on."""
        check_instance("weights", weights, Mapping)
        self._weights.update(
            {
                check_path(path): amount(weight, f"the weight of {path!r}")
                for path, weight in weights.items()
            }
        )
        for node in self.nodes():
            node.weight = self._weights.get(node.path, 1.0)

    def nodes(self) -> list[ShareNode]:
        """All tenants and groups that are known at the moment, but the root."""
        found = []
        todo = [self.root]
        while todo:
            below = [node for key, node in todo.pop().children.items() if key]
            found += below
            todo += below
        return found

    def add(self, path: str, cost: float) -> WaitingRequest:
        """A request comes."""
        waiting = WaitingRequest(self.leaf(path), amount(cost, "cost"))
        leaf = waiting.node
        leaf.queue[waiting] = None
        for node in leaf.up():
            if node.parent is not None:
                node.parent.resting.pop(node.name, None)
            node.queued += 1
        self._activate(leaf)
        return waiting

    def leaf(self, path: str) -> ShareNode:
        """Return the node of a tenant's own requests, a child of the tenant's node."""
        node = self.root
        walked = ""
        for name in path.split("/"):
            walked = f"{walked}/{name}" if walked else name
            node = self._child(node, name, walked)
        return self._child(node, "", "")

    def _child(self, parent: ShareNode, name: str, path: str) -> ShareNode:
        child = parent.children.get(name)
        if child is None:
            self._forget(parent)
            weight = self._weights.get(path, 1.0)
            bucket = self._buckets.get(path) if path else None
            child = parent.children[name] = ShareNode(path, parent, weight, bucket)
            parent.resting[name] = None
        return child

    def _forget(self, parent: ShareNode) -> None:
        """Forget those who would start where anybody new does, and those who are too many."""
        resting, children = parent.resting, parent.children
        while resting:
            name = next(iter(resting))
            if len(resting) < _KEPT and children[name].finish > parent.time:
                break
            del resting[name], children[name]

    def withdraw(self, waiting: WaitingRequest) -> None:
        """A request that waits is taken back."""
        leaf = waiting.node
        del leaf.queue[waiting]
        for node in leaf.up():
            node.queued -= 1
            if node.throttled:  # it was, for the sake of what is gone
                self._release(node)
        if not leaf.queue and leaf.active:
            self._deactivate(leaf)
        self._rest(leaf)

    def next(self, now: float) -> WaitingRequest | None:
        """Begin the request whose turn it is, if there is one that may go."""
        now = real(now, "now", least=-MOST, most=MOST)
        while self._throttled and self._throttled[0][0] <= now:
            _, ticket, node = heapq.heappop(self._throttled)
            if node.throttled and node.ticket == ticket:
                self._release(node)
        while not self.root.throttled and self.root.going:
            leaf = self._first()
            waiting = next(iter(leaf.queue))
            for node in reversed([*leaf.up()]):
                if node.bucket is not None:
                    ready = node.bucket.ready(waiting.cost, now)
                    if ready > now:
                        self._throttle(node, ready)
                        break
            else:
                self._begin(leaf, waiting)
                return waiting
        return None

    def ready(self) -> float:
        """Return the time at which a budget next releases a waiting tenant."""
        heap = self._throttled
        while heap and not (heap[0][2].throttled and heap[0][2].ticket == heap[0][1]):
            heapq.heappop(heap)
        return heap[0][0] if heap else math.inf

    def charge(self, waiting: WaitingRequest, more: float) -> None:
        """Correct the cost of a request in service by ``more``, which may be negative."""
        more = real(more, "more", least=-MOST, most=MOST)
        waiting.cost += more
        for node in waiting.node.up():
            node.work += more
            if node.bucket is not None:
                node.bucket.tokens -= more
            parent = node.parent
            if parent is not None:
                node.finish = max(0.0, node.finish + more / node.weight)
                parent.furthest = max(parent.furthest, node.finish)
                if node.active:
                    self._place(node, parent, max(parent.time, node.start + more / node.weight))

    def end(self, waiting: WaitingRequest) -> None:
        """A request has been served."""
        for node in waiting.node.up():
            node.serving -= 1
        self._rest(waiting.node)

    # --- the tree ----------------------------------------------------------------------

    def _first(self) -> ShareNode:
        """From the top to the bottom, always to the smallest start tag."""
        node = self.root
        while node.going:
            heap = node.heap
            while not (heap[0][2].active and heap[0][2].ticket == heap[0][1]):
                heapq.heappop(heap)
            node = heap[0][2]
        return node

    def _begin(self, leaf: ShareNode, waiting: WaitingRequest) -> None:
        del leaf.queue[waiting]
        cost = waiting.cost
        for node in leaf.up():
            node.queued -= 1
            node.serving += 1
            node.work += cost
            if node.bucket is not None:
                node.bucket.tokens -= cost
            parent = node.parent
            if parent is not None:
                parent.time = max(parent.time, node.start)
                node.finish = node.start + cost / node.weight
                parent.furthest = max(parent.furthest, node.finish)
                if node.queue or node.going:
                    self._place(node, parent, node.finish)
                else:
                    node.active = False
                    parent.going -= 1

    def _place(self, node: ShareNode, parent: ShareNode, start: float) -> None:
        node.start = start
        node.ticket = next(self._order)
        heapq.heappush(parent.heap, (start, node.ticket, node))
        # What was withdrawn leaves its entry, and while no slot is free nobody takes any.
        if len(parent.heap) > 2 * parent.going + _STALE:
            parent.heap = [
                each for each in parent.heap if each[2].active and each[2].ticket == each[1]
            ]
            heapq.heapify(parent.heap)

    def _activate(self, node: ShareNode) -> None:
        """Mark a node active, because it has a request to begin, and its inactive ancestors."""
        parent = node.parent
        while parent is not None and not (node.active or node.throttled):
            node.active = True
            parent.going += 1
            self._place(node, parent, max(parent.time, node.finish))
            node, parent = parent, parent.parent

    def _deactivate(self, node: ShareNode) -> None:
        """Mark a node inactive, and each ancestor that has no active child left."""
        parent = node.parent
        while parent is not None and node.active:
            node.active = False
            parent.going -= 1
            if parent.going:
                break
            node, parent = parent, parent.parent

    def _throttle(self, node: ShareNode, ready: float) -> None:
        self._deactivate(node)
        node.throttled = True
        node.ticket = next(self._order)
        heapq.heappush(self._throttled, (ready, node.ticket, node))
        if len(self._throttled) > 2 * len(self._buckets) + _STALE:
            held = [
                each for each in self._throttled if each[2].throttled and each[2].ticket == each[1]
            ]
            heapq.heapify(held)
            self._throttled = held

    def _release(self, node: ShareNode) -> None:
        node.throttled = False
        if node.going:
            self._activate(node)

    def _rest(self, leaf: ShareNode) -> None:
        """Reset the tags of each node above a leaf that is idle now."""
        for node in leaf.up():
            if not node.idle:
                break
            node.time = max(node.time, node.furthest)
            node.children.clear()
            node.resting.clear()
            node.heap.clear()
            if node.parent is not None:
                node.parent.resting[node.name] = None


def check_path(path: str) -> str:
    """Raise unless it names a tenant: names with slashes between them."""
    given: object = path
    if not isinstance(given, str):
        raise TypeError(f"a tenant must be a string such as 'tenant/user', not {given!r}")
    if not all(path.split("/")):
        raise ValueError(f"a tenant must be one name or several with slashes between, not {path!r}")
    return path


def amount(value: float, name: str) -> float:
    """Return a weight, a rate, or a number of units of work; raise unless it is one."""
    return real(value, name, least=_LEAST, most=MOST)
