"""The CUDA executor with cuRAND's host generators, and kernels compiled for the host.

cuRAND makes the same sequences on either side, so this shows which words a draw takes,
where it resumes them, and what becomes of them, without a GPU.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

from atomr_accel import LibraryError, Unsupported
from atomr_accel.executors.vendor import VendorLibrary
from atomr_accel.libraries.rng.host._prototypes import GENERATORS, PROTOTYPES, STATUS_NAMES
from atomr_accel.libraries.rng.host._source import SOURCE
from atomr_accel.libraries.rng.wire._distributions import DISTRIBUTIONS
from atomr_accel.libraries.rng.wire._messages import (
    Distribution,
    Draw,
    Pick,
    Points,
    Take,
    UploadTable,
)

from ... import seeds
from ...fakes.driver import FakeDriver
from ..conformance import Array
from ..host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from .instances import a_distribution, at, instances
from .statistics import check_continuous

pytestmark = [pytest.mark.headers, needs_compiler]

STREAM = 0x5EED

KINDS = ("xorwow", "mrg32k3a", "mtgp32")
"""Generators to test: mt19937 works like mtgp32, and takes seconds to start on the host."""


class HostLibrary:
    """cuRAND whose generators are made for the host."""

    def __init__(self) -> None:
        host = {"curandCreateGeneratorHost": "ptr* int"}
        self.library = VendorLibrary("curand", {**PROTOTYPES, **host}, STATUS_NAMES)
        self.log: list[str] = []

    def call(self, function: str, *args: Any) -> None:
        self.log.append(function)
        if function == "curandCreateGenerator":
            function = "curandCreateGeneratorHost"
        if function == "curandSetStream":
            assert args[1] == STREAM
        else:
            self.library.call(function, *args)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    members = instances(("int8", "uint32", "int64"))
    return compile_kernels(on_host(SOURCE), members, tmp_path_factory.mktemp("rng"))


class Machine:
    """The executor, and everything under it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, compiled: Any) -> None:
        from atomr_accel.libraries.rng.host import _cuda

        self.library = HostLibrary()
        self.driver = driver
        monkeypatch.setattr(_cuda, "_library", lambda: self.library)
        monkeypatch.setattr(_cuda, "Kernels", lambda *_: HostKernels(compiled))
        context: Any = SimpleNamespace(pointer=lambda address: address)
        stream: Any = SimpleNamespace(pointer=STREAM, handle=STREAM, synchronize=lambda: None)
        self.executor = _cuda.CudaRng(context, stream)
        self.key = seeds.draw()

    def do(self, message: Any) -> None:
        handlers: Any = self.executor.handlers
        handlers[type(message)](message)

    def draw(
        self, kind: str, law: Distribution, count: int, position: int = 0, **more: Any
    ) -> Array:
        out = np.zeros(count, law.dtype)
        blocks = -(-count // DISTRIBUTIONS[law.name].values(law.dtype))
        scratch = np.zeros(16 * blocks, np.uint8)
        fits = scratch.nbytes == out.nbytes and not more.get("scratch")
        message = Draw(
            law,
            kind,
            more.get("ordering", "default"),
            more.get("key", self.key),
            position,
            0,
            at(out),
            count,
            0 if fits else at(scratch),
        )
        self.do(message)
        return out

    def words(self, kind: str, count: int, position: int = 0, **more: Any) -> Array:
        return self.draw(
            kind, a_distribution("integers32", "uint32", span=2**32), count, position, **more
        )

    def reference(self, kind: str, count: int, key: int | None = None) -> Array:
        """The words of a fresh generator of cuRAND."""
        generator, out = ctypes.c_void_p(), np.zeros(count, np.uint32)
        call = self.library.library.call
        call("curandCreateGeneratorHost", ctypes.byref(generator), GENERATORS[kind])
        call("curandSetPseudoRandomGeneratorSeed", generator, self.key if key is None else key)
        call("curandGenerate", generator, at(out), count)
        call("curandDestroyGenerator", generator)
        return out


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, compiled: Any) -> Machine:
    return Machine(monkeypatch, driver, compiled)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_is_curands_wherever_it_is_resumed(machine: Machine, kind: str) -> None:
    expected = machine.reference(kind, 50_000)
    np.testing.assert_array_equal(machine.words(kind, 1000), expected[:1000])
    seeks = machine.library.log.count("curandSetGeneratorOffset")
    np.testing.assert_array_equal(machine.words(kind, 40, 1000), expected[1000:1040])
    assert machine.library.log.count("curandSetGeneratorOffset") == seeks  # it was there
    for position in (30_000, 44, 44, 48_000, 0):
        got = machine.words(kind, 100, position, scratch=True)
        np.testing.assert_array_equal(got, expected[position : position + 100])


