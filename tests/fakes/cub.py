"""The bindings of package cuda-cccl, on the host's memory: what runs ``CudaCub`` without a GPU.

They take what the real ones take, by the same names and types, and read and write by the
iterators that they get. The functions that are linked into CUB's kernels are compiled by the
host's compiler, from the very source that NVRTC gets, so what that says is tested, too.
``FakeCudaCub`` is an executor for the CPU backend.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from atomr_accel._dtypes import DTYPES
from atomr_accel.backends.cpu.host.context import CpuContext
from atomr_accel.executors.scan_tiles import scan_types
from atomr_accel.libraries.cub.host._algorithms import _CPP
from atomr_accel.libraries.cub.host._bindings import CubVersion
from atomr_accel.libraries.cub.wire._spec import C_TYPES

from ..libraries.host_kernels import COMPILER
from .vendor import FakeContext, FakeCuda

Array = np.ndarray[Any, Any]

OpKind = IntEnum(
    "OpKind",
    "STATELESS STATEFUL PLUS MINUS MULTIPLIES EQUAL_TO GREATER LESS BIT_AND BIT_OR BIT_XOR MINIMUM "
    "MAXIMUM",
)
TypeEnum = IntEnum(
    "TypeEnum",
    "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 FLOAT32 FLOAT64 STORAGE BOOLEAN",
)
IteratorKind = IntEnum("IteratorKind", "POINTER ITERATOR")
SortOrder = IntEnum("SortOrder", "ASCENDING DESCENDING")
InitKind = IntEnum("InitKind", "NO_INIT VALUE_INIT")
Determinism = IntEnum("Determinism", "NOT_GUARANTEED RUN_TO_RUN")
BinarySearchMode = IntEnum("BinarySearchMode", "LOWER_BOUND UPPER_BOUND")

TEMPORARY: Final = 192
"""Bytes of scratch memory that everything wants that wants any; it is written to."""

_UFUNCS: Final = {
    "PLUS": np.add,
    "MULTIPLIES": np.multiply,
    "EQUAL_TO": np.equal,
    "GREATER": np.greater,
    "LESS": np.less,
    "BIT_AND": np.bitwise_and,
    "BIT_OR": np.bitwise_or,
    "BIT_XOR": np.bitwise_xor,
    "MINIMUM": np.minimum,
    "MAXIMUM": np.maximum,
}
_PRELUDE: Final = """
#define __device__
extern "C" double fabs(double) noexcept;
"""


class Linker:
    """Compiles functions for the host."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Any] = {}

    def link(
        self, source: str, name: str, _capability: tuple[int, int], _includes: tuple[str, ...]
    ) -> bytes:
        """Stand in for ``compile_linkable``, and return the source itself."""
        self.function(source.encode(), name)
        return source.encode()

    def function(self, source: bytes, name: str) -> Any:
        """A function that takes pointers."""
        text = source.decode()
        if text not in self._made:
            path = self._folder / f"linked_{len(self._made)}.so"
            flags = ["-x", "c++", "-std=c++17", "-shared", "-fPIC", "-w", "-o", str(path), "-"]
            code = (_PRELUDE + text).encode()
            assert COMPILER is not None
            ran = subprocess.run(
                [COMPILER, *flags], input=code, check=False, stderr=subprocess.PIPE
            )
            if ran.returncode:
                raise RuntimeError(f"{name} cannot be compiled: {ran.stderr.decode()}")
            self._made[text] = ctypes.CDLL(str(path))
        return getattr(self._made[text], name)


class TypeInfo:
    def __init__(self, size: int, alignment: int, type_enum: TypeEnum) -> None:
        assert isinstance(type_enum, TypeEnum)
        self.size, self.alignment, self.type_enum = size, alignment, type_enum

    @property
    def dtype(self) -> np.dtype[Any]:
        name = self.type_enum.name.lower()
        if name == "storage":
            return np.dtype((np.void, self.size))
        return np.dtype({"boolean": "bool"}.get(name, name))


