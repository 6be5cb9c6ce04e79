"""Draws of ``device.rng``: distributions, independence, and sequences that repeat."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

from atomr_accel import Device, GpuRef, Unsupported, open_device
from atomr_accel.libraries.rng.generator import Generator
from atomr_accel.ops import Awaited
from atomr_accel.testing import poison

from ... import seeds
from ..conformance import HALF, MARKS, REAL, TALLIES, Array, Tally, on_cuda
from ..conformance import poison as fill_free_memory
from .statistics import check_continuous, check_counts, check_near, check_uncorrelated

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::atomr_accel.CpuFallbackWarning")]

N = 30_000
FLOATS = (*HALF, *REAL)
PSEUDO = ("philox4_32_10", "xorwow", "mrg32k3a", "mtgp32", "mt19937")
QUASI = ("sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64")
SLACK = {"float16": 0.001, "bfloat16": 0.008, "float32": 0.0, "float64": 0.0}


@pytest.fixture
def seed() -> int:
    """A seed for generators."""
    return seeds.draw() % 2**32


def tally(name: str) -> None:
    found = TALLIES.setdefault("rng", Tally())
    found.operations.add(f"rng.{name}")
    found.cases += 1


async def draw(
    device: Device, generator: Generator[Awaited], method: str, *args: Any, **more: Any
) -> Array:
    """Draw into memory that was full of NaNs before."""
    size = more.get("size", 1)
    await fill_free_memory(device, [8 * int(np.prod(size))])
    values = await device.get(await getattr(generator, method)(*args, **more))
    tally(f"{generator.kind} {method}")
    return values


@dataclass(frozen=True)
class Law:
    """A continuous distribution: how to draw it, and what SciPy calls it.

    Attributes:
        method: of the generator.
        args: its parameters.
        law: the distribution.
        slack: further slack by dtype, where values crowd at what a narrow type cannot tell
            apart.
    """

    method: str
    args: tuple[float, ...]
    law: Any
    slack: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the names of tests."""
        return f"{self.method}{self.args}"


CROWDED = {"float16": 0.06, "bfloat16": 0.06, "float32": 0.001}

CONTINUOUS = [
    Law("random", (), stats.uniform()),
    Law("uniform", (-1.0, 3.0), stats.uniform(-1, 4)),
    Law("normal", (), stats.norm()),
    Law("normal", (1.0, 2.0), stats.norm(1, 2)),
    Law("lognormal", (0.5, 0.25), stats.lognorm(0.25, scale=np.exp(0.5))),
    Law("exponential", (2.0,), stats.expon(scale=2)),
    Law("cauchy", (1.0, 2.0), stats.cauchy(1, 2)),
    Law("gamma", (0.3, 2.0), stats.gamma(0.3, scale=2), CROWDED),
    Law("gamma", (7.5, 0.5), stats.gamma(7.5, scale=0.5)),
    Law("beta", (0.5, 0.5), stats.beta(0.5, 0.5), CROWDED),
    Law("beta", (2.0, 5.0), stats.beta(2, 5)),
    Law("standard_normal", (), stats.norm()),
    Law("standard_exponential", (), stats.expon()),
    Law("standard_gamma", (2.5,), stats.gamma(2.5)),
    Law("standard_cauchy", (), stats.cauchy()),
    Law("chisquare", (5.0,), stats.chi2(5)),
    Law("laplace", (1.0, 2.0), stats.laplace(1, 2)),
    Law("gumbel", (-1.0, 2.0), stats.gumbel_r(-1, 2)),
    Law("weibull", (1.5,), stats.weibull_min(1.5)),
    Law("rayleigh", (2.0,), stats.rayleigh(scale=2)),
    Law("vonmises", (0.0, 2.5), stats.vonmises(2.5)),
    Law("vonmises", (0.0, 0.0), stats.uniform(-np.pi, 2 * np.pi)),
    # Half a step of these types at 0.5 to 1, times a density of 12.
    Law(
        "vonmises", (0.5, 900.0), stats.vonmises(900.0, 0.5), {"float16": 0.003, "bfloat16": 0.024}
    ),
    Law("standard_t", (7.0,), stats.t(7)),
    Law("f", (5.0, 12.0), stats.f(5, 12)),
]
DRAWN_UNTIL_ACCEPTED = ("gamma", "beta", "standard_gamma", "chisquare", "standard_t", "f")


