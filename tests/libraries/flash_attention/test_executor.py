"""The executor for CUDA, with stand-ins for what launches: which kernels get which pointers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from atomr_accel.libraries.dnn.wire.sequence_messages import Append
from atomr_accel.libraries.flash_attention.host import _cuda
from atomr_accel.libraries.flash_attention.host._problem import POINTERS
from atomr_accel.libraries.flash_attention.wire._messages import (
    PLACES,
    AttentionForm,
    Flash,
    scratch_of,
)

BASE = 1 << 40
"""Start of the buffers' addresses on the device."""


class Launched:
    """A stand-in for the kernels of all sources.

    Attributes:
        runs: name, and pointers by name, of each launch.
        compiled: names, in their order.
    """

    def __init__(self) -> None:
        self.runs: list[tuple[str, dict[str, int]]] = []
        self.compiled: list[str] = []
        self.closed = 0

    def __call__(self, _context: Any, _stream: Any, _source: Any) -> Any:
        return self

    def function(self, name: str, _shared: int) -> str:
        self.compiled.append(name)
        return name

    def prepare_blocks(
        self, name: str, blocks: int, threads: int, shared: int, arguments: Any
    ) -> Any:
        assert blocks
        assert threads % 32 == 0
        assert shared <= 227 << 10

        def launch() -> None:
            pointers = zip(POINTERS, arguments.pointers, strict=False)
            self.runs.append((name.partition("<")[0], {at: to for at, to in pointers if to}))

        return launch

    def close(self) -> None:
        self.closed += 1


class Appending:
    """A stand-in for the kernels around caches."""

    def __init__(self, *_: Any) -> None:
        self.appended: list[Append] = []

    def append(self, message: Append) -> None:
        self.appended.append(message)

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    made = Launched()
    monkeypatch.setattr(_cuda, "Kernels", made)
    monkeypatch.setattr(_cuda, "CudaSequences", Appending)
    return made


def executor(capability: tuple[int, int] = (9, 1)) -> Any:
    info = SimpleNamespace(
        shared_memory_per_block=227 << 10, compute_capability=capability, multiprocessors=132
    )
    context: Any = SimpleNamespace(info=info, pointer=lambda address: address + BASE)
    stream: Any = None
    return _cuda.CudaFlashAttention(context, stream)


def form(kind: str, **more: Any) -> AttentionForm:
    sizes = {"batch": 2, "heads": 4, "kv_heads": 2, "size": 64, "value_size": 64}
    given: dict[str, Any] = {**sizes, "queries": 3, "keys": 300, "rows_q": 0, "rows_k": 0, **more}
    steps = ((1, 1, 1),) * 6
    return AttentionForm(kind, "float16", "float16", "float16", steps=steps, **given)


def message(
    form: AttentionForm, *names: str, first: int = 100, append: Append | None = None
) -> Flash:
    addresses = {name: first + at for at, name in enumerate(names)}
    return Flash(form, tuple([addresses.get(name, 0) for name in PLACES]), append)


def test_calls_that_are_alike_are_prepared_once(launched: Launched) -> None:
    flash = executor()
    run = flash.handlers[Flash]
    for first in (100, 200):
        run(message(form("forward"), "q", "k", "v", "o", first=first))
    assert launched.compiled == ["forward<h16, 64, 64, 4, 2, 64, 0>"]
    for (_, pointers), first in zip(launched.runs, (100, 200), strict=True):
        assert pointers == {name: BASE + first + at for at, name in enumerate("qkvo")}
    run(message(form("forward"), "q", "k", "v", "o", "slopes"))
    assert launched.compiled[1:] == ["forward<h16, 64, 64, 4, 2, 64, 2>"]
    flash.close()
    assert launched.closed


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "forward_groups"),
        ({"size": 128, "value_size": 40, "softcap": 2.0}, "forward_groups"),
        ({"size": 32, "value_size": 32}, "forward"),
        ({"value_size": 136}, "forward"),
        ({"bias": (1, 1, 1, 300)}, "forward"),
        ({"scale": -0.1}, "forward"),
        ({"dropout": 0.1}, "forward"),
        ({"dropout": 0.1, "size": 128}, "forward_groups"),
    ],
    ids=str,
)
def test_warpgroups_where_there_are_any(
    launched: Launched, more: dict[str, Any], name: str
) -> None:
    executor((9, 0)).handlers[Flash](message(form("forward", **more), "q", "k", "v", "o"))
    assert [each for each, _ in launched.runs] == [name]


def test_parts_are_in_scratch_memory(launched: Launched) -> None:
    of = form("decode", splits=3, queries=1)
    executor().handlers[Flash](message(of, "q", "k", "v", "o", "lse", "scratch"))
    assert [name for name, _ in launched.runs] == ["decode", "combine"]
    for _, pointers in launched.runs:
        assert pointers["part_lse"] == BASE + 105
        assert pointers["part_o"] - pointers["part_lse"] == 4 * 3 * 2 * 4
    assert scratch_of(of) == 4 * 3 * 2 * 4 * (1 + 64)


def test_the_backward_pass_in_its_order(launched: Launched) -> None:
    names = ("q", "k", "v", "o", "lse", "grad", "dq", "dk", "dv")
    of = form("backward")
    executor().handlers[Flash](message(of, *names, "sink", "dsink", "scratch"))
    assert [name for name, _ in launched.runs] == ["deltas", "by_keys", "by_queries", "by_sink"]
    assert {pointers["delta"] for _, pointers in launched.runs} == {BASE + 111}
    assert scratch_of(of) == 4 * 2 * 4 * 3
    launched.runs.clear()
    wide = form("backward", size=192, bias=(1, 4, 3, 300))
    executor().handlers[Flash](message(wide, *names, "bias", "dbias", "scratch"))
    expected = ["deltas", "by_keys", "by_keys", "by_queries", "by_bias"]
    assert [name for name, _ in launched.runs] == expected


def test_new_keys_come_before(launched: Launched) -> None:
    flash = executor()
    append = Append(*range(1, 14))
    flash.handlers[Flash](message(form("decode"), "q", "k", "v", "o", append=append))
    assert flash._sequences.appended == [append]
