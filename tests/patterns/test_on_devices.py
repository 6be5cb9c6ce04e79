"""Patterns in front of a device whose host really dies."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from numpy.typing import NDArray

from atomr_accel import ContextPoisoned
from atomr_accel.patterns import CircuitBreaker, Retry, open_batcher
from atomr_accel.testing import poison

from ..harness import opened

Row = NDArray[np.float32]


@pytest.mark.slow
async def test_only_the_request_that_poisons_the_device_pays_for_it() -> None:
    host_w = np.arange(32, dtype=np.float32).reshape(8, 4)
    rows = [np.full(8, n, np.float32) for n in range(8)]
    got: dict[int, Row] = {}
    errors: dict[int, Exception] = {}

    async with opened(max_restarts=20) as device:
        weights = await device.put(host_w, sealed=True)

        async def infer(items: list[Row]) -> Row:
            x = await device.put(np.stack(items))
            if any(item[0] == 5 for item in items):
                raise await poison(device)
            return await device.get(await device.blas.gemm(x, weights))

        async def client(n: int) -> None:
            try:
                got[n] = await batcher(rows[n])
            except ContextPoisoned as error:
                errors[n] = error

        async with open_batcher(infer, max_size=8) as batcher, trio.open_nursery() as nursery:
            for n in range(8):
                nursery.start_soon(client, n)
        assert device.generation == 1 + batcher.statistics().faults

    assert [*errors] == [5]
    assert sorted(got) == [0, 1, 2, 3, 4, 6, 7]
    for n, row in got.items():
        np.testing.assert_array_equal(row, rows[n] @ host_w)


@pytest.mark.slow
async def test_request_lost_to_a_fault_is_asked_again() -> None:
    async with opened() as device:
        faults = 1

        async def double(n: int) -> float:
            nonlocal faults
            x = await device.put(np.full(4, n, np.float32))
            if faults:
                faults -= 1
                await poison(device)  # x is stale now
            return float((await device.get(x))[0]) * 2

        assert await CircuitBreaker()(Retry(attempts=2).around(double), 3) == 6
        assert device.generation == 2
