"""Shared by tests of hosts, on standby and otherwise."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from atomr_accel import Device, Standby
from atomr_accel.device.standby._keeper import StandbyKeeper
from tests.harness import opened

from .in_host import multiply

EYE: Final = np.eye(3)
OFTEN: Final = 10**6
hot: Final = functools.partial(opened, standby=Standby(hot=1), max_restarts=OFTEN)


def standby_of(device: Device) -> StandbyKeeper:
    standby: Any = device.core.standby
    assert standby is not None
    return standby  # type: ignore[no-any-return]


async def works(device: Device) -> None:
    a = await device.put(EYE)
    assert np.array_equal(await device.get(await device.blas.gemm(a, a)), EYE)


async def open_a_lane(device: Device) -> None:
    await device.fft.fft(await device.put(np.ones(8)))


async def answer(device: Device, init: Callable[[], Any], lane: str = "run") -> tuple[int, float]:
    """An answer of the model is right; the process that gives it, and since when it can."""
    product, pid, made = await device.run(multiply, np.ones(3), init=init, lane=lane)
    assert np.array_equal(product, np.ones(3))
    return pid, made
