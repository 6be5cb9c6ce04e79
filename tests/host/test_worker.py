"""The host's half of a lane, on a device whose work finishes when the test says so."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.host._lane import Lane
from atomr_accel.host._launcher import Launcher
from atomr_accel.host.completion import CallbackCompletion
from atomr_accel.wire import (
    PLACE,
    CallByTemplate,
    CallWithTemplate,
    Failure,
    Fault,
    Message,
    encoder,
)
from atomr_accel.wire.messages import Withdrawn

from ..fakes.lanes import (
    SECONDS,
    STRATEGIES,
    Ask,
    Break,
    Drop,
    Fail,
    FakeDevice,
    Lanes,
    Odd,
    Stay,
    Work,
    new_record,
)

COMPLETIONS: Final = tuple(STRATEGIES)


@dataclass(frozen=True)
class Op:
    """An op of a random program."""

    lane: int
    message: Message
    after: frozenset[int]
    template: int | None

    @property
    def works(self) -> bool:
        return isinstance(self.message, Work)


@st.composite
def programs(draw: st.DrawFn) -> list[Op]:
    """Ops in program order; sequence numbers start at 1."""
    lanes = draw(st.integers(1, 3))
    kinds = st.sampled_from(["work"] * 6 + ["value", "fused", "fused", "fail", "withdrawn"])
    ops: list[Op] = []
    for seq in range(1, draw(st.integers(1, 40)) + 1):
        message: Message
        match draw(kinds):
            case "work":
                message = Work(seq)
            case "value":
                message = Work(seq, [seq, "value"])
            case "fused":
                message = Work(seq, None, draw(st.integers(0, 1)))
            case "fail":
                message = Fail(seq)
            case _:
                message = Withdrawn()
        earlier = st.integers(max(1, seq - 12), max(1, seq - 1))
        after = draw(st.frozensets(earlier, max_size=min(3, seq - 1)))
        # Few, so that they are replaced while others wait that came by them.
        template = draw(st.none() | st.integers(0, 2)) if isinstance(message, Work) else None
        ops.append(Op(draw(st.integers(0, lanes - 1)), message, after, template))
    return ops


class Templates:
    """The templates that a lane's host has, as its port knows them."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}

    def request(self, op: Op) -> Message:
        """Return the message that is sent for an op."""
        number, work = op.template, op.message
        if number is None or not isinstance(work, Work):
            return work
        encoded = encoder.encode(Work(PLACE, work.value, work.key))
        if self._known.get(number) == encoded:
            return CallByTemplate(number, (work.op,))
        self._known[number] = encoded
        return CallWithTemplate(number, msgspec.Raw(encoded), (work.op,))


def work_before(ops: list[Op]) -> dict[int, set[int]]:
    """The work that must be done before each op runs, or is answered.

    An op that does no work passes on its dependencies: later ops must not overtake the ops that it
    would have waited for.
    """
    before: dict[int, set[int]] = {}
    for seq, op in enumerate(ops, 1):
        before[seq] = set()
        for earlier in op.after:
            before[seq] |= before[earlier] | ({earlier} if ops[earlier - 1].works else set())
    return before


