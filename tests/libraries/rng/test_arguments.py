"""Refusals of ``device.rng`` before anything is sent, and destinations of its draws."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRefSealed, GpuRefStale, Unsupported
from atomr_accel.libraries.rng._state import new_state
from atomr_accel.libraries.rng.wire._distributions import FLOATS, KINDS
from atomr_accel.ops import perform

from ...harness import on_shared
from ..conformance import MARKS
from ..refusals import refuses

pytestmark = MARKS

NAN = float("nan")

test_bad_input_is_refused = refuses(
    "rng",
    [
        ("random(-1)", ValueError, r"negative dimensions.*\(-1,\)"),
        ("random(2.5)", TypeError, "whole number.*2.5"),
        ('random((2, "x"))', TypeError, "whole number.*x"),
        ("random(True)", TypeError, "whole number.*True"),
        (
            'random(2, "int32")',
            TypeError,
            "dtype must be one of float16, bfloat16, float32, float64, not",
        ),
        (
            'random(2, "complex64")',
            TypeError,
            "dtype must be one of float16, bfloat16, float32, float64, not",
        ),
        ("uniform(2, 1)", ValueError, "low=2.0, high=1.0"),
        ('uniform(0, float("inf"))', OverflowError, "exceeds valid bounds"),
        ("uniform(NAN, 1)", OverflowError, "exceeds valid bounds"),
        ("uniform([0, 1], 2)", TypeError, r"low must be a real number, not \[0, 1\]"),
        ("normal(0, -1)", ValueError, r"scale must be at least 0, not -1\.0"),
        ("normal(0, NAN)", ValueError, "scale must be at least 0, not nan"),
        ('normal("1", "2")', TypeError, "loc must be a real number, not '1'"),
        ('normal(0, b"2")', TypeError, "scale must be a real number, not b'2'"),
        ("uniform(0, 1j)", TypeError, "high must be a real number, not 1j"),
        ("laplace(0, -1)", ValueError, "scale must be at least 0"),
        ("vonmises(0, -1)", ValueError, "kappa must be at least 0"),
        ("vonmises(0, np.inf)", ValueError, "kappa must be"),
        ('laplace("0")', TypeError, "loc must be a real number"),
        ("gumbel(0, NAN)", ValueError, "scale must be at least 0"),
        ("weibull(-1)", ValueError, "a must be at least 0"),
        ("chisquare(0)", ValueError, "df must be more than 0"),
        ("standard_t(-1)", ValueError, "df must be more than 0"),
        ("f(1, 0)", ValueError, "dfden must be more than 0"),
        ("dirichlet([1.0, 0.0])", ValueError, "alpha must be more than 0"),
        ("dirichlet([[1.0]])", ValueError, "one dimension"),
        ('standard_exponential(method="x")', ValueError, "method must be"),
        ('rayleigh(1, 3, dtype="int8")', TypeError, "dtype must be one of"),
        ('lognormal("0")', TypeError, "mean must be a real number"),
        ('exponential("1")', TypeError, "scale must be a real number"),
        ('cauchy(0, np.datetime64(1, "s"))', TypeError, "scale must be a real number"),
        ('gamma("2")', TypeError, "shape must be a real number"),
        ('gamma(float("inf"))', ValueError, "shape must be at most 1.79.* for float64"),
        (
            'gamma(1e+39, dtype="float32")',
            ValueError,
            r"shape must be at most 3\.4028234663852886e\+38 for float32, not",
        ),
        ('beta(1, float("inf"))', ValueError, "b must be at most"),
        ('poisson("3")', TypeError, "lam must be a real number"),
        ("normal(None)", TypeError, "loc must be a real number, not None"),
        ("lognormal(0, -1)", ValueError, r"sigma must be at least 0, not -1\.0"),
        ("exponential(-2)", ValueError, "scale must be at least 0"),
        ("cauchy(0, -2)", ValueError, "scale must be at least 0"),
        ("gamma(-1)", ValueError, r"shape must be at least 0, not -1\.0"),
        ("gamma(1, -1)", ValueError, "scale must be at least 0"),
        ("beta(0, 1)", ValueError, "a must be more than 0"),
        ("beta(1, NAN)", ValueError, "b must be more than 0, not nan"),
        ("poisson(-1)", ValueError, r"lam must be at least 0, not -1\.0"),
        ("poisson(NAN)", ValueError, "lam must be at least 0, not nan"),
        ("poisson(1e+19)", ValueError, "lam is too large for int64"),
        ('poisson(200, dtype="int8")', ValueError, "lam is too large for int8: 200"),
        (
            'poisson(2, dtype="float32")',
            TypeError,
            "dtype must be one of int8, int16, int32, int64, uint8, uint16,",
        ),
        ("integers(5, 5)", ValueError, "low >= high: there is no integer from 5 to 4"),
        ("integers(5, 4, endpoint=True)", ValueError, "low > high"),
        ("integers(0)", ValueError, "low >= high"),
        ('integers(0, 300, dtype="uint8")', ValueError, "299 is more than 255"),
        ('integers(-1, 3, dtype="uint64")', ValueError, "-1 is less than 0"),
        ('integers(0, 3, dtype="bool")', ValueError, "2 is more than 1"),
        ("integers(0.5, 3)", TypeError, "float"),
        (
            'integers(0, 3, dtype="float64")',
            TypeError,
            "dtype must be one of int8, int16, int32, int64, uint8, uint16,",
        ),
        ("choice(0, 1)", ValueError, "at least one item to choose from, not 0"),
        ("choice(-2, 1)", ValueError, "not -2"),
        ("choice(2.5, 1)", TypeError, "float"),
        ("choice(2**63, 1)", ValueError, "whole number of at most 9223372036854775807"),
        ("choice(2**64 + 5, 1)", ValueError, "of at most .*, not 18446744073709551621"),
        ("choice(2**70, 1, False)", ValueError, "a must be a whole number of at most"),
        ("choice([1, 2], 1)", TypeError, "a must be a GpuRef, not list; put it on the device"),
        ("choice(3, 4, False)", ValueError, "cannot take 4 of 3 items"),
        (
            "choice(3, 1, p=[0.5, 0.4, 0.0])",
            ValueError,
            r"probabilities must sum to 1, not to 0\.9",
        ),
        ("choice(3, 1, p=[0.5, 0.5])", ValueError, "a has 3 items, p has 2"),
        ("choice(3, 1, p=[1.5, -0.5, 0])", ValueError, r"p\[1\] is -0\.5"),
        ("choice(2, 1, p=[NAN, 1.0])", ValueError, "contain NaN, at 0"),
        (
            "choice(2, 1, p=[[0.5, 0.5]])",
            ValueError,
            r"p must be one-dimensional, not of shape \(1, 2\)",
        ),
        ('choice(2, 1, p=["0.5", "0.5"])', TypeError, "p must be made of real numbers"),
        ("choice(2, 1, p=[0.5, 0.5j])", TypeError, "p must be made of real numbers"),
        ('choice(2, 1, "no")', TypeError, "replace must be True or False, not 'no'"),
        ("integers(0, 3, endpoint=1)", TypeError, "endpoint must be True or False"),
        (
            "choice(3, 2, False, p=[1.0, 0.0, 0.0])",
            ValueError,
            r"fewer non-zero entries in p \(1\) than size \(2\)",
        ),
        (
            "choice(200000, 2, False, p=np.full(200000, 1 / 200000))",
            Unsupported,
            "131072 items, not 200000",
        ),
        ("binomial(-1, 0.5)", ValueError, "n must be at least 0"),
        ("binomial(2.5, 0.5)", TypeError, "float"),
        ("binomial(3, 1.5)", ValueError, r"p must be from 0 to 1, not 1\.5"),
        ("binomial(3, NAN)", ValueError, "p must be from 0 to 1, not nan"),
        ('binomial(300, 0.5, dtype="uint8")', ValueError, "n is out of bounds for uint8: 300"),
        ("binomial(10**9, 0.5)", Unsupported, "up to a variance .* 100000000"),
        ("binomial([2, 3], 0.5)", TypeError, r"n must be a whole number, not \[2, 3\]"),
        ("binomial(2, [0.5, 0.2])", TypeError, r"p must be a real number, not \[0.5, 0.2\]"),
        ("multinomial([2, 3], [1.0])", TypeError, "n must be a whole number"),
        ("permutation(-1)", ValueError, "x must be at least 0, not -1"),
        ("permutation(2.5)", TypeError, "float"),
        ("permutation(2**63)", ValueError, "x must be a whole number of at most"),
        ("permutation(np.arange(3))", TypeError, "x must be a GpuRef, .* put it on the device"),
        ("shuffle(np.ones(3))", TypeError, "x must be a GpuRef"),
        ("geometric(0.0)", ValueError, r"p must be above 0 and at most 1, not 0\.0"),
        ('geometric(1e-09, dtype="int32")', ValueError, "up to .*, which int32 does not hold"),
        ("negative_binomial(2, 1e-30)", ValueError, "up to .*, which int64 does not hold"),
        ('geometric(0.01, dtype="uint8")', ValueError, "which uint8 does not hold"),
        ("negative_binomial(0, 0.5)", ValueError, "n must be more than 0"),
        ("hypergeometric(1.5, 2, 1)", TypeError, "ngood must be a whole number"),
        ("hypergeometric(5, -1, 3)", ValueError, "nbad must be at least 0, not -1"),
        (
            "hypergeometric(5, 1, 7)",
            ValueError,
            r"nsample must be at most ngood \+ nbad, which is 6, not 7",
        ),
        ("multivariate_normal([1.0], [[1.0, 0.0]])", ValueError, r"\(1,\) and \(1, 2\)"),
        (
            "multivariate_normal([0.0, 0.0], [[1.0, 2.0], [2.0, 1.0]])",
            ValueError,
            "no negative eigenvalues",
        ),
        ("multivariate_normal([0.0, 0.0], [[1.0, 2.0], [0.0, 1.0]])", ValueError, "symmetric"),
        (
            'multivariate_normal([0.0], [[0.0]], method="cholesky")',
            ValueError,
            "eigenvalues above 0",
        ),
        ('multivariate_normal([0.0], [[1.0]], dtype="float16")', TypeError, "not float16"),
        ("multinomial(-1, [1.0])", ValueError, "n must be at least 0"),
        ("multinomial(3, [0.5, 0.4])", ValueError, r"probabilities must sum to 1, not to 0\.9"),
        (
            "multinomial(3, [[1.0]])",
            ValueError,
            r"pvals must be one-dimensional, not of shape \(1, 1\)",
        ),
        ("multinomial(3, [1j])", TypeError, "pvals must be made of real numbers"),
        ("sobol(4, 0)", ValueError, "from 1 to 20000, not 0"),
        ("sobol(4, 20001)", ValueError, "from 1 to 20000, not 20001"),
        ("sobol(4, 2, bits=16)", ValueError, "bits must be 32 or 64, not 16"),
        ("sobol(-4, 2)", ValueError, r"negative dimensions.*\(-4, 2\)"),
        ("sobol(4, 2, offset=-1)", ValueError, "no place before its first one: -1"),
        ("sobol(4, 2, offset=2**32 - 3)", ValueError, "4294967296 points; 4 from number"),
    ],
    keeps=lambda device: device.rng.state,
    NAN=NAN,
    np=np,
)


GENERATORS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"kind": "randu"}, ValueError, "kind must be one of philox4_32_10, xorwow, mrg32k3a, mtgp32,"),
    (
        {"ordering": "seeded"},
        ValueError,
        "ordering of philox4_32_10 must be one of default, best, legacy,",
    ),
    ({"kind": "mt19937", "ordering": "dynamic"}, ValueError, "one of default, legacy"),
    ({"dimensions": 2}, ValueError, "philox4_32_10 makes no points"),
    ({"kind": "sobol32", "dimensions": 0}, ValueError, "from 1 to 20000"),
    ({"kind": "sobol32", "seed": 1}, TypeError, "sobol32 is one fixed sequence"),
    ({"kind": "sobol32", "offset": 2**32 + 1}, ValueError, "no place 4294967297"),
    ({"seed": [3, -1]}, ValueError, r"seed must be at least 0, not \[3, -1\]"),
    ({"seed": "x"}, TypeError, "an int, a sequence of ints.*not 'x'"),
    ({"seed": 2.5}, TypeError, r"not 2\.5"),
    ({"offset": -4}, ValueError, "before its first one: -4"),
]


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(FLOATS),
    low=st.floats(-1, 1),
    high=st.floats(-1, 1),
    power=st.sampled_from([0, 10, 15, 16, 126, 127, 128, 129, 1022, 1023]),
)
@on_shared
async def test_uniform_numbers_are_finite_in_their_dtype(
    device: Device, dtype: str, low: float, high: float, power: int
) -> None:
    low, high = sorted([math.ldexp(low, power), math.ldexp(high, power)])
    finfo: Any = ml_dtypes.finfo
    info = finfo(dtype)
    computed = finfo("float64" if dtype == "float64" else "float32")
    try:
        made = await device.rng.default_rng(1).uniform(low, high, 64, dtype=dtype)
    except OverflowError as error:
        assert "exceeds valid bounds" in str(error)  # noqa: PT017 - whether it is raised varies
        most = float(computed.max)
        assert max(-low, high) > float(info.max) or not (high / 2 - low / 2) * 2 <= most
        return
    x = (await device.get(made)).astype("f8")
    slack = 4 * float(computed.eps if dtype in ("float32", "float64") else info.eps)
    slack = slack * max(abs(low), abs(high)) + float(info.smallest_subnormal)
    assert np.isfinite(x).all()
    assert (x >= low - slack).all()
    assert (x <= high + slack).all()


@pytest.mark.parametrize(("options", "error", "message"), GENERATORS)
async def test_generators_that_cannot_be(
    device: Device, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        device.rng.default_rng(**options)


async def test_states_that_do_not_fit(device: Device) -> None:
    generator = device.rng.default_rng(1)
    with pytest.raises(TypeError, match="a dict with the keys kind, ordering"):
        generator.state = {"kind": "philox4_32_10"}
    with pytest.raises(TypeError, match="a dict with the keys"):
        generator.state = 5  # type: ignore[assignment]
    other = device.rng.default_rng(1, "xorwow").state
    with pytest.raises(
        ValueError, match="the state must have the kind of the generator, 'philox4_32_10',"
    ):
        generator.state = other
    before = generator.state
    for name, bad, error in (("position", 2.0, TypeError), ("rejection_offset", -1, ValueError)):
        with pytest.raises(error):
            generator.state = {**device.rng.default_rng(2).state, name: bad}
        assert generator.state == before
    with pytest.raises(ValueError, match="n_children must be at least 0, not -1"):
        generator.spawn(-1)
    with pytest.raises(ValueError, match="before its first one"):
        generator.advance(-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_can_be_saved(kind: str) -> None:
    seed = None if KINDS[kind].quasi else 2**100
    state = new_state(seed, kind, "default", 4096, 1)
    other = new_state(None, kind, "default", 0, 1)
    other.restore(state.save())
    assert other.save() == state.save()
    assert other.key == state.key


async def test_sizes_and_dtypes(device: Device) -> None:
    rng = device.rng
    for size, shape in ((None, ()), (3, (3,)), ((), ()), ((2, 0), (2, 0)), ([2, 3], (2, 3))):
        ref = await rng.random(size)
        assert (ref.shape, ref.dtype.name) == (shape, "float64")
    assert (await rng.integers(5, size=3)).dtype == np.int64
    assert (await rng.poisson(5, size=3)).dtype == np.int64
    assert (await rng.choice(5, 3)).dtype == np.int64
    assert (await rng.choice(5, 0, replace=False)).shape == (0,)
    assert (await rng.choice(0, 0)).shape == (0,)
    assert (await rng.sobol(0, 3)).shape == (0, 3)
    points = rng.default_rng(kind="sobol32", dimensions=3)
    assert (await points.random()).shape == (3,)
    with pytest.raises(
        ValueError, match=r"size must end with the 3 dimensions of each point, not \(4,\)"
    ):
        await points.random(4)
    assert (await device.get(await rng.gamma(0.0, size=3))).tolist() == [0, 0, 0]
    assert (await device.get(await rng.normal(2.0, 0.0, 3))).tolist() == [2, 2, 2]
    assert (await device.get(await rng.integers(7, 8, 3, "int8"))).tolist() == [7, 7, 7]


async def test_out_is_checked(device: Device) -> None:
    rng = device.rng
    out = await device.full((2, 3), 7, np.float32)
    assert await rng.random(out=out) is out
    assert ((await device.get(out)) < 1).all()
    assert await rng.normal(size=(2, 3), dtype="float32", out=out) is out
    with pytest.raises(ValueError, match=r"out must have shape \(3, 2\), not \(2, 3\)"):
        await rng.random((3, 2), out=out)
    with pytest.raises(TypeError, match="out must have dtype float64, not float32"):
        await rng.random(dtype="float64", out=out)
    with pytest.raises(
        TypeError, match="dtype must be one of int8, int16, int32, int64, uint8, uint16,"
    ):
        await rng.integers(5, out=out)
    with pytest.raises(TypeError, match="out must be a GpuRef"):
        await rng.random((3,), "float64", np.empty(3))  # type: ignore[arg-type]
    sealed = await device.put(np.ones(3), sealed=True)
    with pytest.raises(GpuRefSealed):
        await rng.random(out=sealed)
    rows = await device.put(np.ones((4, 3)))
    with pytest.raises(ValueError, match="out shares memory with a"):
        await rng.choice(rows, 4, out=rows)
    for first in (0, 1):
        with pytest.raises(ValueError, match="out shares memory with a"):
            await rng.choice(rows[:3], 3, out=rows[first : first + 3])
    assert (await rng.choice(rows[:2], 2, out=rows[2:])).shape == (2, 3)
    with pytest.raises(ValueError, match=r"a must have at least one axis, not shape \(\)"):
        await rng.choice(await device.put(np.float32(3)), 2)
    await device.free(out)
    with pytest.raises(GpuRefStale, match="out was freed"):
        await rng.random(out=out)


async def test_points_end(device: Device) -> None:
    generator = device.rng.default_rng(kind="sobol32", offset=2**32 - 2)
    with pytest.raises(ValueError, match="4294967296 points; 3 from number 4294967294"):
        await generator.random(3)
    generator.advance(2)
    with pytest.raises(ValueError, match="no place 4294967297"):
        generator.advance(1)
    with pytest.raises(Unsupported, match="up to lam=400000, not 1000000"):
        await device.rng.default_rng(kind="sobol32").poisson(1e6)


async def test_a_small_choice_of_a_generator(device: Device) -> None:
    generator = device.rng.default_rng(3)
    assert repr(generator) == "<Generator philox4_32_10 at 0>"
    await generator.random(5, "float32")
    assert generator.state["position"] == 8  # words come in blocks of four
    generator.advance(3)
    assert generator.state["position"] == 12
    assert generator.kind == "philox4_32_10"


async def test_a_draw_that_is_refused_leaves_the_sequence_where_it_is(device: Device) -> None:
    generator = device.rng.default_rng(3)
    rows = await device.put(np.zeros((4, 3), np.float32))
    before, statistics = generator.state, generator.statistics()
    for method, args, more in (
        ("normal", (), {"size": 3, "out": rows}),
        ("gamma", (2.0,), {"out": rows, "dtype": "float64"}),
        ("choice", (rows, 4), {"out": rows}),
        ("choice", (rows, 5), {"replace": False}),
    ):
        with pytest.raises((ValueError, TypeError)):
            await getattr(generator, method)(*args, **more)
        async with device.batch() as batch:
            with pytest.raises((ValueError, TypeError)):
                getattr(batch.using(generator), method)(*args, **more)
    assert (generator.state, generator.statistics()) == (before, statistics)


async def test_a_request_draws_further_numbers_each_time_it_is_carried_out(device: Device) -> None:
    generator, same = device.rng.default_rng(3), device.rng.default_rng(3)
    requests = device.requests.using(generator)
    for method, args, more in (
        ("normal", (), {"size": 3}),
        ("beta", (2.0, 3.0, 4), {}),
        ("choice", (40, 5), {"p": np.full(40, 1 / 40)}),
        ("choice", (40, 5, False), {}),
    ):
        request = getattr(requests, method)(*args, **more)
        first = await perform(device.core, request)
        async with device.batch() as batch:
            second = batch.perform(request)
        for ref in (first, second):
            expected = await getattr(same, method)(*args, **more)
            assert np.array_equal(await device.get(ref), await device.get(expected))
    points = requests.sobol(8, 2)  # of a sequence that is no generator's
    first, second = [await perform(device.core, points) for _ in range(2)]
    assert np.array_equal(await device.get(first), await device.get(second))
    assert generator.state == same.state


async def test_generators_that_are_dropped_are_gone_at_once(device: Device) -> None:
    gc.disable()
    try:
        generator = device.rng.default_rng(3)
        await generator.normal(size=3)
        await generator.choice(4, 2, p=[0.5, 0.5, 0, 0])
        async with device.batch() as batch:
            batch.using(generator).integers(5, size=2)
        dropped = weakref.ref(generator)
        del generator
        assert dropped() is None
    finally:
        gc.enable()
