"""Curves of the last minutes, hour and day, and the statistics of patterns."""

from __future__ import annotations

import math
import re
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import patterns
from atomr_accel.actors import Service, open_actor_system, serving
from atomr_accel.dashboard import _state, open_dashboard
from atomr_accel.dashboard._history import COARSER, POINTS, _Pulse, summary
from atomr_accel.dashboard._running import folder
from atomr_accel.dashboard._state import PARTS, SERVICES, SystemObserver
from atomr_accel.patterns import open_batcher

from ..harness import ROOT
from .client import ask

RATES = st.floats(0, 1e6)
LATENCIES = st.none() | st.floats(0, 1e5)
SECONDS = st.tuples(st.just(1.0), RATES, RATES, LATENCIES, LATENCIES, RATES, RATES).map(list)


@given(st.lists(SECONDS, min_size=1, max_size=10))
def test_summary_keeps_totals_and_peaks(points: list[list[float | None]]) -> None:
    _at, ops, failed, p50, p99, in_flight, used = summary(points)
    columns: list[list[Any]] = [list(column) for column in zip(*points, strict=True)]
    assert ops == pytest.approx(math.fsum(columns[1]) / len(points), abs=0.1)
    assert failed == pytest.approx(math.fsum(columns[2]) / len(points), abs=0.1)
    assert p99 == max((one for one in columns[4] if one is not None), default=None)
    assert (in_flight, used) == (max(columns[5]), max(columns[6]))
    medians = [one for one in columns[3] if one is not None]
    if p50 is not None:
        assert min(medians) - 1e-3 <= p50 <= max(medians) + 1e-3


def test_coarser_curves_reach_back_a_day_in_fixed_space() -> None:
    pulse = _Pulse()
    seconds = 2 * POINTS + 10
    for at in range(seconds):
        pulse.ops = at
        pulse.beat(1.0, 0, 0)
    assert len(pulse.points.values) == POINTS
    for width, curve in pulse.coarser.items():
        points: list[Any] = [*curve.points.values.values()]
        assert len(points) == seconds // width
        means = [at * width + (width - 1) / 2 for at in range(len(points))]
        assert [point[1] for point in points] == pytest.approx(means)
    assert [width * most for width, most in COARSER.items()] == [3600, 86400]


class Mood(Enum):
    GOOD = "good"


@dataclass
class Part:
    path: str
    waiting: int
    rate: float


@dataclass
class Numbers:
    asked: int
    mood: Mood
    rate: float
    parts: tuple[Part, ...]
    by_name: dict[str, int]


class Pattern:
    def statistics(self) -> Numbers:
        parts = tuple(Part(f"/t{at}", at, math.nan) for at in range(PARTS + 9))
        return Numbers(3, Mood.GOOD, math.inf, parts, {"left": 1})


async def test_patterns_are_shown_by_plain_values_and_parts() -> None:
    async with open_actor_system("s") as system:
        shown: Any = SystemObserver(system, patterns={"p": Pattern()}).patterns()["p"]
    assert (shown["kind"], shown["asked"], shown["mood"]) == ("Pattern", 3, "good")
    assert "rate" not in shown
    assert len(shown["parts"]) == PARTS
    assert shown["parts"]["/t7"] == {"path": "/t7", "waiting": 7}
    assert shown["by_name"] == {"left": {"value": 1}}


@pytest.mark.parametrize("name", [n for n in patterns.__all__ if n.endswith("Statistics")])
def test_every_figure_of_a_pattern_is_explained(name: str) -> None:
    kind = getattr(patterns, name)
    terms = _state._terms(kind)
    assert {*terms} >= {field.name for field in fields(kind)}
    assert all(text and "`" not in text for text in terms.values())


async def test_patterns_that_have_not_changed_are_the_same_object() -> None:
    async with open_actor_system("s") as system:
        observer = SystemObserver(system, patterns={"p": Pattern()})
        assert observer.patterns()["p"] is observer.patterns()["p"]


