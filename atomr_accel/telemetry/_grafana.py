"""A Grafana dashboard of all metrics, generated from their catalogue."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

from ..actors.util import check_instance
from ._catalogue import METRICS

if TYPE_CHECKING:
    from ._catalogue import Metric

_Json: TypeAlias = "str | int | bool | list[_Json] | dict[str, _Json]"

_ROWS: Final = {
    "op": "Ops",
    "gpu": "GPUs",
    "pattern": "Patterns",
    "memory": "Memory",
    "pinned": "Memory",
    "out": "Memory",
    "workspace": "Memory",
    "plan": "Plans",
    "cache": "Plans",
    "faults": "Faults",
    "recovery": "Faults",
    "startup": "Faults",
    "standbys": "Faults",
    "actors": "Actors",
    "actor": "Actors",
    "mailbox": "Actors",
    "dead": "Actors",
}
"""Return the row of a metric, by the first word of its name; ``"Devices"`` for all others."""

_ORDER: Final = ("Ops", "Devices", "Faults", "Memory", "Plans", "Patterns", "Actors", "GPUs")

_UNITS: Final = {
    "s": "s",
    "By": "bytes",
    "W": "watt",
    "J": "joule",
    "Cel": "celsius",
    "Hz": "hertz",
}
"""Grafana's names of units, by UCUM's."""

_WIDTH: Final = 24
_PANEL: Final = (8, 7)
"""Columns and lines of a panel, in Grafana's grid of 24 columns."""


def grafana_dashboard(*, title: str = "atomr_accel") -> dict[str, _Json]:
    """Return a Grafana dashboard with a panel for every metric, ready for ``json.dump``.

    Import the JSON in Grafana under *Dashboards, New, Import*, and choose the Prometheus data
    source that scrapes `serve_prometheus`. Variables at the top select systems, devices and GPUs.

    Args:
        title: the dashboard's title.

    Returns:
        An object of Grafana's dashboard schema, version 39 (Grafana 10 and newer).
    """
    check_instance("title", title, str)
    panels: list[_Json] = []
    line = 0
    ordered = sorted(METRICS.values(), key=lambda metric: _ORDER.index(_row(metric)))
    for row, metrics in groupby(ordered, _row):
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": line},
                "panels": [],
            }
        )
        line += 1
        width, height = _PANEL
        per_line = _WIDTH // width
        count = 0
        for count, metric in enumerate(metrics, 1):
            down, across = divmod(count - 1, per_line)
            place: _Json = {
                "h": height,
                "w": width,
                "x": across * width,
                "y": line + down * height,
            }
            panels.append(_panel(metric, len(panels) + 1, place))
        line += -(-count // per_line) * height
    return {
        "uid": "atomr-accel",
        "title": title,
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["atomr_accel", "gpu"],
        "templating": {"list": [_DATA_SOURCE, *map(_variable, ("system", "device", "gpu"))]},
        "annotations": {"list": [_FAULTS]},
        "panels": panels,
    }


def _row(metric: Metric) -> str:
    if metric.name.startswith("op_") or metric.name in {"ops", "batches", "batch_ops", "replays"}:
        return "Ops"
    return _ROWS.get(metric.name.split("_", 1)[0], "Devices")


def _panel(metric: Metric, number: int, place: _Json) -> _Json:
    unit = _UNITS.get(metric.unit, "short")
    if metric.name.endswith("bytes_per_second"):
        unit = "Bps"
    elif metric.kind == "counter":
        unit = "Bps" if metric.unit == "By" else "ops"
    targets: list[_Json] = [
        {
            "refId": chr(ord("A") + at),
            "datasource": _SOURCE,
            "expr": query,
            "legendFormat": legend,
        }
        for at, (query, legend) in enumerate(_queries(metric))
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": metric.name.replace("_", " "),
        "description": metric.help,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": targets,
    }


def _queries(metric: Metric) -> list[tuple[str, str]]:
    """Return the queries of a metric, each with the legend of its series."""
    name = metric.full_name
    chosen = ",".join(
        f'{label}=~"${label}"' for label in metric.labels if label in {"system", "device", "gpu"}
    )
    chosen = f"{{{chosen}}}" if chosen else ""
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels) or metric.name
    if metric.kind == "gauge":
        return [(f"{name}{chosen}", legend)]
    if metric.kind == "counter":
        return [(f"rate({name}{chosen}[$__rate_interval])", legend)]
    labels = ", ".join((*metric.labels, "le"))
    rate = f"sum by ({labels}) (rate({name}_bucket{chosen}[$__rate_interval]))"
    return [
        (f"histogram_quantile({share}, {rate})", f"p{round(100 * share)} {legend}")
        for share in (0.5, 0.99)
    ]


_SOURCE: Final[_Json] = {"type": "prometheus", "uid": "${source}"}

_DATA_SOURCE: Final[_Json] = {
    "name": "source",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
}

_FAULTS: Final[_Json] = {
    "name": "Faults",
    "datasource": _SOURCE,
    "enable": True,
    "iconColor": "red",
    "expr": 'changes(atomr_accel_generation{system=~"$system",device=~"$device"}[$__interval]) > 0',
    "titleFormat": "{{device}}: new generation",
}


def _variable(label: str) -> _Json:
    metric = "atomr_accel_gpu_info" if label == "gpu" else "atomr_accel_device_info"
    query = f"label_values({metric}, {label})"
    return {
        "name": label,
        "label": label.capitalize() if label != "gpu" else "GPU",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
