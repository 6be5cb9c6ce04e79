"""Stands in for cupti-python: each range of external correlation launches one kernel.

Records have the fields that cupti-python's documentation gives them.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

AHEAD = 5_000_000_000
"""Nanoseconds by which its clock is ahead of ``time.monotonic_ns``."""


class ActivityKind(IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    MEMCPY2 = 22
    EXTERNAL_CORRELATION = 39


class ExternalCorrelationKind(IntEnum):
    CUSTOM0 = 3
    CUSTOM1 = 4
    CUSTOM2 = 5


class CallbackDomain(IntEnum):
    DRIVER_API = 1
    RUNTIME_API = 2


class ActivityMemcpyKind(IntEnum):
    HTOD = 1
    DTOH = 2


class CuptiError(Exception):
    def __init__(self, status: int, name: str) -> None:
        super().__init__(f"{name} ({status})")
        self.status = status


class Cupti(ModuleType):
    """The module ``cupti.cupti``.

    Attributes:
        held: whether another tool has subscribed.
        absent: whether the library itself cannot be loaded.
        refused: functions that refuse.
        enabled: kinds of records that are collected.
        subscribers: how many there are.
        waiting: records of the buffer that is not full.
    """

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.ActivityKind = ActivityKind
        self.ExternalCorrelationKind = ExternalCorrelationKind
        self.CallbackDomain = CallbackDomain
        self.ActivityMemcpyKind = ActivityMemcpyKind
        self.cuptiError = CuptiError
        self.held = False
        self.absent = False
        self.refused: set[str] = set()
        self.enabled: set[ActivityKind] = set()
        self.subscribers = 0
        self.waiting: list[Any] = []
        self._ranges: dict[int, list[int]] = defaultdict(list)
        self._calls = 0
        self._completed: Callable[[list[Any]], None] | None = None

    def _ask(self, name: str) -> None:
        if name in self.refused:
            raise CuptiError(999, "ERROR_UNKNOWN")

    def subscribe(self, callback: Callable[..., None], userdata: object) -> int:
        assert callable(callback)
        assert userdata is None
        self._ask("subscribe")
        if self.absent:
            raise RuntimeError("Failed to dlopen libcupti.so")
        if self.held or self.subscribers:
            raise CuptiError(39, "ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.subscribers += 1
        return 1

    def unsubscribe(self, subscriber: int) -> None:
        assert subscriber == 1
        self.subscribers -= 1

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[list[Any]], None]
    ) -> None:
        size, most = requested()
        assert size > 0
        assert most == 0
        self._completed = completed

    def activity_enable(self, kind: ActivityKind) -> None:
        self._ask("activity_enable")
        self.enabled.add(kind)

    def activity_disable(self, kind: ActivityKind) -> None:
        self.enabled.remove(kind)

    def activity_flush_all(self, flag: int) -> None:
        self._ask("activity_flush_all")
        assert flag in (0, 1)
        waiting, self.waiting = self.waiting, []
        assert self._completed is not None
        self._completed(waiting)

    def get_timestamp(self) -> int:
        return time.monotonic_ns() + AHEAD

    def get_callback_name(self, domain: CallbackDomain, cbid: int) -> str:
        return f"{domain.name}:{cbid}"

    def activity_push_external_correlation_id(self, kind: int, number: int) -> None:
        self._ranges[kind].append(number)

    def activity_pop_external_correlation_id(self, kind: int) -> int:
        number = self._ranges[kind].pop()
        self.launch(ActivityKind.CONCURRENT_KERNEL, number, name="a kernel")
        return number

    @property
    def open_ranges(self) -> int:
        return sum(map(len, self._ranges.values()))

    def launch(self, kind: ActivityKind, op: int | None = None, **fields: Any) -> Any:
        """Record a call of the driver, its launch, and perhaps its op."""
        self._calls += 1
        now = self.get_timestamp()
        record = SimpleNamespace(
            kind=int(kind), correlation_id=self._calls, stream_id=7, start=now, end=now + 100
        )
        vars(record).update(fields)
        call = SimpleNamespace(
            kind=int(ActivityKind.DRIVER),
            correlation_id=self._calls,
            start=now - 50,
            end=now - 10,
            cbid=307,
            thread_id=11,
        )
        told = SimpleNamespace(
            kind=int(ActivityKind.EXTERNAL_CORRELATION),
            correlation_id=self._calls,
            external_kind=int(ExternalCorrelationKind.CUSTOM2),
            external_id=op,
        )
        made = [call, record] if op is None else [told, call, record]
        self.waiting += [each for each in made if each.kind in self.enabled]
        return record


def install(patch: pytest.MonkeyPatch) -> Cupti:
    """Have hosts of this process import the stand-in."""
    package: Any = ModuleType("cupti")
    package.cupti = Cupti()
    patch.setitem(sys.modules, "cupti", package)
    patch.setitem(sys.modules, "cupti.cupti", package.cupti)
    forget(patch)
    made: Cupti = package.cupti
    return made


def forget(patch: pytest.MonkeyPatch) -> None:
    """Have hosts import their module again."""
    for name in [*_importers()]:
        patch.delitem(sys.modules, name)


def _importers() -> Iterator[str]:
    return (name for name in sys.modules if name.startswith("atomr_accel.libraries.activity.host"))
