"""Conformance from tables: every library op over dtypes, shapes and layouts, on any backend.

A library's test module holds rows of ``Operation``. ``conform`` makes tests of them.

    test_blas_conforms = conform([Operation("blas.gemv", DTYPES, cases=[...], ...), ...])

Each case gets random inputs of its own (see ``seeds``). It runs on a device whose free memory was
filled with ``0xff`` bytes (a NaN in every float type), and is compared with a reference computed in
higher precision. Inputs must be unchanged afterwards, unless the row says that the op writes them.
A failure names the case and the seed that repeats it.

The same tests run on a GPU with ``ATOMR_TEST_BACKEND=cuda``.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ml_dtypes
import numpy as np
import pytest

from atomr_accel import Device, GpuRef, Unsupported

from .. import seeds

Array = np.ndarray[Any, Any]
Case = dict[str, Any]

REAL: Final = ("float32", "float64")
COMPLEX: Final = ("complex64", "complex128")
HALF: Final = ("float16", "bfloat16")
FLOATS: Final = (*HALF, *REAL, *COMPLEX)

_WIDE: Final[dict[str, np.dtype[Any]]] = {
    "float64": np.dtype(np.longdouble),
    "complex128": np.dtype(np.clongdouble),
    "complex64": np.dtype(np.complex128),
}
"""The type in which references are computed; float64 for all others."""

_POISON: Final = 0xFF


def on_cuda() -> bool:
    """Return whether the tests run on a GPU."""
    return os.environ.get("ATOMR_TEST_BACKEND") == "cuda"


MARKS: Final = [pytest.mark.gpu] if on_cuda() else []
"""For ``pytestmark`` of modules whose tests run on either backend."""


def dtype_of(name: str) -> np.dtype[Any]:
    """A dtype by its name, those of ``ml_dtypes`` too."""
    return np.dtype(getattr(ml_dtypes, name, name))


def installed(library: str) -> pytest.MarkDecorator:
    """For ``pytestmark``: on a GPU tests need a library that a program need not have."""
    missing = False
    if on_cuda():
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib

        try:
            load_nvidia_dynamic_lib(library)
        except DynamicLibNotFoundError:
            missing = True
    return pytest.mark.skipif(missing, reason=f"{library} is not installed")


_finfo: Final[Callable[..., Any]] = ml_dtypes.finfo


def eps_of(dtype: np.dtype[Any]) -> float:
    """The distance from one to the next number of a dtype; 0 for integers."""
    if dtype.kind in "iub":
        return 0.0
    return float(_finfo(dtype).eps)


def wide(array: Array) -> Array:
    """An array in a type with room to compute a reference; integers as int64."""
    if array.dtype.kind in "iub":
        return array.astype(np.int64)
    return np.asarray(array, _WIDE.get(array.dtype.name, np.dtype(np.float64)))


@dataclass(frozen=True)
class Near:
    """A reference with the magnitude of the terms that it sums up.

    Attributes:
        value: the expected result.
        magnitude: the same with absolute values instead of terms: what cancels in
            ``value`` still costs precision. By default the largest of ``value``.
        dtype: the dtype of the result; by default that of the case.
        ignore: a mask of the elements whose result is undefined.
        slack: an absolute error that the device's own approximation may add.
    """

    value: Any
    magnitude: Any = None
    dtype: str | None = None
    ignore: Any = None
    slack: Any = 0.0


class Sample:
    """Random inputs of one dtype."""

    def __init__(self, seed: int, dtype: str) -> None:
        self.seed = seed
        self.dtype = dtype_of(dtype)
        self.rng = np.random.default_rng(seed)

    def array(self, *shape: int, dtype: str | None = None) -> Array:
        """Numbers around zero, of a size whose products fit the smallest types."""
        kind = self.dtype if dtype is None else dtype_of(dtype)
        if kind.kind in "iu":
            info = np.iinfo(kind)
            return self.rng.integers(max(info.min, -100), 100, shape, dtype=kind)
        values: Array = self.rng.uniform(-1, 1, shape)
        if kind.kind == "c":
            values = values + 1j * self.rng.uniform(-1, 1, shape)
        return np.asarray(values).astype(kind)

    def regular(self, *shape: int) -> Array:
        """Square matrices that are far from singular."""
        n = shape[-1]
        shifted = wide(self.array(*shape)) + 2 * np.sqrt(n + 1) * np.eye(n)
        return np.asarray(shifted).astype(self.dtype)

    def triangular(self, n: int, *, unit: bool) -> Array:
        """A matrix both of whose triangles are far from singular, with ones for a diagonal too."""
        if unit:
            return np.asarray(wide(self.array(n, n)) / (n + 1)).astype(self.dtype)
        return self.regular(n, n)

    def real(self, *shape: int) -> Array:
        """Like ``array``, in the real dtype that belongs to a complex one."""
        return self.array(*shape, dtype=real_name(self.dtype.name))


def real_name(dtype: str) -> str:
    """The real dtype of the same precision."""
    return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)


@dataclass(frozen=True)
class Operation:
    """A row: one op, and all the ways in which it is tried.

    Attributes:
        name: ``library.op``.
        dtypes: the dtypes to try, by name.
        cases: shapes and options; keyword arguments of the functions below.
        inputs: makes the input arrays of a case.
        call: the op itself: gets the device and a ref for each input; returns a ref, a
            plain value or a tuple of them.
        expect: the reference, from the inputs in a wide type: an array, a ``Near``, or a
            tuple of them.
        writes: positions of inputs that the op overwrites.
        factor: how many units of the last place an error may have.
        may_refuse: dtypes for which ``Unsupported`` is an answer too, on a GPU.
    """

    name: str
    dtypes: tuple[str, ...]
    cases: Sequence[Case]
    inputs: Callable[..., tuple[Array, ...]]
    call: Callable[..., Awaitable[Any]]
    expect: Callable[..., Any]
    writes: tuple[int, ...] = ()
    factor: float = 8.0
    may_refuse: tuple[str, ...] = ()

    @property
    def library(self) -> str:
        """The library's name."""
        return self.name.partition(".")[0]


