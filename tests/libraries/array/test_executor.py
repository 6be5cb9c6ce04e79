"""The CUDA executor, with its kernels compiled for the host."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel.libraries.array.host._source import SOURCE, THREADS
from atomr_accel.wire.copies import CopyStrided

from ... import seeds
from ...fakes.driver import FakeDriver
from ..host_kernels import HostKernels, compile_kernels, needs_compiler, on_host
from .layouts import bytes_of, laid_out, message_of, names

pytestmark = needs_compiler

BASE = 1 << 20
"""Difference between a pointer and its address."""


class Context:
    """Knows where addresses lead."""

    def pointer(self, address: int) -> int:
        return address + BASE

    def pointers(self, addresses: Iterable[int]) -> list[int]:
        return [self.pointer(address) for address in addresses]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    few = {name: members for name, members in names().items() if "2>" in name and "u64" not in name}
    return compile_kernels(on_host(SOURCE), few, tmp_path_factory.mktemp("array"), THREADS)


@pytest.mark.slow
def test_copies_go_to_where_addresses_lead(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, compiled: Any
) -> None:
    from atomr_accel.libraries.array.host import cuda as _cuda

    monkeypatch.setattr(_cuda, "Kernels", lambda *_: HostKernels(compiled))
    context: Any = Context()
    stream: Any = SimpleNamespace(handle=0)
    executor = _cuda.CudaArrayExecutor(context, stream)
    rng = np.random.default_rng(seeds.draw())
    for other in (executor, executor.on(stream)):
        for shape in ((1, 1), (40, 70), (3, 50)):
            source = laid_out(rng, shape, "u4", gaps=False)[:, ::-1]
            target = np.zeros(shape[::-1], "u4").T
            message = message_of(target, source)
            assert len(message.shape) <= 2
            there = CopyStrided(
                message.source - BASE,
                message.target - BASE,
                message.itemsize,
                message.shape,
                message.source_strides,
                message.target_strides,
            )
            other.handlers[CopyStrided](there)
            np.testing.assert_array_equal(bytes_of(target), bytes_of(source))
        other.close()
