"""Order of requests, compared with the bounds of start-time fair queueing and the fluid model.

In the fluid model (generalized processor sharing) all tenants who want something are served at the
same time, each at a rate in proportion to its weight. No server that does one request at a time
can do that; the bounds say how near it comes.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.patterns import Budget
from atomr_accel.patterns._shares import _KEPT, Shares, WaitingRequest

PATHS = ["a", "b", "b/x", "b/y", "c/x", "c/y/z"]
NODES = ["a", "b", "c", "b/x", "b/y", "c/x", "c/y", "c/y/z"]

costs = st.integers(1, 40).map(lambda n: n / 4)
weights = st.sampled_from([0.5, 1.0, 2.0, 5.0])


def group_of(path: str) -> str:
    return path.rpartition("/")[0]


def below(path: str, group: str) -> bool:
    return path == group or path.startswith(f"{group}/")


class Books:
    """Requests begun for each tenant and group, and tenants with waiting requests."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights
        self.work: dict[str, float] = defaultdict(float)
        self.largest: dict[str, float] = defaultdict(float)
        self.waiting: dict[str, int] = defaultdict(int)
        self.lead: dict[tuple[str, str], tuple[float, float]] = {}

    def came(self, path: str, cost: float) -> None:
        for node in NODES:
            if below(path, node):
                self.waiting[node] += 1
                self.largest[node] = max(self.largest[node], cost)

    def left(self, path: str) -> None:
        for node in NODES:
            if below(path, node):
                self.waiting[node] -= 1

    def began(self, path: str, cost: float) -> None:
        self.left(path)
        for node in NODES:
            if below(path, node):
                self.work[node] += cost

    def normal(self, node: str) -> float:
        return self.work[node] / self.weights.get(node, 1.0)

    def check(self) -> None:
        """The bound holds in every stretch in which two siblings both have requests waiting.

        In the longest such stretch so far, that is to say, between the extremes of the lead.
        """
        for pair in itertools.combinations(NODES, 2):
            one, other = pair
            if group_of(one) != group_of(other):
                continue
            if not (self.waiting[one] and self.waiting[other]):
                self.lead.pop(pair, None)
                continue
            lead = self.normal(one) - self.normal(other)
            low, high = self.lead.get(pair, (lead, lead))
            low, high = self.lead[pair] = min(low, lead), max(high, lead)
            bound = sum(self.largest[node] / self.weights.get(node, 1.0) for node in pair)
            assert high - low <= bound + 1e-6


steps = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(PATHS), costs),
    st.tuples(st.just("add"), st.sampled_from(PATHS), costs),
    st.tuples(st.just("next"), st.just(""), costs),
    st.tuples(st.just("end"), st.just(""), costs),
    st.tuples(st.just("withdraw"), st.just(""), costs),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    steps=st.lists(steps, max_size=80),
    weighed=st.dictionaries(st.sampled_from(NODES), weights, max_size=5),
    capacity=st.integers(1, 4),
)
def test_siblings_who_wait_get_shares_by_weight(
    steps: list[tuple[str, str, float]], weighed: dict[str, float], capacity: int
) -> None:
    shares = Shares(weighed, {})
    books = Books(weighed)
    waiting: list[tuple[WaitingRequest, str]] = []
    served: list[WaitingRequest] = []
    for what, path, number in [*steps, *[("next", "", 1.0), ("end", "", 0.0)] * len(steps)]:
        if what == "add":
            waiting.append((shares.add(path, number), path))
            books.came(path, number)
        elif what == "next" and len(served) < capacity:
            begun = shares.next(0.0)
            assert (begun is None) == (not waiting)  # nobody is kept waiting for nothing
            if begun is not None:
                (pair,) = [pair for pair in waiting if pair[0] is begun]
                assert next(one for one in waiting if one[1] == pair[1]) is pair  # in their order
                waiting.remove(pair)
                served.append(begun)
                books.began(pair[1], begun.cost)
        elif what == "end" and served:
            shares.end(served.pop(int(number) % len(served)))
        elif what == "withdraw" and waiting:
            one, tenant = waiting.pop(int(4 * number) % len(waiting))
            shares.withdraw(one)
            books.left(tenant)
        books.check()
        root = shares.root
        assert (root.queued, root.serving) == (len(waiting), len(served))
    assert not waiting
    for one in served:
        shares.end(one)
    assert shares.nodes() == []  # who is idle is forgotten


def fluid(work: dict[str, float], weights: dict[str, float], total: float) -> dict[str, float]:
    """Return each tenant's part of ``total`` units in the fluid model, if all arrive at once."""
    got = dict.fromkeys(work, 0.0)
    left = total
    while left > 1e-9:
        wanting = {name for name in work if work[name] - got[name] > 1e-9}
        if not wanting:
            break
        rate = sum(weights[name] for name in wanting)
        # Until the first of them has all it wants, or there is no more to give.
        until = min(left / rate, *((work[n] - got[n]) / weights[n] for n in wanting))
        for name in wanting:
            got[name] += until * weights[name]
        left -= until * rate
    return got


