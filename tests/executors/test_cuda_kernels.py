"""Launches of this package's kernels."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_accel.executors import cuda_kernels
from atomr_accel.executors.cuda_kernels import KernelArguments, Kernels
from atomr_accel.executors.device_code import CudaSource
from atomr_accel.testing.garbage import collect_garbage

from ..fakes.driver import FakeDriver


def test_launch_keeps_its_arguments(driver: FakeDriver) -> None:
    kernels: Any = object.__new__(Kernels)
    kernels._stream = SimpleNamespace(handle=0)
    function: Any = SimpleNamespace(handle=0, most_blocks=1)
    arguments = KernelArguments(bytes(16))
    kept = weakref.ref(arguments)
    launch = kernels.prepare(function, 1, arguments)
    del arguments
    collect_garbage()
    assert kept() is not None
    del launch
    collect_garbage()
    assert kept() is None


def test_options_of_a_source_reach_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def compiled(*given: object) -> Any:
        asked.append(given)
        raise NotImplementedError

    monkeypatch.setattr(cuda_kernels, "_compiled", compiled)
    kernels: Any = object.__new__(Kernels)
    kernels._functions, kernels._capability = {}, (9, 0)
    kernels._source = CudaSource(cuda_kernels.__package__, "types.cuh", "--one", "--other", SIZE=3)
    with pytest.raises(NotImplementedError):
        kernels.function("move")
    assert asked == [(kernels._source.text, "move", ("--one", "--other"), (9, 0))]
    assert kernels._source.text.startswith("#define SIZE 3\n")
