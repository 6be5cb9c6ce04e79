"""The DNN lane's kernels for sequences and dropout, on the host, against the CPU backend."""

from __future__ import annotations

import ctypes
import struct
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel.executors.cuda_kernels import KernelArguments
from atomr_accel.executors.device_code import C_TYPES
from atomr_accel.libraries.dnn.host import cuda_sequences as _cuda_sequences
from atomr_accel.libraries.dnn.host.cpu_sequences import CpuSequences
from atomr_accel.libraries.dnn.host.cuda_sequences import SOURCE, CudaSequences
from atomr_accel.libraries.dnn.wire._messages import RunGraph
from atomr_accel.libraries.dnn.wire._routine_messages import Dropout
from atomr_accel.libraries.dnn.wire.sequence_messages import (
    NOTHING,
    Append,
    Attend,
    Blank,
    Clean,
    Derived,
    encode_derived,
)

from ...compiling import check_instances_compile
from ...conformance import dtype_of
from ...host_kernels import HostKernels, compile_kernels, needs_compiler, on_host

Array = np.ndarray[Any, Any]

FLOATS = ("float16", "bfloat16", "float32", "float64")
PIECES = ("uint4", "unsigned long long", "unsigned", "unsigned short", "unsigned char")
RUN = RunGraph(b"", False, (), (), 0, 0)


def instances() -> dict[str, str]:
    """Every kernel with its parameters."""
    members = {"derive": "Lists lists; u64 longest; u64 count"}
    for piece in PIECES:
        members[f"append<{piece}>"] = (
            f"{piece}* cache; const {piece}* rows; const int* lengths; const int* table; "
            "u64 count; u64 width; u64 fresh; u64 page; u64 columns; u64 pages; i64 shift"
        )
        members[f"clean<{piece}>"] = (
            f"{piece}* target; const {piece}* source; const int* lengths; const int* table; "
            "u64 count; u64 block; u64 groups; u64 width; u64 page; u64 columns; u64 pages"
        )
    for word in ("unsigned", "unsigned short", "unsigned char"):
        members[f"blank<{word}>"] = (
            f"{word}* target; const int* lengths_q; const int* lengths_k; const i64* offsets; "
            f"const {word}* sinks; u64 count; i64 heads; i64 rows; i64 most; i64 by_batch; "
            "i64 by_head; i64 by_row; i64 width; i64 left; i64 right; i64 top_left; i64 value"
        )
    for dtype in FLOATS:
        t, s = C_TYPES[dtype], "double" if dtype == "float64" else "float"
        members[f"dropout<{t}, {s}>"] = (
            f"{t}* y; const {t}* x; u64 elements; u64 key; u64 position; u64 threshold; "
            f"{s} scale; u64 count"
        )
    return members


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compile_kernels(on_host(SOURCE), instances(), tmp_path_factory.mktemp("dnn"))


