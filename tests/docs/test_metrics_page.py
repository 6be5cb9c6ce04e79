"""The page about metrics lists all metrics with their present attributes."""

from __future__ import annotations

import pytest

from atomr_accel.telemetry import METRICS

from ..harness import ROOT


@pytest.mark.style
def test_the_page_lists_every_metric() -> None:
    text = (ROOT / "docs/how-to/metrics.md").read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if line.startswith("| `atomr_accel_")]
    assert listed == [
        f"| `{metric.full_name}` | {metric.kind} | "
        f"{' '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |"
        for metric in METRICS.values()
    ]
