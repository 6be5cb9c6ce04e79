"""Memory for deferred ops of batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device
from atomr_accel.testing.garbage import collect_garbage

from ..harness import on_shared


@pytest.mark.slow
@settings(max_examples=10)
@given(
    sizes=st.lists(st.integers(1, 3 << 20), min_size=1, max_size=6),
    run=st.booleans(),
)
@on_shared
async def test_batches_that_are_put_off_add_no_memory_if_there_is_room(
    device: Device, sizes: list[int], run: bool
) -> None:
    hosts = [np.full(size, at, np.uint8) for at, size in enumerate(sizes)]

    async def once() -> None:
        async with device.batch() as batch:
            if run:  # all that comes after it is put off
                batch.run(abs, 1)
            found = [batch.get(batch.copy(batch.put(host))) for host in hosts]
        assert all((a.value == b).all() for a, b in zip(found, hosts, strict=True))

    await once()
    collect_garbage()
    before = device.statistics().memory
    for _ in range(4):
        await once()
        collect_garbage()
    after = device.statistics().memory
    assert (after.slabs, after.capacity) == (before.slabs, before.capacity)


@on_shared
async def test_a_large_put_in_a_batch_adds_no_memory_if_there_is_room(device: Device) -> None:
    host = np.zeros(1 << 20, np.uint8)
    await device.free(await device.empty(1 << 23, np.uint8))
    before = device.statistics().memory.slabs
    for _ in range(3):
        async with device.batch() as batch:
            batch.get(batch.put(host))
    assert device.statistics().memory.slabs == before