class Both:
    """The CPU's executor and that for CUDA, on memory of this process."""

    def __init__(self, compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memory: dict[int, Array] = {}
        self.ran: list[Any] = []
        handlers: Any = {RunGraph: self.ran.append}
        monkeypatch.setattr(_cuda_sequences, "Kernels", lambda *_: HostKernels(compiled))
        context: Any = SimpleNamespace(
            check=lambda: None,
            array=self.array,
            bytes_at=self.bytes_at,
            pointer=lambda address: self.memory[address].ctypes.data,
        )
        self.cpu = CpuSequences(context, handlers)
        self.cuda = CudaSequences(context, SimpleNamespace(handle=0), handlers)  # type: ignore[arg-type]

    def put(self, array: Array) -> int:
        address = 4096 * (len(self.memory) + 1)
        self.memory[address] = np.ascontiguousarray(array)
        return address

    def bytes_at(self, address: int, nbytes: int) -> Array:
        return self.memory[address].reshape(-1).view(np.uint8)[:nbytes]

    def array(self, address: int, shape: tuple[int, ...], dtype: Any) -> Array:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found: Array = self.bytes_at(address, nbytes).view(dtype).reshape(shape)
        return found

    def compare(self, message: Any, *targets: int, refused: str = "") -> list[Array]:
        """Execute on both backends, and return their results, which must be the same.

        The CPU raises ``refused`` before it writes anything; kernels skip such elements.
        """
        before = {target: self.memory[target].copy() for target in targets}
        results = []
        for executor in (self.cpu, self.cuda):
            for target in targets:
                self.memory[target][...] = before[target]
            if refused and executor is self.cpu:
                with pytest.raises(ValueError, match=refused):
                    executor.handlers[type(message)](message)
                for target in targets:
                    np.testing.assert_array_equal(self.memory[target], before[target])
                continue
            executor.handlers[type(message)](message)
            results.append([self.memory[target].copy() for target in targets])
        for made in zip(*results, strict=True):
            assert len({each.tobytes() for each in made}) == 1
        return results[0]


@pytest.fixture
def both(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(compiled, monkeypatch)


@needs_compiler
def test_lengths_and_offsets(both: Both) -> None:
    ends = both.put(np.array([0, 3, 3, 10], np.int32))
    targets = [both.put(np.full(4, -1, dtype)) for dtype in (np.int32, np.int64, np.int32)]
    derived = (
        Derived(3, 1, 0, differences=True, wide=False),
        Derived(4, 2**33, 5, differences=False, wide=True),
        Derived(2, 0, 7, differences=False, wide=False),
        Derived(3, 2**33, 1, differences=False, wide=True),
    )
    targets.append(both.put(np.full(3, -1, np.int64)))
    places = (targets[0], ends, targets[1], ends, targets[2], 0, targets[3], 0)
    message = Attend((), None, encode_derived(derived), places, RUN)
    lengths, offsets, constant, positions = both.compare(message, *targets)
    assert lengths.tolist() == [3, 0, 7, -1]
    assert offsets.tolist() == [5 + end * 2**33 for end in (0, 3, 3, 10)]
    assert constant.tolist() == [7, 7, -1, -1]
    assert positions.tolist() == [1, 1 + 2**33, 1 + 2**34]
    assert both.ran == [RUN, RUN]
    # The same call with other buffers: the first call's preparation is used again.
    ends = both.put(np.array([2, 4, 5, 9], np.int32))
    others = [both.put(np.full(4, -1, dtype)) for dtype in (np.int32, np.int64, np.int32)]
    others.append(both.put(np.full(3, -1, np.int64)))
    places = (others[0], ends, others[1], ends, others[2], 0, others[3], 0)
    again = both.compare(Attend((), None, encode_derived(derived), places, None), *others)
    assert again[0].tolist() == [2, 1, 4, -1]
    assert again[1].tolist() == [5 + end * 2**33 for end in (2, 4, 5, 9)]
    assert again[2].tolist() == constant.tolist()


@needs_compiler
def test_lengths_end_where_the_room_does(both: Both) -> None:
    lengths, target = both.put(np.array([0, 3, 5, 6], np.int32)), both.put(np.zeros(4, np.int32))
    derived = (Derived(4, 1, 2, differences=False, wide=False, most=6, ceiling=6),)
    message = Attend((), None, encode_derived(derived), (target, lengths), None)
    assert both.compare(message, target)[0].tolist() == [2, 5, 6, 6]


@pytest.mark.parametrize(
    ("ends", "differences", "refused"),
    [
        (
            [0, 3, 2, 9],
            True,
            r"length of sequences by ends, \[1\] must be from 0 to 8, not -1; 1 of 3",
        ),
        (
            [0, 9, 9, 9],
            True,
            r"length of sequences by ends, \[0\] must be from 0 to 8, not 9; 1 of 3",
        ),
        ([0, 3, 7, 9], False, r"ends\[3\] must be from 0 to 8, not 9; 1 of 4 are outside"),
        ([-1, 3, 7, 8], False, r"ends\[0\] must be from 0 to 8, not -1; 1 of 4 are outside"),
    ],
)
def test_ends_of_sequences_are_checked(
    monkeypatch: pytest.MonkeyPatch, ends: list[int], refused: str, *, differences: bool
) -> None:
    both = Both(None, monkeypatch)
    target = both.put(np.full(4, -1, np.int32))
    derived = Derived(
        4 - differences, 5, 0, differences=differences, wide=False, name="ends", most=8
    )
    places = (target, both.put(np.array(ends, np.int32)))
    message = Attend((), None, encode_derived((derived,)), places, RUN)
    with pytest.raises(ValueError, match=refused):
        both.cpu.handlers[Attend](message)
    assert (both.memory[target] == -1).all()
    assert not both.ran


@needs_compiler
@pytest.mark.parametrize("width", [1, 2, 6, 8, 48])
@pytest.mark.parametrize("paged", [True, False])
def test_rows_go_behind_the_old_ones(both: Both, width: int, *, paged: bool) -> None:
    rng = np.random.default_rng(width)
    pages, page, columns, new = (7, 4, 3, 5) if paged else (3, 12, 1, 5)
    caches = [both.put(rng.integers(0, 99, (pages, page, width), np.uint8)) for _ in "kv"]
    rows = [both.put(rng.integers(100, 200, (3, new, width), np.uint8)) for _ in "kv"]
    # The second sequence is full, the third has a page that is not there.
    lengths = both.put(np.array([3, 12, 4], np.int32))
    table = both.put(np.array([[5, 0, 1], [2, 3, 4], [6, 99, -1]], np.int32)) if paged else 0
    append = Append(
        k=rows[0],
        v=rows[1],
        k_cache=caches[0],
        v_cache=caches[1],
        lengths=lengths,
        table=table,
        batch=3,
        new=new,
        pages=pages,
        page=page,
        columns=columns,
        k_bytes=width,
        v_bytes=width,
        shift=-1,
    )
    message = Attend((), append, NOTHING, (), None)
    before = both.memory[caches[0]].copy()
    refused = (
        r"block_table\[2, 1\] must be from 0 to 6, not 99; 1 of 9 are outside" if paged else ""
    )
    k, _ = both.compare(message, *caches, refused=refused)
    given = both.memory[rows[0]]
    expected = before.copy()
    places = {(0, i): 2 + i for i in range(new)} | {(1, 0): 11}
    places |= {(2, i): 3 + i for i in range(1 if paged else new)}
    found = both.memory[table] if paged else np.arange(3)[:, None]
    for (sequence, row), place in places.items():
        expected[found[sequence, place // page], place % page] = given[sequence, row]
    np.testing.assert_array_equal(k, expected)


@needs_compiler
@pytest.mark.parametrize("width", [1, 2, 4, 6, 8, 48])
@pytest.mark.parametrize("groups", [1, 3])
def test_copies_have_zeros_behind_the_ends(both: Both, width: int, groups: int) -> None:
    rng = np.random.default_rng(width)
    source = both.put(rng.integers(1, 255, (5, groups, 7, width), np.uint8))
    target = both.put(np.full((5, groups, 7, width), 99, np.uint8))
    lengths = both.put(np.array([3, 0, 7, 100, -2], np.int32))
    clean = Clean(target, source, lengths, 0, 5, groups, 7, width)
    (got,) = both.compare(Attend((), None, NOTHING, (), None, (clean,)), target)
    expected = both.memory[source].copy()
    for entry, length in enumerate((3, 0, 7, 7, 0)):
        expected[entry, :, length:] = 0
    np.testing.assert_array_equal(got, expected)


@needs_compiler
@pytest.mark.parametrize("width", [1, 2, 4, 6, 8, 48])
@pytest.mark.parametrize("rows", [9, 12, 16])
def test_copies_out_of_pages_have_zeros_behind_the_ends(both: Both, width: int, rows: int) -> None:
    rng = np.random.default_rng(width)
    pages, page, columns = 6, 4, 3
    source = both.put(rng.integers(1, 255, (pages, page, width), np.uint8))
    target = both.put(np.full((6, 1, rows, width), 99, np.uint8))
    lengths = np.array([3, 0, 9, 12, 100, -2], np.int32)
    # Pages may be anybody's, anywhere, or not be there; those behind the ends are not looked at.
    table = rng.integers(0, pages, (6, columns)).astype(np.int32)
    table[0, 1:], table[1], table[3] = -7, 2**31 - 1, (5, pages, -1)
    sizes = (6, 1, rows, width, page, columns, pages)
    clean = Clean(target, source, both.put(lengths), both.put(table), *sizes)
    message = Attend((), None, NOTHING, (), None, (clean,))
    (got,) = both.compare(
        message,
        target,
        refused=r"block_table\[3, 1\] must be from 0 to 5, not 6; 2 of 18 are outside",
    )
    expected = np.zeros_like(got)
    for entry, length in enumerate(lengths):
        for row in range(min(length, rows, page * columns)):
            number = table[entry, row // page]
            if 0 <= number < pages:
                expected[entry, 0, row] = both.memory[source][number, row % page]
    np.testing.assert_array_equal(got, expected)


@needs_compiler
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("offset", [0, 3, 2**35 + 1])
def test_dropout(both: Both, dtype: str, offset: int) -> None:
    x = both.put(np.linspace(1, 2, 1001).astype(dtype_of(dtype)))
    y = both.put(np.zeros(1001, dtype_of(dtype)))
    (got,) = both.compare(Dropout(0.25, 2**40 + 9, offset, dtype, 1001, x, y), y)
    kept = got[got != 0]
    assert 0.7 < len(kept) / 1001 < 0.8
    again = both.compare(Dropout(0.25, 2**40 + 9, offset + 4, dtype, 997, x, y), y)[0][:997]
    # Later words decide on earlier elements.
    np.testing.assert_array_equal(again == 0, got[4:] == 0)


@pytest.mark.headers
def test_nvrtc_compiles_every_kernel() -> None:
    assert "derive" in check_instances_compile(SOURCE, instances(), "derive")


def test_arguments_are_laid_out_as_c_does() -> None:
    assert struct.calcsize("<QQqqqqii") == 56
    assert len(bytes(KernelArguments(b"\0" * 16)._data)) == 16


@needs_compiler
@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("lengths", [False, True])
def test_queries_without_keys(
    both: Both, monkeypatch: pytest.MonkeyPatch, itemsize: int, lengths: bool
) -> None:
    monkeypatch.setattr(CudaSequences, "_copy", lambda _, *places: ctypes.memmove(*places))
    rng = np.random.default_rng(itemsize)
    batch, heads, rows, width = 3, 2, 7, 3
    rows_of = np.array([7, 4, 0], np.int32) if lengths else np.full(batch, rows, np.int32)
    keys_of = np.array([3, 0, 5], np.int32) if lengths else np.full(batch, 4, np.int32)
    ends = np.concatenate([[0], np.cumsum(rows_of)]).astype(np.int64) * heads * width
    dtype = np.dtype(f"u{itemsize}")
    places = [both.put(each) for each in (rows_of, keys_of, ends)] if lengths else [0, 0, 0]
    sinks = both.put(np.arange(7, 9, dtype=np.uint32)) if itemsize == 4 else 0
    for left, right, top_left in ((-1, 0, False), (1, 0, True), (0, 2, True), (-1, -1, False)):
        before = rng.integers(1, 100, (batch, rows, heads, width)).astype(dtype)
        target, source = both.put(np.zeros_like(before)), both.put(before)
        steps = (rows * heads * width, width, heads * width)
        sizes = (batch, heads, rows, 4, *steps, width, itemsize)
        mask = (left, right, top_left)
        given: Any = (target, source, *places, sinks, *sizes, *mask, before.nbytes, 250)
        blank = Blank(*given)
        message = Attend((), None, NOTHING, (), RUN, (), (blank,), ())
        (got,) = both.compare(message, target)
        expected = before.reshape(-1, heads, width).copy()
        for b in range(batch):
            begin = int(ends[b]) // (heads * width) if lengths else b * rows
            for row in range(rows_of[b]):
                at = row if top_left else row + keys_of[b] - rows_of[b]
                low = 0 if left < 0 else at - left
                high = keys_of[b] - 1 if right < 0 else at + right
                if not any(low <= key <= high for key in range(keys_of[b])):
                    fill: Any = np.arange(7, 9)[:, None] if sinks else 250
                    expected[begin + row] = fill
        np.testing.assert_array_equal(got.reshape(expected.shape), expected)
