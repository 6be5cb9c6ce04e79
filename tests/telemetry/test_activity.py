"""Activity tracing, on the CPU backend with a stand-in for CUPTI."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import DeviceLost, GpuRefStale, LibraryError, LibraryMissing, Unsupported
from atomr_accel.libraries.activity.lane import LANE
from atomr_accel.libraries.activity.wire.messages import ActivityPage
from atomr_accel.telemetry import ActivityTrace, _activity, activity, trace
from atomr_accel.telemetry._recorder import Recorder
from atomr_accel.testing import poison
from atomr_accel.wire.activity import ActivityRecord
from tests.fakes import cupti
from tests.fakes.cupti import Cupti
from tests.harness import opened
from tests.telemetry.timelines import read

messages = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Cupti:
    """CUPTI in hosts of this process, and devices on the CPU that ask it."""
    monkeypatch.setitem(LANE.executors, "cpu", LANE.executors["cuda"])
    return cupti.install(monkeypatch)


async def test_kernels_lie_below_their_ops(fake: Cupti, tmp_path: Path) -> None:
    path = tmp_path / "run.pftrace"
    async with opened(backend="cpu", isolation="thread") as device:
        a = await device.put(np.ones((4, 4), np.float32))
        await device.blas.gemm(a, a)
        async with trace(device, path), activity(device) as found:
            for _ in range(4):  # the last by a template
                await device.blas.gemm(a, a)
            async with device.batch() as batch:
                for _ in range(3):
                    batch.blas.gemm(a, a)
        await device.blas.gemm(a, a)
        statistics = found.statistics()
        ops = [each for each in found.records if each.op_name == "blas.gemm"]
        assert len({each.op for each in ops}) == len(ops) >= 5  # a batch fuses some
        assert statistics.records == len(found.records)
        assert (statistics.lost, statistics.interrupted) == (0, 0)
    assert (fake.subscribers, fake.enabled, fake.open_ranges) == (0, set(), 0)
    timeline = read(path, messages)
    kernels = timeline.named("a kernel", "CUPTI stream 7")
    assert len(kernels) == len(found.records)
    assert {each.depth for each in kernels} == {1}
    above = [each for each in timeline.named("blas.gemm", "CUPTI stream 7") if each.depth == 0]
    assert len(above) == len(ops)
    for each in above:
        (_,) = [one for one in kernels if each.start <= one.start <= one.end <= each.end]


async def test_wanted_kinds_are_recorded_and_errors_of_the_block_stay(fake: Cupti) -> None:
    async with opened(backend="cpu", isolation="thread") as device:
        with pytest.raises(ZeroDivisionError):
            async with activity(device, kinds=["fills"]):
                raise ZeroDivisionError
        assert fake.subscribers == 0
        async with activity(device, kinds=["kernels", "calls"]) as found:
            await device.zeros(3)
        assert {each.kind for each in found.records} == {"kernels", "calls"}


async def test_a_device_that_is_lost_does_not_hold_the_block(fake: Cupti) -> None:
    with pytest.raises(DeviceLost):
        async with opened(backend="cpu", isolation="thread") as device, activity(device):
            await poison(device)
            await device.zeros(3)


class _Hosts:
    """A device whose host ends once; its next host is asked to begin, too."""

    def __init__(self) -> None:
        self.generation = 1
        self.asked: list[tuple[int, str]] = []
        self.core = self
        self.system = SimpleNamespace(tell_instruments=lambda: None)
        self.instruments = lambda *_: None
        self.done = trio.Event()

    async def perform(self, core: object, request: Any) -> Any:
        await trio.lowlevel.checkpoint()
        self.asked.append((self.generation, request.name))
        if len(self.asked) == 3:
            self.generation = 2
            raise GpuRefStale("the host has ended")
        if len(self.asked) > 6:
            self.done.set()
        return ActivityPage([], False, 0)


async def test_the_next_host_records_too(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    hosts: Any = _Hosts()
    monkeypatch.setattr(_activity, "perform", hosts.perform)
    session = ActivityTrace(hosts, ("kernels",))
    await session.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.run)
        with trio.fail_after(60):
            await hosts.done.wait()
        nursery.cancel_scope.cancel()
    await session.finish()
    start, take, stop = "activity.start", "activity.take", "activity.stop"
    assert hosts.asked[:3] == [(1, start), (1, take), (1, take)]
    assert hosts.asked[3:7] == [(2, start), (2, take), (2, take), (2, take)]
    assert hosts.asked[-2:] == [(2, stop), (2, take)]
    assert session.statistics().interrupted == 1


async def test_cupti_of_others_is_left_alone(fake: Cupti) -> None:
    async with opened(backend="cpu", isolation="thread") as device:
        fake.held = True
        with pytest.raises(LibraryError, match="held by another tool"):
            async with activity(device):
                pass
        fake.held = False
        async with activity(device):
            with pytest.raises(LibraryError, match="another activity"):
                async with activity(device):
                    pass
        a = await device.put(np.eye(2, dtype=np.float32))
        assert (await device.get(await device.blas.gemm(a, a)) == np.eye(2)).all()


async def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LANE.executors, "cpu", LANE.executors["cuda"])
    monkeypatch.setitem(sys.modules, "cupti", None)
    cupti.forget(monkeypatch)
    async with opened(backend="cpu", isolation="thread") as device:
        with pytest.raises(LibraryMissing, match="cupti-python"):
            async with activity(device):
                pass


async def test_devices_without_cupti() -> None:
    async with opened(backend="cpu") as device:
        with pytest.raises(Unsupported, match="no executor for backend 'cpu'"):
            async with activity(device):
                pass


async def test_arguments() -> None:
    async with opened(backend="cpu", isolation="thread") as device:
        cases: list[tuple[Any, Any, type[Exception], str]] = [
            (3, ("kernels",), TypeError, "must be a Device"),
            (device, (), ValueError, "kinds must be some of"),
            (device, "kernel", ValueError, "kinds must be some of"),
            (device, [1], ValueError, "kinds must be some of"),
        ]
        for watched, kinds, error, words in cases:
            with pytest.raises(error, match=words):
                async with activity(watched, kinds=kinds):
                    pass


class _Watched:
    path, name, generation = "/cpu", "cpu:0", 1


_RECORDS = st.builds(
    ActivityRecord,
    kind=st.sampled_from(["kernels", "calls"]),
    name=st.just("part"),
    start=st.integers(10, 40),
    end=st.integers(10, 50),
    op=st.integers(0, 2),
    op_name=st.just("whole"),
    stream=st.integers(1, 2),
    nbytes=st.just(0),
)


@given(st.lists(st.lists(_RECORDS, max_size=8), max_size=3))
def test_slices_lie_in_each_other(tmp_path_factory: pytest.TempPathFactory, pages: Any) -> None:
    recorder = Recorder(timed=False)
    device: Any = _Watched()
    for page in pages:
        recorder.activity_recorded(device, page)
    path = tmp_path_factory.mktemp("records") / "run.pftrace"
    path.write_bytes(recorder.encode(recorder.take()))
    timeline = read(path, messages)
    parts = timeline.named("part")
    assert len(parts) == sum(map(len, pages))
    assert {each.depth for each in parts} <= {1}
    assert not timeline.open
    for each in parts:
        assert any(
            one.track == each.track and one.start <= each.start <= each.end <= one.end
            for one in timeline.named("whole")
        )
