"""Launches of this package's kernels."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

from atomr_accel.executors.cuda_kernels import KernelArguments, Kernels
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
