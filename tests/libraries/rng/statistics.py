"""Is a sample of a distribution? Each question has a false alarm in ten million."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
from scipy import special, stats

ALARM: Final = 1e-7
"""The false-alarm rate of each check: all of them together stay below 1 in 10,000 runs."""

SIGMAS: Final = float(stats.norm.isf(ALARM / 2))

Sample = np.ndarray[Any, Any]


def check_continuous(sample: Sample, law: Any, *, slack: float = 0.0) -> None:
    """Kolmogorov and Smirnov's test, and the moments that exist.

    Args:
        sample: values; the order does not matter.
        law: a distribution of ``scipy.stats`` with its parameters.
        slack: how far rounding to a narrow type may move the distribution function.
    """
    values = np.sort(np.asarray(sample, np.float64).ravel())
    assert not np.isnan(values).any()
    n = len(values)
    cdf = law.cdf(values)
    distance = max(
        float(np.max(np.arange(1, n + 1) / n - cdf)), float(np.max(cdf - np.arange(n) / n))
    )
    p = float(special.kolmogorov(np.sqrt(n) * max(0.0, distance - slack)))
    assert p > ALARM, f"distance {distance} of {n} values: p = {p}"
    mean, variance, kurtosis = _moments(law)
    if np.isfinite(kurtosis):
        check_near(float(values.mean()), mean, np.sqrt(variance / n), slack * np.sqrt(variance))
        spread = variance * np.sqrt((kurtosis + 2) / n)
        if kurtosis < 10:  # otherwise n is too small for the variance to be nearly normal
            check_near(float(values.var()), variance, spread, 4 * slack * variance)


@cache
def _moments(law: Any) -> tuple[float, float, float]:
    """Mean, variance and kurtosis, which SciPy integrates for some distributions in seconds."""
    mean, variance, kurtosis = law.stats("mvk")
    return float(mean), float(variance), float(kurtosis)


def check_near(value: float, expected: float, sigma: float, slack: float = 0.0) -> None:
    """Check that a mean of many values is close enough to the expected one."""
    off = max(0.0, abs(value - expected) - slack) / sigma
    assert off < SIGMAS, f"{value} is {off} standard deviations from {expected}"


def check_counts(counts: Sample, chances: Sample) -> None:
    """Pearson's test, with rare outcomes taken together."""
    total = counts.sum()
    expected = np.asarray(chances, np.float64) * total
    assert counts[expected == 0].sum() == 0
    order = np.argsort(expected)
    bins: list[tuple[float, float]] = [(0.0, 0.0)]
    for index in order:
        bins[-1] = (bins[-1][0] + counts[index], bins[-1][1] + expected[index])
        if bins[-1][1] >= 20:
            bins.append((0.0, 0.0))
    if bins[-1][1] < 20 and len(bins) > 1:
        rest = bins.pop()
        bins[-1] = (bins[-1][0] + rest[0], bins[-1][1] + rest[1])
    if len(bins) < 2:
        return
    seen, wanted = np.array(bins).T
    p = float(stats.chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(bins) - 1))
    assert p > ALARM, f"counts of {len(bins)} outcomes: p = {p}"


def check_uncorrelated(one: Sample, other: Sample) -> None:
    """Two samples of the same size have nothing to do with each other."""
    a, b = (np.asarray(sample, np.float64).ravel() for sample in (one, other))
    check_near(float(np.corrcoef(a, b)[0, 1]), 0.0, 1 / np.sqrt(len(a)))