def product(**choices: Iterable[Any]) -> list[Case]:
    """All combinations: ``product(m=[1, 5], trans=[0, 1])``."""
    names = list(choices)
    return [
        dict(zip(names, values, strict=True)) for values in itertools.product(*choices.values())
    ]


@dataclass
class Tally:
    """Counts of the checks of one library."""

    operations: set[str] = field(default_factory=set)
    cases: int = 0
    refused: Counter[str] = field(default_factory=Counter)


TALLIES: Final[dict[str, Tally]] = {}


_TRACED = frozenset({"blas", "blaslt", "dnn", "linalg", "sparse", "sparselt"})
"""Libraries whose calls are traced."""


def conform(
    operations: Sequence[Operation],
    *,
    take: int = 1,
    of: str | None = None,
    put: Callable[[Device, Array, Sample], Awaitable[GpuRef]] | None = None,
) -> Callable[..., Any]:
    """Return a test for each row and dtype, which runs the cases of its row on one device.

    Args:
        operations: the rows.
        take: the step between the cases to run, from a random one on.
        of: the name of the tested part, if it is not the whole library.
        put: the function that makes the inputs' buffers; by default ``device.put``.
    """
    parameters = [
        pytest.param(operation, dtype, id=f"{operation.name}-{dtype}")
        for operation in operations
        for dtype in operation.dtypes
    ]

    @pytest.mark.parametrize(("operation", "dtype"), parameters)
    async def test(operation: Operation, dtype: str, device: Device) -> None:
        first = seeds.draw() % min(take, len(operation.cases))
        for case in operation.cases[first::take]:
            await check(device, operation, dtype, case, of or operation.library, put)

    return test


