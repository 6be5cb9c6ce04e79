"""Digests: what the CPU computes, and the kernel, are the same numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_digest

from atomr_accel.libraries.digests.host import _cuda
from atomr_accel.libraries.digests.host._cuda import KERNEL, SOURCE, CudaDigests
from atomr_accel.libraries.digests.wire.digest import digests_of
from atomr_accel.libraries.digests.wire.messages import LEAF_BYTES, Digest
from atomr_accel.wire import CHUNK_BYTES

from ...harness import needs_nvrtc
from ...seeds import rng
from ..host_kernels import Launch, compile_bodies, needs_compiler, on_host

sizes = st.one_of(
    st.integers(0, 100),
    st.integers(0, 3 * CHUNK_BYTES),
    st.sampled_from([LEAF_BYTES, CHUNK_BYTES, 2 * CHUNK_BYTES]),
)


@given(size=sizes)
def test_a_digest_is_of_the_digests_of_leaves(size: int) -> None:
    data = rng().bytes(size)
    expected = []
    for at in range(0, size, CHUNK_BYTES):
        chunk = data[at : at + CHUNK_BYTES]
        leaves = [
            xxh64_digest(chunk[leaf : leaf + LEAF_BYTES])[::-1]
            for leaf in range(0, len(chunk), LEAF_BYTES)
        ]
        expected.append(xxh64_digest(b"".join(leaves))[::-1])
    assert digests_of(memoryview(data)) == b"".join(expected)


def test_digests_of_known_data_do_not_change() -> None:
    """Digests that were written down outlive versions of this package."""
    data = bytes(range(256)) * 300
    assert digests_of(memoryview(data)).hex() == "4e2862e48b4684bbaf48da664dbe684a"


class FakeDriver:
    """Page-locked memory of this process."""

    def __init__(self) -> None:
        self.cells: dict[int, Any] = {}

    def cuMemAllocHost(self, nbytes: int) -> int:  # noqa: N802
        cell = ctypes.create_string_buffer(nbytes)
        self.cells[ctypes.addressof(cell)] = cell
        return ctypes.addressof(cell)

    def cuMemFreeHost(self, pointer: int) -> None:  # noqa: N802
        del self.cells[pointer]


class FakeKernels:
    """Launches the kernel on the host."""

    launch: Launch

    def __init__(self, *_: object) -> None:
        pass

    def function(self, name: str) -> str:
        assert name == KERNEL
        return name

    def prepare_blocks(
        self, _function: str, blocks: int, threads: int, shared: int, arguments: Any
    ) -> Any:
        assert shared == 0
        return lambda: type(self).launch(bytes(arguments.pointers), (blocks, 1), threads)

    def close(self) -> None:
        """Nothing is held."""


class FakeContext:
    """Addresses that are pointers."""

    def pointer(self, address: int) -> int:
        return address


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    body = (
        "struct Arguments { const unsigned char* data; u64* answer; u64 size; };\n"
        f"static void run(Arguments a) {{ {KERNEL}(a.data, a.answer, a.size); }}"
    )
    return compile_bodies(on_host(SOURCE), [body], "run", tmp_path_factory.mktemp("digests"))[0]


@needs_compiler
@pytest.mark.slow
@given(several=st.lists(sizes, max_size=3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernel_computes_what_the_cpu_does(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, several: list[int]
) -> None:
    driver = FakeDriver()
    FakeKernels.launch = staticmethod(launch)
    monkeypatch.setattr(_cuda, "driver", driver)
    monkeypatch.setattr(_cuda, "check", lambda _call, result: result)
    monkeypatch.setattr(_cuda, "Kernels", FakeKernels)
    context: Any = FakeContext()
    digests = CudaDigests(context, context)
    data = [np.frombuffer(rng().bytes(size), np.uint8) for size in several]
    aligned = [np.zeros(len(each) // 8 + 1, np.int64).view(np.uint8) for each in data]
    for whole, each in zip(aligned, data, strict=True):
        whole[: len(each)] = each
    ranges = tuple((each.ctypes.data, size) for each, size in zip(aligned, several, strict=True))
    for _ in range(2):  # the second time in the same memory
        later = digests.handlers[Digest](Digest(ranges))
        assert later.read() == b"".join(digests_of(each.data) for each in data)
    assert len(driver.cells) == 1
    digests.close()
    assert not driver.cells


@needs_nvrtc
def test_the_kernel_compiles() -> None:
    from atomr_accel.executors.compiler import compile_cubin

    image, lowered, log, *_ = compile_cubin(SOURCE.text, KERNEL, (), (9, 0))
    assert (image[:4], lowered, log) == (b"\x7fELF", KERNEL, "")
