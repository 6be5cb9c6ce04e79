"""Sources that no compiler has seen."""

from __future__ import annotations

import logging
from importlib.resources import files

import numpy as np
import pytest

import atomr_accel.testing
from atomr_accel import LibraryMissing
from atomr_accel._install import cuda_command
from atomr_accel.libraries.nvrtc import _facade
from atomr_accel.libraries.nvrtc.host import _cpu
from atomr_accel.testing import FAULTS

from ...harness import cpu_only, opened

SOURCE = 'extern "C" __global__ void nonsense(float *x) { this is no CUDA }'


FOLDER = files(atomr_accel.testing) / "kernels"


def twin(grid: object, block: object, x: np.ndarray) -> None:
    x[:] = 1


@cpu_only
async def test_unchecked_source_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> None:
        raise LibraryMissing("no NVRTC", library="nvrtc")

    monkeypatch.setattr(_cpu, "find_module", missing)
    _facade._warn_unchecked.cache_clear()
    with caplog.at_level(logging.WARNING, "atomr_accel.nvrtc"):
        async with opened(isolation="thread") as device:
            for fault in FAULTS:
                await device.nvrtc.compile((FOLDER / f"{fault}.cu").read_text(), "fault", cpu=twin)
            assert not caplog.records  # the program cannot fix these sources
            for _ in range(2):
                kernel = await device.nvrtc.compile(SOURCE, "nonsense", cpu=twin)
                assert "nothing was compiled or checked" in kernel.log
    (record,) = caplog.records
    assert record.getMessage() == (
        "CUDA sources are not checked on the CPU backend, since NVRTC is not installed: "
        f"{cuda_command('compile')}"
    )
