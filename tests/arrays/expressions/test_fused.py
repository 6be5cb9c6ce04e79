"""Functions made one call by ``device.fuse``: their calls, and the objects they keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from atomr_accel import Device, GpuRefStale
from atomr_accel.testing import poison
from atomr_accel.testing.garbage import collect_garbage

from ...harness import on_shared, opened


class Pair(NamedTuple):
    """Two values."""

    one: Any
    other: Any


@dataclass(frozen=True)
class Settings:
    """Numbers that belong together."""

    factor: float
    shift: Any = 0


class Unknown:
    """A type that the tracer does not know."""

    factor = 2


SHAPES: dict[str, Callable[[Any], Any]] = {
    "an expression": lambda x: x[::-1] * 3,
    "a tuple": lambda x: (x, 2.0),
    "a list": lambda x: [x.reshape(2, 2).T, (x,)],
    "a dict": lambda x: {"x": x, "y": [x + 1, -x]},
    "a named tuple": lambda x: Pair(x, x),
    "reductions and indices": lambda x: np.where(
        (x > x.mean(keepdims=True))[:, None], np.argmax(x), x.reshape(2, 2)[0].sum()
    ),
}


def flat(value: Any) -> Any:
    """All that is inside of something, added."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return sum(flat(each).sum() if hasattr(each, "sum") else flat(each) for each in value)
    return value


@pytest.mark.parametrize("name", SHAPES)
@on_shared
async def test_refs_inside_arguments_count_by_their_structure(device: Device, name: str) -> None:
    calls = []

    @device.fuse
    def total(value: Any, _also: Any) -> Any:
        calls.append(value)
        return flat(value) + 1

    def used() -> int:
        collect_garbage()
        memory = device.statistics().memory
        return memory.used - memory.dropped

    kept = None
    for seed in range(4):
        array = np.random.default_rng(seed).integers(0, 9, 4).astype(np.float64)
        x = await device.put(array)
        y = await total(SHAPES[name](x), x)
        assert np.array_equal(await device.get(y), flat(SHAPES[name](array)) + 1)
        del x, y
        if kept is None:
            calls[:] = [None]
            kept = used()
    assert calls == [None]
    assert used() == kept


@on_shared
async def test_numbers_inside_arguments_are_told_apart(device: Device) -> None:
    x = await device.put(np.ones(3))
    calls = []

    @device.fuse
    def scaled(x: Any, options: Any) -> Any:
        calls.append(options)
        return x * options[0]

    zeros = [np.float32(0), np.float32(-0.0)]
    for options in ((1,), (1.0,), (True,), [1], (x * 2,), (x * 3,), (x[:1],), zeros, zeros[::-1]):
        for _ in range(2):
            await scaled(x, options)
    assert len(calls) == 9


@on_shared
async def test_nans_have_a_sign_and_classes_may_change(device: Device) -> None:
    x = await device.put(np.array([1, 2], np.float32))
    signed = device.fuse(lambda x, number: np.copysign(x, number))
    for number, sign in ((np.nan, 1), (-np.nan, -1), (np.nan, 1), (0.0, 1), (-0.0, -1)):
        assert (await device.get(await signed(x, number))).tolist() == [sign, 2 * sign]

    class Rate:
        value = 2.0

    scaled: Any = device.fuse(lambda x, settings: x * settings.value)
    for value in (2.0, 5.0, 3.0, 7.0):
        Rate.value = value
        assert (await device.get(await scaled(x, Rate))).tolist() == [value, 2 * value]
        async with device.batch() as batch:
            found = batch.get(batch.using(scaled)(x, Rate))
        assert found.value.tolist() == [value, 2 * value]


@on_shared
async def test_unknown_function_is_called_each_time(device: Device) -> None:
    x = await device.put(np.ones(3))
    calls = []

    @device.fuse
    def scaled(a: Any, options: Any, b: Any) -> Any:
        calls.append(options)
        return (a + b) * options.factor

    for options, count in ((Settings(2), 1), (Settings(2, x), 2), (Unknown(), 2)):
        calls.clear()
        for _ in range(2):
            y = await scaled(x, options, x)
            assert (await device.get(y)).tolist() == [4] * 3
        assert len(calls) == count


async def test_captured_object_is_looked_up_again_once_it_is_gone() -> None:
    async with opened() as device:
        x = await device.put(np.full(3, 2.0))
        w = await device.put(np.arange(6.0))
        calls = []

        @device.fuse
        def scaled(a: Any) -> Any:
            calls.append(1)
            return a * w[::2]

        async def found() -> list[float]:
            return [float(each) for each in await device.get(await scaled(x))]

        assert await found() == await found() == [0, 4, 8]
        assert len(calls) == 1
        w = await device.put(np.full(6, 5.0))  # nobody has the former any more
        assert await found() == [10] * 3
        former = w
        w = await device.put(np.full(6, 6.0))
        await device.free(former)
        assert await found() == await found() == [12] * 3
        assert len(calls) == 3
        await poison(device)
        x = await device.put(np.full(3, 2.0))
        with pytest.raises(GpuRefStale):
            await scaled(x)
        w = await device.put(np.full(6, 7.0))
        assert await found() == await found() == [14] * 3
