"""Fixtures of tests of the array lane's kernels; ``kernels`` is the module's own."""

from __future__ import annotations

from typing import Any

import pytest

from atomr_accel.libraries.array.host import _cuda_indexing
from atomr_accel.libraries.array.host._cpu_indexing import CpuIndexing
from atomr_accel.libraries.array.host._cuda_indexing import CudaIndexing

from ..host_kernels import HostKernels
from .pretend import Context, Driver, Stream


@pytest.fixture
def cuda(kernels: dict[Any, HostKernels], monkeypatch: pytest.MonkeyPatch) -> CudaIndexing:
    """The executor for CUDA, with kernels that run here."""
    context: Any = Context()
    stream: Any = Stream()
    monkeypatch.setattr(
        _cuda_indexing, "Kernels", lambda _context, _stream, source: kernels[source]
    )
    monkeypatch.setattr(_cuda_indexing, "driver", Driver())
    monkeypatch.setattr(_cuda_indexing, "check", lambda _name, result: result)
    return CudaIndexing(context, stream, lambda _message: None)


@pytest.fixture
def cpu() -> CpuIndexing:
    context: Any = Context()
    return CpuIndexing(context, lambda _message: None)