@pytest.mark.slow
@settings(max_examples=150)
@given(
    ops=programs(),
    max_streams=st.integers(1, 4),
    completion=st.sampled_from(COMPLETIONS),
    track_each_op=st.booleans(),
    shared=st.booleans(),
    choices=st.lists(st.integers(0, 99), min_size=1, max_size=20),
    bunches=st.lists(st.integers(1, 9), min_size=1, max_size=5),
)
def test_ops_keep_their_order_and_are_answered_once(
    ops: list[Op],
    max_streams: int,
    completion: str,
    track_each_op: bool,
    shared: bool,
    choices: list[int],
    bunches: list[int],
) -> None:
    before = work_before(ops)
    device = FakeDevice()
    lanes = Lanes(
        device,
        3,
        max_streams=max_streams,
        completion=completion,
        track_each_op=track_each_op,
        shared=shared,
    )
    answers: dict[int, Any] = {}
    trouble: list[str] = []

    def collect(lane: int) -> None:
        expected = sum(op.lane == lane for op in ops)
        for seq, answer in lanes.replies(lane) if expected else ():
            if seq in answers or ops[seq - 1].lane != lane:
                trouble.append(f"{seq} was answered again, or by the wrong lane")
            missing = before[seq] | ({seq} if ops[seq - 1].works else set())
            missing -= set(device.finished)
            if missing:
                trouble.append(f"{seq} was answered before {missing} had finished")
            answers[seq] = answer
            expected -= 1
            if not expected:
                return

    with lanes:
        collectors = [threading.Thread(target=collect, args=(lane,)) for lane in range(3)]
        for collector in collectors:
            collector.start()
        queue = list(enumerate(ops, 1))
        templates = [Templates() for _ in range(3)]
        while queue:  # as ports do: each lane's ops in order, in bunches of any size
            bunches = bunches[1:] + bunches[:1]
            bunch, queue = queue[: bunches[0]], queue[bunches[0] :]
            for lane in {op.lane for _, op in bunch}:
                requests = [
                    (
                        seq,
                        [(ops[earlier - 1].lane, earlier) for earlier in op.after],
                        templates[lane].request(op),
                    )
                    for seq, op in bunch
                    if op.lane == lane
                ]
                lanes.send(lane, *requests)
        todo = {seq for seq, op in enumerate(ops, 1) if op.works}
        while todo:
            device.wait_for(lambda: bool(device.eligible()))
            eligible = sorted(device.eligible())
            choices = choices[1:] + choices[:1]
            chosen = eligible[choices[0] % len(eligible)]
            assert before[chosen] <= set(device.finished), f"{chosen} ran too early"
            device.finish(chosen)
            todo.remove(chosen)
        for collector in collectors:
            collector.join(SECONDS)
    assert trouble == []
    assert sorted(answers) == list(range(1, len(ops) + 1))
    for seq, op in enumerate(ops, 1):
        match op.message:
            case Work(value=value):
                assert answers[seq] == value
            case Fail():
                assert (answers[seq].kind, answers[seq].seq) == ("ValueError", seq)
            case _:
                assert answers[seq] is None
    worked = Counter(seq for seq, op in enumerate(ops, 1) if op.works)
    assert Counter(device.launched()) == worked
    for stream in device.streams:
        assert stream.released == stream.marked


def take(lanes: Lanes, lane: int, count: int) -> dict[int, Any]:
    """The next ``count`` answers of a lane."""
    answers: dict[int, Any] = {}
    for seq, answer in lanes.replies(lane):
        answers[seq] = answer
        if len(answers) == count:
            break
    return answers


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_watched_ops_of_a_group_are_answered_as_they_finish(
    completion: str,
) -> None:
    device = FakeDevice()
    with Lanes(device, 1, completion=completion, track_each_op=True) as lanes:
        requests: list[Any] = [
            (seq, [], Work(seq, seq if seq == 2 else None)) for seq in range(1, 6)
        ]
        lanes.send(0, *requests, (6, [], Fail(6)))
        device.wait_for(lambda: len(device.launched()) == 5)
        for seq in range(1, 5):
            device.finish(seq)
            assert take(lanes, 0, 1) == {seq: 2 if seq == 2 else None}
        device.finish(5)
        assert set(take(lanes, 0, 2)) == {5, 6}
    assert all(stream.released == stream.marked for stream in device.streams)


def test_a_failed_op_is_answered_after_what_it_follows() -> None:
    device = FakeDevice()
    with Lanes(device, 2) as lanes:
        lanes.send(0, (1, [], Work(1)))
        device.wait_for(lambda: device.launched() == [1])
        lanes.send(1, (2, [(0, 1)], Fail(2)), (3, [(1, 2)], Work(3)))
        device.wait_for(lambda: sorted(device.launched()) == [1, 3])
        assert [*device.eligible()] == [1]  # 3 comes after 2, hence after 1
        device.finish(1)
        device.finish(3)
        answers = take(lanes, 1, 2)
        assert answers[2].message == "op 2 is refused"


