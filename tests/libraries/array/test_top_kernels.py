"""The array lane's kernels for first and for different elements of rows, and for histograms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atomr_accel._dtypes import DTYPES
from atomr_accel.libraries.array.host import _top_source
from atomr_accel.libraries.array.host._cpu_indexing import CpuIndexing
from atomr_accel.libraries.array.host._cuda_indexing import CudaIndexing
from atomr_accel.libraries.array.host._indexing_source import DISTINCT, ELEMENTS, NUMBERS
from atomr_accel.libraries.array.host._source import THREADS
from atomr_accel.libraries.array.host._top_source import TOPS, kernel_types
from atomr_accel.libraries.array.wire.indexing import (
    MOST_TOP,
    PARTS,
    CountHistogram,
    Distinct,
    Top,
    top_scratch,
)
from atomr_accel.wire import PLACE

from ... import seeds
from ..compiling import check_compiles
from ..host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from .pretend import pointer, template_of

pytestmark = pytest.mark.slow  # to compile them takes seconds

Array = np.ndarray[Any, Any]

REAL = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
)
COMPLEX = ("complex64", "complex128")
EDGES = ("float32", "float64")


def top_names() -> dict[str, str]:
    """Every kernel that finds first elements, with its parameters."""
    made = {}
    for types in dict.fromkeys(map(kernel_types, REAL)):
        bits = types.partition(",")[0]
        outputs = f"{bits}* values; i64* places; const {bits}* source"
        made[f"sorted_rows<{types}>"] = (
            f"{outputs}; u64 rows; u64 length; u64 count; u64 bits; u64 descending"
        )
        made[f"top_pass<{types}>"] = (
            f"State* states; u32* counts; const {bits}* source; u64 rows; u64 length; u64 count; "
            "u64 parts; u64 shift; u64 width; u64 stage; u64 descending"
        )
        made[f"top_collect<{types}>"] = (
            f"{outputs}; State* states; u64* keys; u32* found; u64 rows; u64 length; u64 count; "
            "u64 parts; u64 bits; u64 descending"
        )
    return made


def distinct_names() -> dict[str, str]:
    """Every kernel that looks for different elements."""
    made = {"lengths": "i64* made; const i64* begins; const i64* total; u64 size"}
    for types in dict.fromkeys(map(kernel_types, (*REAL, *COMPLEX))):
        bits = types.partition(",")[0]
        parts = "u64 size; u64 each; u64 parts; u64 equal"
        made[f"firsts<{types}>"] = f"i64* counts; const {bits}* values; {parts}"
        made[f"distinct<{types}>"] = (
            f"{bits}* made; i64* places; i64* inverse; i64* begins; i64* counts; "
            f"const {bits}* values; const i64* order; {parts}"
        )
    return made


def number_names() -> dict[str, str]:
    """Every kernel that makes histograms."""
    return {
        f"binned<{ELEMENTS[dtype]}, {ELEMENTS[edge]}>": (
            f"u64* counts; {ELEMENTS[edge]}* edges; const {ELEMENTS[dtype]}* given; "
            "const double* ends; u64 items; u64 size; double low; double high"
        )
        for dtype in REAL
        for edge in EDGES
    }


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, HostKernels]:
    return {
        source: HostKernels(
            compile_kernels(on_host(source), names, tmp_path_factory.mktemp("top"), threads=THREADS)
        )
        for source, names in (
            (TOPS, top_names()),
            (DISTINCT, distinct_names()),
            (NUMBERS, number_names()),
        )
    }


def strange(rng: np.random.Generator, shape: tuple[int, int], dtype: str) -> Array:
    """Numbers of all kinds, many of them equal."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        few = rng.integers(max(info.min, -3), 4, shape)
        wide = rng.integers(info.min, info.max, shape, kind, endpoint=True)
        return np.where(rng.random(shape) < 0.5, few, wide).astype(kind)
    odd = rng.choice([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, -np.nan], shape)
    size = 10.0 ** rng.uniform(-7, 4, shape)
    return np.where(rng.random(shape) < 0.2, odd, rng.normal(size=shape) * size).astype(kind)


