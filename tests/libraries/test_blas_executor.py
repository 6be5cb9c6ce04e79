"""The CUDA executor on a cuBLAS of NumPy: the same rows, the vendor's conventions."""

from __future__ import annotations

from typing import Any

import pytest

from atomr_accel.libraries.blas import LANE

from .blas_rows import OPERATIONS
from .conformance import conform, on_cuda
from .fake_cublas import FakeCudaBlas, FakeKernels, FakeLibrary, fake_driver

pytest.importorskip("cuda.bindings.driver")

pytestmark = pytest.mark.skipif(on_cuda(), reason="the real one is there")


@pytest.fixture(autouse=True)
def _on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    from atomr_accel.libraries import _cuda_kernels
    from atomr_accel.libraries.blas import _cuda, _cuda_handle, _fused

    def check(_call: str, answer: tuple[Any, ...]) -> Any:
        assert answer[0] == 0
        return answer[1] if len(answer) > 1 else None

    library, driver = FakeLibrary(), fake_driver()
    for module in (_cuda_handle, _fused):
        monkeypatch.setattr(module, "driver", driver)
        monkeypatch.setattr(module, "check", check)
    for module in (_cuda_handle, _cuda):
        monkeypatch.setattr(module, "load_cublas", lambda: library)
    monkeypatch.setattr(_cuda_kernels, "Kernels", FakeKernels)
    assert isinstance(LANE.executors, dict)
    monkeypatch.setitem(LANE.executors, "cpu", f"{FakeCudaBlas.__module__}:FakeCudaBlas")


test_conforms = conform(OPERATIONS, take=3, of="the executor of blas")
