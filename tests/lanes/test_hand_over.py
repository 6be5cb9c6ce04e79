"""A lane goes on under another task, as a lane of another device."""

from __future__ import annotations

import socket
import sys
from typing import Any, Final

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.actors.instrument import Instruments
from atomr_accel.lanes import DeviceInstrument, Op, Outcome, Port, WatchedOp
from atomr_accel.lanes._loop_flusher import _of_run
from atomr_accel.wire import Fault, Frames, Message, append_frame


class Note(Message, frozen=True):
    """A message for these tests."""

    number: int


FAR: Final = 1 << 40


class Lane:
    """A port of a shadow, what becomes its device, and the host's end."""

    def __init__(self, *, low_latency: bool = True) -> None:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        self.before: dict[int, Op] = {}
        self.after: dict[int, Op] = {}
        self.port = Port("lane", 0, ours, self.before, low_latency=low_latency)
        self.end = theirs
        self.faults: list[Fault] = []
        self._frames = Frames()
        self._seq = FAR

    def submit(self) -> Op:
        self._seq += 1
        op = Op(self.port, self._seq, f"op{self._seq}", Note(self._seq), (), ())
        self.port.submit(op)
        return op

    def received(self) -> list[int]:
        """The numbers of the ops that have come since."""
        try:
            data = self.end.recv(1 << 20)
        except BlockingIOError:
            return []
        assert data, "the lane was closed"
        frames = self._frames.feed(data)
        return [request[0] for frame in frames for request in msgspec.msgpack.decode(frame)]

    async def run(self, scope: trio.CancelScope) -> None:
        """Be who runs it, until another does."""
        with scope:
            await self.port.run(self.faults.append)

    def hand_over(self, scope: trio.CancelScope) -> None:
        self.port.hand_over()
        scope.cancel()


@given(sent=st.integers(0, 3), cut=st.integers(0, 12), ran=st.booleans(), meanwhile=st.booleans())
@settings(max_examples=60)
def test_hand_over_loses_nothing(sent: int, cut: int, *, ran: bool, meanwhile: bool) -> None:
    """Answers are in the lane, on the socket, or cut in the middle."""

    async def main() -> None:
        lane = Lane()
        answers = bytearray()
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()
            nursery.start_soon(lane.run, scope)
            if ran:  # or its task has not even begun
                await trio.testing.wait_all_tasks_blocked()
            ops = [lane.submit() for _ in range(sent)]
            await trio.testing.wait_all_tasks_blocked() if ran else None
            for op in ops:
                append_frame(answers, [op.seq])
            begun = lane.end.send(answers[:cut])
            if meanwhile:
                await trio.testing.wait_all_tasks_blocked()
            lane.hand_over(scope)
            await trio.testing.wait_all_tasks_blocked()
        lane.port.move_to(lane.after)
        assert not lane.before
        assert set(lane.after) == {op.seq for op in ops if not op.answered}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lane.run, trio.CancelScope())
            last = lane.submit()
            await trio.testing.wait_all_tasks_blocked()
            assert lane.received() == [op.seq for op in (*ops, last)]
            append_frame(answers, [last.seq])
            lane.end.send(answers[begun:])
            for op in (*ops, last):
                await op.wait()
            assert not lane.after
            lane.end.close()
        assert not lane.faults
        assert _of_run.get() is None

    trio.run(in_time, main)


async def test_a_lane_that_ended_meanwhile_ends_at_once() -> None:
    lane = Lane()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(lane.run, scope)
        await trio.testing.wait_all_tasks_blocked()
        lane.hand_over(scope)
    lane.end.close()
    lane.port.move_to(lane.after)
    with trio.fail_after(5):
        await lane.port.run(_never)
    with trio.fail_after(5):
        await lane.port.wait_ended()


async def test_a_lane_that_nobody_goes_on_with_is_closed() -> None:
    lane = Lane()
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(lane.run, scope)
        lane.hand_over(scope)
    with pytest.raises(BlockingIOError):
        lane.end.recv(1)
    lane.port.close()
    lane.port.close()
    assert lane.end.recv(1) == b""
    lane.end.close()


async def test_ops_that_move_leave_the_switch_interval_alone_where_nobody_hurries() -> None:
    usual = sys.getswitchinterval()
    one, other = Lane(low_latency=False), Lane(low_latency=False)
    op, stays = one.submit(), other.submit()
    one.before[stays.seq + 1] = stays  # so that something is in flight before and after
    after: dict[int, Op] = {}
    one.port.move_to(after)
    assert list(after.values()) == [op]
    assert sys.getswitchinterval() == usual
    for lane in (one, other):
        lane.port.close()
        lane.end.close()


async def in_time(function: Any) -> None:
    with trio.fail_after(2):
        await function()


def _never(fault: Any) -> None:
    raise AssertionError(fault)


async def test_instruments_of_the_device_are_told_of_what_it_takes_over() -> None:
    told: list[tuple[int, ...]] = []

    class Watch(DeviceInstrument):
        def op_submitted(self, op: WatchedOp) -> None:
            told.append((op.seq, op.device.generation))

        def op_finished(self, op: WatchedOp, outcome: Outcome) -> None:
            told.append((op.seq,))

    class Device:
        name, path, generation = "cpu:0", "/device-0", 7
        instruments = Instruments([Watch()])

    lane = Lane(low_latency=False)
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(lane.run, scope)
        op = lane.submit()
        await trio.testing.wait_all_tasks_blocked()
        lane.hand_over(scope)
        await trio.testing.wait_all_tasks_blocked()
    assert told == []
    lane.port.move_to(lane.after, Device())
    assert told == [(op.seq, 7)]
    assert op.times is not None
    assert op.times.sent
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lane.run, trio.CancelScope())
        answer = bytearray()
        append_frame(answer, [op.seq])
        lane.end.send(answer)
        await op.wait()
        lane.end.close()
    assert told == [(op.seq, 7), (op.seq,)]