def asked(
    executor: Any, source: Array, count: int, *, descending: bool, values: bool, places: bool
) -> tuple[Array, Array]:
    """Return the values and places that an executor finds."""
    rows, length = source.shape
    made = np.zeros((rows, count), source.dtype), np.full((rows, count), -7)
    scratch = np.full(top_scratch(rows, length, count) + 1, 0xA5, np.uint8)
    executor.handlers[Top](
        Top(
            pointer(source),
            source.dtype.name,
            rows,
            length,
            count,
            descending,
            pointer(made[0]) if values else 0,
            pointer(made[1]) if places else 0,
            pointer(scratch),
        )
    )
    assert scratch[-1] == 0xA5
    return made


SHAPES = ((1, 1), (5, 3), (3, 700), (1, 2048), (2, 2049), (1, 9000), (3, 2100))


@needs_compiler
@pytest.mark.parametrize("dtype", REAL)
def test_the_first_elements_of_rows(
    cuda: CudaIndexing, cpu: CpuIndexing, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_top_source, "TOP_ROWS", 2)  # so that some are taken in turn
    rng = seeds.rng()
    for shape in SHAPES:
        source = strange(rng, shape, dtype)
        for count in {1, min(3, shape[1]), min(shape[1], MOST_TOP)}:
            down, values = bool(rng.integers(2)), bool(rng.integers(2))
            flags: Any = {"descending": down, "values": values, "places": count < 3 or not values}
            found = asked(cuda, source, count, **flags)
            expected = asked(cpu, source, count, **flags)
            np.testing.assert_array_equal(found[1], expected[1], err_msg=f"{shape} {flags}")
            assert found[0].tobytes() == expected[0].tobytes(), f"{shape} {flags}"


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "uint16", "float64"])
def test_top_kernel_takes_the_first_of_equal_elements(cuda: CudaIndexing, dtype: str) -> None:
    length = 9000
    for down in (False, True):
        _, places = asked(
            cuda, np.zeros((2, length), dtype), 2048, descending=down, values=True, places=True
        )
        np.testing.assert_array_equal(places, [range(2048)] * 2)
    source = np.ones((1, length), dtype)
    source[0, 8100] = 2
    values, places = asked(cuda, source, 100, descending=True, values=True, places=True)
    np.testing.assert_array_equal(places[0], [8100, *range(99)])
    np.testing.assert_array_equal(values[0], [2, *[1] * 99])


@needs_compiler
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX])
@pytest.mark.parametrize("equal_nan", [True, False])
def test_top_kernels_differ_by_dtype_and_order(
    cuda: CudaIndexing, cpu: CpuIndexing, dtype: str, equal_nan: bool
) -> None:
    for count, asks in ((0, True), (1, True), (2, False), (9000, True)):
        real = "float64" if dtype in COMPLEX else dtype
        values = strange(seeds.rng(), (1, count), real)[0].astype(dtype)
        wide = values.astype("f4") if dtype == "bfloat16" else values
        order = np.argsort(wide, kind="stable").astype(np.int64)
        ordered = np.ascontiguousarray(values[order])
        made: list[list[Array]] = []
        for executor in (cuda, cpu):
            outs = [np.full(count, 0x5A).astype(dtype)]
            outs += [np.full(count if asks else 0, -7, np.int64) for _ in range(4)]
            scratch = np.full(PARTS, -7, np.int64)
            given: Any = [pointer(ordered), count, dtype, equal_nan]
            given += [pointer(order) if asks else 0, pointer(outs[0])]
            asked_for: Any = [pointer(out) if asks else 0 for out in outs[1:]]
            message = Distinct(*[*given, *asked_for, pointer(scratch)])
            answer = executor.handlers[Distinct](message)
            found = answer if isinstance(answer, int) else answer.read()
            first, places, inverse, _, lengths = outs
            made.append(
                [first[:found].astype(wide.dtype), places[:found], inverse, lengths[:found]]
            )
        for one, other in zip(*made, strict=True):
            np.testing.assert_array_equal(one, other)
        expected = np.unique(wide, True, True, True, equal_nan=equal_nan)
        np.testing.assert_array_equal(made[0][0], expected[0])
        for got, want in zip(made[0][1:], expected[1:], strict=True) if asks else ():
            np.testing.assert_array_equal(got, want.reshape(-1))


