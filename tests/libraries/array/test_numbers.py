"""Numbers of the program that a dtype does not hold are refused, not wrapped."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel import Device

from ...harness import on_shared
from ..conformance import MARKS
from .calls import same

pytestmark = MARKS

WHOLE = ("int8", "uint8", "int16", "uint32", "int32", "int64", "uint64")
BOUNDS: st.SearchStrategy[Any] = st.sampled_from([np.iinfo(name) for name in WHOLE])


@settings(max_examples=40)
@given(
    info=BOUNDS,
    value=st.one_of(st.floats(), st.integers(-(2**65), 2**65), st.floats(width=32).map(np.float32)),
)
@on_shared
async def test_fillers_are_numbers_of_the_dtype(device: Device, info: Any, value: Any) -> None:
    array, dtype = device.array, info.dtype
    ref = await device.put(np.zeros(2, dtype))
    try:
        held = int(value)
        if not info.min <= held <= info.max:
            raise OverflowError
    except (ValueError, OverflowError) as error:
        calls: list[Any] = [
            partial(array.pad, ref, 1, constant_values=value),
            partial(array.full, (3,), value, dtype),
            partial(array.full_like, ref, value),
        ]
        for call in calls:
            with pytest.raises(type(error)):
                await call()
        return
    got = await device.get(await array.pad(ref, 1, constant_values=value))
    same([got], [np.array([held, 0, 0, held], dtype)])
    same([await device.get(await array.full((1,), value, dtype))], [np.array([held], dtype)])


@settings(max_examples=60)
@given(
    info=BOUNDS,
    edge=st.sampled_from(["min", "max"]),
    offset=st.integers(-6, 6),
    count=st.integers(0, 5),
    step=st.sampled_from([-3, -1, 1, 2, 1.0]),
)
@on_shared
async def test_ranges_are_within_the_dtype(
    device: Device, info: Any, edge: str, offset: int, count: int, step: Any
) -> None:
    start: int = getattr(info, edge) + offset
    dtype = info.dtype
    if isinstance(step, float) and abs(start) > 2**32:  # floats have no such neighbours
        start = offset
    stop = start + count * step
    wanted = [start + at * int(step) for at in range(count)]
    call: Any = device.array.arange(start, stop, step, dtype)
    if any(not info.min <= each <= info.max for each in wanted):
        with pytest.raises(OverflowError, match=r"out of bounds|too large"):
            await call
        return
    same([await device.get(await call)], [np.array(wanted, dtype)])
