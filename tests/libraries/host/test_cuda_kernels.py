"""Launches of this package's kernels."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from atomr_accel.libraries.host._cuda_kernels import Arguments, Kernels

if TYPE_CHECKING:
    from ...fakes.driver import FakeDriver


def test_what_makes_a_launch_keeps_its_arguments(driver: FakeDriver) -> None:
    kernels: Any = object.__new__(Kernels)
    kernels._stream = SimpleNamespace(handle=0)
    function: Any = SimpleNamespace(handle=0, most_blocks=1)
    arguments = Arguments(bytes(16))
    kept = weakref.ref(arguments)
    launch = kernels.prepare(function, 1, arguments)
    del arguments
    gc.collect()
    assert kept() is not None
    del launch
    gc.collect()
    assert kept() is None
