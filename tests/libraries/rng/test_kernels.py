"""Kernels of the RNG lane: their results on the host, and their compilation by NVRTC."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

from atomr_accel.libraries.rng.host._source import ROWS, SOURCE, parameters, type_of
from atomr_accel.libraries.rng.wire._distributions import DISTRIBUTIONS, FLOATS, digits
from atomr_accel.libraries.rng.wire._messages import Distribution

from ... import seeds
from ..compiling import check_compiles, check_instances_compile
from ..conformance import Array, dtype_of
from ..host_kernels import compile_kernels, needs_compiler, on_host
from .instances import a_distribution, at, instances
from .statistics import check_continuous, check_counts, check_near, check_uncorrelated

pytestmark = pytest.mark.slow  # to compile them takes seconds

N = 20_000

CONTINUOUS = {
    "uniform": ((2.0, 3.0), stats.uniform(2, 3)),
    "normal": ((1.0, 2.0), stats.norm(1, 2)),
    "lognormal": ((0.5, 0.25), stats.lognorm(0.25, scale=np.exp(0.5))),
    "exponential": ((2.0,), stats.expon(scale=2)),
    "cauchy": ((1.0, 2.0), stats.cauchy(1, 2)),
}
ACCEPTED: dict[tuple[str, tuple[float, ...]], Any] = {
    ("gamma", (0.3, 2.0)): stats.gamma(0.3, scale=2),
    ("gamma", (1.0, 1.0)): stats.gamma(1),
    ("gamma", (7.5, 0.5)): stats.gamma(7.5, scale=0.5),
    ("beta", (0.5, 0.5)): stats.beta(0.5, 0.5),
    ("beta", (2.0, 5.0)): stats.beta(2, 5),
    ("beta", (0.2, 30.0)): stats.beta(0.2, 30),
}
SLACK = {"float16": 0.001, "bfloat16": 0.008, "float32": 0.0, "float64": 0.0}
"""Shift of a distribution function that rounding to a narrow type may cause."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compile_kernels(on_host(SOURCE), instances(), tmp_path_factory.mktemp("rng"))


