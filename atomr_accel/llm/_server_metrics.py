"""Counters and durations of a server, and their text for Prometheus.

The metrics of the model server protocol of Kubernetes' gateway have the names that its endpoint
picker reads by default. All other names begin with ``atomr_accel_llm_``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Final, final

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LONG: Final = (*_SECONDS, 30.0, 60.0, 120.0, 300.0)

GROWING: Final = {
    *("requests", "finished", "aborted", "failed", "refused", "tokens", "prompt_tokens"),
    *("cache_hits", "steps", "preemptions", "faults", "recomputed", "kept"),
}
"""Statistics of models that only grow."""

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@final
class Durations:
    """A histogram of durations.

    Args:
        bounds: upper bounds of its buckets, in seconds.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds: Final = tuple(bounds)
        self._counts: Final = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> list[str]:
        """Return its samples."""
        lines, total = [], 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{{{labels}}} {self._sum}", f"{name}_count{{{labels}}} {total}"]


@final
class ServerMetrics:
    """Counters and durations of a server."""

    def __init__(self) -> None:
        self.answers: Final[Counter[tuple[str, int]]] = Counter()
        self.finishes: Final[Counter[str]] = Counter()
        self.aborted = 0
        self.refused = 0
        self.failed = 0
        self.prompt_tokens = 0
        self.generated_tokens = 0
        self.first_token: Final = Durations(_LONG)
        self.between_tokens: Final = Durations(_SECONDS)
        self.whole: Final = Durations(_LONG)


@final
class MetricsText:
    """Text for Prometheus, one family of samples after the other."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels: Final = _labels(labels)
        self._lines: Final[list[str]] = []

    def add(self, name: str, kind: str, about: str, value: float, **labels: str) -> None:
        """Add a family with one sample."""
        self.add_all(name, kind, about, [(labels, value)])

    def add_all(
        self, name: str, kind: str, about: str, samples: Iterable[tuple[Mapping[str, str], float]]
    ) -> None:
        """Add a family."""
        self._begin(name, kind, about)
        for more, value in samples:
            inside = ",".join(filter(None, (self._labels, _labels(more))))
            self._lines.append(f"{name}{{{inside}}} {float(value):.17g}")

    def add_durations(self, name: str, about: str, durations: Durations) -> None:
        """Add a histogram."""
        self._begin(name, "histogram", about)
        self._lines.extend(durations.lines(name, self._labels))

    def _begin(self, name: str, kind: str, about: str) -> None:
        self._lines.append(f"# HELP {name} {about}")
        self._lines.append(f"# TYPE {name} {kind}")

    def encoded(self) -> bytes:
        """Return the text."""
        return "\n".join([*self._lines, ""]).encode()


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def numbers(statistics: object) -> dict[str, float]:
    """Return the numbers among the fields of statistics, also of those inside them."""
    told: dict[str, float] = {}
    if not is_dataclass(statistics):
        return told
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if is_dataclass(value):
            told |= numbers(value)
        elif isinstance(value, int | float):
            told[field.name] = float(value)
    return told