async def check(
    device: Device,
    operation: Operation,
    dtype: str,
    case: Mapping[str, Any],
    of: str,
    put: Callable[[Device, Array, Sample], Awaitable[GpuRef]] | None = None,
) -> None:
    """Run one case and compare it with its reference."""
    seed = seeds.draw()
    tally = TALLIES.setdefault(of, Tally())
    tally.operations.add(operation.name)
    sample = Sample(seed, dtype)
    arrays = operation.inputs(sample, **case)
    try:
        references = _as_tuple(operation.expect(*map(wide, arrays), **case))
        expected = [each if isinstance(each, Near) else Near(each) for each in references]
        put = put or _put
        refs = [await put(device, array, sample) for array in arrays]
        # The second call goes by a template, where that is of the executor's making.
        traced = of != operation.library or (on_cuda() and operation.library in _TRACED)
        again = traced and not operation.writes
        for _ in range(1 + again):
            await poison(device, [_nbytes(each, dtype) for each in expected])
            try:
                results = _as_tuple(await operation.call(device, *refs, **case))
            except Unsupported:
                if not (on_cuda() and dtype in operation.may_refuse):
                    raise
                tally.refused[f"{operation.name}-{dtype}"] += 1
                return
            await _compare_all(device, operation, dtype, results, expected)
        for position, (ref, array) in enumerate(zip(refs, arrays, strict=True)):
            if position not in operation.writes:
                assert (await device.get(ref)).tobytes() == array.tobytes(), (
                    f"input {position} was changed"
                )
    except BaseException as error:
        repeat = f"{seeds.VARIABLE}={seeds.run_seed()}, seed {seed}"
        error.add_note(f"{operation.name} {dtype} {dict(case)}: {repeat}")
        raise
    tally.cases += 1


async def _compare_all(
    device: Device,
    operation: Operation,
    dtype: str,
    results: tuple[Any, ...],
    expected: Sequence[Near],
) -> None:
    """Hold the results of a call against their references."""
    assert len(results) == len(expected)
    for position, (result, reference) in enumerate(zip(results, expected, strict=True)):
        got = await device.get(result) if isinstance(result, GpuRef) else np.asarray(result)
        try:
            compare(got, reference, dtype_of(reference.dtype or dtype), operation.factor)
        except AssertionError as error:
            raise AssertionError(f"result {position}: {error}") from error


async def _put(device: Device, array: Array, _sample: Sample) -> GpuRef:
    return await device.put(array)


async def put_strided(device: Device, array: Array, sample: Sample) -> GpuRef:
    """A buffer whose elements have gaps between them, any order of axes, and any direction."""
    rng = sample.rng
    order = tuple(map(int, rng.permutation(array.ndim)))
    steps = [int(rng.choice([-3, -2, -1, 1, 2])) for _ in order]
    if steps:
        steps[int(rng.integers(len(steps)))] = 2
    return await _put_apart(device, array, order, steps)


async def put_matrices(device: Device, array: Array, sample: Sample) -> GpuRef:
    """A buffer of matrices of which either the rows or the columns have no gaps."""
    rng = sample.rng
    order = [*map(int, rng.permutation(max(0, array.ndim - 2)))]
    order += [*map(int, rng.permutation(range(len(order), array.ndim)))]
    steps = [int(rng.integers(1, 4)) for _ in order]
    if steps:
        steps[-1] = 1
    return await _put_apart(device, array, tuple(order), steps)


async def put_rows(device: Device, array: Array, sample: Sample) -> GpuRef:
    """A buffer with gaps between rows, and the other axes in any order."""
    if not array.ndim:
        return await device.put(array)
    order = [*map(int, sample.rng.permutation(max(0, array.ndim - 1))), array.ndim - 1]
    around = np.full((*array.shape[:-1], 3 * array.shape[-1]), _POISON, np.uint8)
    around = around.astype(array.dtype).transpose(order)
    part = around[..., array.shape[-1] : 2 * array.shape[-1]]
    part[...] = array.transpose(order)
    ref = await device.put(np.ascontiguousarray(around))
    back = tuple(map(int, np.argsort(order)))
    return ref[..., array.shape[-1] : 2 * array.shape[-1]].transpose(back)


