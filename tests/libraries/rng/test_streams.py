"""Which random words draws take: no two draws of a generator ever take the same ones.

Facades and executors are the real ones; the device between them is a few lines, so that
every word is seen. Philox has a counter for each, and cuRAND's own generators a place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import GpuRef
from atomr_accel.backends.registry import find_backend
from atomr_accel.libraries.rng._state import new_state
from atomr_accel.libraries.rng.generator import Generator
from atomr_accel.libraries.rng.wire._distributions import KINDS
from atomr_accel.memory._block import Block, Epoch
from atomr_accel.ops import Collected, Request

from ...fakes.driver import FakeDriver
from ..conformance import Array, dtype_of
from ..host_kernels import HostKernels, compile_kernels, needs_compiler, on_host

SEED = 11
PSEUDO = [kind for kind, rule in KINDS.items() if not rule.quasi]
WEIGHTED = np.arange(1.0, 41.0) / 820

DRAWS: dict[str, Callable[[Any, int], Any]] = {
    "random": lambda rng, n: rng.random(n),
    "random float32": lambda rng, n: rng.random(n, "float32"),
    "random float16": lambda rng, n: rng.random(n, "float16"),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "normal": lambda rng, n: rng.normal(0, 1, n),
    "normal float32": lambda rng, n: rng.normal(0, 1, n, dtype="float32"),
    "lognormal": lambda rng, n: rng.lognormal(0, 1, n),
    "exponential": lambda rng, n: rng.exponential(1, n),
    "cauchy": lambda rng, n: rng.cauchy(0, 1, n),
    "gamma": lambda rng, n: rng.gamma(0.5, 1, n),
    "beta": lambda rng, n: rng.beta(0.5, 2, n),
    "poisson": lambda rng, n: rng.poisson(30, n),
    "integers int64": lambda rng, n: rng.integers(0, 3 << 61, n),
    "integers int8": lambda rng, n: rng.integers(0, 96, n, "int8"),
    "choice": lambda rng, n: rng.choice(40, n),
    "choice by p": lambda rng, n: rng.choice(40, n, p=WEIGHTED),
    "choice of all": lambda rng, n: rng.choice(40, n, replace=False),
    "choice of many": lambda rng, n: rng.choice(100_000, n, replace=False),
    "choice of all by p": lambda rng, n: rng.choice(40, n, replace=False, p=WEIGHTED),
    "binomial": lambda rng, n: rng.binomial(20, 0.5, n),
    "choice of rows": lambda rng, n: rng.choice(rng.rows, n, replace=False),
    "advance": lambda rng, n: rng.advance(n),
}


class Words:
    """A device whose executor tells which random words each message takes.

    Args:
        backend: its name.
        taken: a function that executes a message and returns the words it took, as ranges of one
            long line.
    """

    driver = Collected
    call_mode = Collected
    recorder = None

    def __init__(self, backend: str, taken: Callable[[Any], Iterable[range]]) -> None:
        self.backend = backend
        self.capabilities = find_backend(backend).capabilities
        self.home = self
        self.memory: Any = SimpleNamespace(epoch=Epoch(1), sealed_epoch=Epoch(1), device=backend)
        self._taken = taken
        self.draws: list[list[range]] = []

    def output(self, shape: tuple[int, ...], dtype: Any) -> GpuRef:
        return self.ref(np.zeros(shape, dtype))

    def ref(self, array: Array) -> GpuRef:
        epoch = self.memory.epoch
        block: Any = Held(self.memory, array.ctypes.data, 0, epoch, 0, 1, array=array)
        return GpuRef(block, array.shape, dtype_of(array.dtype.name), array.nbytes)

    def perform(self, request: Request[Any]) -> Any:
        submission = request.prepare(self)  # type: ignore[arg-type]
        if submission.sent is not None:
            submission.sent()
        self.draws[-1] += self._taken(submission.message)
        return submission.result

    def collect(self, make: Any, generator: Any, args: Any, kwargs: Any) -> Any:
        return self.perform(make(generator, *args, **kwargs))

    def draw(self, generator: Any, name: str, count: int) -> None:
        self.draws.append([])
        DRAWS[name](generator, count)

    def check(self) -> None:
        """No word was taken twice."""
        spans = sorted(
            (span.start, span.stop, draw) for draw, taken in enumerate(self.draws) for span in taken
        )
        reach, last = 0, 0
        for start, end, draw in spans:
            assert start >= reach or draw == last, f"draws {last} and {draw} share words"
            reach, last = max((reach, last), (end, draw))


class Held(Block, eq=False):
    """A block in this process's memory."""

    array: Any = None


def generator_on(device: Words, kind: str) -> Any:
    generator: Any = Generator(device, new_state(SEED, kind, "default", 0, 1), None)  # type: ignore[arg-type]
    generator.rows = device.ref(np.arange(80.0).reshape(40, 2))
    return generator


def array_at(address: int, shape: tuple[int, ...], dtype: Any) -> Array:
    kind = np.dtype(dtype)
    nbytes = int(np.prod(shape)) * kind.itemsize
    memory = (ctypes.c_uint8 * nbytes).from_address(address) if nbytes else bytearray()
    return np.frombuffer(memory, kind).reshape(shape)


def join(parts: Iterable[Any], bits: int) -> int:
    """Words as one number, the first one lowest."""
    return sum(int(part) << bits * place for place, part in enumerate(parts))


# --- the executors -----------------------------------------------------------------------------


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Words]:
    return cpu_words(monkeypatch)


