"""The array lane's kernels for indices, masks and scans: on the host, and that NVRTC takes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from atomr_accel._dtypes import DTYPES
from atomr_accel.executors.scan_tiles import most_scanned, scan_threads, scan_types
from atomr_accel.libraries.array.choosing import GatherAxis, choose
from atomr_accel.libraries.array.host import _indexing_source
from atomr_accel.libraries.array.host._cpu_indexing import CpuIndexing
from atomr_accel.libraries.array.host._cuda_indexing import CudaIndexing
from atomr_accel.libraries.array.host._indexing_source import (
    COMPACTION,
    ELEMENTS,
    INDEXING,
    NUMBERS,
    SCANS,
    SEARCHES,
    parts_of,
)
from atomr_accel.libraries.array.host._source import THREADS
from atomr_accel.libraries.array.wire.indexing import (
    PARTS,
    Choose,
    Compact,
    CountNumbers,
    FindAmong,
    FindOutside,
    Interpolate,
    ReadNumbers,
    ScanRows,
    UploadBytes,
)

from ... import seeds
from ..compiling import check_compiles
from ..host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from .pretend import pointer

pytestmark = pytest.mark.slow  # to compile them takes seconds

Array = np.ndarray[Any, Any]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ADDED = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
MOVED = {1: "unsigned char", 2: "unsigned short", 4: "u32", 8: "u64", 16: "Wide"}


def indexing_names() -> list[str]:
    """Return the names of kernels of every kind: a selection of the thousands that exist."""
    kinds = [(index, "u32", 1, 2) for index in ("i64", "unsigned char")]
    kinds += [
        ("int", "u32", 2, 2),
        ("int", "u64", 1, 4),
        ("i64", "u32", 2, 4),
        ("short", "u32", 4, 8),
    ]
    last = [", ".join(map(str, each)) for each in kinds]
    every = [f"{ELEMENTS[index]}, u32, 1, 2" for index in INTEGERS]
    names = [
        f"{kind}<{size}, {each}>"
        for kind in ("gather", "scatter")
        for size in MOVED
        for each in last
    ]
    names += [f"gather<4, {each}>" for each in every]
    names += [f"add<{ELEMENTS[dtype]}, {each}>" for dtype in ADDED for each in last[:3]]
    names += [f"in_order<{ELEMENTS[dtype]}, true, {last[0]}>" for dtype in ADDED]
    names += [f"in_order<{element}, false, {last[0]}>" for element in MOVED.values()]
    return list(dict.fromkeys(names))


def parameters(name: str) -> str:
    *_, count, rank = name.rstrip(">").split(", ")
    inner = "u64 inner; " if name.startswith("in_order") else ""
    return f"char* target; const char* source; u64 count; {inner}Places<{count}, {rank}> places"


def scan_names() -> list[str]:
    return [
        f"{kernel}<{scan_types(dtype, kind)}>"
        for kernel in ("scan", "scan_short", "scan_tiles")
        for dtype in ADDED[1:]
        for kind in ("add", "multiply")
    ]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, HostKernels]:
    members = {name: parameters(name) for name in indexing_names()}
    members["upload"] = "unsigned char* target; u64 count; Bytes bytes"
    for index in INTEGERS:
        element = ELEMENTS[index]
        members[f"outside<{element}>"] = (
            f"u64* found; const {element}* given; u64 count; i64 extent"
        )
    parts = "u64 size; u64 each; u64 parts"
    flags = f"const unsigned char* flags; {parts}"
    compaction = {
        "count": f"i64* counts; {flags}",
        "compact": f"i64* positions; i64* counts; {flags}",
    }
    numbers = {
        f"counted<{ELEMENTS[index]}>": (
            f"u64* counts; const {ELEMENTS[index]}* given; u64 items; u64 size"
        )
        for index in INTEGERS
    }
    searches = {
        f"interpolated<{kind}, {parts}>": (
            f"Number<{parts}>* target; const {kind}* given; const double* places; "
            f"const Number<{parts}>* values; const Number<{parts}>* left; "
            f"const Number<{parts}>* right; u64 count; u64 points"
        )
        for kind in ("float", "double")
        for parts in (1, 2)
    }
    for dtype in ADDED[:-2]:
        element = ELEMENTS[dtype]
        searches[f"among<{element}>"] = (
            f"flag* target; const {element}* given; const {element}* row; u64 count; u64 size; "
            "u64 invert"
        )
    scans = {}
    for name in scan_names():
        kernel, element = name.replace(",", "<").split("<")[:2]
        sizes = "u64 continued; u64 length" if kernel == "scan_tiles" else "u64 rows; u64 length"
        scans[name] = f"{element}* target; const {element}* source; {sizes}"
    return {
        source: HostKernels(
            compile_kernels(
                on_host(source), names, tmp_path_factory.mktemp("indexing"), threads=THREADS
            )
        )
        for source, names in (
            (INDEXING, members),
            (COMPACTION, compaction),
            (NUMBERS, numbers),
            (SEARCHES, searches),
            (SCANS, scans),
        )
    }


def seen(array: Array) -> Any:
    """Return a stand-in for a ref to this array."""
    place = SimpleNamespace(address=pointer(array), offset=pointer(array) % 256)
    return SimpleNamespace(
        addressable_block=place, shape=array.shape, strides=array.strides, dtype=array.dtype
    )


def message_of(
    kind: Literal["gather", "set", "add"],
    plain: Array,
    chosen: Array,
    indices: list[Array],
    outside: Literal["wrap", "clip", "drop"],
    *,
    ordered: bool = False,
) -> Choose:
    """Return the message that chooses along the first axes.

    ``plain`` has the axes of the indices first, then the others.
    """
    made: list[Choose] = []
    steps: Any = SimpleNamespace(
        submit=lambda _name, message, _reads, _writes: made.append(message)
    )
    shape = np.broadcast_shapes(*(each.shape for each in indices))
    wide = [np.broadcast_to(each, shape) for each in indices]
    loops = [
        GatherAxis(extent, plain.strides[at], 0, tuple(each.strides[at] for each in wide))
        for at, extent in enumerate(shape)
    ]
    count = len(indices)
    rest = [
        GatherAxis(
            chosen.shape[count + at],
            plain.strides[len(shape) + at],
            chosen.strides[count + at],
            (0,) * count,
        )
        for at in range(chosen.ndim - count)
    ]
    pairs = [(seen(each), at) for at, each in enumerate(indices)]
    choose(
        steps, kind, seen(plain), seen(chosen), pairs, loops, rest, outside=outside, ordered=ordered
    )
    (message,) = made
    return message


def random_of(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    made = rng.integers(-9, 9, shape)
    return made.astype(DTYPES[dtype])


@needs_compiler
@pytest.mark.parametrize("kind", ["gather", "set"])
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64", "complex128"])
def test_index_kernel_is_chosen_by_layout(
    cuda: CudaIndexing, cpu: CpuIndexing, kind: Any, dtype: str
) -> None:
    seed = seeds.draw()
    rng = np.random.default_rng(seed)
    used = 0
    for trial in range(60):
        count = int(rng.integers(1, 3))
        index = str(rng.choice(["int64", "uint8"] if count == 1 else ["int32"]))
        sizes = tuple(map(int, rng.integers(1, 6, count)))
        rest = tuple(map(int, rng.integers(1, 5, rng.integers(0, 2))))
        chosen = random_of(rng, (*sizes, *rest), dtype)
        shape = tuple(map(int, rng.integers(1, 6, 1)))
        outside: Any = rng.choice(["wrap", "clip", "drop"] if kind == "set" else ["wrap", "clip"])
        low = 0 if index == "uint8" else -9
        indices = [rng.integers(low, 9, shape).astype(index) for _ in sizes]
        if kind == "set":  # places differ, so that no element is written twice
            if outside != "drop":
                continue
            indices = [
                np.arange(shape[0]).astype(index) - (0 if index == "uint8" else 1) for _ in sizes
            ]
        plain = random_of(rng, (*shape, *rest), dtype)
        message = message_of(kind, plain, chosen, indices, outside)
        written = chosen if kind == "set" else plain
        before = written.copy()
        cpu.handlers[Choose](message)
        expected = written.copy()
        written[...] = before
        try:
            cuda.handlers[Choose](message)
        except KeyError:
            continue  # none of those that are compiled here
        used += 1
        np.testing.assert_array_equal(written, expected, err_msg=f"seed {seed}, trial {trial}")
    assert used > 5


@needs_compiler
@pytest.mark.parametrize("dtype", ADDED)
@pytest.mark.parametrize("ordered", [False, True])
def test_sums_at_indices(cuda: CudaIndexing, cpu: CpuIndexing, dtype: str, ordered: bool) -> None:
    rng = seeds.rng()
    chosen = random_of(rng, (7, 3), dtype)
    plain = random_of(rng, (40, 3), dtype)
    indices = [rng.integers(-9, 9, 40)]
    message = message_of("add", plain, chosen, indices, "wrap", ordered=ordered)
    before = chosen.copy()
    cpu.handlers[Choose](message)
    expected = chosen.copy()
    chosen[...] = before
    cuda.handlers[Choose](message)
    np.testing.assert_array_equal(chosen, expected)


@needs_compiler
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "int64", "complex128"])
def test_the_last_of_several_counts(cuda: CudaIndexing, dtype: str) -> None:
    rng = seeds.rng()
    chosen = random_of(rng, (5, 3), dtype)
    plain = random_of(rng, (40, 3), dtype)
    index = rng.integers(0, 5, 40)
    expected = chosen.copy()
    for at, row in zip(index, plain, strict=True):
        expected[at] = row
    # Columns first, so that elements are not widened to more than a row has.
    cuda.handlers[Choose](message_of("set", plain, chosen, [index], "wrap", ordered=True))
    np.testing.assert_array_equal(chosen, expected)


@needs_compiler
@pytest.mark.parametrize("index", INTEGERS)
def test_every_dtype_of_indices(cuda: CudaIndexing, index: str) -> None:
    info = np.iinfo(index)
    given = np.array([0, 4, info.max, info.min, 3], index)
    chosen = np.arange(5, dtype=np.float32)
    for outside in ("wrap", "clip"):
        plain = np.full(5, np.nan, np.float32)
        cuda.handlers[Choose](message_of("gather", plain, chosen, [given], outside))
        mode: Any = outside
        exact = [int(each) for each in given]
        expected = np.take(
            chosen, [each % 5 if mode == "wrap" else min(max(each, 0), 4) for each in exact]
        )
        np.testing.assert_array_equal(plain, expected)


@needs_compiler
@pytest.mark.parametrize("index", INTEGERS)
def test_the_first_index_out_of_bounds(cuda: CudaIndexing, index: str) -> None:
    signed = index.startswith("i")
    scratch = np.zeros(1, np.int64)
    good = np.array([0, 4, -5 if signed else 1] * 300, index)
    message = FindOutside(pointer(good), good.size, index, 5, pointer(scratch))
    assert cuda.handlers[FindOutside](message) == (False, 0)
    bad = good.copy()
    bad[700], bad[800] = (-6 if signed else 99), 5
    message = FindOutside(pointer(bad), bad.size, index, 5, pointer(scratch))
    assert cuda.handlers[FindOutside](message) == (True, int(bad[700]))


@needs_compiler
@pytest.mark.parametrize("count", [0, 1, 15, 4097, 70_000])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_index_kernel_finds_set_flags(cuda: CudaIndexing, count: int, share: float) -> None:
    flags = (seeds.rng().random(count) < share).astype(np.uint8)
    positions = np.full(count, -1, np.int64)
    scratch = np.empty(PARTS, np.int64)
    message = Compact(pointer(flags), count, pointer(positions), pointer(scratch))
    expected = np.flatnonzero(flags)
    made = cuda.handlers[Compact](message)
    assert (made.read() if count else made) == len(expected)
    np.testing.assert_array_equal(positions[: len(expected)], expected)


@needs_compiler
def test_numbers_are_read_when_all_before_is_done(cuda: CudaIndexing, cpu: CpuIndexing) -> None:
    given = seeds.rng().integers(-(2**63), 2**63 - 1, 20)
    asked = [(0,), (3, 1), tuple(range(20)), (7, 7)]
    messages = [ReadNumbers(tuple(pointer(given) + 8 * at for at in each)) for each in asked]
    laters = [cuda.handlers[ReadNumbers](message) for message in messages]  # side by side
    for _ in range(2):
        for each, message, later in zip(asked, messages, laters, strict=True):
            expected = tuple(given[[*each]].tolist())
            assert later.read() == cpu.handlers[ReadNumbers](message) == expected
        laters = [cuda.handlers[ReadNumbers](message) for message in messages]
    for later in laters:
        later.read()


@needs_compiler
@pytest.mark.parametrize("index", INTEGERS)
@pytest.mark.parametrize("size", [1, 3, 100, 9000])
def test_numbers_are_counted(cuda: CudaIndexing, cpu: CpuIndexing, index: str, size: int) -> None:
    rng, info = seeds.rng(), np.iinfo(index)
    low, high = max(info.min, -3), min(info.max, size + 2)
    for count in (0, 1, 5000):
        given = rng.integers(low, high, count, index, endpoint=True)
        counts = [np.full(size, 7) for _ in range(2)]
        executors: list[CudaIndexing | CpuIndexing] = [cuda, cpu]
        for executor, made in zip(executors, counts, strict=True):
            message = CountNumbers(pointer(given), count, index, pointer(made), size)
            executor.handlers[CountNumbers](message)
        expected = [7 + np.count_nonzero(given == number) for number in range(size)]
        np.testing.assert_array_equal(counts, [expected] * 2)


@needs_compiler
@pytest.mark.parametrize("dtype", ADDED[:-2])
@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("invert", [False, True])
def test_elements_are_looked_for_in_a_row(
    cuda: CudaIndexing, cpu: CpuIndexing, dtype: str, size: int, invert: bool
) -> None:
    rng = seeds.rng()
    given, row = random_of(rng, (5000,), dtype), random_of(rng, (size,), dtype)
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        row[-1] = given[0] = np.nan
    row = np.sort(row)
    made = [np.empty(given.shape, bool) for _ in range(2)]
    executors: list[CudaIndexing | CpuIndexing] = [cuda, cpu]
    for executor, target in zip(executors, made, strict=True):
        message = FindAmong(
            pointer(target), pointer(given), pointer(row), given.size, size, dtype, invert
        )
        executor.handlers[FindAmong](message)
    np.testing.assert_array_equal(made[0], made[1])
    np.testing.assert_array_equal(made[0], np.any(given[:, None] == row, 1) != invert)


@needs_compiler
@pytest.mark.parametrize("kind", ["float32", "float64"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("points", [1, 2, 3, 7, 100])
def test_kernel_interpolates_as_numpy(
    cuda: CudaIndexing, cpu: CpuIndexing, kind: str, dtype: str, points: int
) -> None:
    rng = seeds.rng()
    for infinite in (False, True):
        places = np.sort(rng.standard_normal(points)).astype(kind).astype("f8")
        values = rng.standard_normal(2 * points).view(dtype)[:points]
        if infinite:
            values[rng.random(points) < 0.3] = np.inf
            places[-1] = np.inf
        given = np.concatenate([places, 2 * rng.standard_normal(5000), [np.nan, np.inf, -np.inf]])
        given = given.astype(kind)
        ends = rng.standard_normal(4).view(dtype)
        made = [np.empty(given.shape, dtype) for _ in range(2)]
        executors: list[CudaIndexing | CpuIndexing] = [cuda, cpu]
        for executor, target in zip(executors, made, strict=True):
            rest = (pointer(places), pointer(values), pointer(ends), pointer(ends[1:]))
            message = Interpolate(
                pointer(target), pointer(given), given.size, kind, *rest, points, dtype
            )
            executor.handlers[Interpolate](message)
        np.testing.assert_array_equal(made[0], made[1])


@pytest.mark.parametrize("count", [1, 2**12, 2**31 + 7, 2**38])
def test_parts_of_flags(count: int) -> None:
    parts, each = parts_of(count)
    assert parts < PARTS
    assert (parts - 1) * each < count <= parts * each


@needs_compiler
@pytest.mark.parametrize("size", [1, 2047, 2048, 5000])
def test_bytes_of_the_program(cuda: CudaIndexing, size: int) -> None:
    data = seeds.rng().bytes(size)
    target = np.zeros(size + 1, np.uint8)
    cuda.handlers[UploadBytes](UploadBytes(pointer(target), data))
    assert target.tobytes() == data + b"\0"


@needs_compiler
@pytest.mark.parametrize("dtype", ADDED[1:])
@pytest.mark.parametrize("kind", ["add", "multiply"])
@pytest.mark.parametrize("shape", [(40, 1), (5, 31), (5, 33), (2, 3000), (1, 2048)])
def test_scans(
    cuda: CudaIndexing, cpu: CpuIndexing, dtype: str, kind: Any, shape: tuple[int, int]
) -> None:
    rng = seeds.rng()
    # Exact in any order: sums of small numbers, products of a few that are not one.
    if kind == "add":
        source = rng.integers(0 if dtype.startswith("u") else -1, 2, shape)
    else:
        source = np.where(rng.random(shape) < 2 / shape[1], 2, 1)
    given = source.astype(DTYPES[dtype])
    target, expected = np.empty_like(given), np.empty_like(given)
    cuda.handlers[ScanRows](ScanRows(kind, pointer(given), pointer(target), dtype, *shape))
    cpu.handlers[ScanRows](ScanRows(kind, pointer(given), pointer(expected), dtype, *shape))
    np.testing.assert_array_equal(target, expected)
    cuda.handlers[ScanRows](ScanRows(kind, pointer(given), pointer(given), dtype, *shape))
    np.testing.assert_array_equal(given, expected)


def scan_tile(dtype: str) -> int:
    """Return the elements of a tile."""
    return next(each for each in (8192, 4096, 2048) if scan_threads(dtype, each) == THREADS)


def test_a_launch_scans_whole_tiles_of_any_dtype() -> None:
    for dtype in ADDED[1:]:
        most = most_scanned(dtype)
        assert most % scan_tile(dtype) == 0
        assert most * DTYPES[dtype].itemsize > 1 << 28


@needs_compiler
@pytest.mark.parametrize("dtype", ADDED[1:])
@pytest.mark.parametrize("kind", ["add", "multiply"])
@pytest.mark.parametrize("skipped", [0, 1])
@pytest.mark.parametrize("pieces", [1, 4])
def test_a_long_row_in_tiles(
    cuda: CudaIndexing,
    cpu: CpuIndexing,
    dtype: str,
    kind: Any,
    skipped: int,
    pieces: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows have several groups of tiles; some begin where elements lie in no whole words."""
    rng = seeds.rng()
    tile = scan_tile(dtype)
    long = dtype == "float32" and kind == "add" and pieces == 1
    length = (1 << 14) + tile * int(rng.integers(300 if long else 4)) + int(rng.integers(1, tile))
    if pieces > 1:  # each of whole tiles
        most = max(1, length // tile // pieces) * tile
        monkeypatch.setattr(_indexing_source, "most_scanned", lambda _dtype: most)
    source = rng.integers(-2, 3, length + skipped) if kind == "add" else np.ones(length + skipped)
    if kind == "multiply":
        source[rng.integers(0, length, 3)] = 2
    else:  # sums that stay where every dtype has all whole numbers
        source[1::2] = -source[: len(source) // 2 * 2 : 2]
    given = source.astype(DTYPES[dtype])[skipped:]
    target, expected = np.empty_like(given), np.empty_like(given)
    row = (kind, pointer(given), pointer(target), dtype, 1, length)
    cuda.handlers[ScanRows](ScanRows(*row))
    cpu.handlers[ScanRows](ScanRows(kind, pointer(given), pointer(expected), dtype, 1, length))
    np.testing.assert_array_equal(target, expected)
    cuda.handlers[ScanRows](ScanRows(kind, pointer(given), pointer(given), dtype, 1, length))
    np.testing.assert_array_equal(given, expected)


@pytest.mark.headers
@pytest.mark.slow
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_nvrtc_compiles_every_kernel(capability: tuple[int, int]) -> None:
    names = [*indexing_names()[::3], "upload", *(f"outside<{ELEMENTS[each]}>" for each in INTEGERS)]
    names += ["gather<16, i64, u64, 8, 32>", "add<c128, i64, u64, 8, 32>"]
    names += [f"in_order<{element}, false, i64, u32, 1, 2>" for element in MOVED.values()]
    every = [(INDEXING, name) for name in names]
    every += [(COMPACTION, name) for name in ("count", "compact")]
    every += [(SCANS, name) for name in scan_names()]
    every += [(SEARCHES, f"interpolated<float, {parts}>") for parts in (1, 2)]
    every += [(SEARCHES, f"among<{ELEMENTS[each]}>") for each in ADDED[:-2]]
    every += [(NUMBERS, f"counted<{ELEMENTS[each]}>") for each in INTEGERS]
    for source, name in every:
        check_compiles(source.text, name, capability=capability)
