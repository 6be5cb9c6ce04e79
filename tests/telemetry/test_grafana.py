"""The generated Grafana dashboard: complete, well formed, and laid out without overlaps."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from atomr_accel.telemetry import METRICS, grafana_dashboard

QUERY_NAMES = re.compile(r"\batomr_accel_\w+")


@pytest.fixture
def dashboard() -> Any:
    return json.loads(json.dumps(grafana_dashboard(title="Plant")))


def panels_of(dashboard: Any) -> list[Any]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_dashboard_has_one_panel_for_each_metric(dashboard: Any) -> None:
    titles = [panel["title"].replace(" ", "_") for panel in panels_of(dashboard)]
    assert sorted(titles) == sorted(METRICS)
    assert dashboard["title"] == "Plant"


def test_queries_name_existing_series_and_labels(dashboard: Any) -> None:
    for panel in panels_of(dashboard):
        metric = METRICS[panel["title"].replace(" ", "_")]
        series = f"{metric.full_name}{'_bucket' if metric.kind == 'histogram' else ''}"
        assert panel["targets"]
        for target in panel["targets"]:
            assert QUERY_NAMES.findall(target["expr"]) == [series]
            assert target["expr"].count("(") == target["expr"].count(")")
            assert set(re.findall(r"(\w+)=~", target["expr"])) <= set(metric.labels)
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) == set(metric.labels)
            assert ("rate(" in target["expr"]) == (metric.kind != "gauge")


def test_panels_fill_the_grid_without_overlaps(dashboard: Any) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + across, place["y"] + down)
            for across in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken
        taken |= cells
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert numbers == [*range(1, len(numbers) + 1)]


def test_variables_select_what_panels_filter_by(dashboard: Any) -> None:
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    assert variables == {"source", "system", "device", "gpu"}
    for panel in panels_of(dashboard):
        for target in panel["targets"]:
            named = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert named <= variables
