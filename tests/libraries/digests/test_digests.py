"""Digests: what the CPU computes, and the kernel, are the same numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_digest, xxh64_intdigest

from atomr_accel.libraries.digests.host import _cuda
from atomr_accel.libraries.digests.host._cuda import (
    KERNEL,
    ROW_KERNEL,
    SOURCE,
    SUM_KERNEL,
    CudaDigests,
)
from atomr_accel.libraries.digests.wire.digest import digests_of, digests_of_rows, sums_of_rows
from atomr_accel.libraries.digests.wire.messages import (
    LEAF_BYTES,
    SUM_ROWS,
    Digest,
    RowRange,
    RowSums,
)
from atomr_accel.wire import CHUNK_BYTES

from ...harness import needs_nvrtc
from ...seeds import rng
from ..host_kernels import Launch, compile_bodies, needs_compiler, on_host

sizes = st.one_of(
    st.integers(0, 100),
    st.integers(0, 3 * CHUNK_BYTES),
    st.sampled_from([LEAF_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES]),
)


@given(size=sizes)
def test_a_digest_is_of_the_digests_of_leaves(size: int) -> None:
    data = rng().bytes(size)
    expected = []
    for at in range(0, size, CHUNK_BYTES):
        chunk = data[at : at + CHUNK_BYTES]
        leaves = [
            xxh64_digest(chunk[leaf : leaf + LEAF_BYTES])[::-1]
            for leaf in range(0, len(chunk), LEAF_BYTES)
        ]
        expected.append(xxh64_digest(b"".join(leaves))[::-1])
    assert digests_of(memoryview(data)) == b"".join(expected)


def test_digests_of_known_data_do_not_change() -> None:
    """Digests that were written down outlive versions of this package."""
    data = bytes(range(256)) * 300
    assert digests_of(memoryview(data)).hex() == "4e2862e48b4684bbaf48da664dbe684a"


class FakeDriver:
    """Page-locked memory of this process."""

    def __init__(self) -> None:
        self.cells: dict[int, Any] = {}

    def cuMemAllocHost(self, nbytes: int) -> int:  # noqa: N802
        cell = ctypes.create_string_buffer(nbytes)
        self.cells[ctypes.addressof(cell)] = cell
        return ctypes.addressof(cell)

    def cuMemFreeHost(self, pointer: int) -> None:  # noqa: N802
        del self.cells[pointer]


class FakeKernels:
    """Launches the kernel on the host."""

    launches: dict[str, Launch]

    def __init__(self, *_: object) -> None:
        pass

    def function(self, name: str) -> str:
        assert name in self.launches
        return name

    def prepare_blocks(
        self, function: str, blocks: int, threads: int, shared: int, arguments: Any
    ) -> Any:
        assert shared == 0
        return lambda: self.launches[function](bytes(arguments.pointers), (blocks, 1), threads)

    def close(self) -> None:
        """Nothing is held."""


class FakeContext:
    """Addresses that are pointers."""

    def pointer(self, address: int) -> int:
        return address


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    bodies = [
        (
            "struct Arguments { const unsigned char* data; u64* answer; u64 size; };\n"
            f"static void run(Arguments a) {{ {KERNEL}(a.data, a.answer, a.size); }}"
        ),
        (
            "struct Arguments { const unsigned char* data; u64* answer; const unsigned* rows;"
            " u64 count, row_bytes; };\n"
            f"static void run(Arguments a) {{ {ROW_KERNEL}(a.data, a.answer, a.rows, a.count,"
            " a.row_bytes); }"
        ),
        (
            "struct Arguments { const unsigned char* data; u64* answer; const unsigned* mask;"
            " u64 row_bytes; };\n"
            f"static void run(Arguments a) {{ {SUM_KERNEL}(a.data, a.answer, a.mask,"
            " a.row_bytes); }"
        ),
    ]
    folder = tmp_path_factory.mktemp("digests")
    made = compile_bodies(on_host(SOURCE), bodies, "run", folder)
    return dict(zip((KERNEL, ROW_KERNEL, SUM_KERNEL), made, strict=True))


@given(row_bytes=st.integers(1, 40).map(lambda words: 8 * words), count=st.integers(0, 9))
def test_a_digest_of_a_row_is_of_its_bytes(row_bytes: int, count: int) -> None:
    data = rng().bytes(10 * row_bytes)
    rows = rng().integers(0, 10, count)
    expected = [xxh64_digest(data[row_bytes * row :][:row_bytes])[::-1] for row in rows]
    sent = RowRange.of(0, row_bytes, rows)
    assert digests_of_rows(memoryview(data), row_bytes, sent.rows) == b"".join(expected)


def masked(parts: int, share: float) -> bytes:
    """Return the mask of ``parts`` sums, of which the last row is not there."""
    asked = rng().random(parts * SUM_ROWS) < share
    asked[-1:] = False
    return np.packbits(asked, bitorder="little").tobytes()


@given(words=st.integers(1, 5), parts=st.integers(0, 3), share=st.sampled_from([0.0, 0.5, 1.0]))
def test_a_sum_has_the_digests_of_rows_with_weights_of_their_places(
    words: int, parts: int, share: float
) -> None:
    memory = rng().integers(0, 1 << 60, (max(1, parts * SUM_ROWS - 1), words))
    mask = masked(parts, share)
    expected = [0] * parts
    for row, data in enumerate(memory):
        if parts and mask[row // 8] >> row % 8 & 1:
            place = (row % SUM_ROWS).to_bytes(8, "little")
            weight = xxh64_intdigest(place) | 1
            expected[row // SUM_ROWS] += weight * xxh64_intdigest(data.tobytes())
    found = sums_of_rows(memory.view(np.uint8).data.cast("B"), 8 * words, mask)
    assert np.frombuffer(found, "<u8").tolist() == [each % 2**64 for each in expected]


def test_changes_of_sums_do_not_cancel_out() -> None:
    """Equal rows change in the same way when they are overwritten together."""
    memory = np.zeros((SUM_ROWS, 1), np.int64)
    mask = b"\xff" * (SUM_ROWS // 8)
    found = set()
    for count in range(SUM_ROWS + 1):
        for start in (0, SUM_ROWS - count):
            memory[:] = 1
            memory[start : start + count] = 2
            found.add(sums_of_rows(memory.view(np.uint8).data.cast("B"), 8, mask))
    assert len(found) == 2 * (SUM_ROWS - 1) + 2


@needs_compiler
@pytest.mark.slow
@given(
    several=st.lists(sizes, max_size=3),
    rows=st.lists(st.tuples(st.integers(1, 300), st.integers(0, 200)), max_size=2),
    summed=st.lists(
        st.tuples(st.integers(1, 40), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0])),
        max_size=2,
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernel_computes_what_the_cpu_does(
    launches: dict[str, Launch],
    monkeypatch: pytest.MonkeyPatch,
    several: list[int],
    rows: list[tuple[int, int]],
    summed: list[tuple[int, int, float]],
) -> None:
    driver = FakeDriver()
    FakeKernels.launches = launches
    monkeypatch.setattr(_cuda, "driver", driver)
    monkeypatch.setattr(_cuda, "check", lambda _call, result: result)
    monkeypatch.setattr(_cuda, "Kernels", FakeKernels)
    context: Any = FakeContext()
    digests = CudaDigests(context, context)
    data = [np.frombuffer(rng().bytes(size), np.uint8) for size in several]
    aligned = [np.zeros(len(each) // 8 + 1, np.int64).view(np.uint8) for each in data]
    for whole, each in zip(aligned, data, strict=True):
        whole[: len(each)] = each
    ranges = tuple((each.ctypes.data, size) for each, size in zip(aligned, several, strict=True))
    expected = [digests_of(each.data) for each in data]
    parts, kept = [], []
    for words, count in rows:
        memory = rng().integers(0, 1 << 60, (20, words))
        part = RowRange.of(memory.ctypes.data, 8 * words, rng().integers(0, 20, count))
        expected.append(digests_of_rows(memory.view(np.uint8).data.cast("B"), 8 * words, part.rows))
        parts.append(part)
        kept.append(memory)
    sums = []
    for words, count, share in summed:
        memory = rng().integers(0, 1 << 60, (max(1, count * SUM_ROWS - 1), words))
        sums.append(RowSums(memory.ctypes.data, 8 * words, masked(count, share)))
        data_of_rows = memory.view(np.uint8).data.cast("B")
        expected.append(sums_of_rows(data_of_rows, 8 * words, sums[-1].mask))
        kept.append(memory)
    for _ in range(2):  # the second time in the same memory
        later = digests.handlers[Digest](Digest(ranges, tuple(parts), tuple(sums)))
        assert later.read() == b"".join(expected)
    assert len(driver.cells) == 1
    digests.close()
    assert not driver.cells


@needs_nvrtc
@pytest.mark.parametrize("kernel", [KERNEL, ROW_KERNEL, SUM_KERNEL])
def test_the_kernel_compiles(kernel: str) -> None:
    from atomr_accel.executors.compiler import compile_cubin

    image, lowered, log, *_ = compile_cubin(SOURCE.text, kernel, (), (9, 0))
    assert (image[:4], lowered, log) == (b"\x7fELF", kernel, "")
