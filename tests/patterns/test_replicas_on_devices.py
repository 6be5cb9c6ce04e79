"""Replicas that own devices: faults and the loss of a device cost no request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from atomr_accel import Device
from atomr_accel.actors import Backoff
from atomr_accel.patterns import open_replica_pool
from atomr_accel.testing import kill_host, poison

from ..harness import BACKEND, SECOND, cpu_only, opened

pytestmark = [pytest.mark.slow, *([pytest.mark.gpu] if BACKEND == "cuda" else [])]

Array = np.ndarray[Any, Any]


class Devices:
    """Factories of replicas with a device each."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.open: dict[int, Device] = {}
        self.weights = np.random.default_rng(1).standard_normal((32, 32)).astype(np.float32)
        self.answered = 0
        self.enough = trio.Event()
        self.again = trio.Event()

    def factory(self, place: int, index: int) -> Any:
        @asynccontextmanager
        async def replica() -> AsyncIterator[Callable[[Array], Awaitable[Array]]]:
            async with opened(index, **self.options) as device:
                sealed = await device.put(self.weights, sealed=True)
                if place in self.open:
                    self.again.set()
                self.open[place] = device

                async def multiply(x: Array) -> Array:
                    y = await device.get(await device.blas.gemm(await device.put(x), sealed))
                    self.answered += 1
                    if self.answered == 40:
                        self.enough.set()
                    return y

                yield multiply

        return replica


# A fault of a GPU would end what other tests do in this process, too.
@pytest.mark.parametrize("isolation", ["process", pytest.param("thread", marks=cpu_only)])
async def test_faults_cost_no_request(isolation: str) -> None:
    devices = Devices(isolation=isolation, max_restarts=10 if isolation == "process" else 0)

    async def harm() -> None:
        await devices.enough.wait()
        if isolation == "process":
            await kill_host(devices.open[1])
            await poison(devices.open[0])
        else:  # a fault that no restart cures: the device is lost, and the replica with it
            await poison(devices.open[0])
            await devices.again.wait()

    async with open_replica_pool(
        [devices.factory(0, 0), devices.factory(1, SECOND)],
        max_in_flight=8,
        attempts=5,
        backoff=Backoff(initial=0.0, base=0.0),
    ) as pool:

        async def client(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(10):
                x = rng.standard_normal((4, 32)).astype(np.float32)
                expected = x.astype(np.float64) @ devices.weights
                np.testing.assert_allclose(await pool(x), expected, rtol=1e-3, atol=1e-3)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(harm)
            for seed in range(16):
                nursery.start_soon(client, seed)
        statistics = pool.statistics()
    assert statistics.answered == statistics.submitted == 160
    lives = [each.lives for each in statistics.replicas]
    assert lives == ([1, 1] if isolation == "process" else [2, 1])
