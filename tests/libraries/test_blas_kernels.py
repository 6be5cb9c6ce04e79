"""The few kernels beside cuBLAS and cuBLASLt: NVRTC takes them."""

from __future__ import annotations

import pytest

from atomr_accel.libraries.nvrtc._compiler import compile_cubin

pytest.importorskip("cuda.bindings.driver")


@pytest.mark.headers
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_the_kernels_compile(capability: tuple[int, int]) -> None:
    from atomr_accel.libraries.blas._cuda_handle import _KERNELS as BLAS
    from atomr_accel.libraries.blaslt._cuda import _KERNELS as BLASLT

    for source, name in (
        (BLAS, "shift<int>"),
        (BLAS, "shift<long long>"),
        (BLASLT, "pack"),
        (BLASLT, "tile"),
    ):
        image, lowered, _ = compile_cubin(source, name, (), capability)
        assert image
        assert lowered
