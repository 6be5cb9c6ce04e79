"""The executor of activity tracing, with a stand-in for CUPTI."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any, get_args

import pytest

from atomr_accel import LibraryError, LibraryMissing
from atomr_accel.libraries.activity.wire.messages import StartActivity, StopActivity, TakeActivity
from atomr_accel.wire.activity import ActivityKind
from tests.fakes import cupti
from tests.fakes.cupti import ActivityKind as Kind
from tests.fakes.cupti import Cupti

ALL: tuple[ActivityKind, ...] = get_args(ActivityKind)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Cupti:
    return cupti.install(monkeypatch)


@pytest.fixture
def host(fake: Cupti) -> Any:
    module = import_module("atomr_accel.libraries.activity.host.cupti_records")
    return module.CuptiRecords(None, None)


def ask(host: Any, message: Any) -> Any:
    return host.handlers[type(message)](message)


def test_records_have_their_op_their_bytes_and_the_time_of_the_program(
    fake: Cupti, host: Any
) -> None:
    ask(host, StartActivity(ALL))
    before = time.monotonic_ns()
    fake.launch(Kind.CONCURRENT_KERNEL, 5, name="_Z3addv")
    fake.launch(Kind.MEMCPY, 6, copy_kind=1, bytes=64)
    fake.launch(Kind.MEMCPY2, 6, copy_kind=2, bytes=32)
    fake.launch(Kind.MEMSET, 7, bytes=16)
    page = ask(host, TakeActivity())
    after = time.monotonic_ns()
    shown = [(each.kind, each.name, each.op, each.stream, each.nbytes) for each in page.records]
    call = "calls", "DRIVER_API:307"
    assert shown == [
        (*call, 5, 11, 0),
        ("kernels", "_Z3addv", 5, 7, 0),
        (*call, 6, 11, 0),
        ("copies", "copy HTOD", 6, 7, 64),
        (*call, 6, 11, 0),
        ("copies", "copy DTOH", 6, 7, 32),
        (*call, 7, 11, 0),
        ("fills", "fill", 7, 7, 16),
    ]
    assert all(before - 10_000_000 < each.start < after + 10_000_000 for each in page.records)
    assert (page.more, page.lost) == (False, 0)


def test_only_wanted_kinds_are_told(fake: Cupti, host: Any) -> None:
    ask(host, StartActivity(("fills",)))
    assert Kind.CONCURRENT_KERNEL not in fake.enabled
    fake.launch(Kind.MEMSET, 7, bytes=16)
    fake.launch(Kind.MEMCPY, 7, copy_kind=1, bytes=16)
    assert [each.kind for each in ask(host, TakeActivity()).records] == ["fills"]


def test_a_record_waits_once_for_its_op(fake: Cupti, host: Any) -> None:
    ask(host, StartActivity(("kernels",)))
    early = fake.launch(Kind.CONCURRENT_KERNEL, 5, name="early")
    fake.launch(Kind.CONCURRENT_KERNEL, name="of nobody")
    told, fake.waiting = fake.waiting[:1], fake.waiting[1:]
    assert ask(host, TakeActivity()).records == []
    fake.waiting = told
    page = ask(host, TakeActivity())
    assert [(each.name, each.op) for each in page.records] == [("early", 5), ("of nobody", 0)]
    assert page.records[0].end - page.records[0].start == early.end - early.start


def test_a_record_without_an_end_is_left_out(fake: Cupti, host: Any) -> None:
    ask(host, StartActivity(("kernels",)))
    fake.launch(Kind.CONCURRENT_KERNEL, 5, name="running", end=0)
    assert ask(host, TakeActivity()).records == []


def test_many_records_come_in_pages_and_too_many_are_counted(
    fake: Cupti, host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("atomr_accel.libraries.activity.host.cupti_records")
    monkeypatch.setattr(module, "_PAGE", 4)
    monkeypatch.setattr(module, "_MOST", 10)
    ask(host, StartActivity(("kernels",)))
    for op in range(1, 14):
        fake.launch(Kind.CONCURRENT_KERNEL, op, name="k")
    pages = [ask(host, TakeActivity()) for _ in range(3)]
    assert [len(page.records) for page in pages] == [4, 4, 2]
    assert [page.more for page in pages] == [True, True, False]
    assert [page.lost for page in pages] == [3, 0, 0]
    assert [each.op for page in pages for each in page.records] == [*range(4, 14)]


def test_stopping_gives_cupti_back_and_leaves_the_last_records(fake: Cupti, host: Any) -> None:
    for _ in range(2):
        ask(host, StartActivity(ALL))
        fake.launch(Kind.MEMSET, 7, bytes=16)
        ask(host, StopActivity())
        ask(host, StopActivity())
        assert (fake.enabled, fake.subscribers) == (set(), 0)
        assert [each.kind for each in ask(host, TakeActivity()).records] == ["calls", "fills"]


def test_cupti_is_held_by_one(fake: Cupti, host: Any) -> None:
    fake.held = True
    with pytest.raises(LibraryError, match="held by another tool") as caught:
        ask(host, StartActivity(ALL))
    assert (caught.value.library, caught.value.status) == ("cupti", 39)
    fake.held = False
    ask(host, StartActivity(ALL))
    with pytest.raises(LibraryError, match="another activity"):
        ask(host, StartActivity(ALL))
    host.close()
    assert fake.subscribers == 0


def test_cupti_itself_may_be_missing(fake: Cupti, host: Any) -> None:
    fake.absent = True
    with pytest.raises(LibraryMissing, match="dlopen libcupti"):
        ask(host, StartActivity(ALL))


def test_a_refusal_gives_cupti_back(fake: Cupti, host: Any) -> None:
    fake.refused = {"activity_enable"}
    with pytest.raises(LibraryError, match="CUPTI refused activity_enable"):
        ask(host, StartActivity(ALL))
    assert fake.subscribers == 0
    fake.refused = set()
    ask(host, StartActivity(ALL))
    fake.refused = {"activity_flush_all"}
    with pytest.raises(LibraryError, match="activity_flush_all"):
        ask(host, StopActivity())
    assert (fake.enabled, fake.subscribers) == (set(), 0)
