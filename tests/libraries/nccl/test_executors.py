"""Executors of collectives give the same: on the CPU, and on CUDA with a fake of NCCL."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atomr_accel import LibraryError
from atomr_accel._dtypes import HALVES
from atomr_accel.libraries.nccl.host import _cpu, _cuda
from atomr_accel.libraries.nccl.wire.area import Area
from atomr_accel.libraries.nccl.wire.exchange import numbers_of
from atomr_accel.libraries.nccl.wire.messages import (
    AbortCommunicator,
    AskBegun,
    Collect,
    CollectiveStep,
    Join,
)

from ...fakes.nccl import IN_PROGRESS, FakeNccl

Array = np.ndarray[Any, Any]

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
KINDS = (
    *("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter"),
    *("reduce_scatter", "all_to_all", "all_to_all_v", "send"),
)


class Context:
    """A context whose addresses are pointers."""

    def __init__(self, area: Array) -> None:
        self._area = area
        self.arrays: dict[int, Array] = {}

    def address(self, array: Array | None) -> int:
        """The address of an array, which is kept."""
        if array is None:
            return 0
        pointer = int(array.ctypes.data)
        self.arrays[pointer] = array
        return pointer

    def bytes_at(self, address: int, nbytes: int) -> Array:
        del address
        return self._area[:nbytes]

    def array(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return self.arrays[address].view(dtype)[: shape[0]]

    def pointer(self, address: int) -> int:
        return address

    def check(self) -> None:
        pass


class Stream:
    pointer = 1


class Ranks:
    """Executors that are ranks of one communicator, each in a thread when it is called."""

    def __init__(self, backend: str, size: int) -> None:
        area = np.zeros(Area.nbytes(size), np.uint8)
        self.size = size
        self.contexts = [Context(area) for _ in range(size)]
        module: Any = _cpu if backend == "cpu" else _cuda
        kind, aborts = (
            (module.CpuCollectives, module.CpuAborts)
            if backend == "cpu"
            else (module.CudaCollectives, module.CudaAborts)
        )
        self.lanes = [kind(context, Stream()) for context in self.contexts]
        self.aborts = [aborts(context, Stream()) for context in self.contexts]
        meeting = bytes([size]) * 128
        self.together(lambda rank: Join(7, rank, size, meeting, 0))

    def together(
        self, message: Callable[[int], Any], ranks: Sequence[int] | None = None
    ) -> list[Any]:
        """Have ranks execute messages side by side; the errors."""
        errors: list[Any] = []

        def run(rank: int) -> None:
            asked = message(rank)
            try:
                for each in asked if isinstance(asked, list) else [asked]:
                    self.lanes[rank].handlers[type(each)](each)
            except LibraryError as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks or range(self.size)]
        for thread in threads:
            thread.start()
        self.begun = threads
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        return errors


@pytest.fixture(params=["cpu", "cuda"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    fake = FakeNccl()
    monkeypatch.setattr(_cuda, "_library", lambda: fake)
    return str(request.param)


def expected(kind: str, x: list[Array], size: int, root: int, to: int) -> list[Array | None]:
    """Return the flat result of each rank, or None for ranks without one."""
    rows = [part.reshape(size, -1) for part in x] if kind not in ("send", "broadcast") else []
    every: list[Array | None] = [None] * size
    match kind:
        case "all_reduce":
            return [np.sum(x, 0)] * size
        case "reduce":
            every[root] = np.sum(x, 0)
        case "reduce_scatter":
            return [*np.sum(x, 0).reshape(size, -1)]
        case "broadcast":
            return [x[root]] * size
        case "all_gather":
            return [np.concatenate(x)] * size
        case "gather":
            every[root] = np.concatenate(x)
        case "scatter":
            return [*rows[root]]
        case "all_to_all" | "all_to_all_v":
            return [np.concatenate([part[rank] for part in rows]) for rank in range(size)]
        case _:
            every[to] = x[root]
    return every


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(kinds=["send"], size=3, each=1, seed=0)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    size=st.integers(1, 4),
    each=st.sampled_from((0, 1, 5, 33_000)),
    seed=st.integers(0, 99),
)
def test_collectives_give_each_rank_its_result(
    backend: str, kinds: list[str], size: int, each: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    library: Any = _cuda._library()
    library.forget()  # ranks of former examples are gone
    ranks = Ranks(backend, size)
    at = 1
    steps: list[list[CollectiveStep]] = [[] for _ in range(size)]
    wanted: list[tuple[Array, Array]] = []
    for kind in kinds:
        root, to = int(rng.integers(size)), int(rng.integers(size))
        if kind == "send" and size > 1:
            to = (root + 1) % size
        x = [rng.integers(0, 9, each * size).astype(np.float64) for _ in range(size)]
        per_row = kind in ("scatter", "reduce_scatter", "all_to_all", "all_to_all_v")
        count = each if per_row else each * size
        counts = (each,) * size if kind == "all_to_all_v" else ()
        for rank, result in enumerate(expected(kind, x, size, root, to)):
            if kind == "send" and rank not in (root, to):
                continue
            gives = rank == root if kind in ("broadcast", "scatter", "send") else True
            target = None if result is None else np.full(result.shape, np.nan)
            if result is not None and target is not None:
                wanted.append((target, result))
            context = ranks.contexts[rank]
            source = context.address(x[rank]) if gives else 0
            to_address = context.address(target)
            step = CollectiveStep(
                kind,  # type: ignore[arg-type]
                "float64",
                count,
                source,
                to_address,
                root=root,
                to=to,
                sends=counts,
                receives=counts,
                longest=count,
                at=at,
            )
            steps[rank].append(step)
        at += numbers_of(kind, count, size, 8)
    assert ranks.together(lambda rank: Collect(7, tuple(steps[rank]))) == []
    for got, right in wanted:
        np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_reductions(backend: str, op: str) -> None:
    ranks = Ranks(backend, 2)
    x = [np.array([1.0, 4.0]), np.array([3.0, 2.0])]
    y = [np.empty(2) for _ in x]
    functions: dict[str, Any] = {
        "avg": np.mean,
        "sum": np.sum,
        "prod": np.prod,
        "min": np.min,
        "max": np.max,
    }
    function = functions[op]
    for number, scale in enumerate((None, 0.5) if op == "sum" else (None,)):

        def step(rank: int, scale: float | None = scale, number: int = number) -> Collect:
            context = ranks.contexts[rank]
            ends = context.address(x[rank]), context.address(y[rank])
            return Collect(
                7,
                (
                    CollectiveStep(
                        "all_reduce",
                        "float64",
                        2,
                        *ends,
                        reduction=op,  # type: ignore[arg-type]
                        scale=scale,
                        longest=2,
                        at=1 + 2 * number,
                    ),
                ),
            )

        assert ranks.together(step) == []
        for got in y:
            np.testing.assert_array_equal(got, function(x, axis=0) * (scale or 1))


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ops=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), min_size=2, max_size=12))
def test_ranks_may_be_several_collectives_ahead(backend: str, ops: list[tuple[int, int]]) -> None:
    """Each rank goes through ops as it comes to them, and what others have not read yet stays."""
    library: Any = _cuda._library()
    library.forget()
    ranks = Ranks(backend, 3)
    library.connected = True
    wanted: list[list[float]] = []
    results = [np.zeros((len(ops), 1)) for _ in range(3)]
    messages: list[list[Collect]] = [[], [], []]
    for number, (root, kind) in enumerate(ops):
        x = [np.array([10.0 * number + rank]) for rank in range(3)]
        reduces = kind == 0
        wanted.append([sum(float(part[0]) for part in x) if reduces else float(x[root][0])])
        for rank, context in enumerate(ranks.contexts):
            gives = reduces or rank == root
            step = CollectiveStep(
                "all_reduce" if reduces else "broadcast",
                "float64",
                1,
                context.address(x[rank]) if gives else 0,
                context.address(results[rank][number]),
                root=root,
                longest=1,
                at=1 + 2 * number,
            )
            messages[rank].append(Collect(7, (step,)))
    errors = ranks.together(messages.__getitem__)
    assert errors == []
    assert [each.tolist() for each in results] == [wanted] * 3


def test_rank_that_only_gives_is_done_before_others_come() -> None:
    ranks = Ranks("cpu", 2)
    given = [np.array([number]) for number in (1.0, 2.0)]
    taken = [np.zeros(1), np.zeros(1)]

    def collect(rank: int, number: int) -> None:
        context = ranks.contexts[rank]
        source = context.address(given[number]) if rank == 0 else 0
        target = context.address(taken[number]) if rank == 1 else 0
        step = CollectiveStep(
            "send", "float64", 1, source, target, to=1, longest=1, at=1 + 2 * number
        )
        ranks.lanes[rank].handlers[Collect](Collect(7, (step,)))

    first = threading.Thread(target=collect, args=(0, 0), daemon=True)
    first.start()
    first.join(10)
    assert not first.is_alive()
    second = threading.Thread(target=collect, args=(0, 1), daemon=True)
    second.start()
    while ranks.aborts[0].handlers[AskBegun](AskBegun(7)) < 3:
        """Poll until the rank is about to write its slot again."""
    collect(1, 0)
    collect(1, 1)
    second.join(10)
    assert not second.is_alive()
    assert [part.tolist() for part in taken] == [[1.0], [2.0]]


def test_status_is_polled_without_naps_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    library: Any = FakeNccl()
    naps: list[float] = []
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) * 100e-6, sleep=naps.append)
    monkeypatch.setattr(_cuda, "time", clock)
    meeting = _cuda._MeetingEnd(library)
    statuses = iter([IN_PROGRESS] * 4 + [0] + [IN_PROGRESS] * 8 + [0])
    monkeypatch.setattr(meeting, "_poll", lambda: next(statuses))
    meeting.settle("ncclCommSplit")
    assert naps == []
    meeting.settle("ncclCommSplit")
    assert naps == [20e-6, 40e-6, 80e-6, 160e-6]


def test_wait_for_a_missing_rank_is_released(backend: str) -> None:
    ranks = Ranks(backend, 2)
    x = np.ones(1)
    address = ranks.contexts[0].address(x)
    step = CollectiveStep("all_reduce", "float64", 1, address, address, longest=1, at=1)
    errors: list[LibraryError] = []

    def wait() -> None:
        with pytest.raises(LibraryError, match=r"aborted|ncclRemoteError") as caught:
            ranks.lanes[0].handlers[Collect](Collect(7, (step,)))
        errors.append(caught.value)

    with ExitStack() as stack:
        thread = threading.Thread(target=wait)
        thread.start()
        stack.callback(thread.join, 10)
        ask = ranks.aborts[0].handlers[AskBegun]
        while ask(AskBegun(7)) == 1:
            """Poll until the rank is about to wait."""
        assert ranks.aborts[1].handlers[AskBegun](AskBegun(7)) == 1  # it has joined
        ranks.aborts[0].handlers[AbortCommunicator](AbortCommunicator(7))
    assert [error.status_name for error in errors] == ["ncclRemoteError"]
    with pytest.raises(LibraryError, match="aborted"):
        ranks.lanes[0].handlers[Collect](Collect(7, (step,)))
    assert ask(AskBegun(7)) == 0


def test_rank_released_before_joining_does_not_join(backend: str) -> None:
    ranks = Ranks(backend, 2)
    lane, aborts = ranks.lanes[0], ranks.aborts[0]
    aborts.handlers[AbortCommunicator](AbortCommunicator(8))
    with pytest.raises(LibraryError, match="aborted"):  # and does not wait for the other
        lane.handlers[Join](Join(8, 0, 2, bytes([2]) * 128, 0))
    assert aborts.handlers[AskBegun](AskBegun(8)) == 0
    aborts.handlers[AbortCommunicator](AbortCommunicator(7))
    lane.close()


@pytest.mark.parametrize("dtype", sorted(HALVES, key=str), ids=str)
def test_narrow_floats_are_added_up_in_float32(dtype: Any) -> None:
    parts = [np.full(1, number, dtype) for number in (4, *[0.5] * 4)]
    total = _cpu._reduced(
        parts, CollectiveStep("all_reduce", str(parts[0].dtype), 1, 0, 0, reduction="sum")
    )
    assert total == np.asarray(6, dtype)  # added up in fp4 or fp8 it stays below
