"""When a standby is said to be ready."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from atomr_accel import Standby
from atomr_accel.device.standby import _spare
from tests.harness import cpu_only, opened

from .standbys import standby_of

pytestmark = [cpu_only, pytest.mark.slow]


async def test_one_that_captures_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = trio.Event(), trio.Event()

    async def capture_slowly(*_: object) -> None:
        begun.set()
        await go_on.wait()

    async with opened(standby=Standby(hot=1)) as device:
        standby = standby_of(device)
        x = await device.put(np.eye(3), sealed=True)
        recordings = []
        for number in range(2):  # the second one needs no further lane
            async with device.record(x) as recording:
                recording.blas.gemm(x, x)
            if number:
                monkeypatch.setattr(_spare, "capture_in", capture_slowly)
            await recording.replay()
            recordings.append(recording)
            if not number:
                await standby.wait_ready()
        await begun.wait()
        assert not standby.ready
        go_on.set()
        await standby.wait_ready()
