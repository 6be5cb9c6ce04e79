"""NVTX ranges: hosts open and close them, if they are asked to."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from atomr_accel import LibraryMissing
from atomr_accel.telemetry import mark_ranges
from tests.harness import opened


class Domain:
    """Stands in for nvtx's domain, and notes its calls."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        return message

    def push_range(self, name: str) -> None:
        self.open.append(name)
        self.seen.append(name)

    def pop_range(self) -> None:
        self.open.pop()


async def test_launches_are_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    domain = Domain()
    module: Any = ModuleType("nvtx")
    module.get_domain = {"atomr_accel": domain}.__getitem__
    monkeypatch.setitem(sys.modules, "nvtx", module)
    async with opened(backend="cpu", isolation="thread") as device:
        a = await device.put(np.ones((4, 4), np.float32))
        await device.blas.gemm(a, a)
        assert domain.seen == []
        with mark_ranges(device):
            for _ in range(4):  # the last by a template
                await device.blas.gemm(a, a)
        await device.blas.gemm(a, a)
    assert domain.open == []
    assert domain.seen.count("Gemm") == 4


async def test_the_package_itself() -> None:
    pytest.importorskip("nvtx")
    async with opened(backend="cpu", isolation="thread") as device:
        a = await device.put(np.eye(4, dtype=np.float32))
        with mark_ranges(device):
            products = [await device.blas.gemm(a, a) for _ in range(4)]  # the last by a template
        assert all([(await device.get(each) == np.eye(4)).all() for each in products])


async def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)
    async with opened(backend="cpu") as device:
        with pytest.raises(LibraryMissing, match="nvtx is not installed"), mark_ranges(device):
            pass