def cpu_words(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Words]:
    from atomr_accel.libraries.rng.host import _cpu

    made: list[tuple[int, np.random.Generator]] = []
    make = _cpu._generator

    def counter(generator: np.random.Generator) -> int:
        state: Any = generator.bit_generator.state
        return join(state["state"]["counter"], 64)

    def noting(*args: Any) -> np.random.Generator:
        generator = make(*args)
        made.append((counter(generator), generator))
        return generator

    monkeypatch.setattr(_cpu, "_generator", noting)
    context: Any = SimpleNamespace(
        check=lambda: None,
        array=array_at,
        bytes_at=lambda address, nbytes: array_at(address, (nbytes,), np.uint8),
    )
    executor = _cpu.CpuRng(context, None)  # type: ignore[arg-type]

    def taken(message: Any) -> list[range]:
        made.clear()
        handlers: Any = executor.handlers
        handlers[type(message)](message)
        return [range(before, counter(generator)) for before, generator in made]

    return lambda: Words("cpu", taken)


NOTING = """
static unsigned long long* noted = nullptr;
static unsigned* notes = nullptr;
static void note_at(unsigned* to, unsigned long long* count) { notes = to; noted = count; }
static void note(uint4 c) { if (noted) std::memcpy(notes + 4 * (*noted)++, &c, 16); }
"""
MOST = 1 << 16


class Vendor:
    """cuRAND: which words of which seed go where."""

    def __init__(self) -> None:
        self.made = 0
        self.at: dict[int, list[int]] = {}
        self.given: list[range] = []
        self.burner = 0

    def call(self, function: str, *args: Any) -> None:
        if function == "curandCreateGenerator":
            self.made += 1
            args[0]._obj.value = self.made
            self.at[self.made] = [0, 0]
        elif function == "curandSetPseudoRandomGeneratorSeed":
            self.at[args[0]][0] = args[1]
        elif function == "curandSetGeneratorOffset":
            self.at[args[0]][1] = args[1]
        elif function == "curandGenerate":
            handle, target, count = args
            seed, place = self.at[handle]
            self.at[handle][1] += count
            if target != self.burner:
                np.copyto(array_at(target, (count,), np.uint32), 0x9E3779B9)
                line = (seed << 66) + (1 << 200)
                self.given.append(range(line + place, line + place + count))


@pytest.fixture(scope="module")
def noting_kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from atomr_accel.libraries.rng.host._source import SOURCE

    from .instances import instances

    members = {
        name: text
        for name, text in instances(("int8", "int64")).items()
        if not name.startswith("sobol")
    }
    head = "uint4 philox(uint4 c, u64 key) {"
    text = on_host(SOURCE)
    assert head in text
    source = NOTING + text.replace(head, head + " note(c);")
    members["note_at"] = "u32* to; u64* count"
    return compile_kernels(source, members, tmp_path_factory.mktemp("rng"))


@pytest.fixture
def on_cuda(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, noting_kernels: Any
) -> Callable[[], Words]:
    from atomr_accel.libraries.rng.host import _cuda

    vendor = Vendor()
    burner = np.zeros(4 * _cuda._BURNT, np.uint8)
    vendor.burner = burner.ctypes.data
    notes, count = np.zeros((MOST, 4), np.uint32), np.zeros(1, np.uint64)
    noting_kernels["note_at"](np.array([notes.ctypes.data, count.ctypes.data]).tobytes())
    driver.change(cuMemAlloc=lambda _nbytes: (0, vendor.burner))
    monkeypatch.setattr(_cuda, "_library", lambda: vendor)
    monkeypatch.setattr(_cuda, "Kernels", lambda *_: HostKernels(noting_kernels))
    context: Any = SimpleNamespace(pointer=lambda address: address)
    stream: Any = SimpleNamespace(pointer=1, handle=1, synchronize=lambda: None)
    executor = _cuda.CudaRng(context, stream)

    def taken(message: Any) -> list[range]:
        vendor.given.clear()
        count[0] = 0
        handlers: Any = executor.handlers
        handlers[type(message)](message)
        words = {join(counter, 32) for counter in notes[: int(count[0])]}
        return [*vendor.given, *(range(word, word + 1) for word in words)]

    return lambda: Words("cuda", taken)


# --- references ----------------------------------------------------------------------------------

SEQUENCES = st.lists(
    st.tuples(st.sampled_from([*DRAWS]), st.integers(0, 40)), min_size=2, max_size=6
)


@pytest.mark.parametrize("second", DRAWS)
@pytest.mark.parametrize("kind", PSEUDO)
def test_no_two_draws_on_the_cpu_take_a_word_twice(
    on_the_cpu: Callable[[], Words], kind: str, second: str
) -> None:
    for first in DRAWS:
        for count in (1, 7):
            device = on_the_cpu()
            generator = generator_on(device, kind)
            device.draw(generator, first, count)
            device.draw(generator, second, count)
            device.draw(generator, first, count)
            device.check()


@needs_compiler
@pytest.mark.parametrize("second", DRAWS)
@pytest.mark.parametrize("kind", ["philox4_32_10", "xorwow", "mtgp32"])
def test_no_two_draws_on_cuda_take_a_word_twice(
    on_cuda: Callable[[], Words], kind: str, second: str
) -> None:
    for first in DRAWS:
        device = on_cuda()
        generator = generator_on(device, kind)
        device.draw(generator, first, 7)
        device.draw(generator, second, 3)
        device.draw(generator, first, 5)
        device.check()


@settings(max_examples=60)
@given(kind=st.sampled_from(PSEUDO), draws=SEQUENCES)
def test_no_draws_take_a_word_twice_whatever_comes_before(kind: str, draws: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        device = cpu_words(patch)()
        generator = generator_on(device, kind)
        for name, count in draws:
            device.draw(generator, name, count)
        device.check()
