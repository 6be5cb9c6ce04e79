"""Repeated calls of ``device.array`` have a template that is filled in, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device, Unsupported
from atomr_accel.ops import CallTemplate
from atomr_accel.testing import poison

from ...harness import on_shared, opened, used_by
from .calls import Numpy, fetched, put, same

SIDE = 4


def add_at(x: Any, at: Any, value: Any) -> Any:
    """Reference for ``device.array.add_at``."""
    np.add.at(x, at, value)
    return x


def setitem(x: Any, at: Any, value: Any) -> Any:
    """Reference for ``device.array.setitem``; the last value for a place counts."""
    x[at] = value
    return x


def cumsum(x: Any, out: Any) -> Any:
    """Reference for ``cumsum`` with ``out``."""
    return np.cumsum(x, axis=0, out=out)


OURS: dict[str, Callable[..., Any]] = {
    "add_at": lambda on, x, y, at: on.add_at(x, at, y, deterministic=True),
    "setitem": lambda on, x, y, at: on.setitem(x, at, y, deterministic=True),
    "cumsum": lambda on, x, y, at: on.cumsum(x, axis=0, out=y),
}
"""Calls whose arguments differ from those of NumPy's functions."""

CALLS: dict[str, Callable[..., Any]] = {
    "take": lambda on, x, y, at: on.take(x, at, 0),
    "take of all": lambda on, x, y, at: on.take(x, at),
    "take_along_axis": lambda on, x, y, at: on.take_along_axis(x, at[:, None], 1),
    "sum": lambda on, x, y, at: on.sum(x, axis=0),
    "isclose": lambda on, x, y, at: on.isclose(x, y),
    "mean": lambda on, x, y, at: on.mean(x, axis=-1, keepdims=True),
    "argmax": lambda on, x, y, at: on.argmax(x, axis=0),
    "where": lambda on, x, y, at: on.where(x, x, y),
    "clip": lambda on, x, y, at: on.clip(x, -0.0, 2.0),
    "clip in place": lambda on, x, y, at: on.clip(x, -1, y, out=x),
    "ascontiguousarray": lambda on, x, y, at: on.ascontiguousarray(x),
    "cumsum of all": lambda on, x, y, at: on.cumsum(x),
    "sort": lambda on, x, y, at: on.sort(x, axis=None),
    "roll": lambda on, x, y, at: on.roll(x, 3),
    "tril": lambda on, x, y, at: on.tril(x, 1),
    "meshgrid": lambda on, x, y, at: on.meshgrid(at, at),
    "histogram": lambda on, x, y, at: on.histogram(x, 5),
    "unique": lambda on, x, y, at: on.unique(x),
    "unique and more": lambda on, x, y, at: on.unique(x, True, True, True),
    "flatnonzero": lambda on, x, y, at: on.flatnonzero(x),
    "full_like": lambda on, x, y, at: on.full_like(x, 7),
    "add_at": lambda on, x, y, at: add_at(x, at, y),
    "setitem": lambda on, x, y, at: setitem(x, at, y),
    "cumsum": lambda on, x, y, at: cumsum(x, y),
}
"""Calls on two squares and a row of indices."""

QUESTIONS = frozenset(("unique", "unique and more", "flatnonzero"))
"""Calls that wait for the device's answer, and are therefore not batched here."""

LAYOUTS = ("plain", "transposed", "gaps", "reversed")

calls = st.tuples(st.sampled_from([*CALLS]), *[st.sampled_from(LAYOUTS)] * 2, st.booleans())


async def check(
    device: Device,
    name: str,
    layouts: tuple[str, str],
    seed: int,
    *,
    alike: bool = False,
    batch: bool = False,
) -> None:
    """One call, on buffers of its own, and all that it writes."""
    rng = np.random.default_rng(seed)
    x, y = (rng.integers(-3, 4, (SIDE, SIDE)) * 1.0 for _ in "xy")
    at = rng.integers(0, SIDE, SIDE)
    refs = [await put(device, *each) for each in ((x, layouts[0]), (y, layouts[1]), (at, "plain"))]
    if alike and name not in OURS:  # those write one of them
        y, refs[1] = x, refs[0]
    ours = OURS.get(name, CALLS[name])
    if batch:
        async with device.batch() as collected:
            made = ours(collected.array, *refs)
    else:
        made = await ours(device.array, *refs)
    expected = CALLS[name](Numpy(), x, y, at)
    same(await fetched(device, made), [*expected] if isinstance(expected, tuple) else expected)
    same(await fetched(device, refs), [x, y, at])


@pytest.mark.slow
@settings(max_examples=25)
@given(chosen=st.lists(calls, min_size=1, max_size=3), batch=st.booleans())
@on_shared
async def test_the_nth_call_is_as_numpys(device: Device, chosen: Any, batch: bool) -> None:
    """Whatever comes in between, and on other buffers."""
    for seed in range(4):
        for name, first, second, alike in chosen:
            collected = batch and name not in QUESTIONS
            await check(device, name, (first, second), seed, batch=collected, alike=alike)


def templates_of(device: Device) -> list[CallTemplate]:
    """Return the templates that ``device.array`` holds."""
    known = device.array.call_templates.known.values()
    return [each for each in known if isinstance(each, CallTemplate)]


@pytest.mark.slow
async def test_calls_have_templates_in_each_generation() -> None:
    async with opened() as device:
        for _ in range(2):
            for count, name in enumerate(CALLS, 1):
                for seed in range(3):
                    await check(device, name, ("transposed", "gaps"), seed)
                epoch = device.core.memory.epoch
                assert sum(each.epoch is epoch for each in templates_of(device)) == count, name
            await poison(device)


async def test_all_steps_of_a_call_are_in_its_message() -> None:
    async with opened() as device:
        x = await device.put(np.zeros((SIDE, SIDE)))
        at = await device.put(np.arange(SIDE))
        for number in (1.0, 1.0, 1.0, 2.0, 2.0, 2.0):
            await device.array.setitem(x, at, number)
            np.testing.assert_array_equal(await device.get(x), np.full((SIDE, SIDE), number))
        assert [len(each.ops) for each in templates_of(device)] == [1, 1]


async def test_numbers_may_look_like_places() -> None:
    """64, as eight bytes of its own, is what stands for the first address."""
    async with opened() as device:
        like = await device.put(np.zeros(SIDE, np.int64))
        for _ in range(4):
            made = await device.array.full_like(like, 64)
            np.testing.assert_array_equal(await device.get(made), [64] * SIDE)
        assert len(templates_of(device)) == 1


async def test_result_size_known_to_the_device_is_read_each_time() -> None:
    async with opened() as device:
        for count in range(5):
            x = await device.put(np.arange(SIDE) < count)
            found = await device.get(await device.array.flatnonzero(x))
            np.testing.assert_array_equal(found, np.arange(min(count, SIDE)))
        assert len(templates_of(device)) == 1  # of which the answer is not a part
        with pytest.raises(Unsupported, match="waits for the device's answer"):
            async with device.batch() as batch:
                for _ in range(3):
                    batch.array.flatnonzero(x)


async def test_trimmed_result_keeps_only_the_memory_that_it_uses() -> None:
    async with opened() as device:
        x = await device.put(np.zeros(1 << 16, np.int32))
        before = used_by(device)
        for _ in range(3):
            values, where, _, _ = await device.array.unique_all(x)
            del _
            assert (values.shape, where.shape) == ((1,), (1,))
            assert used_by(device) <= before + 1024
            del values, where
