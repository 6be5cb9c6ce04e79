"""Values of metrics by name and labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from atomr_accel.telemetry import Metrics, PrometheusCollector

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def exposition(metrics: Metrics) -> str:
    """Return the page that Prometheus reads."""
    registry = CollectorRegistry()
    registry.register(PrometheusCollector(metrics))
    return generate_latest(registry).decode()


def samples(text: str) -> Samples:
    """Return the samples that Prometheus reads from a page; each series occurs once."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


class Seen:
    """The values of metrics at one moment."""

    def __init__(self, metrics: Metrics) -> None:
        self.samples = samples(exposition(metrics))

    def __call__(self, name: str, /, **labels: str) -> float:
        """The sum over all series that have these labels; 0 without any."""
        wanted = labels.items()
        return sum(
            value
            for (known, having), value in self.samples.items()
            if known == f"atomr_accel_{name}" and wanted <= having
        )

    def has(self, name: str, /, **labels: str) -> bool:
        """Return whether this series exists."""
        wanted = labels.items()
        return any(
            known == f"atomr_accel_{name}" and wanted <= having for known, having in self.samples
        )