def test_generator_without_skip_draws_the_skipped_numbers(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from atomr_accel.libraries.rng.host import _cuda

    monkeypatch.setattr(_cuda, "_BURNT", 1000)
    expected = machine.reference("mtgp32", 10_000)
    np.testing.assert_array_equal(machine.words("mtgp32", 100, 8500), expected[8500:8600])
    assert machine.library.log.count("curandGenerate") == 10
    [burner] = machine.driver.held.values()
    assert len(burner) == 4000


def test_generators_that_cannot_skip_take_turns(machine: Machine) -> None:
    """Numbers are drawn once only, as long as few enough generators take turns."""
    keys = [machine.key ^ number for number in range(10)]
    for turn in range(3):
        for key in keys:
            machine.words("mtgp32", 40, 40 * turn, key=key)
            machine.words("xorwow", 40, 40 * turn, key=key)
    draws = [name for name in machine.library.log if name == "curandGenerate"]
    assert len(draws) == 2 * 3 * len(keys)
    expected = machine.reference("mtgp32", 160, keys[3])
    np.testing.assert_array_equal(machine.words("mtgp32", 40, 120, key=keys[3]), expected[120:])


def test_few_generators_are_kept(machine: Machine) -> None:
    keys = [machine.key ^ number for number in range(12)]
    for _ in range(2):
        for key in keys:
            expected = machine.reference("xorwow", 40, key)
            np.testing.assert_array_equal(machine.words("xorwow", 40, key=key), expected)
    created = machine.library.log.count("curandCreateGenerator")
    assert machine.library.log.count("curandDestroyGenerator") == created - 8
    machine.executor.close()
    assert machine.library.log.count("curandDestroyGenerator") == created
    assert not machine.driver.held


@pytest.mark.parametrize("ordering", ["legacy", "seeded"])
def test_orderings(machine: Machine, ordering: str) -> None:
    plain = machine.words("xorwow", 400)
    other = machine.words("xorwow", 400, ordering=ordering)
    assert (plain == other).all() == (ordering == "legacy")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_distributions_of_words(machine: Machine, kind: str, dtype: str) -> None:
    for count in (20_000, 19_999):
        values = machine.draw(kind, a_distribution("normal", dtype, (1.0, 2.0)), count, 4096)
        check_continuous(values, stats.norm(1, 2), slack=0.001)
    values = machine.draw(kind, a_distribution("gamma", dtype, (2.0, 1.0)), 20_000)
    check_continuous(values, stats.gamma(2), slack=0.001)


def test_a_recording_cannot_have_curands_generators(machine: Machine) -> None:
    machine.driver.change(cuStreamIsCapturing=lambda _stream: (0, 1))
    with pytest.raises(Unsupported, match="draws of mrg32k3a cannot be recorded"):
        machine.words("mrg32k3a", 4)
    machine.words("philox4_32_10", 4)


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("dimensions", [1, 7, 3, 20_000])
def test_points(machine: Machine, bits: int, dimensions: int) -> None:
    law = a_distribution("uniform", "float64", (0.0, 1.0))
    sequence = qmc.Sobol(dimensions, scramble=False, bits=32)
    sequence.fast_forward(8)
    expected = sequence.random(8)
    for scramble in (False, True):
        kind = f"{'scrambled_' if scramble else ''}sobol{bits}"
        out = np.zeros((8, dimensions))
        for _ in range(2):  # the second time with direction vectors that are there
            machine.do(Points(law, kind, dimensions, 8, at(out), 8))
        assert (out == expected).all() != scramble
        assert len(np.unique(out[:, 0])) == 8
    assert len(machine.driver.held) == 3


def test_tables_choices_and_rows(machine: Machine) -> None:
    table, out = np.zeros(3), np.zeros(1000, np.int64)
    machine.do(UploadTable(at(table), np.array([0.0, 0.25, 1.0]).tobytes()))
    assert table.tolist() == [0.0, 0.25, 1.0]
    law = a_distribution("search", "int64", table=at(table), extent=3)
    values = machine.draw("mtgp32", law, 1000)
    assert set(values) == {1, 2}
    times = np.zeros(3)
    machine.do(Pick("xorwow", machine.key, 0, 5, 3, 2, at(table), at(out), at(times)))
    assert sorted(out[:2]) == [1, 2]
    machine.do(Pick("xorwow", machine.key, 0, 5, 1000, 1000, 0, at(out), 0))
    assert sorted(out) == list(range(1000))
    rows = np.arange(3000.0).reshape(1000, 3)
    target = np.zeros((1000, 3))
    machine.do(Take(at(rows), at(out), at(target), 1000, 24))
    np.testing.assert_array_equal(target, rows[out])


def test_nothing(machine: Machine) -> None:
    law = a_distribution("normal", "float32", (0.0, 1.0))
    assert machine.draw("xorwow", law, 0).shape == (0,)
    machine.do(Points(law, "sobol32", 3, 0, 0, 0))
    machine.do(Pick("xorwow", 1, 0, 0, 5, 0, 0, 0, 0))
    machine.do(Take(0, 0, 0, 0, 8))
    assert not machine.library.log


def test_the_vendors_library_has_every_function(machine: Machine) -> None:
    library = machine.library.library
    assert all(library.functions[name] for name in PROTOTYPES)
    with pytest.raises(LibraryError, match="CURAND_STATUS_NOT_INITIALIZED") as caught:
        library.call("curandGenerate", None, 0, 4)
    assert (caught.value.library, caught.value.status) == ("curand", 101)
