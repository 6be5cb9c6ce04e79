"""Cases of ``device.rng``: distributions by their tests, and sequences that come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import numpy as np
from scipy import stats

from atomr_accel import Device

from ..libraries.rng.statistics import check_continuous, check_counts
from .cases import Case, checked, choose, same, values

Random = np.random.Generator

COUNT: Final = 2000
KINDS: Final = ("philox4_32_10", "philox4_32_10", "philox4_32_10", "xorwow", "mrg32k3a", "mt19937")
SLACK: Final = {"float16": 0.001, "bfloat16": 0.008, "float32": 0.0, "float64": 0.0}
CROWDED: Final = {"float16": 0.06, "bfloat16": 0.06, "float32": 0.001, "float64": 0.0}
DTYPES: Final = tuple(SLACK)


def continuous(random: Random) -> tuple[str, tuple[float, ...], Any, dict[str, float]]:
    """A law with parameters that are drawn, and what SciPy calls it."""
    low, width = float(random.uniform(-2, 2)), float(random.uniform(0.5, 2))
    # Below 1 more of a beta law is at its ends than narrow types can tell apart.
    a, b = (float(choose(random, (1.5, 2.0, 5.0, 7.5))) for _ in range(2))
    rows: list[tuple[str, tuple[float, ...], Any, dict[str, float]]] = [
        ("random", (), stats.uniform(), SLACK),
        ("uniform", (low, low + width), stats.uniform(low, width), CROWDED),
        ("normal", (low, width), stats.norm(low, width), CROWDED),
        ("lognormal", (0.5, 0.25), stats.lognorm(0.25, scale=np.exp(0.5)), SLACK),
        ("exponential", (width,), stats.expon(scale=width), SLACK),
        ("gamma", (a, width), stats.gamma(a, scale=width), CROWDED),
        ("beta", (a, b), stats.beta(a, b), CROWDED),
        ("standard_normal", (), stats.norm(), SLACK),
        ("standard_exponential", (), stats.expon(), SLACK),
        ("standard_gamma", (a,), stats.gamma(a), CROWDED),
        ("standard_cauchy", (), stats.cauchy(), SLACK),
        ("chisquare", (a,), stats.chi2(a), CROWDED),
        ("laplace", (low, width), stats.laplace(low, width), CROWDED),
        ("gumbel", (low, width), stats.gumbel_r(low, width), CROWDED),
        ("weibull", (a,), stats.weibull_min(a), CROWDED),
        ("rayleigh", (width,), stats.rayleigh(scale=width), SLACK),
        ("vonmises", (0.0, width), stats.vonmises(width), CROWDED),
        ("standard_t", (a,), stats.t(a), CROWDED),
        ("f", (a, b), stats.f(a, b), CROWDED),
    ]
    return choose(random, rows)


async def twice(case: Case, name: str, *args: Any, **options: Any) -> Any:
    """Draw, and draw again from the same state: the numbers have to be the same."""
    random = case.random
    kind, seed = choose(random, KINDS), int(random.integers(2**32))
    case.tell(op=name, args=args, kind=kind, seed=seed, **options)
    generator = case.device.rng.default_rng(seed, kind)
    size = options.get("size", 1)
    before = int(random.integers(0, 50))
    if before:
        await generator.random(before)
    state = generator.state
    await case.poison(8 * int(np.prod(size)))
    first = await case.fetch(await getattr(generator, name)(*args, **options))
    generator.state = state
    await case.poison(8 * int(np.prod(size)))
    again = await case.fetch(await getattr(generator, name)(*args, **options))
    assert first.tobytes() == again.tobytes(), "the same state gave other numbers"
    return first


async def law(case: Case) -> str | None:
    """Continuous distributions."""
    name, args, expected, slack = continuous(case.random)
    dtype = choose(case.random, DTYPES)
    size = choose(case.random, (COUNT, COUNT - 1, (COUNT // 3, 3), 4 * COUNT))
    drawn = await twice(case, name, *args, size=size, dtype=dtype)
    assert drawn.dtype.name == dtype
    check_continuous(drawn.astype(np.float64), expected, slack=slack[dtype])
    return None


async def integers(case: Case) -> str | None:
    """Whole numbers, evenly."""
    random = case.random
    dtype = choose(random, ("int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"))
    low = 0 if dtype.startswith("u") else int(random.integers(-100, 0))
    high = int(random.integers(low + 1, 127))
    drawn = await twice(case, "integers", low, high, size=COUNT, dtype=dtype)
    assert drawn.dtype.name == dtype
    assert low <= drawn.min(), "too small"
    assert drawn.max() < high, "too large"
    span = high - low
    check_counts(np.bincount(drawn.astype(int) - low, minlength=span), np.full(span, 1 / span))
    return None


async def discrete(case: Case) -> str | None:
    """Laws of whole numbers."""
    random = case.random
    p, n = float(choose(random, (0.1, 0.3, 0.5, 0.9))), int(choose(random, (1, 5, 20, 100)))
    rows: list[tuple[str, tuple[Any, ...], Any]] = [
        ("poisson", (float(n) / 3,), stats.poisson(n / 3)),
        ("binomial", (n, p), stats.binom(n, p)),
        ("geometric", (p,), stats.geom(p)),
        ("negative_binomial", (n, p), stats.nbinom(n, p)),
        ("hypergeometric", (n, 7, 5), stats.hypergeom(n + 7, n, 5)),
    ]
    name, args, expected = choose(random, rows)
    drawn = await twice(case, name, *args, size=COUNT)
    least, most = int(expected.ppf(1e-9)), int(expected.isf(1e-9)) + 1
    least = max(least, 0)
    counts = np.bincount(
        np.clip(drawn.astype(int), least, most) - least, minlength=most - least + 1
    )
    chances = np.asarray(expected.pmf(np.arange(least, most + 1)))
    chances[0] += expected.cdf(least - 1)
    chances[-1] += expected.sf(most)
    check_counts(counts, chances / chances.sum())
    return None


async def choices(case: Case) -> str | None:
    """Choices, permutations, shuffles."""
    random = case.random
    items = int(choose(random, (1, 2, 5, 33, 257)))
    name = choose(
        random, ("choice", "weighted", "without", "permutation", "shuffle", "permuted", "dirichlet")
    )
    if name == "choice":
        drawn = await twice(case, "choice", items, size=COUNT)
        check_counts(np.bincount(drawn, minlength=items), np.full(items, 1 / items))
    elif name == "weighted":
        p = random.random(items) * (random.random(items) < 0.7) + 1e-3
        p /= p.sum()
        drawn = await twice(case, "choice", items, size=COUNT, p=p)
        check_counts(np.bincount(drawn, minlength=items), p)
    elif name == "without":
        size = int(random.integers(1, items + 1))
        drawn = await twice(case, "choice", items, size=size, replace=False)
        assert len(np.unique(drawn)) == size, "something was chosen twice"
        assert 0 <= drawn.min() <= drawn.max() < items
    elif name == "permuted":
        array = values(random, (items, 3), choose(random, ("float32", "int64", "uint8")))
        case.tell(op="permuted")
        along = choose(random, (None, 0, 1, -1))
        generator = case.device.rng.default_rng(int(random.integers(2**32)))
        got = await case.fetch(await generator.permuted(await case.put(array), axis=along))
        assert got.shape == array.shape
        same(np.sort(got, along), np.sort(array, along))
    elif name == "dirichlet":
        alpha = tuple(float(each) for each in random.uniform(0.2, 4, int(random.integers(2, 6))))
        drawn = await twice(case, "dirichlet", alpha, size=COUNT)
        for at, each in enumerate(alpha):
            check_continuous(drawn[:, at], stats.beta(each, sum(alpha) - each))
    elif name == "permutation":
        drawn = await twice(case, "permutation", items)
        same(np.sort(drawn), np.arange(items))
    else:
        array = values(random, (items, 3), choose(random, ("float32", "int64", "uint8")))
        case.tell(op="shuffle")
        x = await case.put(array, kept=False)
        await case.device.rng.default_rng(int(random.integers(2**32))).shuffle(x)
        got = await case.fetch(x)
        same(np.sort(got.view(np.ndarray), 0).sum(0), np.sort(array, 0).sum(0))
        rows = sorted(map(tuple, got.tolist()))
        assert rows == sorted(map(tuple, array.tolist())), "not the same rows"
    return None


OPS: Final[list[Callable[[Case], Awaitable[str | None]]]] = [law, law, integers, discrete, choices]


async def check(device: Device, random: Random) -> str | None:
    """Draw a case, run it, and compare."""
    return await checked(device, random, OPS)