def test_an_op_waits_aside_for_one_that_another_lane_has_not_seen() -> None:
    device = FakeDevice()
    with Lanes(device, 2) as lanes:
        lanes.send(1, (2, [(0, 1)], Work(2)), (3, [], Work(3)), (4, [(1, 2)], Work(4)))
        device.wait_for(lambda: device.launched() == [3])  # it goes first; 4 waits with 2
        lanes.send(0, (1, [], Work(1)))
        device.wait_for(lambda: sorted(device.launched()) == [1, 2, 3, 4])
        assert sorted(device.eligible()) == [1, 3]
        for op in (3, 1, 2, 4):
            device.finish(op)
        assert take(lanes, 0, 1) == {1: None}
        assert take(lanes, 1, 3) == {2: None, 3: None, 4: None}


def test_independent_ops_spread_over_ways() -> None:
    device = FakeDevice()
    with Lanes(device, 1, max_streams=3) as lanes:
        lanes.send(0, *((seq, [], Work(seq)) for seq in range(1, 101)))
        device.wait_for(lambda: len(device.launched()) == 100)
        assert len(device.eligible()) == 3
        lanes.send(0, (101, [(0, 5)], Work(101)))
        device.wait_for(lambda: len(device.launched()) == 101)
        follower = next(stream for stream in device.streams if 101 in stream.ops)
        assert 5 in follower.ops


def test_a_few_that_take_long_overlap() -> None:
    device = FakeDevice()
    with Lanes(device, 1, max_streams=3, fills_streams=True) as lanes:
        lanes.send(0, *((seq, [], Work(seq)) for seq in (1, 2, 3)))
        device.wait_for(lambda: len(device.launched()) == 3)
        assert sorted(device.eligible()) == [1, 2, 3]
        device.finish_all()
        take(lanes, 0, 3)
        for seq in (4, 5, 6, 7):  # one after the other
            lanes.send(0, (seq, [], Work(seq)))
            device.wait_for(lambda: len(device.launched()) == seq)  # noqa: B023 (at once)
        assert len(device.eligible()) == 3
        lanes.send(0, (8, [(0, 5)], Work(8)))
        device.wait_for(lambda: 8 in device.launched())
        follower = next(stream for stream in device.streams if 8 in stream.ops)
        assert 5 in follower.ops
        lanes.send(0, *((seq, [], Work(seq)) for seq in range(9, 60)))  # many go in groups
        device.wait_for(lambda: len(device.launched()) == 59)
        device.finish_all()
        assert len(take(lanes, 0, 56)) == 56


def test_a_few_that_follow_each_other_are_answered_together() -> None:
    device = FakeDevice()
    with Lanes(device, 1, max_streams=3, fills_streams=True) as lanes:
        ops = ((seq, [(0, seq - 1)] if seq > 1 else [], Work(seq)) for seq in range(1, 7))
        lanes.send(0, *ops)
        device.wait_for(lambda: len(device.launched()) == 6)
        device.finish_all()
        assert len(take(lanes, 0, 6)) == 6
        (stream,) = (stream for stream in device.streams if stream.ops)
        assert sum(stream.marked.values()) <= 2


def test_dropped_object_is_released_on_every_path() -> None:
    device = FakeDevice()
    with Lanes(device, 1, max_streams=3) as lanes:
        lanes.send(0, *((seq, [], Work(seq)) for seq in range(1, 101)))
        device.wait_for(lambda: len(device.launched()) == 100)
        device.finish_all()
        assert len(take(lanes, 0, 100)) == 100
        lanes.send(0, (101, [], Drop(7)))
        assert take(lanes, 0, 1) == {101: None}
        assert [stream.dropped for stream in device.streams] == [[7]] * 3


def test_ops_that_can_are_launched_together() -> None:
    device = FakeDevice()
    with Lanes(device, 1, most=3) as lanes:
        fused: list[Any] = [(seq, [], Work(seq, None, 0)) for seq in range(1, 8)]
        other = [(8, [], Work(8, None, 1)), (9, [(0, 8)], Work(9, None, 1)), (10, [], Work(10))]
        lanes.send(0, *fused, *other)
        device.wait_for(lambda: len(device.launched()) == 10)
        assert device.launched() == list(range(1, 11))
        device.finish_all()
        assert take(lanes, 0, 10) == dict.fromkeys(range(1, 11))


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_fault_of_the_device_is_seen_however_a_lane_waits(completion: str) -> None:
    device = FakeDevice()
    with Lanes(device, 1, completion=completion) as lanes:
        lanes.send(0, (7, [], Work(7)), (8, [], Work(8)))
        device.wait_for(lambda: len(device.launched()) == 2)
        device.finish(7)
        device.fail()
        *_, (seq, fault) = lanes.replies(0)  # all until the lane has ended
    assert seq in (7, 8)
    assert isinstance(fault, Fault)
    assert (fault.status, fault.status_name, fault.message) == (700, "ILLEGAL", "a fault")