@settings(max_examples=200)
@given(
    queues=st.dictionaries(
        st.sampled_from("abcde"), st.lists(costs, min_size=1, max_size=12), min_size=2
    ),
    data=st.data(),
)
def test_the_fluid_model_is_never_far(queues: dict[str, list[float]], data: st.DataObject) -> None:
    """Ahead of it by one's own largest request at most; behind it by the largest of each."""
    weighed = {name: data.draw(weights) for name in queues}
    shares = Shares(weighed, {})
    names = {shares.add(name, cost): name for name, queue in queues.items() for cost in queue}
    largest = {name: max(queue) for name, queue in queues.items()}
    wanted = {name: sum(queue) for name, queue in queues.items()}
    got = dict.fromkeys(queues, 0.0)
    for _ in names:
        ideal = fluid(wanted, weighed, sum(got.values()))
        for name in queues:
            assert got[name] - ideal[name] <= largest[name] + 1e-6
            assert ideal[name] - got[name] <= sum(largest.values()) + 1e-6
        begun = shares.next(0.0)
        assert begun is not None
        got[names[begun]] += begun.cost
        shares.end(begun)
    assert got == pytest.approx(wanted)


@settings(max_examples=150)
@given(
    others=st.lists(st.tuples(st.integers(0, 60), st.sampled_from("bcd"), costs), max_size=40),
    mine=st.lists(costs, min_size=1, max_size=20),
    start=st.integers(0, 40),
    weighed=st.fixed_dictionaries(dict.fromkeys("abcd", weights)),
)
def test_tenants_do_not_starve(
    others: list[tuple[int, str, float]],
    mine: list[float],
    start: int,
    weighed: dict[str, float],
) -> None:
    """Each tenant with requests gets the rate of its weight, up to a bounded delay.

    One unit of work takes a second. The others come when they like, and may have been alone before.
    """
    shares = Shares(weighed, {})
    arrivals = sorted([*others, *((start, "a", cost) for cost in mine)], key=lambda one: one[0])
    largest = {name: max((c for _, n, c in arrivals if n == name), default=0) for name in "abcd"}
    rate = weighed["a"] / sum(weighed.values())
    slack = rate * sum(largest.values()) + largest["a"]
    now, got, left = 0.0, 0.0, len(mine)
    names: dict[WaitingRequest, str] = {}
    begun: WaitingRequest | None = None
    while left:
        while arrivals and arrivals[0][0] <= now:  # some of them came while that was served
            _, name, cost = arrivals.pop(0)
            names[shares.add(name, cost)] = name
        if begun is not None:
            shares.end(begun)
            if names[begun] == "a":
                got += begun.cost
                left -= 1
        if now >= start:
            assert got >= min(rate * (now - start) - slack, sum(mine)) - 1e-6
        begun = shares.next(now)
        now = now + begun.cost if begun is not None else arrivals[0][0] if arrivals else now


def begin(shares: Shares, count: int) -> list[str]:
    """The groups of the next requests, each served at once."""
    paths = []
    for _ in range(count):
        begun = shares.next(0.0)
        assert begun is not None
        assert begun.node.parent is not None
        paths.append(begun.node.parent.path)
        shares.end(begun)
    return paths


def test_a_pause_earns_nothing_and_costs_nothing() -> None:
    shares = Shares({}, {})
    for _ in range(100):
        shares.add("busy", 1)
    assert set(begin(shares, 50)) == {"busy"}
    for _ in range(50):
        shares.add("back", 1)
    assert begin(shares, 20).count("back") == 10
    for _ in range(2):
        shares.add("new", 1)
    assert begin(shares, 6).count("new") == 2


def test_a_group_shares_what_it_gets() -> None:
    shares = Shares({"paid": 3.0, "paid/ann": 2.0}, {})
    for _ in range(60):
        for path in ("free", "paid/ann", "paid/bob"):
            shares.add(path, 1)
    begun = begin(shares, 48)
    assert begun.count("free") == 12
    assert begun.count("paid/ann") == 24
    assert begun.count("paid/bob") == 12


def test_later_charge_counts() -> None:
    shares = Shares({}, {})
    for _ in range(50):
        shares.add("a", 1)
        shares.add("b", 1)
    first = shares.next(0.0)
    assert first is not None
    assert first.node.parent is not None
    assert first.node.parent.path == "a"
    shares.charge(first, 9)
    shares.end(first)
    assert begin(shares, 10).count("b") == 10


