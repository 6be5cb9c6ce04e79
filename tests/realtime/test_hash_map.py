"""The hash map beside a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, OutOfMemory
from atomr_accel.realtime import open_hash_map
from atomr_accel.realtime.wire import hash_map as wire
from atomr_accel.testing import poison

from .. import seeds
from ..harness import cpu_only, on_shared, opened, sized
from .emulated import emulated, needs_compiler

KEYS = st.lists(st.integers(-6, 6) | st.integers(-(2**63) + 2, 2**63 - 1), max_size=12)
CHANGES = st.lists(
    st.tuples(st.sampled_from(["insert", "delete", "resize", "find"]), KEYS, st.integers(0, 999)),
    max_size=12,
)


@pytest.fixture(params=["function", pytest.param("kernel", marks=[needs_compiler, cpu_only])])
def sources(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernel":
        monkeypatch.setattr("atomr_accel.realtime._hash_map.HASH_MAP", emulated(wire.HASH_MAP))


async def check(device: Device, changes: list[tuple[str, list[int], int]]) -> None:
    """Do the same with a map and a dict."""
    model: dict[int, int] = {}
    async with open_hash_map(device, every=3) as found:
        for op, keys, number in changes:
            values = [number + at for at in range(len(keys))]
            if op == "insert":
                await found.insert(keys, values)
                model.update(zip(keys, values, strict=True))
            elif op == "delete":
                count = sum(model.pop(key, None) is not None for key in dict.fromkeys(keys))
                assert await found.delete(keys) == count
            elif op == "resize":
                await found.resize(len(model) + number)
            got, there = await found.find(keys)
            assert there.tolist() == [key in model for key in keys]
            assert got.tolist() == [model.get(key, 0) for key in keys]
            assert len(found) == len(model)
        all_keys, all_values = await found.items()
        assert dict(zip(all_keys.tolist(), all_values.tolist(), strict=True)) == model


@settings(max_examples=12)
@given(changes=CHANGES)
@on_shared
async def test_it_is_a_dict(device: Device, changes: Any) -> None:
    await check(device, changes)


@pytest.mark.slow
@settings(max_examples=sized(150, 10_000))
@given(changes=CHANGES)
@on_shared
async def test_it_is_a_dict_over_many_histories(device: Device, changes: Any) -> None:
    await check(device, changes)


@pytest.mark.usefixtures("sources")
async def test_many_keys_with_repeats_and_growth(device: Device) -> None:
    random = seeds.rng()
    model: dict[int, Any] = {}
    async with open_hash_map(device) as found:
        for _ in range(4):
            keys, values = random.integers(0, 400, 300), random.integers(0, 10**15, 300)
            await found.insert(keys, values)
            model.update(zip(keys.tolist(), values.tolist(), strict=True))
            gone = random.integers(0, 400, 100)
            count = sum(model.pop(key, None) is not None for key in dict.fromkeys(gone.tolist()))
            assert await found.delete(gone) == count
        keys = np.arange(400)
        got, there = await found.find(keys)
        assert got.tolist() == [model.get(key, 0) for key in range(400)]
        assert there.tolist() == [key in model for key in range(400)]
        statistics = found.statistics()
        assert statistics.entries == len(model)
        assert statistics.rebuilds >= 2
        await found.resize(len(model))
        assert found.statistics().deleted == 0
        assert (await found.find(keys))[0].tolist() == got.tolist()


async def test_tasks_side_by_side(device: Device) -> None:
    async with open_hash_map(device) as found, trio.open_nursery() as nursery:
        for task in range(8):

            async def work(task: int = task) -> None:
                keys = np.arange(50) * 8 + task
                await found.insert(keys, keys * 2)
                await found.delete(keys[::2])
                got, there = await found.find(keys)
                assert (got == np.where(there, keys * 2, 0)).all()
                assert there.tolist() == [False, True] * 25

            nursery.start_soon(work)
    assert len(found) == 8 * 25


@pytest.mark.slow
async def test_a_fault_loses_nothing() -> None:
    async with opened() as device, open_hash_map(device, every=4, system=device.system) as found:
        for number in range(7):
            await found.insert(np.arange(100) + 100 * number, np.arange(100) + number)
            if number in {2, 5}:
                await poison(device)
                assert await found.delete([100 * number]) == 1
        keys, values = await found.items()
        model = {100 * n + k: k + n for n in range(7) for k in range(100)}
        del model[200], model[500]
        assert dict(zip(keys.tolist(), values.tolist(), strict=True)) == model
        assert found.statistics().faults == 2


async def test_limits_and_bad_input(device: Device) -> None:
    async with open_hash_map(device, limit=40) as found:
        await found.insert(np.arange(38), np.arange(38))
        with pytest.raises(OutOfMemory, match="41 entries must be at most the map's limit of 40"):
            await found.insert([100, 101, 102], [0, 0, 0])
        assert len(found) == 38
        assert (await found.find([37, 100]))[1].tolist() == [True, False]
        for keys, kind, message in [
            ([0.5], TypeError, "keys must be an array of int64"),
            ([[1]], ValueError, r"keys must have shape \(n,\)"),
            ([-(2**63)], ValueError, "keys must be more than"),
        ]:
            with pytest.raises(kind, match=message):
                await found.find(keys)
        with pytest.raises(ValueError, match=r"values must have shape \(1,\)"):
            await found.insert([1], [1, 2])
        with pytest.raises(ValueError, match="capacity must be at least 38"):
            await found.resize(3)
        assert (await found.find([]))[0].size == 0
    with pytest.raises(RuntimeError, match="this hash map must be open"):
        await found.find([1])
