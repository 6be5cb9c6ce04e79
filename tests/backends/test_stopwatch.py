"""The stopwatch of CUDA's streams, on a driver that knows what its device does when."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_accel.backends.cuda.host.driver import NOT_READY, driver
from atomr_accel.backends.cuda.host.stopwatch import CudaStopwatch, DeviceClock


class Timeline:
    """A driver whose device executes the work of a stream at once, one after the other."""

    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.now = 10**15  # of the host, which a test moves on
        self.busy: dict[int, int] = {}
        self.events: dict[int, int | None] = {}

    def work(self, stream: int, nanoseconds: int) -> None:
        self.busy[stream] = max(self.now, self.busy.get(stream, 0)) + nanoseconds

    def cuStreamCreate(self, _flags: int) -> Any:  # noqa: N802
        stream = next(self._numbers)
        self.busy[stream] = 0
        return 0, stream

    def cuStreamDestroy(self, stream: int) -> Any:  # noqa: N802
        del self.busy[stream]
        return (0,)

    def cuEventCreate(self, _flags: int) -> Any:  # noqa: N802
        event = next(self._numbers)
        self.events[event] = None
        return 0, event

    def cuEventRecord(self, event: int, stream: int) -> Any:  # noqa: N802
        self.events[event] = max(self.now, self.busy.get(stream, 0))
        return (0,)

    def cuEventSynchronize(self, event: int) -> Any:  # noqa: N802
        return (0,)

    def cuEventQuery(self, event: int) -> Any:  # noqa: N802
        at = self.events[event]
        assert at is not None
        return (NOT_READY if at > self.now else 0,)

    def cuEventElapsedTime(self, start: int, end: int) -> Any:  # noqa: N802
        one, other = self.events[start], self.events[end]
        assert one is not None
        assert other is not None
        assert one <= other
        return 0, float(np.float32((other - one) * 1e-6))

    def cuEventDestroy(self, event: int) -> Any:  # noqa: N802
        del self.events[event]
        return (0,)


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Timeline]:
    fake = Timeline()
    monkeypatch.setattr(time, "monotonic_ns", lambda: fake.now)
    with driver.replaced(fake):
        yield fake


def test_ops_that_follow_each_other(timeline: Timeline) -> None:
    _, stream = timeline.cuStreamCreate(0)
    clock = DeviceClock()
    watch = CudaStopwatch(lambda: clock, stream)
    tokens, expected = [], []
    for nanoseconds in (5_000, 2_000, 700_000):
        token = watch.start()
        begun = max(timeline.now, timeline.busy[stream])
        timeline.work(stream, nanoseconds)
        tokens.append(watch.stop(token))
        expected.append((begun, begun + nanoseconds))
        timeline.now += 1_000  # it is launched while the one before runs
    timeline.now += 10_000_000
    token = watch.start()  # the stream has been idle: this begins now
    begun = timeline.now
    timeline.work(stream, 3_000)
    tokens.append(watch.stop(token))
    expected.append((begun, begun + 3_000))
    timeline.now += 10_000
    found = [watch.read(token) for token in tokens]
    assert np.abs(np.array(found) - np.array(expected)).max() <= 200
    assert len(timeline.events) <= 7  # events are used again


def test_lanes_that_share_a_stream_measure_in_turn(timeline: Timeline) -> None:
    """Only one thread at a time reads the events and their users."""
    _, stream = timeline.cuStreamCreate(0)
    clock = DeviceClock()
    watch = CudaStopwatch(lambda: clock, stream)
    refused: list[str] = []

    def alone(name: str) -> None:
        call = getattr(timeline, name)

        def called(*args: Any) -> Any:
            if args[-1] == stream or name != "cuEventRecord":
                assert not watch._lock.acquire(blocking=False)
                refused.append(name)
            return call(*args)

        setattr(timeline, name, called)

    for name in ("cuEventQuery", "cuEventRecord", "cuEventDestroy"):
        alone(name)
    watch.drop(watch.start())
    timeline.work(stream, 1_000)
    token = watch.stop(watch.start())
    watch.drop(watch.start())
    timeline.now += 10_000
    watch.read(token)
    watch.close()
    assert set(refused) == {"cuEventQuery", "cuEventRecord", "cuEventDestroy"}


def test_clocks_are_compared_again_and_nothing_is_left(timeline: Timeline) -> None:
    _, stream = timeline.cuStreamCreate(0)
    clock = DeviceClock()
    watch = CudaStopwatch(lambda: clock, stream)
    first = watch.start()
    for seconds in range(100):
        timeline.now += 10**9
        begun = watch.start()
        timeline.work(stream, 1_500)
        token = watch.stop(begun)
        timeline.now += 10_000
        if seconds % 10 == 3:
            watch.drop(watch.start())  # of an op that was not launched
        started, ended = watch.read(token)
        assert abs(ended - started - 1_500) <= 200
        assert abs(started - (timeline.now - 10_000)) <= 200
    watch.drop(first)
    assert len(timeline.events) <= 7
    watch.close()
    clock.close()
    assert timeline.events == {}
    assert list(timeline.busy) == [stream]
