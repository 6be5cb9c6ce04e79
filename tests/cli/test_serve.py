"""``serve``: how the command ends."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import trio
import trio.testing

from atomr_accel.cli._serve import _until_end


class _Serving:
    """A device that lives, and a server with a stream that does not end by itself."""

    def __init__(self) -> None:
        self.ref = self
        self.draining = trio.Event()
        self.ended = trio.Event()

    async def wait_stopped(self) -> None:
        await trio.sleep_forever()

    async def drain(self) -> None:
        self.draining.set()
        await self.ended.wait()

    def cut_off(self) -> None:
        self.ended.set()


@pytest.mark.clock("mock")
async def test_streams_have_their_time_after_a_signal_and_are_then_cut_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    serving: Any = _Serving()
    began = trio.current_time()
    async with trio.open_nursery() as nursery:

        async def stop() -> None:
            await trio.testing.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGTERM)
            await serving.draining.wait()
            assert not serving.ended.is_set()

        nursery.start_soon(stop)
        assert await _until_end(serving, serving, 30) is None
    assert trio.current_time() - began == pytest.approx(30)
    assert serving.ended.is_set()
    assert "cut off after 30 seconds" in capsys.readouterr().err