@pytest.mark.parametrize("law", CONTINUOUS, ids=lambda law: law.name)
@pytest.mark.parametrize("dtype", FLOATS)
async def test_continuous(device: Device, seed: int, law: Law, dtype: str) -> None:
    generator = device.rng.default_rng(seed)
    values = await draw(device, generator, law.method, *law.args, size=N, dtype=dtype)
    assert values.dtype == dtype
    values = values.astype(np.float64)
    check_continuous(values, law.law, slack=SLACK[dtype] + law.slack.get(dtype, 0))
    ranks = stats.rankdata(values)
    check_uncorrelated(ranks[:-1], ranks[1:])
    check_uncorrelated(ranks[: N // 2], ranks[N // 2 :])


@pytest.mark.parametrize("kind", PSEUDO[1:])
@pytest.mark.parametrize("dtype", ["float16", *REAL])
async def test_other_generators(device: Device, seed: int, kind: str, dtype: str) -> None:
    generator = device.rng.default_rng(seed, kind)
    for law in CONTINUOUS:
        size = (N // 3, 3) if law.args else N - 1  # also sizes that fill no block of words
        values = await draw(device, generator, law.method, *law.args, size=size, dtype=dtype)
        slack = SLACK[dtype] + law.slack.get(dtype, 0)
        check_continuous(values.astype(np.float64), law.law, slack=slack)


@pytest.mark.parametrize("kind", PSEUDO)
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("bool", 0, 2),
        ("int8", -128, 128),
        ("uint8", 3, 10),
        ("int16", -1000, 1000),
        ("int32", -(2**31), 2**31),
        ("uint32", 5, 2**31 + 2**30),
        ("int64", -3, 8),
        ("int64", -(2**63), 2**62),
        ("uint64", 0, 2**64),
    ],
)
async def test_integers(
    device: Device, seed: int, kind: str, dtype: str, low: int, high: int
) -> None:
    generator = device.rng.default_rng(seed, kind)
    values = await draw(device, generator, "integers", low, high, size=N, dtype=dtype)
    assert values.dtype == dtype
    offsets = [int(value) - low for value in values]
    span = high - low
    assert min(offsets) >= 0
    assert max(offsets) < span
    bins = min(span, 64)
    counts = np.bincount([offset * bins // span for offset in offsets], minlength=bins)
    edges = [-(-bin_ * span // bins) for bin_ in range(bins + 1)]
    check_counts(counts, np.diff(np.array(edges, object)).astype(np.float64) / span)


@pytest.mark.parametrize("mean", [0.0, 0.3, 9.0, 30.0, 5000.0])
@pytest.mark.parametrize("dtype", ["int64", "uint16", "int32"])
async def test_poisson(device: Device, seed: int, mean: float, dtype: str) -> None:
    generator = device.rng.default_rng(seed)
    values = await draw(device, generator, "poisson", mean, size=N, dtype=dtype)
    law = stats.poisson(mean)
    least, most = (int(law.ppf(1e-9)), int(law.isf(1e-9)) + 1) if mean else (0, 0)
    counts = np.bincount(
        np.clip(values.astype(int), least, most) - least, minlength=most - least + 1
    )
    chances = np.asarray(law.pmf(np.arange(least, most + 1)))
    chances[0] += law.cdf(least - 1)
    chances[-1] += law.sf(most)
    check_counts(counts, chances)
    check_near(float(values.mean()), mean, np.sqrt((mean or 1) / N))


# --- choices -----------------------------------------------------------------------------


async def test_choice_with_probabilities(device: Device, seed: int) -> None:
    generator = device.rng.default_rng(seed)
    p = np.array([0.1, 0.0, 0.4, 0.25, 0.25])
    values = await draw(device, generator, "choice", 5, size=N, p=p)
    check_counts(np.bincount(values, minlength=5), p)
    values = await draw(device, generator, "choice", 5, size=N)
    check_counts(np.bincount(values, minlength=5), np.full(5, 0.2))


async def test_choice_of_many_with_probabilities(device: Device, seed: int) -> None:
    generator = device.rng.default_rng(seed)
    items = 300_000  # a table that travels in several pieces
    p = np.random.default_rng(seed).random(items)
    p[: items // 2] *= 3
    p /= p.sum()
    values = await draw(device, generator, "choice", items, size=N, p=p)
    bins = 50
    chances = p.reshape(bins, -1).sum(1)
    check_counts(np.bincount(values * bins // items, minlength=bins), chances)


@pytest.mark.parametrize("items", [1, 10, 1000, 200_000])
async def test_choice_without_replacement(device: Device, seed: int, items: int) -> None:
    generator = device.rng.default_rng(seed)
    everything = await draw(device, generator, "choice", items, size=items, replace=False)
    np.testing.assert_array_equal(np.sort(everything), np.arange(items))
    some = await draw(device, generator, "choice", items, size=-(-items // 3), replace=False)
    assert len(np.unique(some)) == len(some)
    if items >= 1000:
        check_uncorrelated(everything, np.arange(items))
        check_uncorrelated(everything[: len(some)], some)


async def test_choice_without_replacement_with_probabilities(device: Device, seed: int) -> None:
    generator = device.rng.default_rng(seed)
    p = np.array([0.5, 0.0, 0.2, 0.3])
    firsts = np.zeros(4, int)
    for _ in range(300):
        values = await draw(device, generator, "choice", 4, size=2, replace=False, p=p)
        assert values[0] != values[1]
        firsts[values[0]] += 1
    check_counts(firsts, p)


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex128"])
async def test_choice_of_rows(device: Device, seed: int, dtype: str) -> None:
    host = np.random.default_rng(seed).integers(0, 100, (6, 5)).astype(dtype)
    rows = await device.put(host, sealed=True)
    generator = device.rng.default_rng(seed)
    before = generator.state
    index = await device.get(await generator.choice(6, (3, 2)))
    generator.state = before
    chosen = await device.get(await generator.choice(rows, (3, 2)))
    np.testing.assert_array_equal(chosen, host[index])
    out = await device.empty((4, 5), dtype)
    assert await generator.choice(rows, 4, replace=False, out=out) is out
    got = await device.get(out)
    assert all((host == row).all(1).any() for row in got)


@pytest.mark.parametrize("axis", [0, 1, -1])
async def test_choice_along_an_axis(device: Device, seed: int, axis: int) -> None:
    host = np.random.default_rng(seed).integers(0, 100, (4, 6, 5))
    items = await device.put(host)
    generator = device.rng.default_rng(seed)
    before = generator.state
    index = await device.get(await generator.choice(host.shape[axis], 3, False))
    generator.state = before
    chosen = await device.get(await generator.choice(items, 3, False, axis=axis, shuffle=False))
    np.testing.assert_array_equal(chosen, np.take(host, index, axis))
    with pytest.raises(np.exceptions.AxisError):
        await generator.choice(items, 3, axis=3)


# --- orders and counts -------------------------------------------------------------------


async def test_orders_of_few_are_all_as_likely(device: Device, seed: int) -> None:
    generator = device.rng.default_rng(seed)
    async with device.batch() as batch:
        refs = [batch.using(generator).permutation(3) for _ in range(600)]
    orders = np.stack([await device.get(ref) for ref in refs])
    assert (np.sort(orders) == np.arange(3)).all()
    check_counts(np.bincount(orders @ [9, 3, 1], minlength=22), _chances_of_orders())


def _chances_of_orders() -> Array:
    chances = np.zeros(22)
    chances[[np.dot(order, [9, 3, 1]) for order in itertools.permutations(range(3))]] = 1 / 6
    return chances


async def test_permutations_of_arrays(device: Device, seed: int) -> None:
    host = np.arange(60.0).reshape(3, 4, 5)
    x = await device.put(host, sealed=True)
    generator = device.rng.default_rng(seed)
    saved = generator.state
    order = await device.get(await generator.permutation(4))
    for axis, view in ((1, x), (-2, x), (0, x.swapaxes(0, 1)), (1, x[:, ::-1])):
        generator.state = saved
        got = await device.get(await generator.permutation(view, axis))
        np.testing.assert_array_equal(got, np.take(await device.get(view), order, axis))
    generator.state = saved
    whole = await device.zeros((3, 8, 5))
    part = await device.copy(x, whole[:, ::2])
    assert await generator.shuffle(part, axis=1) is part
    shuffled = await device.get(whole)
    np.testing.assert_array_equal(shuffled[:, ::2], host[:, order])
    assert not shuffled[:, 1::2].any()
    assert (await generator.permutation(0)).shape == (0,)
    assert (await generator.permutation(x[:, :0], 1)).shape == (3, 0, 5)


@pytest.mark.parametrize(
    ("n", "p"), [(1, 0.25), (20, 0.0), (20, 1.0), (40, 0.9), (10**5, 0.3), (10**12, 1e-5)]
)
async def test_binomial(device: Device, seed: int, n: int, p: float) -> None:
    values = await draw(device, device.rng.default_rng(seed), "binomial", n, p, size=N)
    law = stats.binom(n, p)
    assert values.dtype == np.int64
    if n * p * (1 - p) < 10:
        counts = np.bincount(values, minlength=n + 1)
        check_counts(counts, law.pmf(np.arange(len(counts))))
        return
    check_near(values.mean(), law.mean(), law.std() / np.sqrt(N))
    ranks = np.clip((law.cdf(values) * 20).astype(int), 0, 19)
    edges = law.cdf(law.ppf(np.arange(1, 20) / 20) - 1)
    check_counts(np.bincount(ranks, minlength=20), np.diff(edges, prepend=0, append=1))


@pytest.mark.parametrize(
    ("name", "parameters", "law"),
    [
        ("geometric", (0.3,), stats.geom(0.3)),
        ("geometric", (1e-4,), stats.geom(1e-4)),
        ("geometric", (1e-5,), stats.geom(1e-5)),
        ("geometric", (1e-13,), stats.geom(1e-13)),
        ("negative_binomial", (4, 0.6), stats.nbinom(4, 0.6)),
        ("negative_binomial", (0.7, 0.2), stats.nbinom(0.7, 0.2)),
        ("negative_binomial", (5000, 0.3), stats.nbinom(5000, 0.3)),
        ("negative_binomial", (1, 1e-6), stats.nbinom(1, 1e-6)),
        ("negative_binomial", (0.7, 1e-7), stats.nbinom(0.7, 1e-7)),
        ("negative_binomial", (40, 1e-12), stats.nbinom(40, 1e-12)),
        ("hypergeometric", (5, 7, 6), stats.hypergeom(12, 5, 6)),
        ("hypergeometric", (4000, 9000, 700), stats.hypergeom(13000, 4000, 700)),
    ],
)
async def test_discrete_distributions(
    device: Device, seed: int, name: str, parameters: tuple[Any, ...], law: Any
) -> None:
    values = await draw(device, device.rng.default_rng(seed), name, *parameters, size=N)
    assert values.dtype == np.int64
    edges = np.unique(law.ppf(np.arange(1, 20) / 20))
    chances = np.diff(law.cdf(edges), prepend=0, append=1)
    check_counts(np.bincount(np.searchsorted(edges, values), minlength=len(chances)), chances)
    check_near(values.mean(), law.mean(), law.std() / np.sqrt(N))


async def test_discrete_distributions_of_one_number(device: Device) -> None:
    generator = device.rng.default_rng(1)
    assert (await device.get(await generator.geometric(1.0, 50)) == 1).all()
    assert (await device.get(await generator.hypergeometric(5, 0, 3, 50)) == 3).all()
    assert (await device.get(await generator.hypergeometric(0, 0, 0, 50)) == 0).all()
    assert (await device.get(await generator.negative_binomial(3, 1.0, 50)) == 0).all()


@pytest.mark.parametrize("method", ["svd", "eigh", "cholesky"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
async def test_multivariate_normal(device: Device, seed: int, method: Any, dtype: str) -> None:
    mean, cov = np.array([1.0, -2.0, 0.5]), np.array([[4, 1, 0.5], [1, 2, -0.5], [0.5, -0.5, 1]])
    generator = device.rng.default_rng(seed)
    size = (N // 4, 2)
    drawn = await generator.multivariate_normal(mean, cov, size, method=method, dtype=dtype)
    values = await device.get(drawn)
    assert values.shape == (N // 4, 2, 3)
    assert values.dtype == dtype
    flat = values.reshape(-1, 3).astype(np.float64)
    for at in range(3):
        check_continuous(flat[:, at], stats.norm(mean[at], np.sqrt(cov[at, at])))
    whitened = np.linalg.solve(np.linalg.cholesky(cov), (flat - mean).T)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        check_near((whitened[one] * whitened[other]).mean(), 0.0, 1 / np.sqrt(len(flat)))
    single = await generator.multivariate_normal([0.0], [[0.0]], method="svd")
    assert (await device.get(single)).tolist() == [0.0]
    assert (await generator.multivariate_normal(mean, cov, 0)).shape == (0, 3)


async def test_multinomial(device: Device, seed: int) -> None:
    generator = device.rng.default_rng(seed)
    p = np.array([0.1, 0.0, 0.4, 0.5])
    values = await draw(device, generator, "multinomial", 6, p, size=(50, 60))
    assert values.shape == (50, 60, 4)
    assert (values.sum(-1) == 6).all()
    check_counts(values.sum((0, 1)), p)
    for thing in (0, 2, 3):
        counts = np.bincount(values[..., thing].ravel(), minlength=7)
        check_counts(counts, stats.binom(6, p[thing]).pmf(np.arange(7)))
    assert (await device.get(await generator.multinomial(5, [1.0]))).tolist() == [5]
    assert (await device.get(await generator.multinomial(0, p, 2))).tolist() == [[0] * 4] * 2
    assert (await generator.multinomial(5, p, 0)).shape == (0, 4)


@pytest.mark.parametrize("alpha", [(0.5, 2.0, 4.5), (0.05, 0.02, 0.03), (3.0,), (0.05,)])
async def test_dirichlet(device: Device, seed: int, alpha: tuple[float, ...]) -> None:
    generator = device.rng.default_rng(seed)
    values = await draw(device, generator, "dirichlet", alpha, size=(N // 3, 3))
    assert values.shape == (N // 3, 3, len(alpha))
    np.testing.assert_allclose(values.sum(-1), 1.0, rtol=1e-12)
    if len(alpha) == 1:
        return
    for at, each in enumerate(
        alpha
    ):  # many of a small one are so near 1 that no float tells them apart
        law = stats.beta(each, sum(alpha) - each)
        slack = 0.0 if max(alpha) > 0.1 else float(law.sf(1 - 1e-15))
        check_continuous(values[..., at], law, slack=slack)
    again = await draw(device, generator, "dirichlet", alpha, size=(N // 3, 3))
    check_uncorrelated(stats.rankdata(values[..., 0]), stats.rankdata(again[..., 1]))
    assert (await generator.dirichlet(alpha, 0)).shape == (0, len(alpha))


async def test_draws_of_one_call_are_independent(device: Device, seed: int) -> None:
    generator = device.rng.default_rng(seed)
    shares = await draw(device, generator, "dirichlet", (2.0, 2.0), size=N)
    assert len(np.unique(shares[:, 0])) == N  # equal draws would all give a half
    ratios = await draw(device, generator, "f", 4.0, 4.0, size=N)
    later = await draw(device, generator, "standard_gamma", 2.0, size=N)
    check_uncorrelated(stats.rankdata(ratios), stats.rankdata(later))
    check_uncorrelated(stats.rankdata(shares[:, 0]), stats.rankdata(later))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128"])
async def test_permuted(device: Device, seed: int, axis: int | None, dtype: str) -> None:
    host = np.arange(200).reshape(4, 50).astype(dtype)
    ref = (await device.put(host.T.copy())).T
    generator = device.rng.default_rng(seed)
    values = await draw(device, generator, "permuted", ref, axis=axis)
    assert values.dtype == dtype
    assert (values != host).any()
    assert values.shape == host.shape
    np.testing.assert_array_equal(np.sort(values, axis), np.sort(host, axis))
    if axis in (1, -1):  # rows have other orders
        assert not np.array_equal(values[0] - host[0], values[1] - host[1])
    out = await device.put(host)
    assert await generator.permuted(out, axis=axis, out=out) is out
    np.testing.assert_array_equal(np.sort(await device.get(out), None), np.sort(host, None))


# --- quasi-random points -----------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dimensions", [1, 3, 1000])
@pytest.mark.parametrize("offset", [0, 1, 777])
async def test_sobol_points_are_those_of_scipy(
    device: Device, bits: int, dimensions: int, offset: int
) -> None:
    got = await device.get(await device.rng.sobol(64, dimensions, bits=bits, offset=offset))
    sequence = qmc.Sobol(dimensions, scramble=False, bits=32)
    sequence.random(1)
    expected = np.zeros((1, dimensions))
    if offset:
        sequence.fast_forward(offset - 1)
        expected = sequence.random(64)
    else:
        expected = np.concatenate([expected, sequence.random(63)])
    np.testing.assert_array_equal(got, expected)
    tally("sobol")


@pytest.mark.parametrize("kind", QUASI)
async def test_points_fill_space_evenly(device: Device, kind: str) -> None:
    bits, scramble = int(kind[-2:]), kind.startswith("scrambled")
    points = await device.get(await device.rng.sobol(1024, 4, scramble=scramble, bits=bits))
    assert (points >= 0).all()
    assert (points < 1).all()
    # One point in each of 1024 strips of every dimension.
    for column in points.T:
        np.testing.assert_array_equal(np.sort((column * 1024).astype(int)), np.arange(1024))
    assert qmc.discrepancy(points) < 1e-3
    tally(kind)


@pytest.mark.parametrize("kind", QUASI)
async def test_distributions_of_points(device: Device, kind: str) -> None:
    for law in CONTINUOUS:
        if law.method in DRAWN_UNTIL_ACCEPTED:
            continue
        for dtype in FLOATS:
            generator = device.rng.default_rng(kind=kind, dimensions=2)
            values = await draw(
                device, generator, law.method, *law.args, size=(4096, 2), dtype=dtype
            )
            for column in values.astype(np.float64).T:
                ranks = np.sort(law.law.cdf(column))
                even = (np.arange(4096) + 0.5) / 4096
                slack = SLACK[dtype] + law.slack.get(dtype, 0)
                assert np.abs(ranks - even).max() < 0.001 + slack, law.name
    generator = device.rng.default_rng(kind=kind)
    values = await draw(device, generator, "poisson", 4.0, size=4096)
    counts = np.bincount(values, minlength=20)[:20] / 4096
    np.testing.assert_allclose(counts, stats.poisson(4).pmf(np.arange(20)), atol=0.002)
    values = await draw(device, generator, "integers", 5, size=4096)
    np.testing.assert_allclose(np.bincount(values) / 4096, 0.2, atol=0.002)
    values = await draw(device, generator, "choice", 3, size=4096, p=[0.5, 0.2, 0.3])
    np.testing.assert_allclose(np.bincount(values) / 4096, [0.5, 0.2, 0.3], atol=0.002)


@pytest.mark.parametrize("method", ["gamma", "beta"])
async def test_invalid_points_are_refused(device: Device, method: str) -> None:
    generator = device.rng.default_rng(kind="sobol32")
    with pytest.raises(Unsupported, match=f"{method} takes varying numbers of words"):
        await getattr(generator, method)(1.0, 1.0, size=4)
    with pytest.raises(Unsupported, match="replace must be True with sobol32"):
        await generator.choice(5, 2, replace=False)
    with pytest.raises(Unsupported, match="without independent ones"):
        generator.spawn(1)
    with pytest.raises(Unsupported, match="no permutation"):
        await generator.shuffle(await device.zeros(4))
    with pytest.raises(Unsupported, match="no dirichlet"):
        await generator.dirichlet([1.0, 2.0])
    with pytest.raises(Unsupported, match="no permuted"):
        await generator.permuted(await device.zeros(4))
    with pytest.raises(Unsupported, match="varying numbers of words"):
        await generator.standard_t(3.0)
    with pytest.raises(Unsupported, match="no multinomial"):
        await generator.multinomial(5, [0.5, 0.5])


# --- sequences ---------------------------------------------------------------------------

DRAWS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("random", (1001,), {"dtype": "float32"}),
    ("normal", (), {"size": 37}),
    ("integers", (10,), {"size": 5}),
    ("gamma", (0.5,), {"size": 100}),
    ("poisson", (20.0,), {"size": 64}),
    ("choice", (50, 20), {"replace": False}),
    ("exponential", (), {"size": (3, 3)}),
    ("choice", (4, 9), {"p": [0.1, 0.2, 0.3, 0.4]}),
    ("binomial", (90, 0.3), {"size": 7}),
    ("permutation", (11,), {}),
    ("multinomial", (3, [0.5, 0.3, 0.2]), {"size": (2, 4)}),
    ("hypergeometric", (5, 7, 6), {"size": 9}),
    ("multivariate_normal", ([0.0, 1.0], [[2.0, 1.0], [1.0, 2.0]]), {"size": 5}),
    ("laplace", (), {"size": 9}),
    ("standard_t", (3.0,), {"size": 6}),
    ("f", (3.0, 4.0), {"size": 6, "dtype": "float32"}),
    ("dirichlet", ([0.5, 2.0, 1.0],), {"size": 4}),
]


FURTHER_DRAWS = 1 + 1 + 3
"""Draws of t and F, which draw twice, and of three shares."""


async def sequence(device: Device, generator: Generator[Awaited]) -> list[Array]:
    return [
        await device.get(await getattr(generator, method)(*args, **more))
        for method, args, more in DRAWS
    ]


def same(one: list[Array], other: list[Array]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("kind", PSEUDO)
async def test_a_seed_gives_a_sequence(device: Device, seed: int, kind: str) -> None:
    first, second = (device.rng.default_rng(seed, kind) for _ in range(2))
    one = await sequence(device, first)
    assert same(one, await sequence(device, second))
    assert not same(one, await sequence(device, second))
    assert not same(one, await sequence(device, device.rng.default_rng(seed + 1, kind)))


@pytest.mark.parametrize("kind", PSEUDO)
async def test_a_state_comes_back(device: Device, seed: int, kind: str) -> None:
    generator = device.rng.default_rng([seed, 5], kind)
    await sequence(device, generator)
    saved = json.loads(json.dumps(generator.state))
    expected = await sequence(device, generator)
    generator.state = saved
    assert same(expected, await sequence(device, generator))
    fresh = device.rng.default_rng(kind=kind)
    fresh.state = saved
    assert same(expected, await sequence(device, fresh))


@pytest.mark.parametrize("kind", PSEUDO)
async def test_generators_do_not_disturb_each_other(device: Device, seed: int, kind: str) -> None:
    alone = await sequence(device, device.rng.default_rng(seed, kind))
    generators = [device.rng.default_rng(seed + number, kind) for number in range(12)]
    mixed: list[Array] = []
    for method, args, more in DRAWS:
        refs = [await getattr(each, method)(*args, **more) for each in generators]
        mixed.append(await device.get(refs[0]))
    assert same(alone, mixed)


@pytest.mark.parametrize("kind", PSEUDO)
async def test_skipping_is_like_drawing(device: Device, seed: int, kind: str) -> None:
    drawn, skipped = (device.rng.default_rng(seed, kind) for _ in range(2))
    await drawn.integers(0, 2**32, 4096, "uint32")
    skipped.advance(4096)
    later = device.rng.default_rng(seed, kind, offset=4096)
    expected = await device.get(await drawn.integers(0, 2**32, 100, "uint32"))
    for generator in (skipped, later):
        got = await device.get(await generator.integers(0, 2**32, 100, "uint32"))
        np.testing.assert_array_equal(got, expected)


@pytest.mark.skipif(not on_cuda(), reason="NumPy draws numbers of words that vary")
@pytest.mark.parametrize("kind", PSEUDO)
async def test_pieces_make_the_same_sequence(device: Device, seed: int, kind: str) -> None:
    at_once = await device.get(
        await device.rng.default_rng(seed, kind).normal(size=4000, dtype="float32")
    )
    generator = device.rng.default_rng(seed, kind)
    pieces = [
        await device.get(await generator.normal(size=size, dtype="float32"))
        for size in (4, 1000, 2996)
    ]
    np.testing.assert_array_equal(np.concatenate(pieces), at_once)


async def test_children_are_independent(device: Device, seed: int) -> None:
    parent = device.rng.default_rng(seed)
    children = [*parent.spawn(3), *parent.spawn(1)]
    samples = [await device.get(await generator.random(N)) for generator in (parent, *children)]
    for number, one in enumerate(samples):
        for other in samples[:number]:
            check_uncorrelated(one, other)
    again = device.rng.default_rng(seed).spawn(4)[3]
    np.testing.assert_array_equal(await device.get(await again.random(N)), samples[4])
    restored = device.rng.default_rng(seed)
    restored.state = parent.state
    np.testing.assert_array_equal(
        await device.get(await restored.spawn(1)[0].random(8)),
        await device.get(await parent.spawn(1)[0].random(8)),
    )


async def test_the_devices_own_generator(device: Device, seed: int) -> None:
    device.rng.seed(seed)
    one = await sequence(device, device.rng)
    device.rng.seed(seed)
    assert same(one, await sequence(device, device.rng))
    device.rng.seed()
    assert not same(one, await sequence(device, device.rng))
    found = device.rng.statistics()
    assert (found.kind, found.draws) == ("philox4_32_10", 3 * (len(DRAWS) + FURTHER_DRAWS))
    further = 6 + 6 + 4 * 3
    assert found.values == 3 * (sum(values.size for values in one) + further)


async def test_in_a_batch(device: Device, seed: int) -> None:
    expected = await sequence(device, device.rng.default_rng(seed))
    device.rng.seed(seed)
    async with device.batch() as batch:
        refs = [getattr(batch.rng, method)(*args, **more) for method, args, more in DRAWS]
    assert same(expected, [await device.get(ref) for ref in refs])


async def test_recorded(device: Device, seed: int) -> None:
    expected = await sequence(device, device.rng.default_rng(seed))
    device.rng.seed(seed)
    async with device.record() as recording:
        refs = [getattr(recording.rng, method)(*args, **more) for method, args, more in DRAWS]
    for _ in range(2):  # every replay draws the same
        await recording.replay()
        assert same(expected, [await device.get(ref) for ref in refs])


@pytest.fixture
async def fresh(accel_backend: str) -> AsyncIterator[Device]:
    async with open_device(0, backend=accel_backend, isolation="process") as device:
        yield device


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*PSEUDO, "scrambled_sobol32"])
async def test_a_sequence_goes_on_after_a_rebuild(fresh: Device, kind: str, seed: int) -> None:
    start = None if "sobol" in kind else seed
    draws = [draw for draw in DRAWS if start is not None or draw[0] in ("normal", "integers")]

    async def some(generator: Generator[Awaited]) -> list[Array]:
        return [
            await fresh.get(await getattr(generator, method)(*args, **more))
            for method, args, more in draws
        ]

    whole, broken = (fresh.rng.default_rng(start, kind) for _ in range(2))
    expected = [await some(whole), await some(whole)]
    before = await some(broken)
    ref: GpuRef = await broken.random(10)
    broken.state = {**broken.state, "position": whole.state["position"] // 2}
    broken.state = {**broken.state, "rejection_offset": whole.state["rejection_offset"] // 2}
    await poison(fresh)
    assert ref.is_stale
    after = await some(broken)
    assert same(expected[0], before)
    assert same(expected[1], after)