class Kernels:
    """The kernels with a key of their own."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.key = seeds.draw()

    def fill(
        self, law: Distribution, count: int, first: int = 0, table: Array | None = None
    ) -> Array:
        out = np.full(count + 1, 77).astype(dtype_of(law.dtype))
        name = "draw_each" if DISTRIBUTIONS[law.name].until_accepted else "fill"
        head = struct.pack("<4Q", at(out), count, self.key, first)
        self.compiled[f"{name}<{type_of(law)}>"](head + parameters(law, at(table)))
        assert out[-1] == np.array(77).astype(out.dtype), "written behind its end"
        return out[:-1]

    def words(self, count: int, first: int = 0) -> Array:
        return self.fill(a_distribution("integers32", "uint32", span=2**32), count, first)


@pytest.fixture
def kernel(kernels: Any) -> Kernels:
    return Kernels(kernels)


def philox(counter: tuple[int, ...], key: int) -> list[int]:
    """Philox 4x32-10 as its authors describe it, in integers."""
    x, y, z, w = counter
    low, high = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * x, 0xCD9E8D57 * z
        x, y, z, w = q >> 32 ^ y ^ low, q & 0xFFFFFFFF, p >> 32 ^ w ^ high, p & 0xFFFFFFFF
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return [x, y, z, w]


@needs_compiler
def test_the_words_are_philoxs(kernel: Kernels) -> None:
    assert philox((0, 0, 0, 0), 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    for first in (0, 1, 65535, 65536, 2**40 + 12345, 2**62 - 3):
        expected = []
        for block in range(first, first + 3):
            turn = block >> 16
            counter = turn & 0xFFFFFFFF, turn >> 32, block & 0xFFFF, 0
            expected += philox(counter, kernel.key)
        np.testing.assert_array_equal(kernel.words(11, first), expected[:11])


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 3, 4, 50])
def test_a_view_may_begin_where_no_pack_of_values_can(
    kernel: Kernels, dtype: str, count: int
) -> None:
    law = a_distribution("normal", dtype, (0.0, 1.0))
    expected = kernel.fill(law, count)
    width = expected.itemsize
    room = np.zeros(expected.nbytes + 64, np.uint8)
    start = -at(room) % 16 + width
    head = struct.pack("<4Q", at(room) + start, count, kernel.key, 0)
    kernel.compiled[f"fill<{type_of(law)}>"](head + parameters(law))
    got = room[start : start + expected.nbytes].view(expected.dtype)
    assert got.tobytes() == expected.tobytes()
    assert not room[:start].any()
    assert not room[start + expected.nbytes :].any()


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(kernel: Kernels, name: str, dtype: str) -> None:
    floats, law = CONTINUOUS[name]
    values = kernel.fill(a_distribution(name, dtype, floats), N)
    check_continuous(values, law, slack=SLACK[dtype])
    ranks = stats.rankdata(values.astype(np.float64))
    check_uncorrelated(ranks[:-1], ranks[1:])


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("name", "floats"), ACCEPTED)
def test_drawn_until_accepted(
    kernel: Kernels, name: str, floats: tuple[float, ...], dtype: str
) -> None:
    values = kernel.fill(a_distribution(name, dtype, floats), N)
    slack = SLACK[dtype]
    if floats[0] < 1:  # so many near 0 and, for beta, near 1, that narrow types run out
        slack += {"float16": 0.06, "bfloat16": 0.06, "float32": 1e-3}.get(dtype, 0)
    check_continuous(
        np.clip(values.astype(np.float64), 1e-300, 1e300), ACCEPTED[name, floats], slack=slack
    )


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_numbers_do_not_reach_one(kernel: Kernels, dtype: str) -> None:
    values = kernel.fill(a_distribution("uniform", dtype, (0.0, 1.0)), 1 << 16)
    steps = values.astype(np.float64) * 2.0 ** digits(dtype)
    np.testing.assert_array_equal(steps, np.round(steps))
    assert (steps >= 0).all()
    assert (steps < 2.0 ** digits(dtype)).all()


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "low", "span"),
    [
        ("int8", -128, 256),
        ("int8", -5, 11),
        ("uint16", 7, 1000),
        ("bool", 0, 2),
        ("int32", -(2**31), 2**32),
        ("int32", -(2**31), 3 << 30),  # a quarter is drawn again
        ("uint32", 0, 2**32 - 1),
        ("int64", -10, 20),
        ("int64", -(2**63), 3 << 62),
        ("uint64", 0, 2**64),
    ],
)
def test_integers(kernel: Kernels, dtype: str, low: int, span: int) -> None:
    name = "integers64" if dtype.endswith("64") else "integers32"
    law = a_distribution(name, dtype, low=low % 2**64, span=span % 2**64)
    values = kernel.fill(law, N)
    offsets = (values.astype(object) if dtype != "bool" else values.astype(int)) - low
    assert min(offsets) >= 0
    assert max(offsets) < span
    bins = min(span, 97)
    counts = np.bincount([int(offset) * bins // span for offset in offsets], minlength=bins)
    sizes = (
        [len(range(-(-b * span // bins), -(-(b + 1) * span // bins))) for b in range(bins)]
        if (span < 10**6)
        else [1] * bins
    )
    check_counts(counts, np.array(sizes) / sum(sizes))


@needs_compiler
@pytest.mark.parametrize("p", [1e-3, 1e-6, 1e-12])
def test_geometric(kernel: Kernels, p: float) -> None:
    values = kernel.fill(a_distribution("geometric", "int64", (np.log1p(-p),)), N)
    assert values.min() >= 1
    check_continuous(values, stats.expon(scale=1 / p), slack=2 * p)


@pytest.mark.parametrize(("n", "p"), [(0.7, 1e-4), (1.0, 1e-6), (30.0, 1e-12)])
def test_negative_binomial(kernel: Kernels, n: float, p: float) -> None:
    values = kernel.fill(a_distribution("negative_binomial", "int64", (n, (1 - p) / p)), N)
    assert values.min() >= 0
    check_continuous(values, stats.gamma(n, scale=1 / p), slack=0.01)


@pytest.mark.parametrize("mean", [0.0, 0.01, 3.0, 9.99, 10.0, 50.0, 1e4, 1e9])
def test_poisson(kernel: Kernels, mean: float) -> None:
    values = kernel.fill(a_distribution("poisson", "int64", (mean,)), N)
    if mean >= 1e9:
        check_near(float(values.mean()), mean, np.sqrt(mean / N))
        check_near(float(values.var()), mean, mean * np.sqrt(2 / N))
        return
    law = stats.poisson(mean)
    least, most = int(law.ppf(1e-9)) if mean else 0, int(law.isf(1e-9)) + 1
    counts = np.bincount(np.clip(values, least, most) - least, minlength=most - least + 1)
    chances = law.pmf(np.arange(least, most + 1))
    chances[-1] += law.sf(most)
    chances[0] += law.cdf(least - 1)
    check_counts(counts, chances)


@needs_compiler
def test_search(kernel: Kernels) -> None:
    chances = np.array([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    table = np.cumsum(chances)
    table /= table[-1]
    law = a_distribution("search", "int32", low=2**64 - 1, extent=len(table))
    values = kernel.fill(law, N, table=table)
    check_counts(np.bincount(values + 1, minlength=6), chances)


@needs_compiler
@pytest.mark.parametrize("count", [1, 7, 4096])
@pytest.mark.parametrize(
    "law",
    [
        a_distribution("uniform", "float32", (0.0, 1.0)),
        a_distribution("normal", "float64", (0.0, 1.0)),
        a_distribution("exponential", "float16", (1.0,)),
        a_distribution("integers32", "int8", span=3 << 5),
        a_distribution("integers64", "int64", span=3 << 62),
    ],
    ids=lambda law: f"{law.name}-{law.dtype}",
)
def test_words_that_are_there(kernel: Kernels, law: Distribution, count: int) -> None:
    blocks = -(-count // DISTRIBUTIONS[law.name].values(law.dtype))
    words = kernel.words(4 * blocks, first=5)
    if len(words) * 4 == count * dtype_of(law.dtype).itemsize:
        out = words.view(dtype_of(law.dtype))  # values take the place of their words
    else:
        out = np.zeros(count, dtype_of(law.dtype))
    head = struct.pack("<5Q", at(out), at(words), count, kernel.key, 5)
    kernel.compiled[f"apply<{type_of(law)}>"](head + parameters(law))
    np.testing.assert_array_equal(out, kernel.fill(law, count, first=5))


@needs_compiler
def test_the_first_ones_of_a_race(kernel: Kernels) -> None:
    weights = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    firsts = np.zeros(5, int)
    for number in range(4000):
        times, out = np.zeros(5), np.full(4, -1)
        head = struct.pack("<4Q", at(times), 5, kernel.key, 5 * number)
        race = struct.pack("<2d5Q", 0, 0, 0, 0, 0, 5, at(weights))
        kernel.compiled["draw_each<Race>"](head + race)
        kernel.compiled["first_of"](struct.pack("<4Q", at(out), at(times), 5, 4))
        assert sorted(out) == [1, 2, 3, 4]
        firsts[out[0]] += 1
    check_counts(firsts, weights / 10)


@needs_compiler
@pytest.mark.parametrize("items", [1, 2, 5, 1000, 70_000])
def test_a_permutation(kernel: Kernels, items: int) -> None:
    seen = []
    for call in (0, 1, 2**40):
        out = np.full(items, -1)
        arguments = struct.pack("<5Q", at(out), items, items, kernel.key, call)
        kernel.compiled["permute"](arguments)
        np.testing.assert_array_equal(np.sort(out), np.arange(items))
        seen.append(out)
        if items >= 1000:
            check_uncorrelated(out, np.arange(items))
            check_uncorrelated(out[:-1], out[1:])
    if items >= 1000:
        check_uncorrelated(seen[0], seen[1])


@needs_compiler
def test_permutations_of_few_are_all_as_likely(kernel: Kernels) -> None:
    firsts = np.zeros((20, 20), int)
    for call in range(5000):
        out = np.full(2, -1)
        kernel.compiled["permute"](struct.pack("<5Q", at(out), 20, 2, kernel.key, call))
        firsts[tuple(out)] += 1
    check_counts(firsts.ravel(), ((1 - np.eye(20)) / 380).ravel())


@needs_compiler
@pytest.mark.parametrize("size", ROWS)
def test_rows(kernel: Kernels, size: int) -> None:
    rows = np.frombuffer(seeds.rng().bytes(7 * 3 * size), np.uint8).reshape(7, 3 * size)
    index = np.array([6, 0, 3, 3])
    out = np.zeros((4, 3 * size), np.uint8)
    head = struct.pack("<5Q", at(out), at(rows), at(index), 4 * 3, 3)
    kernel.compiled[f"take<{ROWS[size]}>"](head)
    np.testing.assert_array_equal(out, rows[index])


# --- quasi-random points -----------------------------------------------------------------

# The first dimension's direction vectors reverse the bits of an index.
REVERSED = np.array([1 << (31 - bit) for bit in range(32)], np.uint32)


def points(kernel: Kernels, law: Distribution, vectors: Array, count: int, first: int = 0) -> Array:
    dims = vectors.size // (8 * vectors.itemsize)
    out = np.zeros((count, dims), dtype_of(law.dtype))
    head = struct.pack("<6Q", at(out), at(vectors), 0, out.size, first, dims)
    word = "u32" if vectors.itemsize == 4 else "u64"
    kernel.compiled[f"sobol<{type_of(law)}, {word}>"](head + parameters(law))
    return out


@needs_compiler
@pytest.mark.parametrize("first", [0, 1, 100, 2**20])
def test_the_first_dimension_of_sobol(kernel: Kernels, first: int) -> None:
    got = points(kernel, a_distribution("uniform", "float64", (0.0, 1.0)), REVERSED, 100, first)
    sequence = qmc.Sobol(1, scramble=False, bits=32)
    if first:
        sequence.fast_forward(first)
        expected = sequence.random(100)
    else:
        expected = np.concatenate([sequence.random(1), sequence.random(99)])
    np.testing.assert_array_equal(got, expected)


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_quantiles_of_points(kernel: Kernels, name: str, dtype: str) -> None:
    floats, law = CONTINUOUS[name]
    got = points(kernel, a_distribution(name, dtype, floats), REVERSED, 1024)
    middle = np.array([int(f"{i ^ i >> 1:032b}"[::-1], 2) + 0.5 for i in range(1024)]) / 2**32
    with np.errstate(over="ignore"):
        expected = law.ppf(middle).astype(dtype_of(dtype)).astype(np.float64)
    tolerance = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-7}[dtype]
    np.testing.assert_allclose(got[:, 0].astype(np.float64), expected, rtol=tolerance, atol=1e-3)


@needs_compiler
@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64"])
def test_integers_of_points(kernel: Kernels, dtype: str) -> None:
    name = "integers64" if dtype == "int64" else "integers32"
    got = points(kernel, a_distribution(name, dtype, low=2**64 - 3, span=100), REVERSED, 1000)
    u = [int(f"{i ^ i >> 1:032b}"[::-1], 2) / 2**32 for i in range(1000)]
    expected = (np.floor(np.array(u) * 100).astype(np.int64) - 3).astype(dtype)
    np.testing.assert_array_equal(got[:, 0], expected)


# --- with the vendor's library, which has host generators that need no GPU ---------------


@pytest.mark.headers
@needs_compiler
def test_the_words_are_curands(kernel: Kernels) -> None:
    from atomr_accel.executors.vendor import VendorLibrary
    from atomr_accel.libraries.rng.host._prototypes import PROTOTYPES, STATUS_NAMES

    host = {"curandCreateGeneratorHost": "ptr* int"}
    library = VendorLibrary("curand", {**PROTOTYPES, **host}, STATUS_NAMES)
    generator = ctypes.c_void_p()
    library.call("curandCreateGeneratorHost", ctypes.byref(generator), 161)
    library.call("curandSetPseudoRandomGeneratorSeed", generator, kernel.key)
    for offset in (0, 4096, 4 * 65536 + 40):
        words = np.zeros(300_000, np.uint32)
        library.call("curandSetGeneratorOffset", generator, offset)
        library.call("curandGenerate", generator, at(words), len(words))
        np.testing.assert_array_equal(kernel.words(len(words), offset // 4), words)
    library.call("curandDestroyGenerator", generator)


@pytest.mark.headers
@needs_compiler
@pytest.mark.parametrize("kind", ["sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64"])
def test_the_points_are_curands(kernel: Kernels, kind: str) -> None:
    from atomr_accel.executors.vendor import VendorLibrary
    from atomr_accel.libraries.rng.host._prototypes import PROTOTYPES, STATUS_NAMES, VECTORS

    host = {
        "curandCreateGeneratorHost": "ptr* int",
        "curandSetQuasiRandomGeneratorDimensions": "ptr uint",
        "curandGenerateLongLong": "ptr ptr size",
    }
    library = VendorLibrary("curand", {**PROTOTYPES, **host}, STATUS_NAMES)
    bits, dims, count = int(kind[-2:]), 50, 64
    word = np.dtype(f"uint{bits}")
    number = {"sobol32": 201, "scrambled_sobol32": 202, "sobol64": 203, "scrambled_sobol64": 204}
    generator, table = ctypes.c_void_p(), ctypes.c_void_p()
    library.call("curandCreateGeneratorHost", ctypes.byref(generator), number[kind])
    library.call("curandSetQuasiRandomGeneratorDimensions", generator, dims)
    library.call("curandSetGeneratorOffset", generator, 1000)
    words = np.zeros((dims, count), word)
    generate = "curandGenerate" if bits == 32 else "curandGenerateLongLong"
    library.call(generate, generator, at(words), words.size)
    library.call("curandDestroyGenerator", generator)
    library.call(f"curandGetDirectionVectors{bits}", ctypes.byref(table), VECTORS[kind])
    scramble = 0
    if kind.startswith("scrambled"):
        constants = ctypes.c_void_p()
        library.call(f"curandGetScrambleConstants{bits}", ctypes.byref(constants))
        scramble = constants.value or 0
    got = np.zeros((count, dims), word)
    law = a_distribution(f"integers{bits}", word.name, span=2**32 if bits == 32 else 0)
    head = struct.pack("<6Q", at(got), table.value or 0, scramble, got.size, 1000, dims)
    kernel.compiled[f"sobol<{type_of(law)}, u{bits}>"](head + parameters(law))
    np.testing.assert_array_equal(got, words.T)


@pytest.mark.headers
def test_nvrtc_compiles_every_kernel() -> None:
    # All of them in one program, because each takes the compiler a while by itself.
    members = instances(("int8", "uint32", "int64"))
    assert check_instances_compile(SOURCE, members, "permute") == "_Z7permutePxyyyy"


@pytest.mark.headers
@pytest.mark.parametrize(
    "name", ["fill<Normal<b16>>", "draw_each<Beta<h16>>", "sobol<LogNormal<double>, u64>"]
)
def test_nvrtc_compiles_for_older_devices(name: str) -> None:
    check_compiles(SOURCE.text, name, capability=(8, 0), warned=True)