# --- budgets ---------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 20), st.sampled_from(PATHS), costs), max_size=25),
    budgets=st.dictionaries(
        st.sampled_from(["", "a", "b", "b/x", "c"]),
        st.builds(
            Budget, rate=st.sampled_from([0.5, 1.0, 4.0]), burst=st.sampled_from([1.0, 5.0, 20.0])
        ),
        max_size=3,
    ),
)
def test_no_stretch_of_time_sees_more_than_the_budget(
    arrivals: list[tuple[int, str, float]], budgets: dict[str, Budget]
) -> None:
    shares = Shares({}, budgets)
    arrivals = sorted(arrivals, key=lambda one: one[0])
    paths: dict[WaitingRequest, str] = {}
    begun: list[tuple[float, str, float]] = []
    now = 0.0
    while arrivals or shares.root.queued:
        while arrivals and arrivals[0][0] <= now:
            _, path, cost = arrivals.pop(0)
            paths[shares.add(path, cost)] = path
        while (one := shares.next(now)) is not None:
            begun.append((now, paths[one], one.cost))
            shares.end(one)
        following = min(shares.ready(), arrivals[0][0] if arrivals else math.inf)
        if shares.root.queued or arrivals:
            assert now < following < math.inf  # somebody is let go some time
            now = following
    for group, budget in budgets.items():
        mine = [(at, cost) for at, path, cost in begun if not group or below(path, group)]
        for first in range(len(mine)):
            total = 0.0
            for at, cost in mine[first:]:
                total += cost
                over = max(0.0, cost - budget.burst)
                allowed = budget.burst + budget.rate * (at - mine[first][0]) + over
                assert total <= allowed + 1e-6


def test_others_go_on_while_a_budget_is_used_up() -> None:
    shares = Shares({}, {"a": Budget(rate=1, burst=2)})
    for _ in range(5):
        shares.add("a", 1)
        shares.add("b", 1)
    assert sorted(begin(shares, 7)) == ["a", "a", "b", "b", "b", "b", "b"]
    assert shares.next(0.0) is None
    assert shares.ready() == 1
    assert shares.next(1.0) is not None
    assert shares.next(1.0) is None


def test_tenant_held_back_for_a_large_request_continues_when_that_is_withdrawn() -> None:
    shares = Shares({}, {"a": Budget(rate=1, burst=10)})
    first = shares.add("a", 8)
    assert shares.next(0.0) is first
    large = shares.add("a", 10)
    small = shares.add("a", 1)
    assert shares.next(0.0) is None
    assert shares.ready() == 8
    shares.withdraw(large)
    assert shares.ready() == math.inf
    assert shares.next(0.0) is small


@pytest.mark.parametrize("path", ["", "/", "a/", "/a", "a//b"])
def test_paths_are_names_with_slashes_between(path: str) -> None:
    with pytest.raises(ValueError, match="one name or several"):
        Shares({path: 2.0}, {})


@pytest.mark.parametrize("weight", [0, -1, math.inf, math.nan])
def test_weights_are_positive(weight: float) -> None:
    with pytest.raises(ValueError, match="the weight of 'a' must be at least 1e-100"):
        Shares({"a": weight}, {})


def test_tenants_that_are_idle_do_not_pile_up() -> None:
    shares = Shares({}, {})
    for _ in range(1001):
        shares.add("always", 1)
    for number in range(1000):
        shares.add(f"tenant-{number}", 1)
        begin(shares, 2)
    assert len(shares.root.children) < 100


def test_idle_tenants_are_forgotten_while_a_request_is_held() -> None:
    """Virtual time stands still then, so that no finish tag is ever passed."""
    shares = Shares({}, {})
    shares.add("held", 1)
    shares.next(0.0)
    for number in range(5000):
        for path in (f"tenant-{number}", f"group/tenant-{number}"):
            shares.add(path, 1)
            begin(shares, 1)
    assert len(shares.nodes()) <= 2 * _KEPT + 3
    assert "tenant-4999" in shares.root.children
    assert "held" in shares.root.children


def test_requests_that_are_withdrawn_leave_nothing() -> None:
    shares = Shares({}, {"held": Budget(rate=1e-6, burst=1)})
    shares.add("held", 1)
    shares.next(0.0)
    for number in range(5000):
        shares.withdraw(shares.add(f"tenant-{number}", 1))
        waiting = shares.add("held", 1)
        assert shares.next(0.0) is None
        shares.withdraw(waiting)
    assert len(shares.root.heap) < 100
    assert len(shares._throttled) < 100


PATHS = ["a", "b", "a/x", "a/y", "b/x/z", "c"]


@given(st.lists(st.tuples(st.sampled_from(["add", "begin", "end", "withdraw"]), st.integers(0, 9))))
def test_idle_tenant_is_reported_as_idle(steps: list[tuple[str, int]]) -> None:
    shares = Shares({}, {"b": Budget(rate=1, burst=2)})
    waiting: list[WaitingRequest] = []
    serving: list[WaitingRequest] = []
    for now, (step, number) in enumerate(steps):
        if step == "add":
            waiting.append(shares.add(PATHS[number % len(PATHS)], 1 + number))
        elif step == "begin" and (begun := shares.next(float(now))) is not None:
            waiting.remove(begun)
            serving.append(begun)
        elif step == "end" and serving:
            shares.end(serving.pop(number % len(serving)))
        elif step == "withdraw" and waiting:
            shares.withdraw(waiting.pop(number % len(waiting)))
        for node in [shares.root, *shares.nodes()]:
            idle = {name for name, child in node.children.items() if child.idle}
            assert set(node.resting) == idle
            assert all(child.name == name for name, child in node.children.items())
    assert shares.root.queued == len(waiting)
    assert shares.root.serving == len(serving)