class Op:
    def __init__(
        self, *, name: str = "", operator_type: OpKind = OpKind.STATELESS, ltoir: bytes = b""
    ) -> None:
        assert isinstance(operator_type, OpKind)
        assert isinstance(ltoir, bytes)
        self.name, self.kind, self.code = name, operator_type, ltoir


class Value:
    def __init__(self, value_type: TypeInfo, state: bytearray) -> None:
        self.type = value_type
        self._state = state

    @property
    def state(self) -> bytearray:
        return self._state

    @state.setter
    def state(self, state: bytearray) -> None:
        assert isinstance(state, bytearray)
        if len(state) != len(self._state):
            raise ValueError("Size mismatch")
        self._state = state

    @property
    def value(self) -> Any:
        return np.frombuffer(self._state, self.type.dtype)[0]


class IteratorState:
    def __init__(self, pointer: Any) -> None:
        self.reference = pointer.contents
        self.size = ctypes.sizeof(self.reference)


class Iterator:
    def __init__(
        self,
        alignment: int,
        iterator_type: IteratorKind,
        advance_fn: Op,
        dereference_fn: Op,
        value_type: TypeInfo,
        state: Any = None,
    ) -> None:
        assert isinstance(iterator_type, IteratorKind)
        assert isinstance(advance_fn, Op)
        assert isinstance(dereference_fn, Op)
        self.is_ptr_kind = iterator_type is IteratorKind.POINTER
        self.type, self.advance, self.access = value_type, advance_fn, dereference_fn
        assert state is None or isinstance(state, int if self.is_ptr_kind else IteratorState)
        self.state: Any = state


class Machine:
    """Reads, writes and calls of a built algorithm.

    The types and functions are those of the build; each call passes the buffers.
    """

    def __init__(self, linker: Linker) -> None:
        self._linker = linker

    def read(self, built: Iterator, given: Iterator, count: int) -> Array:
        kind = built.type.dtype
        if not count:
            return np.empty(0, kind)
        if built.is_ptr_kind:
            assert given.state, "a buffer that was not there when this was built"
            return _memory(given.state, count * kind.itemsize).view(kind).copy()
        return np.concatenate([self._access(built, given, at, None) for at in range(count)])

    def write(self, built: Iterator, given: Iterator, values: Array) -> None:
        kind = built.type.dtype
        if not len(values):
            return
        if built.is_ptr_kind:
            assert given.state
            _memory(given.state, len(values) * kind.itemsize).view(kind)[:] = values.astype(kind)
            return
        for at, value in enumerate(values):
            self._access(built, given, at, value)

    def _access(self, built: Iterator, given: Iterator, at: int, value: Any) -> Array:
        state = (ctypes.c_char * given.state.size).from_buffer_copy(given.state.reference)
        offset = ctypes.c_uint64(at)
        buffer = np.zeros(1, built.type.dtype)
        if value is not None:
            buffer[0] = value
        advance = self._linker.function(built.advance.code, built.advance.name)
        advance(ctypes.byref(state), ctypes.byref(offset))
        access = self._linker.function(built.access.code, built.access.name)
        access(ctypes.byref(state), ctypes.c_void_p(buffer.ctypes.data))
        return buffer

    def call(self, op: Op, *values: Array, result: np.dtype[Any]) -> Array:
        """An operator on arrays."""
        if op.kind is not OpKind.STATELESS:
            ufunc: Any = _UFUNCS[op.kind.name]
            return np.asarray(ufunc(*values)).astype(result)
        function = self._linker.function(op.code, op.name)
        made = np.zeros(len(values[0]), result)
        values = tuple(np.ascontiguousarray(each) for each in values)
        for at in range(len(made)):
            arrays = (*values, made)
            pointers = [each.ctypes.data + at * each.dtype.itemsize for each in arrays]
            function(*map(ctypes.c_void_p, pointers))
        return made

    def fold(self, op: Op, values: Array) -> Array:
        total = values[:1]
        for at in range(1, len(values)):
            total = self.call(op, total, values[at : at + 1], result=values.dtype)
        return total

    def scan(self, op: Op, values: Array) -> Array:
        made = values.copy()
        for at in range(1, len(made)):
            made[at : at + 1] = self.call(
                op, made[at - 1 : at], made[at : at + 1], result=made.dtype
            )
        return made

    def order(self, keys: Array, less: Callable[[Array, Array], bool]) -> Array:
        """A stable order, by insertion."""
        order: list[int] = []
        for at in range(len(keys)):
            place = len(order)
            while place and less(keys[at : at + 1], keys[order[place - 1] :][:1]):
                place -= 1
            order.insert(place, at)
        return np.asarray(order, np.int64)


