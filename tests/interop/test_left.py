"""Exported arrays that outlive their device: they stay valid, and delay nothing."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import trio

from atomr_accel import open_device
from atomr_accel.device.interop import _exports
from atomr_accel.testing.garbage import collect_garbage

from ..harness import cpu_only, descriptors, same_bits

pytestmark = cpu_only

ARRAY = np.arange(1000)


async def outlive() -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """An array whose device is closed."""
    async with open_device(0, backend="cpu", isolation="thread") as device:
        return np.asarray(await device.export(await device.put(ARRAY)))


async def test_closing_takes_no_longer_where_arrays_of_other_devices_are_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    unmap = _exports._DeviceMappings.unmap

    def counted(view: _exports._DeviceMappings, slabs: list[int]) -> None:
        nonlocal looked
        looked += 1
        unmap(view, slabs)

    monkeypatch.setattr(_exports._DeviceMappings, "unmap", counted)
    held = [await outlive() for _ in range(12)]
    assert looked <= len(held)
    assert all(same_bits(array, ARRAY) for array in held)
    looked = 0
    held.clear()
    collect_garbage()
    held.append(await outlive())
    assert looked <= 12 + 1


async def test_abandoned_mapping_is_unmapped_by_the_next_lookup() -> None:
    del_me = [await outlive()]
    await outlive()
    collect_garbage()
    before = descriptors()
    del_me += [await outlive() for _ in range(3)]
    assert descriptors() > before
    del_me.clear()
    collect_garbage()
    await outlive()
    collect_garbage()
    await outlive()
    assert descriptors() <= before


def test_arrays_outlive_their_run_and_are_seen_to_by_others() -> None:
    """Runs in several threads at a time, none of which waits for another."""
    held: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
    failures: list[BaseException] = []

    def run() -> None:
        async def main() -> None:
            for _ in range(6):
                held.append(await outlive())
                if len(held) > 5:
                    del held[0]

        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001 (raised in the other thread)
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    collect_garbage()
    assert all(same_bits(array, ARRAY) for array in held)
    held.clear()
    collect_garbage()
    trio.run(outlive)
    assert all(not view.leases for view, _ in _exports._left)
