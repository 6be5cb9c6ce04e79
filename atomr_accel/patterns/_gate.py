"""Gates, which decide whether a new version performs as well as the present one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..wire.options import count, real, set_fields
from ._latencies import Latencies
from ._members import is_for_member

In = TypeVar("In")
Out = TypeVar("Out")


# With slots ``Shadow[...](...)`` would fail, on Python 3.11.
@dataclass(frozen=True)
class Shadow(Generic[In, Out]):
    """Options to try a new version on copies of requests, whose answers are only compared.

    A copy is made when the present version has answered, and is compared with that answer. The copy
    runs in its own task, so callers do not wait for it. Items and answers must stay valid that
    long.

    Attributes:
        compare: gets the item, the answer given and that of the new version, and says whether
            the two agree.
        share: the share of the requests that are copied.
        max_in_flight: the maximum number of copies in progress. Further requests are not copied
            meanwhile.
    """

    compare: Callable[[In, Out, Out], bool]
    share: float = 1.0
    max_in_flight: int = 16

    def __post_init__(self) -> None:
        if not callable(self.compare):
            raise TypeError(
                f"compare must be a function of an item and two answers, not {self.compare!r}"
            )
        set_fields(
            self,
            share=real(self.share, "share", above=0, most=1),
            max_in_flight=count(self.max_in_flight, "max_in_flight"),
        )


class Outcomes:
    """Outcomes of a version's requests in one step of a roll-out."""

    __slots__ = ("compared", "count", "failures", "latencies", "mismatches")

    def __init__(self) -> None:
        self.count: int = 0
        self.failures: int = 0
        self.compared: int = 0
        self.mismatches: int = 0
        self.latencies: Latencies = Latencies()

    def answered(self, seconds: float) -> None:
        """Count a request that was answered."""
        self.count += 1
        self.latencies.add(seconds)

    def failed(self) -> None:
        """Count a request whose failure counts against the version."""
        self.count += 1
        self.failures += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Conditions that a new version must meet to take over.

    The gate decides in each step of a roll-out, once ``minimum`` requests of that step have ended
    at each version. It decides earlier if the new version has failed so often that it cannot pass.

    Attributes:
        minimum: the number of requests that each version must have ended.
        error_margin: the amount by which its share of failed requests may exceed the present one's.
        latency_quantile: the quantile at which the times of answers are compared.
        latency_ratio: the maximum ratio of its time to the present version's time at that quantile.
        mismatches: the share of its shadowed answers that may differ.
        counts: returns whether an error counts as a failure; see `is_for_member`. A request that
            ended because of its caller's deadline counts as a failure by `trio.TooSlowError`.
    """

    minimum: int = 50
    error_margin: float = 0.01
    latency_quantile: float = 0.95
    latency_ratio: float = 1.5
    mismatches: float = 0.0
    counts: Callable[[Exception], bool] = is_for_member

    def __post_init__(self) -> None:
        set_fields(
            self,
            minimum=count(self.minimum, "minimum"),
            error_margin=real(self.error_margin, "error_margin", least=0, most=1),
            latency_quantile=real(self.latency_quantile, "latency_quantile", above=0, most=1),
            latency_ratio=real(self.latency_ratio, "latency_ratio", above=0, infinity=True),
            mismatches=real(self.mismatches, "mismatches", least=0, most=1),
        )
        if not callable(self.counts):
            raise TypeError(f"counts must be a function of an exception, not {self.counts!r}")

    def judge(self, present: Outcomes, candidate: Outcomes) -> str | None:
        """Why it fails; an empty string if it passes; None if that is not known yet."""
        if present.count < self.minimum:
            return None
        base = present.failures / present.count
        least = max(candidate.count, self.minimum)
        if candidate.failures > (base + self.error_margin) * least:
            return (
                f"{candidate.failures} of {candidate.count} requests failed, and of the present "
                f"version's {present.failures} of {present.count}"
            )
        if candidate.mismatches > self.mismatches * max(candidate.compared, self.minimum):
            return f"{candidate.mismatches} of {candidate.compared} answers differ"
        if candidate.count < self.minimum:
            return None
        ours = present.latencies.quantile(self.latency_quantile)
        theirs = candidate.latencies.quantile(self.latency_quantile)
        if theirs > ours * self.latency_ratio:  # False where nothing was answered
            return (
                f"answers take {theirs:.3g} s and those of the present version {ours:.3g} s, at "
                f"the quantile {self.latency_quantile:g}"
            )
        return ""
