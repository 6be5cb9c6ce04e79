"""Instruments: the calls they get for a device, and that they do no harm."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceInstrument,
    DeviceLost,
    FinishedOps,
    GpuRef,
    OpTimes,
    OutOfMemory,
    WatchedDevice,
    WatchedOp,
    WatchedTransfer,
    open_system,
)
from atomr_accel.lanes import UNWATCHED, Op, Outcome, Phases
from atomr_accel.testing import poison
from atomr_accel.wire import WITHDRAWN
from tests.harness import opened

SLACK = 50_000
"""Nanoseconds by which a device's clock may seem to be off the host's."""


class Recorder(DeviceInstrument):
    """Notes all of it."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.ops: dict[int, list[str]] = {}
        self.names: dict[int, str] = {}
        self.times: list[tuple[str, OpTimes]] = []

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [entry[1:] for entry in self.seen if entry[0] == kind]

    def op_submitted(self, op: WatchedOp) -> None:
        assert op.times is not None
        assert op.times.submitted
        self.names[op.seq] = op.name
        self.ops[op.seq] = ["submitted"]

    def op_in_batch(self, op: WatchedOp, batch: int) -> None:
        self.seen.append(("in batch", op.seq, batch))

    def op_replays(self, op: WatchedOp, recording: int) -> None:
        self.seen.append(("replays", op.seq, recording))

    def op_sent(self, op: WatchedOp) -> None:
        self.ops[op.seq].append("sent")

    def op_finished(self, op: WatchedOp, outcome: Outcome) -> None:
        assert op.times is not None
        assert op.times.answered >= op.times.submitted
        assert (op.error is None) == (outcome in ("done", "withdrawn"))
        self.ops[op.seq].append(outcome)
        self.times.append((op.name, op.times))

    def transfer_started(self, device: WatchedDevice, transfer: WatchedTransfer) -> None:
        self.seen.append(("transfer", transfer.name, transfer.nbytes, transfer.done))

    def transfer_finished(
        self, device: WatchedDevice, transfer: WatchedTransfer, failure: BaseException | None
    ) -> None:
        self.seen.append(("transferred", transfer.done, failure))

    def slab_added(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        self.seen.append(("slab", nbytes, sealed))

    def slab_removed(self, device: WatchedDevice, nbytes: int, sealed: bool) -> None:
        self.seen.append(("slab", -nbytes, sealed))

    def out_of_memory(self, device: WatchedDevice, error: OutOfMemory) -> None:
        self.seen.append(("out of memory", error))

    def fault(self, device: WatchedDevice, fault: ContextPoisoned) -> None:
        self.seen.append(("fault", device.name, device.path, fault))

    def generation_began(self, device: WatchedDevice, generation: int) -> None:
        assert device.generation == generation
        self.seen.append(("generation", generation))

    def generation_ready(self, device: WatchedDevice, generation: int, phases: Phases) -> None:
        assert phases.total > 0
        self.seen.append(("ready", generation))

    def standby_changed(self, device: WatchedDevice, state: str) -> None:
        self.seen.append(("standby", state))

    def device_lost(self, device: WatchedDevice, error: DeviceLost) -> None:
        self.seen.append(("lost", error))


async def test_every_op_is_submitted_sent_and_finished_once() -> None:
    recorder = Recorder()
    async with opened(instruments=[recorder]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        for _ in range(3):  # the later ones are traced
            await device.blas.gemm(a, a)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(device.blas.gemm, a, a)
        async with device.batch() as batch:
            for _ in range(5):
                a = batch.blas.gemm(a, a)
        assert all(told == ["submitted", "sent", "done"] for told in recorder.ops.values())
    count = Counter(recorder.names.values())
    assert count["blas.gemm"] == 28
    assert count["put"] == count["probe"] == 1
    assert recorder.of("ready") == [(1,)]
    seqs, numbers = zip(*recorder.of("in batch"), strict=True)
    assert {recorder.names[seq] for seq in seqs} == {"blas.gemm"}
    assert len(seqs) == 5
    assert len(set(numbers)) == 1


@pytest.mark.slow
async def test_the_ends_of_ops_are_told_apart() -> None:
    recorder = Recorder()
    async with opened(instruments=[recorder]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        with pytest.raises(RuntimeError):
            await device.run(_fail)
        await device.blas.gemm(a, a)  # opens the lane
        async with device.batch() as batch:
            for _ in range(2):  # sent at once, so that the lane is busy
                batch.blas.gemm(a, a)
            with trio.CancelScope() as scope:
                scope.cancel()
                await device.blas.gemm(a, a)
        assert isinstance(await poison(device), ContextPoisoned)
        told = len(recorder.ops)
        with trio.CancelScope() as scope:
            scope.cancel()
            await device.put(np.ones(3))  # waits for the rebuild
        assert scope.cancelled_caught
        assert len(recorder.ops) == told
        await device.put(np.ones(3))
    ends = Counter(told[-1] for told in recorder.ops.values())
    assert ends["failed"] == 1
    assert ends["withdrawn"] == 1
    assert ends["lost"] >= 1
    ((name, path, fault),) = recorder.of("fault")
    assert (name, path) == (device.name, "/device-0")
    assert fault.generation == 1
    assert recorder.of("generation") == [(2,)]
    assert recorder.of("ready") == [(1,), (2,)]


def _fail() -> None:
    raise RuntimeError


async def test_transfers_and_memory() -> None:
    recorder = Recorder()
    async with opened(instruments=[recorder], memory_limit=64 << 20) as device:
        data = np.ones(4 << 20, np.uint8)
        ref = await device.put(data)
        await device.get(ref)
        assert recorder.of("transfer") == [("put", 4 << 20, 0), ("get", 4 << 20, 0)]
        assert recorder.of("transferred") == [(4 << 20, None)] * 2
        with pytest.raises(OutOfMemory):
            await device.empty(1 << 30, np.uint8)
        ((error,),) = recorder.of("out of memory")
        assert error.requested == 1 << 30
    slabs = [nbytes for nbytes, _ in recorder.of("slab")]
    assert slabs[0] >= 4 << 20
    assert sum(slabs) == 0


async def test_replays_are_told_of_with_their_recording() -> None:
    recorder = Recorder()
    async with opened(instruments=[recorder]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        async with device.record(a) as recording:
            recording.blas.gemm(a, a)
        for _ in range(2):
            await recording.replay()
    (first, one), (second, other) = recorder.of("replays")
    assert one == other
    assert recorder.names[first] == recorder.names[second] == "recording.replay"


async def test_instruments_come_and_go_while_the_device_runs() -> None:
    recorder = Recorder()
    async with open_system("demo") as system:
        device = await system.spawn_device(backend="cpu")
        a = await device.put(np.ones((4, 4), np.float32))
        with system.instrumented(recorder):
            await device.blas.gemm(a, a)
        await device.blas.gemm(a, a)
        assert list(recorder.names.values()) == ["blas.gemm"]
        assert not system._instruments.active
        assert system.devices == (device,)
        await device.ref.stop()
        assert not system.devices


async def test_a_device_that_is_lost() -> None:
    recorder = Recorder()
    with pytest.raises(DeviceLost):
        async with opened(instruments=[recorder], max_restarts=0) as device:
            await poison(device)
    ((error,),) = recorder.of("lost")
    assert isinstance(error, DeviceLost)


async def test_an_instrument_that_fails_is_called_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Faulty(DeviceInstrument):
        def op_submitted(self, op: WatchedOp) -> None:
            raise ZeroDivisionError

    async with opened(instruments=[Faulty()]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        await device.blas.gemm(a, a)
    (record,) = caplog.records
    assert "failed and will not be called again" in record.getMessage()


class Timer(DeviceInstrument):
    timed = True

    def __init__(self) -> None:
        self.times: list[tuple[str, OpTimes]] = []

    def op_finished(self, op: WatchedOp, outcome: Outcome) -> None:
        assert op.times is not None
        self.times.append((op.name, op.times))


@pytest.mark.parametrize("isolation", ["process", "thread"])
async def test_hosts_tell_when_ops_were_launched_executed_and_found_done(isolation: str) -> None:
    timer = Timer()
    async with opened(isolation=isolation, instruments=[timer]) as device:
        a = await device.put(np.ones((64, 64), np.float32))
        for _ in range(3):
            await device.blas.gemm(a, a)
        async with device.batch() as batch:  # small ones, which may be launched together
            for _ in range(30):
                batch.blas.gemm(a, a)
    gemms = [times for name, times in timer.times if name == "blas.gemm"]
    assert len(gemms) == 33
    for times in gemms:
        assert 0 < times.submitted <= times.sent <= times.launched
        assert times.launched - SLACK <= times.started <= times.ended <= times.found + SLACK
        assert times.found <= times.answered
        assert times.device_seconds is not None


async def test_times_are_told_while_somebody_wants_them() -> None:
    timer, recorder = Timer(), Recorder()
    async with opened(instruments=[recorder]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        await device.blas.gemm(a, a)
        with device.system.instrumented(timer):
            await device.blas.gemm(a, a)
            await poison(device)  # the next host is asked for them, too
            a = await device.put(np.ones((4, 4), np.float32))
            await device.blas.gemm(a, a)
        timed, recorder.times = recorder.times, []
        await device.blas.gemm(a, a)
    gemms = [times for name, times in timed if name == "blas.gemm"]
    assert [bool(times.launched) for times in gemms] == [False, True, True]
    ((_, last),) = [row for row in recorder.times if row[0] == "blas.gemm"]
    assert not last.launched
    assert last.device_seconds is None


class Together(DeviceInstrument):
    """Notes the values that are reported together."""

    def __init__(self, *, timed: bool = False) -> None:
        self.timed = timed
        self.told: list[FinishedOps] = []
        self.ends: dict[int, str] = {}

    def ops_finished(self, ops: FinishedOps) -> None:
        assert len(ops.seqs) == len(ops.submitted) == len(ops.sent) == len(ops.times) > 0
        assert len(ops.answered) == len(ops.seqs)
        assert not self.ends.keys() & set(ops.seqs)
        self.told.append(ops)
        self.ends.update(dict.fromkeys(ops.seqs, ops.outcome))


class Sampled(DeviceInstrument):
    """Is content with the times of some, and counts all."""

    sampled = True

    def __init__(self) -> None:
        self.told: list[int] = []
        self.untimed: list[int] = []

    def ops_finished(self, ops: FinishedOps) -> None:
        assert len(ops.seqs) == len(ops.submitted) == len(ops.sent) == len(ops.answered)
        assert len(ops.seqs) + len(ops.untimed) > 0
        if ops.name == "blas.gemm":
            assert all(0 < a <= b for a, b in zip(ops.submitted, ops.answered, strict=True))
            self.told += ops.seqs
            self.untimed += ops.untimed


async def many(device: Device, a: GpuRef, each: int) -> None:
    async def ask() -> None:
        for _ in range(each):
            await device.blas.gemm(a, a)

    async with trio.open_nursery() as nursery:
        for _ in range(64):
            nursery.start_soon(ask)


async def test_the_times_of_some_ops_are_taken_where_many_are_in_flight() -> None:
    sampled, together = Sampled(), Together()
    async with opened(isolation="thread", instruments=[sampled]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        for _ in range(9):
            await device.blas.gemm(a, a)
        device.system.tell_instruments()
        assert len(sampled.told) == 9
        await many(device, a, 20)
        device.system.tell_instruments()
        timed, untimed = set(sampled.told), set(sampled.untimed)
        assert len(timed) + len(untimed) == 9 + 64 * 20 == len(timed | untimed)
        assert 20 < len(timed) < 600
        with device.system.instrumented(together):  # which wants all of them
            await many(device, a, 2)
            device.system.tell_instruments()
            seen = [ops for ops in together.told if ops.name == "blas.gemm"]
            assert sum(len(ops.seqs) for ops in seen) == 128
            assert sum(len(ops.untimed) for ops in seen) == 0
        await many(device, a, 9)
        device.system.tell_instruments()
        assert len(sampled.told) + len(sampled.untimed) == 9 + 64 * 31
        assert len(sampled.untimed) > len(untimed)


async def test_instrument_misses_ops_submitted_before_it_was_added() -> None:
    sampled = Sampled()
    async with opened(isolation="thread") as device:
        a = await device.put(np.ones((4, 4), np.float32))
        await device.blas.gemm(a, a)
        core = device.core
        op = Op(core.ports["blas"], 1 << 40, "blas.gemm", WITHDRAWN, (), ())
        core.in_flight[op.seq] = op
        with device.system.instrumented(sampled):
            assert op.submitted_at == UNWATCHED
            assert op.times is None
            core.ports["blas"]._tell_finished(op)
            device.system.tell_instruments()
        del core.in_flight[op.seq]
    assert sampled.told == sampled.untimed == []


@pytest.mark.slow
@pytest.mark.parametrize("one_by_one", [False, True])
async def test_ops_that_are_over_are_told_of_together_once_each(one_by_one: bool) -> None:
    together, recorder = Together(), Recorder()
    async with opened(instruments=[together, recorder] if one_by_one else [together]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        b = await device.copy(a)
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(device.blas.gemm, a, b)
        async with device.batch() as batch:
            for _ in range(40):
                a = batch.blas.gemm(a, b)
        with pytest.raises(RuntimeError):
            await device.run(_fail)
        assert isinstance(await poison(device), ContextPoisoned)
    gemms = [ops for ops in together.told if ops.name == "blas.gemm"]
    assert sum(len(ops.seqs) for ops in gemms) == 80
    assert one_by_one or len(gemms) < 80
    assert {(ops.lane, ops.outcome, ops.nbytes) for ops in gemms} == {("blas", "done", 0)}
    for times in (times for ops in gemms for times in ops.times):
        assert 0 < times.submitted <= times.sent <= times.answered
    assert {ops.nbytes for ops in together.told if ops.name == "copy"} == {64}
    assert {"done", "failed", "lost"} <= set(together.ends.values())
    if one_by_one:
        ends = {seq: told[-1] for seq, told in recorder.ops.items() if told[-1] != "sent"}
        assert ends == together.ends


async def test_grouped_reports_carry_times_of_hosts() -> None:
    together = Together(timed=True)
    async with opened(instruments=[together]) as device:
        a = await device.put(np.ones((64, 64), np.float32))
        async with device.batch() as batch:
            for _ in range(20):
                batch.blas.gemm(a, a)
    gemms = [times for ops in together.told if ops.name == "blas.gemm" for times in ops.times]
    assert len(gemms) == 20
    for times in gemms:
        assert times.submitted <= times.sent <= times.launched <= times.found <= times.answered
        assert times.device_seconds is not None


async def test_op_submitted_by_an_instrument_is_reported_once() -> None:
    together = Together()
    async with opened(instruments=[together]) as device:
        a = await device.put(np.ones((4, 4), np.float32))
        for _ in range(3):
            await device.blas.gemm(a, a)
        async with device.batch() as batch:  # more than a lane has at a time: it receives to send
            for _ in range(3000):
                batch.blas.gemm(a, a)
    gemms = [seq for ops in together.told if ops.name == "blas.gemm" for seq in ops.seqs]
    assert len(gemms) == len(set(gemms)) == 3003


async def test_a_timed_instrument_that_fails_as_an_op_is_submitted_upsets_no_order() -> None:
    class Faulty(Timer):
        def op_submitted(self, op: WatchedOp) -> None:
            if op.name == "blas.gemm":
                raise ZeroDivisionError

    async with opened() as device:
        a = await device.put(np.ones((4, 4), np.float32))
        await device.blas.gemm(a, a)
        with device.system.instrumented(Faulty()):
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(device.blas.gemm, a, a)
            assert not device.system._instruments.active
        await trio.testing.wait_all_tasks_blocked()
        await device.blas.gemm(a, a)
        assert device.statistics().faults == 0
        assert not any(any(port.reports) for port in device.core.ports.values())


async def test_the_core_lists_what_libraries_and_instruments_may_use() -> None:
    async with opened(isolation="thread") as device:
        listed = dir(device.core)
        assert {"memory", "capabilities", "generation", "path"} <= {*listed}
        assert not {"lifecycle", "sealing", "in_flight", "take_over"} & {*listed}
        assert [name for name in listed if not hasattr(device.core, name)] == []
