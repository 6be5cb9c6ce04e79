"""The few kernels besides those of cuBLAS and cuBLASLt, compiled by NVRTC."""

from __future__ import annotations

import pytest

from atomr_accel.executors.compiler import compile_cubin

from ...harness import needs_nvrtc
from ..compiling import check_compiles


@needs_nvrtc
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_the_kernels_compile(capability: tuple[int, int]) -> None:
    from atomr_accel.libraries.blas.host.cuda_handle import _KERNELS as BLAS
    from atomr_accel.libraries.blaslt.host._cuda import _KERNELS as BLASLT

    for source, names in (BLAS, ("shift<int>", "shift<long long>")), (BLASLT, ("pack", "tile")):
        check_compiles(source.text, *names, capability=capability, warned=True)


@needs_nvrtc
def test_compiling_writes_to_no_object_of_python() -> None:
    """An empty log is one byte; ``b" " * 1`` is the one that every program uses."""
    image, _, log = compile_cubin('extern "C" __global__ void f() {}', "f", (), (9, 0))
    assert type(image) is bytes
    assert log == ""
    assert [bytes([value])[0] for value in range(256)] == list(range(256))
