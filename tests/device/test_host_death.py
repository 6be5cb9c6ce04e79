"""Hosts that die at awkward moments."""

from __future__ import annotations

import numpy as np
import trio

from atomr_accel import ContextPoisoned, GpuRefStale, open_device
from atomr_accel.testing import kill_host


async def test_a_host_that_dies_while_lanes_open_is_replaced() -> None:
    """The first op of a library opens its lane by a request to a host that is gone."""
    answers: list[str] = []

    with trio.fail_after(30):
        async with open_device(0, backend="cpu") as device:
            a = await device.put(np.ones((8, 8)))

            async def client() -> None:
                try:
                    await device.blas.gemm(a, a)
                except (ContextPoisoned, GpuRefStale) as error:
                    answers.append(type(error).__name__)
                else:
                    answers.append("done")

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(client)
                nursery.start_soon(kill_host, device)
            assert len(answers) == 20
            assert device.generation == 2
            b = await device.put(np.eye(8))
            product = await device.get(await device.blas.gemm(b, b))
            np.testing.assert_array_equal(product, np.eye(8))