def _memory(pointer: int, nbytes: int) -> Array:
    there: Any = (ctypes.c_uint8 * nbytes).from_address(pointer)
    return np.frombuffer(there, np.uint8)


def _require_tuned(algorithm: str, keys: Iterator, values: Iterator) -> None:
    """Refuse storage keys and values of different sizes, as the bindings do when they tune."""
    if values.type.type_enum is TypeEnum.STORAGE and values.type.size != keys.type.size:
        raise RuntimeError(f"Failed compiling {algorithm}, error code: 999")


def _require_fitting(keys: Iterator, values: Iterator) -> None:
    """Check that tiles fit into a block's shared memory, as merge sorts require."""
    tile = 256 * max(1, min(17, 17 * 4 // keys.type.size))
    assert tile * values.type.size <= 48 << 10, "sorted in tiles of other sizes than are launched"


def _cast(values: Array, kind: TypeInfo) -> Array:
    return values if values.dtype == kind.dtype else values.astype(kind.dtype)


def _radix(keys: Array, *, descending: bool) -> Array:
    bits = keys.view(f"u{keys.dtype.itemsize}")
    top = bits.dtype.type(1 << (8 * keys.dtype.itemsize - 1))
    if keys.dtype.kind == "i":
        bits = bits ^ top
    if keys.dtype.kind == "f":
        bits = np.where(bits == top, 0, bits).astype(bits.dtype)
        bits = np.where(bits & top, ~bits, bits | top)
    return np.argsort(~bits if descending else bits, kind="stable")


class Result:
    """The result of a build. ``types`` are those of what a build takes."""

    types: ClassVar[tuple[Any, ...]]
    machine: ClassVar[Machine]
    store: ClassVar[dict[bytes, tuple[Any, ...]]] = {}

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.given = arguments
        self.loaded = False

    @classmethod
    def compile(cls, *arguments: Any) -> Result:
        *given, common = arguments
        assert common == "common", common
        assert len(given) == len(cls.types), (cls, given)
        for argument, kind in zip(given, cls.types, strict=True):
            assert isinstance(argument, kind), (cls, argument, kind)
        return cls(tuple(given))

    def load(self) -> None:
        self.loaded = True

    def serialize(self) -> bytes:
        blob = msgspec.msgpack.encode((type(self).__name__, len(self.store)))
        self.store[blob] = self.given
        return blob

    @classmethod
    def deserialize(cls, blob: bytes, load: bool = True) -> Result:
        if blob not in cls.store:
            raise RuntimeError("Failed deserializing, error code: 1")
        made = cls(cls.store[blob])
        made.loaded = load
        return made


class ScratchResult(Result):
    """The result of a build that needs scratch memory.

    ``run`` gets the arguments between that and the stream.
    """

    run: Callable[..., None]

    def compute(self, scratch: int, nbytes: int, *arguments: Any) -> Any:
        """Run with scratch memory, which is written to; without any, only tell its size."""
        assert self.loaded
        if scratch:
            assert nbytes >= TEMPORARY
            _memory(scratch, TEMPORARY)[:] = 0xAB
            self.run(*arguments[:-1])
        return TEMPORARY


class SortResult(ScratchResult):
    """The result of a build of a sort, which may leave its results in either buffer."""

    def compute(self, scratch: int, nbytes: int, *arguments: Any) -> tuple[int, int]:
        return super().compute(scratch, nbytes, *arguments), 0


class DeviceReduceBuildResult(ScratchResult):
    types = (Iterator, Iterator, Op, TypeInfo, InitKind, Determinism)

    def run(self, x: Iterator, out: Iterator, count: int, _op: Op, init: Value | None) -> None:
        built_x, built_out, op, kind, begins, _ = self.given
        assert (begins is InitKind.VALUE_INIT) == (init is not None)
        assert count  # the real one copies ``init`` then, as if results were of its dtype
        # It writes the result in the dtype that it computes in, whatever ``out`` says.
        assert built_out.type.type_enum == kind.type_enum
        values = _cast(self.machine.read(built_x, x, count), kind)
        if init is not None:
            values = np.concatenate(([init.value], values))
        self.machine.write(built_out, out, self.machine.fold(op, values))

    compute_nondeterministic = ScratchResult.compute


class DeviceScanBuildResult(ScratchResult):
    types = (Iterator, Iterator, Op, TypeInfo, bool, InitKind)

    def run(self, x: Iterator, out: Iterator, count: int, _op: Op, init: Value | None) -> None:
        built_x, built_out, op, kind, *_ = self.given
        values = _cast(self.machine.read(built_x, x, count), kind)
        if init is not None:
            values = np.concatenate(([init.value], values))
        self.machine.write(built_out, out, self.machine.scan(op, values)[self.kept])

    def _compute(self, kept: slice, *arguments: Any) -> int:
        self.kept = kept
        return int(self.compute(*arguments))

    def compute_inclusive(self, *arguments: Any) -> int:
        assert self.given[4] is True
        return self._compute(slice(1, None), *arguments)

    def compute_exclusive(self, *arguments: Any) -> int:
        assert self.given[4] is False
        return self._compute(slice(None, -1), *arguments)

    def compute_inclusive_no_init(self, *arguments: Any) -> int:
        assert self.given[5] is InitKind.NO_INIT
        return self._compute(slice(None), *arguments)


class DeviceSegmentedReduceBuildResult(ScratchResult):
    types = (Iterator, Iterator, Iterator, Iterator, Op, Value)

    def run(
        self,
        x: Iterator,
        out: Iterator,
        segments: int,
        begins: Iterator,
        ends: Iterator,
        _op: Op,
        init: Value,
        longest: int,
    ) -> None:
        built_x, built_out, built_begin, built_end, op, begin = self.given
        # The real one writes results in the dtype of ``init``, whatever ``out`` says.
        assert built_out.type.type_enum == begin.type.type_enum
        first = self.machine.read(built_begin, begins, segments).tolist()
        last = self.machine.read(built_end, ends, segments).tolist()
        values = self.machine.read(built_x, x, max(last, default=0))
        totals = [
            self.machine.fold(
                op, np.concatenate(([init.value], _cast(values[one:other], begin.type)))
            )
            for one, other in zip(first, last, strict=True)
        ]
        self.machine.write(built_out, out, np.concatenate(totals))


class DeviceRadixSortBuildResult(SortResult):
    types = (SortOrder, Iterator, Iterator, Op, bytes)

    @classmethod
    def compile(cls, *arguments: Any) -> Result:
        _, keys, values, *_ = arguments
        _require_tuned("radix_sort", keys, values)
        return super().compile(*arguments)

    def run(
        self,
        keys: Iterator,
        keys_out: Iterator,
        values: Iterator,
        values_out: Iterator,
        _op: Op,
        count: int,
        low: int,
        high: int,
        overwrite: bool,
        selector: int,
    ) -> None:
        direction, built, built_values, *_ = self.given
        assert (values.state is None) == (built_values.state is None)
        assert (low, high) == (0, 8 * built.type.size)
        given = self.machine.read(built, keys, count)
        order = _radix(given, descending=direction is SortOrder.DESCENDING)
        self.machine.write(built, keys_out, given[order])
        if values.state is not None:
            items = self.machine.read(built_values, values, count)
            self.machine.write(built_values, values_out, items[order])


class DeviceMergeSortBuildResult(ScratchResult):
    types = (Iterator, Iterator, Iterator, Iterator, Op)

    @classmethod
    def compile(cls, *arguments: Any) -> Result:
        keys, values, *_ = arguments
        _require_fitting(keys, values)
        return super().compile(*arguments)

    def run(
        self,
        keys: Iterator,
        values: Iterator,
        keys_out: Iterator,
        values_out: Iterator,
        count: int,
        _op: Op,
    ) -> None:
        built, built_values, _, _, op = self.given
        assert (values.state is None) == (built_values.state is None)
        given = self.machine.read(built, keys, count)
        truth = np.dtype(bool)
        order = self.machine.order(
            given, lambda a, b: bool(self.machine.call(op, a, b, result=truth)[0])
        )
        self.machine.write(built, keys_out, given[order])
        if values.state is not None:
            items = self.machine.read(built_values, values, count)
            self.machine.write(built_values, values_out, items[order])


class DeviceSegmentedSortBuildResult(SortResult):
    types = (SortOrder, Iterator, Iterator, Iterator, Iterator)

    def run(
        self,
        keys: Iterator,
        keys_out: Iterator,
        values: Iterator,
        values_out: Iterator,
        count: int,
        segments: int,
        begins: Iterator,
        ends: Iterator,
        overwrite: bool,
        selector: int,
    ) -> None:
        direction, built, built_values, built_begin, built_end = self.given
        first = self.machine.read(built_begin, begins, segments).tolist()
        last = self.machine.read(built_end, ends, segments).tolist()
        given = self.machine.read(built, keys, count)
        assert given.dtype.kind in "biu"  # short segments of floats come out wrong with NaN
        out = self.machine.read(built, keys_out, count).copy()
        pairs = values.state is not None
        items = self.machine.read(built_values, values if pairs else keys, count)
        items_out = self.machine.read(built_values, values_out if pairs else keys, count).copy()
        for one, other in zip(first, last, strict=True):
            part = one + _radix(given[one:other], descending=direction is SortOrder.DESCENDING)
            out[one:other], items_out[one:other] = given[part], items[part]
        self.machine.write(built, keys_out, out)
        if pairs:
            self.machine.write(built_values, values_out, items_out)


class DeviceThreeWayPartitionBuildResult(ScratchResult):
    types = (Iterator, Iterator, Iterator, Iterator, Iterator, Op, Op)

    def run(
        self,
        x: Iterator,
        first: Iterator,
        second: Iterator,
        rest: Iterator,
        counts: Iterator,
        _one: Op,
        _other: Op,
        count: int,
    ) -> None:
        built_x, *built, built_counts, one, other = self.given
        values = self.machine.read(built_x, x, count)
        truth = np.dtype(bool)
        a = self.machine.call(one, values, result=truth)
        b = self.machine.call(other, values, result=truth) & ~a
        parts = values[a], values[b], values[~a & ~b]
        for iterator, place, part in zip(built, (first, second, rest), parts, strict=True):
            self.machine.write(iterator, place, part)
        found = np.asarray([a.sum(), b.sum()])
        self.machine.write(built_counts, counts, found)


class DeviceUniqueByKeyBuildResult(ScratchResult):
    types = (Iterator, Iterator, Iterator, Iterator, Iterator, Op)

    @classmethod
    def compile(cls, *arguments: Any) -> Result:
        keys, values, *_ = arguments
        _require_tuned("unique_by_key", keys, values)
        return super().compile(*arguments)

    def run(
        self,
        keys: Iterator,
        values: Iterator,
        keys_out: Iterator,
        values_out: Iterator,
        number: Iterator,
        _op: Op,
        count: int,
    ) -> None:
        built, built_values, built_out, built_values_out, built_number, op = self.given
        given = self.machine.read(built, keys, count)
        items = self.machine.read(built_values, values, count)
        kept = np.ones(count, bool)
        kept[1:] = ~self.machine.call(op, given[:-1], given[1:], result=np.dtype(bool))
        self.machine.write(built_out, keys_out, given[kept])
        self.machine.write(built_values_out, values_out, items[kept])
        self.machine.write(built_number, number, np.asarray([kept.sum()]))


class DeviceHistogramBuildResult(ScratchResult):
    types = (int, int, Iterator, int, Iterator, TypeInfo, int, int, bool)
    compute_even = ScratchResult.compute

    def run(
        self,
        samples: Iterator,
        counts: Iterator,
        levels: Value,
        low: Value,
        high: Value,
        pixels: int,
        rows: int,
        stride: int,
    ) -> None:
        assert (rows, stride) == (1, pixels)
        _, _, built, number, built_counts, *_ = self.given
        assert levels.value == number
        bins = number - 1
        x = self.machine.read(built, samples, pixels).astype(low.type.dtype)
        x = x[(x >= low.value) & (x < high.value)]
        at = ((x - low.value) * bins / (high.value - low.value)).astype(np.int64)
        self.machine.write(built_counts, counts, np.bincount(at, minlength=bins))


class DeviceUnaryTransform(Result):
    types = (Iterator, Iterator, Op)

    def compute(self, *arguments: Any) -> None:
        assert self.loaded
        *given, count, _op, _stream = arguments
        *built, op = self.given
        values = [
            self.machine.read(one, other, count)
            for one, other in zip(built[:-1], given[:-1], strict=True)
        ]
        result = self.machine.call(op, *values, result=built[-1].type.dtype)
        self.machine.write(built[-1], given[-1], result)


class DeviceBinaryTransform(DeviceUnaryTransform):
    types = (Iterator, Iterator, Iterator, Op)  # type: ignore[assignment]


class DeviceBinarySearchBuildResult(Result):
    types = (BinarySearchMode, Iterator, Iterator, Iterator, Op)

    def compute(
        self,
        data: Iterator,
        count: int,
        values: Iterator,
        wanted: int,
        out: Iterator,
        _op: Op,
        stream: int,
    ) -> None:
        mode, built, built_values, built_out, op = self.given
        there = self.machine.read(built, data, count)
        found = []
        for value in self.machine.read(built_values, values, wanted):
            other = np.full(count, value, there.dtype)
            truth = np.dtype(bool)
            if mode is BinarySearchMode.LOWER_BOUND:
                before = self.machine.call(op, there, other, result=truth)
            else:
                before = ~self.machine.call(op, other, there, result=truth)
            found.append(int(before.sum()))
        self.machine.write(built_out, out, np.asarray(found, np.int64))


RESULTS: Final = (
    DeviceReduceBuildResult,
    DeviceScanBuildResult,
    DeviceSegmentedReduceBuildResult,
    DeviceRadixSortBuildResult,
    DeviceMergeSortBuildResult,
    DeviceSegmentedSortBuildResult,
    DeviceThreeWayPartitionBuildResult,
    DeviceUniqueByKeyBuildResult,
    DeviceHistogramBuildResult,
    DeviceUnaryTransform,
    DeviceBinaryTransform,
    DeviceBinarySearchBuildResult,
)
NAMES: Final = (
    *(BinarySearchMode, Determinism, InitKind, Iterator, IteratorKind, IteratorState),
    *(Op, OpKind, SortOrder, TypeEnum, TypeInfo, Value, *RESULTS),
)


class FakeCub(CubVersion):
    """Stands in for the library that ``load_cub`` returns."""

    def common(self, capability: tuple[int, int]) -> Any:
        assert capability == (9, 0)
        return "common"


def fake_cub(linker: Linker) -> FakeCub:
    """The bindings, which link with ``linker``."""
    Result.machine = Machine(linker)
    bindings = SimpleNamespace(**{each.__name__: each for each in NAMES})
    return FakeCub(bindings, "/headers", ("0.0", "12"))


class FakeKernels:
    """The kernels of ``positions.cu``."""

    def __init__(self, _context: Any, _stream: Any, _source: object) -> None:
        """Nothing is compiled."""
        self._ends: Any = None

    def function(self, name: str) -> str:
        return name

    _DTYPES: ClassVar = {name: DTYPES[dtype] for dtype, name in _CPP.items()}

    def launch(self, function: str, items: int, arguments: Any) -> None:
        out, *given, count = arguments.pointers
        if function.startswith("extreme<"):
            element, _, largest = function[8:-1].split(", ")
            dtype = self._DTYPES[element]
            x = _memory(given[0], dtype.itemsize * count).view(dtype)
            strange = x != x  # noqa: PLR0124 - NaN, in any dtype
            best = np.argmax(x) if largest == "true" else np.argmin(x)
            at = np.argmax(strange) if strange.any() else best
            _memory(out, 8).view(np.int64)[0] = at
            return
        if function.startswith("scan_tiles<"):
            self._scan(function, out, given[0], given[1], count)
            return
        assert count == items
        if function.startswith("cast<"):
            to, of = (self._DTYPES[each] for each in function[5:-1].split(", "))
            array = _memory(given[0], of.itemsize * items).view(of)
            _memory(out, to.itemsize * items).view(to)[:] = array.astype(to)
            return
        kernel, _, word = function.rstrip(">").partition("<u")
        size = int(word or 64) // 8
        target = _memory(out, size * items).view(f"V{size}")
        if kernel in ("positions", "nowhere"):
            target.view(np.int64)[:] = np.arange(items) if kernel == "positions" else -1
            return
        values = _memory(given[0], size * items).view(f"V{size}")
        if kernel == "gather":
            places = _memory(given[1], 8 * items).view(np.int64)
            target[places >= 0] = values[places[places >= 0]]
            return
        bits = values.view(f"u{size}").copy()
        sign = bits.dtype.type(1 << (8 * size - 1))
        if kernel == "ordered":
            bits[bits == sign] = 0
        back = bits ^ sign if kernel == "floats" else ~bits
        other = ~bits if kernel == "floats" else bits | sign
        target[:] = np.where(bits & sign, back, other).view(f"V{size}")

    def _scan(self, function: str, out: int, given: int, continued: int, count: int) -> None:
        dtype, wide, operator = next(
            (DTYPES[name], DTYPES["float32"] if "float, " in types else DTYPES[name], kind)
            for name in (*C_TYPES, "complex64", "complex128")
            for kind in ("add", "multiply")
            if function == f"scan_tiles<{(types := scan_types(name, kind))}>"
        )
        x = _memory(given, dtype.itemsize * count).view(dtype).astype(wide)
        ufunc = getattr(np, operator)
        if continued:
            x[0] = ufunc(self._ends, x[0])
        found = ufunc.accumulate(x, dtype=wide)
        self._ends = found[-1]
        _memory(out, dtype.itemsize * count).view(dtype)[:] = found.astype(dtype)

    def prepare(self, function: str, items: int, arguments: Any) -> Callable[[], None]:
        return partial(self.launch, function, items, arguments)

    def close(self) -> None:
        """Nothing to unload."""


class FakeCudaCub(FakeCuda):
    """``CudaCub`` on host memory."""

    executor = "atomr_accel.libraries.cub.host.cuda:CudaCub"
    contexts: ClassVar[dict[int, FakeContext]] = {}

    @classmethod
    def context(cls, context: CpuContext) -> FakeContext:
        """Return one context for all lanes, like a real one, because its builds are shared."""
        return cls.contexts.setdefault(id(context), FakeContext(context))
