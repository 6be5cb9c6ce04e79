"""Sizes and seeds that cuDNN's routines cannot count are refused before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device, Unsupported
from atomr_accel.arrays import GpuRef
from atomr_accel.backends import cuda
from atomr_accel.device.core import DeviceCore

from ....harness import on_shared


@pytest.fixture
def on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make facades believe that they are on CUDA; their messages go nowhere."""
    monkeypatch.setattr(DeviceCore, "capabilities", cuda.BACKEND.capabilities)
    monkeypatch.setattr(DeviceCore, "open_lane", None)
    monkeypatch.setattr(DeviceCore, "try_empty", None)


@pytest.mark.usefixtures("on_cuda")
@on_shared
async def test_sizes_that_cudnn_cannot_count_are_refused_before_anything_is_sent(
    device: Device,
) -> None:
    buffer = device.core.memory.promise()

    def ref(*shape: int) -> GpuRef:
        kind = np.dtype(np.float16)
        return GpuRef(buffer, shape, kind, 2 * int(np.prod(shape, dtype=object)))

    dnn, big, half = device.dnn, 2**31, 2**16
    image = ref(1, half, half)
    calls: list[Callable[[], Any]] = [
        lambda: dnn.softmax(ref(big)),
        lambda: dnn.softmax(ref(big, 1)),
        lambda: dnn.softmax(ref(1, half, half), axis=1),
        lambda: dnn.log_softmax(ref(1, big), axis=0),
        lambda: dnn.softmax_grad(ref(big), ref(big)),
        lambda: dnn.max_pool(ref(1, 1, big), 2),
        lambda: dnn.max_pool(ref(2, 1, half, half), 2),
        lambda: dnn.max_pool(ref(1, 1, 8), 2, stride=big),
        lambda: dnn.avg_pool(ref(big, 1, 4), 2),
        lambda: dnn.avg_pool_grad(ref(1, 1, big // 2), (1, 1, big), 2),
        lambda: dnn.local_response_norm(ref(1, half, half), 3),
        lambda: dnn.local_response_norm_grad(image, image, image, 3),
        lambda: dnn.rnn("lstm", big, 4, dtype=np.float16).pack([]),
        lambda: dnn.rnn("gru", 4, big, dtype=np.float16).pack([]),
        lambda: dnn.rnn("gru", 4, 4, num_layers=big, dtype=np.float16).pack([]),
        lambda: dnn.rnn("gru", 4, big // 2, bidirectional=True, dtype=np.float16).pack([]),
        lambda: dnn.rnn("relu", 1, 4, dtype=np.float16).forward(ref(big, 1, 1), ref(4)),
        lambda: dnn.rnn("relu", 1, half, dtype=np.float16).forward(ref(1, half, 1), ref(4)),
    ]
    for call in calls:
        with pytest.raises(Unsupported, match="counts elements and strides with 32 bits"):
            await call()


@on_shared
async def test_seeds_of_networks_are_checked(device: Device) -> None:
    network = device.dnn.rnn("relu", 2, 2)
    x = await device.zeros((1, 1, 2), np.float32)
    wrong: tuple[tuple[object, type[Exception]], ...] = (
        (-1, ValueError),
        (2**63, ValueError),
        (0.5, TypeError),
    )
    for seed, kind in wrong:
        with pytest.raises(kind, match="seed must be a whole number from 0"):
            await network.forward(x, x, seed=seed)  # type: ignore[arg-type]