def test_a_fault_names_the_oldest_op_of_each_stream_of_all_threads() -> None:
    """The thread that sees it first may have none but innocent ops."""
    device = FakeDevice()
    with Lanes(device, 2, max_streams=2) as lanes:
        lanes.send(0, (1, [], Work(1)))
        lanes.send(1, (2, [], Work(2)))
        device.wait_for(lambda: len(device.launched()) == 2)
        device.finish(1)
        assert take(lanes, 0, 1) == {1: None}
        lanes.send(0, (3, [], Work(3)), (4, [(0, 3)], Work(4)))
        device.wait_for(lambda: len(device.launched()) == 4)
        device.fail()
        for lane in range(2):
            [(_, fault)] = lanes.replies(lane)
            assert isinstance(fault, Fault)
            assert {*fault.suspects} == {2, 3}


def test_a_failure_that_turns_out_to_be_a_fault_names_its_op() -> None:
    device = FakeDevice()
    with Lanes(device, 1) as lanes:
        lanes.send(0, (3, [], Break(3)), (4, [], Work(4)))
        [(seq, fault)] = lanes.replies(0)
    assert seq == 3
    assert isinstance(fault, Fault)
    assert device.launched() == []


def test_a_lane_ends_even_if_its_library_does_not_let_go() -> None:
    device = FakeDevice()
    with Lanes(device, 1, close_fails=True) as lanes:
        lanes.send(0, (1, [], Break(1)))
        [(seq, _)] = lanes.replies(0)  # and then comes the end of the socket
        assert seq == 1


def test_a_lane_whose_program_has_gone_ends() -> None:
    device = FakeDevice()
    with Lanes(device, 2) as lanes:
        lanes.send(0, (1, [(1, 2)], Work(1)))  # waits for a lane that never hears of it
    assert device.launched() == []


def test_unserializable_message_fails_alone() -> None:
    device = FakeDevice()
    requests = [(2, [(0, 1)], ["NoSuchMessage", 5]), (4, [], ["Work", 4, "good too"])]
    frame = msgspec.msgpack.encode(requests)
    with Lanes(device, 1) as lanes:
        lanes.send(0, (1, [], Odd(1)))
        lanes.send_raw(0, len(frame).to_bytes(4, "little") + frame)
        lanes.send(0, (5, [(0, 2)], Work(5, "good")))
        device.wait_for(lambda: device.launched() == [4, 5])
        device.finish(4)
        device.finish(5)
        answers = take(lanes, 0, 4)
    assert isinstance(answers[1], Failure)
    assert (answers[1].kind, answers[2].kind) == ("TypeError", "TypeError")
    assert "NoSuchMessage" in answers[2].message
    assert (answers[4], answers[5]) == ("good too", "good")


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_value_known_to_the_device_is_read_when_the_op_is_done(completion: str) -> None:
    device = FakeDevice()
    with Lanes(device, 1, completion=completion) as lanes:
        lanes.send(0, (1, [], Ask(1, "found")), (2, [], Ask(2)), (3, [(0, 2)], Work(3, "goes on")))
        device.wait_for(lambda: device.launched() == [1, 2, 3])  # nothing waits for an answer
        for seq in (1, 2, 3):
            device.finish(seq)
        answers = take(lanes, 0, 3)
    assert (answers[1], answers[3]) == ("found", "goes on")
    assert isinstance(answers[2], Failure)
    assert (answers[2].kind, answers[2].message) == ("ValueError", "op 2 has no answer")


def test_finished_op_is_answered_before_an_op_that_waits() -> None:
    device = FakeDevice()
    with Lanes(device, 1) as lanes:
        lanes.send(0, (1, [], Drop(1)), (2, [], Stay(2)))
        assert take(lanes, 0, 1) == {1: None}
        device.let_go(2)
        assert take(lanes, 0, 1) == {2: None}


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 (names, not paths)