class Served(Service):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def statistics(self) -> object:
        return self.answer() if callable(self.answer) else self.answer


async def test_services_are_shown_by_their_paths_without_being_named() -> None:
    async with open_actor_system("s") as system, AsyncExitStack() as stack:
        observer = SystemObserver(system)
        for name, answer in {
            "numbers": Pattern().statistics,
            "plain": 3,
            "bad": lambda: 1 // 0,
            "none": None,
        }.items():
            await stack.enter_async_context(serving(Served(answer), system=system, name=name))
        actors, _ = await observer.actors()
        shown: Any = observer.patterns()
        assert [*actors] == ["/numbers", "/plain", "/bad", "/none"]
        assert [*shown] == ["/numbers", "/plain", "/bad"]
        assert shown["/numbers"]["kind"] == "Served"
        assert shown["/numbers"]["parts"]["/t7"] == {"path": "/t7", "waiting": 7}
        assert shown["/plain"] == {"kind": "Served", "terms": {}, "statistics": 3}
        assert shown["/bad"]["error"].startswith("ZeroDivisionError")
        await observer.actors()
        assert observer.patterns()["/numbers"] is shown["/numbers"]
    await observer.actors()
    assert observer.patterns() == {}


async def test_a_limited_number_of_services_is_shown() -> None:
    async with open_actor_system("s") as system, AsyncExitStack() as stack:
        for _ in range(SERVICES + 1):
            await stack.enter_async_context(serving(Served(1), system=system))
        observer = SystemObserver(system)
        await observer.actors()
        assert len(observer.patterns()) == SERVICES


async def test_dashboard_shows_a_batcher() -> None:
    pytest.importorskip("hypercorn")

    async def double(items: Any) -> list[int]:
        return [2 * item for item in items]

    async with open_actor_system("s") as system, open_batcher(double, max_size=4) as batcher:
        assert await batcher(2) == 4
        shown = {"double": batcher}
        async with open_dashboard(system, patterns=shown, announce=False) as page:
            answer = await ask(page, "/state", token=page.token)
    assert b'"double":{"kind":"Batcher"' in answer.body


@pytest.mark.parametrize("pattern", [3, Pattern, object()])
async def test_dashboard_refuses_patterns_without_statistics(pattern: Any) -> None:
    async with open_actor_system("s") as system:
        with pytest.raises(TypeError, match="must have statistics"):
            async with open_dashboard(system, patterns={"p": pattern}):
                pass


async def test_programs_lists_other_dashboards_only_where_nobody_else_can_ask(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("hypercorn")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    async with open_actor_system("one") as one, open_actor_system("two") as two:
        async with open_dashboard(one) as here, open_dashboard(two) as there:
            listed = (await ask(here, "/programs", token=here.token)).body.decode()
            assert there.url in listed
            assert listed.count('"here":true') == 1
            assert (await ask(here, "/programs")).status == 401
            kept = folder()
            kept.chmod(0o777)
            assert (await ask(here, "/programs", token=here.token)).body == b"[]"
            kept.chmod(0o700)
        async with open_dashboard(one, host="0.0.0.0", public=True) as public:
            assert (await ask(public, "/programs", token=public.token)).body == b"[]"


def test_colours_have_one_meaning_each() -> None:
    style = (ROOT / "atomr_accel/dashboard/page/style.css").read_text()
    for theme in re.findall(r":root \{(.*?)\}", style, re.DOTALL):
        colours = re.findall(r"--(\w+): (#[0-9a-f]{6})", theme)
        repeated = [colour for colour, n in Counter(c for _, c in colours).items() if n > 1]
        assert not repeated
    meanings = Counter(re.findall(r"\.(?:kind|is|key)-\w+ \{ --tone: var\((--\w+)\)", style))
    assert {name for name, n in meanings.items() if n > 1} <= {"--curve"}