async def put_any(device: Device, array: Array, sample: Sample) -> GpuRef:
    """A buffer without gaps, or a view of any of the kinds above."""
    way = sample.rng.integers(4)
    if not way or not array.size:
        return await device.put(array)
    return await (put_strided, put_matrices, put_rows)[way - 1](device, array, sample)


async def _put_apart(
    device: Device, array: Array, order: tuple[int, ...], steps: list[int]
) -> GpuRef:
    """Return a buffer with its axes in another order and these steps between elements."""
    shape = tuple(abs(step) * array.shape[axis] for axis, step in zip(order, steps, strict=True))
    key: Any = (0, *(slice(None, None, step) for step in steps), ...)
    around = np.full((1, *shape), _POISON, np.uint8).astype(array.dtype)
    back = tuple(map(int, np.argsort(order)))
    around[key].transpose(back)[...] = array
    return (await device.put(around))[key].transpose(back)


async def poison(device: Device, sizes: Sequence[int]) -> None:
    """Fill the free memory that outputs of these sizes will be made of."""
    refs = [await device.full((max(1, size),), _POISON, np.uint8) for size in sizes]
    for ref in reversed(refs):  # the allocator hands out first what came back last
        await device.free(ref)


def compare(got: Array, reference: Near, dtype: np.dtype[Any], factor: float = 8.0) -> None:
    """Hold a result against its reference: shape, dtype, values, and NaNs where they belong."""
    value = np.asarray(reference.value)
    assert got.shape == value.shape, f"shape {got.shape}, expected {value.shape}"
    assert got.dtype == dtype, f"dtype {got.dtype}, expected {dtype}"
    if not value.size:
        return
    number = np.clongdouble if value.dtype.kind == "c" else np.longdouble
    exact = value.astype(number)
    actual = got.astype(np.int64 if dtype.kind in "iub" else wide(got).dtype).astype(number)
    if reference.ignore is not None:
        exact = np.where(reference.ignore, 0, exact)
        actual = np.where(reference.ignore, 0, actual)
    odd = ~np.isfinite(exact)
    np.testing.assert_array_equal(actual[odd], exact[odd])
    size = np.abs(np.where(odd, 0, exact))
    magnitude = size.max() if reference.magnitude is None else reference.magnitude
    allowed = factor * eps_of(dtype) * (size + np.asarray(magnitude, np.longdouble))
    allowed = allowed + np.asarray(reference.slack, np.longdouble)
    error = np.abs(np.where(odd, 0, actual) - np.where(odd, 0, exact))
    # The smallest numbers of a type are further apart than its eps says.
    tiny = 0.0 if dtype.kind in "iub" else float(_finfo(dtype).smallest_subnormal)
    bad = ~(error <= allowed + tiny)
    if bad.any():
        worst = np.unravel_index(int(np.argmax(np.where(bad, error - allowed, -1))), bad.shape)
        where = tuple(map(int, worst))
        raise AssertionError(
            f"{int(bad.sum())} of {bad.size} elements are wrong; the worst at {where}: "
            f"{actual[worst]} instead of {exact[worst]}, off by {error[worst]}"
        )


def _nbytes(reference: Near, dtype: str) -> int:
    return int(np.asarray(reference.value).size * dtype_of(reference.dtype or dtype).itemsize)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the number of checked cases, in a line for each library."""
    for library, tally in sorted(TALLIES.items()):
        line = (
            f"conformance of {library}: {tally.cases} cases of {len(tally.operations)} operations"
        )
        if tally.refused:
            line += f"; refused by the device: {', '.join(sorted(tally.refused))}"
        terminalreporter.write_line(line)