@pytest.mark.parametrize("completion", COMPLETIONS)
def test_a_lane_leaves_no_descriptor_behind(completion: str) -> None:
    before = open_files()
    device = FakeDevice()
    with Lanes(device, 3, completion=completion) as lanes:
        lanes.send(0, *((seq, [], Work(seq)) for seq in range(1, 21)))
        device.wait_for(lambda: len(device.launched()) >= 8)
        device.finish(1)
        if completion != "blocking":  # which waits for the oldest op, whatever happens
            lanes.hang_up()
    assert open_files() == before


def test_lanes_that_wait_for_each_other_come_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: dict[int, Lane] = {}
    socks = [socket.socketpair() for _ in range(3)]
    launchers = [
        Launcher(CallbackCompletion(), idle_spin=False, record=new_record()) for _ in socks
    ]
    for index, (_, theirs) in enumerate(socks):
        lanes[index] = Lane(index, theirs, lanes, launchers[index])
    first, *others = lanes.values()
    woken: list[Launcher] = []

    def wake(launcher: Launcher) -> None:
        """Have every lane look again at once, as a thread of its own would."""
        woken.append(launcher)
        assert len(woken) < 10, "lanes wake each other for ever"
        for lane in others:
            lane.retry(7)

    for lane in others:
        lane.aside[7] = (7, ((0, 5),), Work(7))
        lane.retry(7)  # each watches the first, and then the one who watches too
        lane._ready(((1, 9), (2, 9)))
    monkeypatch.setattr(Launcher, "wake", wake)
    first._notify()
    assert len(woken) == len(others)
    assert first._watchers == set(launchers[1:])
    for launcher in launchers:
        launcher.close()
    for pair in socks:
        for sock in pair:
            sock.close()


def calls_in_a_row(number: int, *seqs: int) -> list[Any]:
    """Calls by a template, each after the op before it."""
    return [(seq, [(0, seq - 1)], CallByTemplate(number, (seq,))) for seq in seqs]


def with_template(number: int, message: Message, op: int) -> CallWithTemplate:
    return CallWithTemplate(number, msgspec.Raw(encoder.encode(message)), (op,))


def test_one_of_several_calls_in_a_row_fails() -> None:
    device = FakeDevice()
    with Lanes(device, 1) as lanes:
        lanes.send(0, (1, [], with_template(1, Work(PLACE), 1)))
        lanes.send(0, (2, [(0, 1)], with_template(2, Fail(PLACE), 2)))
        calls = [*calls_in_a_row(1, 3, 4), *calls_in_a_row(2, 5), *calls_in_a_row(1, *range(6, 20))]
        lanes.send(0, *calls)
        device.wait_for(lambda: len(device.launched()) == 17)
        device.finish_all()
        answers = take(lanes, 0, 19)
    works = [seq for seq in range(1, 20) if seq not in (2, 5)]
    assert device.launched() == works
    assert [seq for seq in range(1, 20) if answers[seq] is None] == works
    assert all(isinstance(answers[seq], Failure) for seq in (2, 5))


def test_fault_in_a_run_of_calls_names_the_call_that_caused_it() -> None:
    device = FakeDevice()
    with Lanes(device, 1) as lanes:
        lanes.send(0, (1, [], with_template(1, Work(PLACE), 1)))
        device.wait_for(lambda: device.launched() == [1])
        device.finish_all()
        assert take(lanes, 0, 1) == {1: None}
        lanes.send(0, (2, [(0, 1)], with_template(2, Break(PLACE), 0)), *calls_in_a_row(1, 3, 4))
        ((_, answer),) = lanes.replies(0)
        assert isinstance(answer, Fault)
        assert answer.suspects == (2,)
    assert device.launched() == [1]


@pytest.mark.parametrize("after", [(), ((1, 1),)])
def test_a_call_by_a_template_that_is_not_there_is_a_violation(after: Any) -> None:
    """At once, also where it would have to wait for something else."""
    device = FakeDevice()
    with Lanes(device, 2) as lanes:
        lanes.send(0, (1, after, CallByTemplate(3, (1,))))
        ((_, answer),) = lanes.replies(0)
        assert isinstance(answer, Fault)
        assert answer.status_name == "protocol violation"
        assert "no template 3" in answer.message
    assert device.launched() == []
