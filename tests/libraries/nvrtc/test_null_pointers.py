"""Null pointers of kernels, which are None to Python functions."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

from atomr_accel import Device

from ...harness import needs_nvrtc, on_shared

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the host cannot import tests

SOURCE = """
    extern "C" __global__ void add(float* x, const float* mask, int n) {
      for (int i = 0; i < n; ++i) x[i] += mask ? mask[i] : 1;
    }
"""


def add(x: Any, mask: Any, n: Any) -> None:
    x[:n] += 1 if mask is None else mask[:n]


@pytest.mark.filterwarnings("ignore:CUDA sources are not checked")
@on_shared
async def test_a_pointer_may_be_null(device: Device) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "add", cpu=add)
    x, mask = [await device.put(np.full(3, each, np.float32)) for each in (1, 5)]
    for given, wanted in ((None, 2), (mask, 7), (None, 8)):
        await kernel.launch(1, 1, x, given, 3)
        assert (await device.get(x)).tolist() == [wanted] * 3
    async with device.record() as recording:
        recording.launch(kernel, 1, 1, x, None, 3)
    for wanted in (9, 10):
        await recording.replay()
        assert (await device.get(x)).tolist() == [wanted] * 3


@needs_nvrtc
@on_shared
async def test_numbers_are_not_null(device: Device) -> None:
    kernel = await device.nvrtc.compile(SOURCE, "add", cpu=add)
    x = await device.put(np.ones(3, np.float32))
    with pytest.raises(TypeError, match="argument 2 must be a scalar"):
        await kernel.launch(1, 1, x, None, None)
    with pytest.raises(TypeError, match="argument 1"):
        await kernel.launch(1, 1, x, 0, 3)