@needs_compiler
def test_the_order_of_elements_is_numpys(cpu: CpuIndexing) -> None:
    for dtype in REAL:
        source = strange(seeds.rng(), (3, 90), dtype)
        values, places = asked(cpu, source, 90, descending=False, values=True, places=True)
        wide = source.astype("f4") if dtype == "bfloat16" else source  # where NaN have no order
        np.testing.assert_array_equal(places, np.argsort(wide, 1, kind="stable"))
        np.testing.assert_array_equal(values.astype(wide.dtype), np.sort(wide, 1, kind="stable"))


@needs_compiler
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("edge", EDGES)
def test_histograms(cuda: CudaIndexing, cpu: CpuIndexing, dtype: str, edge: str) -> None:
    rng = seeds.rng()
    for size, count in ((1, 5), (10, 3000), (300, 0), (9000, 5000)):
        given = np.ascontiguousarray(strange(rng, (1, count), dtype)[0])
        given[: count // 2] = (np.arange(count // 2) % 11 / 10).astype(given.dtype)  # on edges
        low, high = (0.0, 1.0) if rng.integers(2) else (-2.5, 7.25)
        bounds = np.array([low, high])
        made = []
        for executor in (cuda, cpu):
            counts, edges = np.full(size, -3), np.full(size + 1, 9, edge)
            known = bool(rng.integers(2))
            message = CountHistogram(
                pointer(given) if count else 0,
                count,
                dtype,
                0 if known else pointer(bounds),
                low if known else 0.0,
                high if known else 0.0,
                pointer(counts),
                pointer(edges),
                edge,
                size,
            )
            executor.handlers[CountHistogram](message)
            made.append((counts, edges))
        np.testing.assert_array_equal(made[0][0], made[1][0])
        np.testing.assert_array_equal(made[0][1], made[1][1])
        np.testing.assert_array_equal(made[0][1], np.linspace(low, high, size + 1).astype(edge))


@needs_compiler
def test_histograms_by_templates(cuda: CudaIndexing) -> None:
    prepare = cuda.preparers[CountHistogram]
    given = ("float32", 0, -1.0, 2.0)
    message = CountHistogram(PLACE, 3000, *given, PLACE | 1, PLACE | 2, "float32", 10)
    run = prepare(template_of(message))
    assert run is not None
    for _ in range(2):  # on other buffers each time
        x = seeds.rng().uniform(-2, 3, 3000).astype("f4")
        counts, edges = np.full(10, 9, np.int64), np.full(11, 9, np.float32)
        run([pointer(x), pointer(counts), pointer(edges)])
        expected = np.histogram(x, 10, (-1, 2))
        np.testing.assert_array_equal(counts, expected[0])
        np.testing.assert_allclose(edges, expected[1], rtol=1e-6)
    asking = CountHistogram(PLACE, 3000, "float32", PLACE | 1, 0.0, 0.0, 1, 1, "float32", 10)
    assert prepare(template_of(asking)) is None  # it looks at the device's numbers first


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    names = [(TOPS, name) for name in top_names()] + [(NUMBERS, name) for name in number_names()]
    names += [(DISTINCT, name) for name in distinct_names()]
    for source, name in names if capability == (9, 0) else names[::5]:
        check_compiles(source.text, name, capability=capability)
