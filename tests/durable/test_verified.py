"""Sealed buffers and snapshots are verified on request: a byte that has changed is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, GpuRefStale, open_devices
from atomr_accel.device import Snapshot
from atomr_accel.testing import kill_host, poison
from atomr_accel.wire import CHUNK_BYTES

from ..harness import AT_ONCE, BACKEND, cpu_only, on_shared, opened
from .programs import CHANGED
from .scribbling import scribble

FLOATS = CHUNK_BYTES // 4


def flip(snapshot: Snapshot, number: int, at: int) -> None:
    """Change a byte of a snapshot in host memory, as a wild kernel could."""
    array: Any = snapshot._arrays[number]
    array.reshape(-1).view(np.uint8)[at] ^= 1


async def test_verified_seals_continue_after_faults() -> None:
    async with opened() as device:
        array = np.arange(3 * FLOATS + 5, dtype=np.float32)
        ref = await device.put(array, sealed=True)
        before: list[str | None] = [ref.digest]
        assert before == [None]
        digest = await device.verify(ref[7:])
        assert digest == ref.digest == await device.verify(ref)
        await poison(device)
        assert (await device.get(ref) == array).all()
        assert await device.verify(ref) == digest
        found = device.statistics().durable
        assert (found.verified, found.changed, found.buffers) == (1, 0, 0)


async def test_a_digest_is_of_the_content() -> None:
    async with opened() as device:
        array = np.arange(2 * FLOATS, dtype=np.float32)
        sealed = await device.seal(await device.put(array))
        durable = await device.put(array, durable=True)
        assert await device.verify(sealed) == await device.verify(durable) == durable.digest
        await device.fill(durable[1:2], 7)
        changed = durable.digest
        assert changed != sealed.digest
        assert await device.verify(durable) == changed
        array[1] = 7
        assert await device.verify(await device.put(array, sealed=True)) == changed
        empty = await device.put(np.ones((0, 3)), sealed=True)
        assert await device.verify(empty) == empty.digest


@on_shared
async def test_other_buffers_are_not_verified(device: Device) -> None:
    ref = await device.put(np.ones(3))
    with pytest.raises(ValueError, match=r"sealed or durable to be verified.*device\.seal"):
        await device.verify(ref)
    assert ref.digest is None


@cpu_only
@settings(max_examples=10)
@given(at=st.integers(0, 3 * CHUNK_BYTES + 19), fault=st.booleans(), durable=st.booleans())
async def test_a_flipped_byte_is_found_and_its_place_told(
    at: int, *, fault: bool, durable: bool
) -> None:
    async with opened() as device:
        array = np.zeros(3 * FLOATS + 5, np.float32)
        refs = [await device.put(array, durable=durable, sealed=not durable) for _ in range(2)]
        for ref in refs:
            await device.verify(ref)
        digest = refs[0].digest
        scribble(refs[1], at, b"\1")
        if fault:
            await kill_host(device)
        where = f"{CHANGED} .1 of 4 .* at byte {at // CHUNK_BYTES * CHUNK_BYTES}\\)"
        with pytest.raises(GpuRefStale, match=where):
            await (device.get if fault else device.verify)(refs[1])
        assert refs[1].is_stale
        assert not (await device.get(refs[0])).any()
        assert await device.verify(refs[0]) == digest
        assert device.statistics().durable.changed == 1


async def test_verified_snapshots_are_restored_and_saved(tmp_path: Path) -> None:
    async with opened() as device:
        arrays = [np.arange(1000.0), np.zeros((0, 2)), np.ones((3, FLOATS), np.float32)]
        refs = [await device.put(array) for array in arrays]
        snapshot = await device.snapshot(refs, verified=True)
        await device.fill(refs[0], 0)  # after the digests, too
        await snapshot.verify()
        await kill_host(device)
        for got in (
            await device.restore(snapshot),
            await device.restore(await _reloaded(snapshot, tmp_path)),
        ):
            for ref, array in zip(got, arrays, strict=True):
                assert (await device.get(ref) == array).all()
        refs = [await device.put(array + 1) for array in arrays]
        await device.snapshot(refs, out=snapshot)
        assert (await device.get((await device.restore(snapshot))[0]) == arrays[0] + 1).all()


async def _reloaded(snapshot: Snapshot, folder: Path) -> Snapshot:
    await snapshot.save(folder / "snapshot")
    return await Snapshot.load(folder / "snapshot")


async def test_a_changed_snapshot_is_neither_restored_nor_saved(tmp_path: Path) -> None:
    async with opened() as device:
        refs = [await device.put(np.ones(3 * FLOATS, np.float32)) for _ in range(3)]
        snapshot = await device.snapshot(refs, verified=True)
        plain = await device.snapshot(refs)
        await snapshot.wait()
        await plain.wait()
        flip(snapshot, 1, 2 * CHUNK_BYTES + 5)
        flip(plain, 1, 5)
        said = f"buffer 1 of the snapshot has changed .* .1 of 3 .* at byte {2 * CHUNK_BYTES}"
        with pytest.raises(ValueError, match=said):
            await device.restore(snapshot)
        with pytest.raises(ValueError, match=said):
            await device.restore(snapshot, out=refs)
        with pytest.raises(ValueError, match=said):
            await snapshot.save(tmp_path / "snapshot")
        assert not (tmp_path / "snapshot").exists()
        assert (await device.get(refs[1]) == 1).all()
        await device.restore(plain)  # it has no digests


@cpu_only
async def test_snapshots_on_a_peer_are_verified_there() -> None:
    async with open_devices([0, 1], backend=BACKEND, backoff=AT_ONCE) as devices:
        device, peer = devices
        ref = await device.put(np.arange(2.0 * FLOATS))
        snapshot = await device.snapshot([ref, ref], to=peer, verified=True)
        await snapshot.verify()
        restored = await device.restore(snapshot)
        assert (await device.get(restored[1]) == np.arange(2 * FLOATS)).all()
        scribble(snapshot._refs[1], 3 * CHUNK_BYTES, b"\1")
        with pytest.raises(GpuRefStale, match=f"{CHANGED} .1 of 4 .* at byte {3 * CHUNK_BYTES}"):
            await device.restore(snapshot)
