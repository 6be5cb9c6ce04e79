"""The program's half of a lane, against a socket that the test answers on."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, ClassVar, Final

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_accel.lanes import MessageTemplate, Op, Port, StaggeredEvent, _port, fail_some
from atomr_accel.lanes._loop_flusher import _of_run
from atomr_accel.memory import Block, MemoryMap, Slab
from atomr_accel.wire import (
    PLACE,
    CallByTemplate,
    Fault,
    Frames,
    Message,
    Protect,
    Value,
    append_frame,
    encoder,
)
from atomr_accel.wire.failures import pack_exception

WINDOW: Final = 1024


@pytest.fixture(autouse=True, scope="module", params=[True, False], ids=["low_latency", "plain"])
def low_latency(request: pytest.FixtureRequest) -> bool:
    """Return whether ports work between the turns of the loop, or in tasks alone."""
    Host.low_latency = request.param
    return Host.low_latency


class Note(Message, frozen=True):
    """A message for these tests."""

    text: Any


class Ask(Note, frozen=True):
    """One that is answered with a value."""

    returns: ClassVar[Any] = dict[str, list[int]]


class Large(Note, frozen=True):
    """One that may be large."""

    bulky: ClassVar[bool] = True


class Host:
    """Ports, and the other ends of their sockets."""

    low_latency = True

    def __init__(self, count: int) -> None:
        self.in_flight: dict[int, Op] = {}
        self.ports: list[Port] = []
        self.faults: list[Fault] = []
        self.ends: list[trio.SocketStream] = []
        self._frames = [Frames() for _ in range(count)]
        self._read: list[deque[Any]] = [deque() for _ in range(count)]
        self._seq = 0
        for index in range(count):
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            self.ports.append(
                Port(f"lane{index}", index, ours, self.in_flight, low_latency=self.low_latency)
            )
            self.ends.append(trio.SocketStream(trio.socket.from_stdlib_socket(theirs)))

    def submit(
        self,
        lane: int,
        message: Message | MessageTemplate | None = None,
        reads: Iterable[Block] = (),
        writes: Iterable[Block] = (),
        payload: CallByTemplate | None = None,
    ) -> Op:
        """Submit an op with the next sequence number."""
        self._seq += 1
        port = self.ports[lane]
        name = f"op{self._seq}"
        op = Op(port, self._seq, name, message or Note(self._seq), reads, writes, payload)
        port.submit(op)
        return op

    async def received(self, lane: int) -> tuple[int, list[list[int]], list[Any]]:
        """The next request as the host sees it."""
        while not self._read[lane]:
            data = await self.ends[lane].receive_some(1 << 16)
            assert data, "the port has closed its socket"
            frames = self._frames[lane].feed(bytes(data))
            for frame in frames:
                self._read[lane] += msgspec.msgpack.decode(frame)
        request: tuple[int, list[list[int]], list[Any]] = tuple(self._read[lane].popleft())
        return request

    async def reply(self, lane: int, *replies: object) -> None:
        """Answer, in one piece."""
        buffer = bytearray()
        for reply in replies:
            append_frame(buffer, reply)
        await self.ends[lane].send_all(buffer)

    def on_fault(self, fault: Fault) -> None:
        """Note the fault that the context would get."""
        self.faults.append(fault)


@contextlib.asynccontextmanager
async def running(count: int = 1) -> AsyncIterator[Host]:
    """Ports that run, and must end by themselves when the host hangs up."""
    host = Host(count)
    async with trio.open_nursery() as nursery:
        for port in host.ports:
            nursery.start_soon(port.run, host.on_fault)
        await trio.testing.wait_all_tasks_blocked()
        try:
            yield host
        finally:
            for end in host.ends:
                await end.aclose()


def fail_all(
    host: Host, error: Callable[[Op], Exception] = lambda op: RuntimeError(op.name)
) -> None:
    """Answer all ops in flight, as the end of a context does, but in one turn of the loop."""
    for port in host.ports:
        port.end(error)
    while host.in_flight:
        fail_some(host.in_flight, error)


def value(seq: int, content: object) -> Value:
    return Value(seq, msgspec.Raw(encoder.encode(content)))


def new_block(memory: MemoryMap) -> Block:
    block = memory.allocate(1)
    assert block is not None
    return block


def new_memory() -> MemoryMap:
    memory = MemoryMap("test:0")
    memory.bump()
    memory.add_slab(Slab(memory.new_slab_id(), 1 << 21, -1, sealed=False))
    return memory


async def test_every_kind_of_answer() -> None:
    async with running() as host:
        results: dict[str, object] = {}

        async def wait(op: Op) -> None:
            try:
                results[op.name] = await op.wait()
            except ValueError as error:
                results[op.name] = error

        async with trio.open_nursery() as nursery:
            for message in (Note(1), Note(2), Ask(3)):
                nursery.start_soon(wait, host.submit(0, message))
            requests = [await host.received(0) for _ in range(3)]
            assert requests == [(1, [], ["Note", 1]), (2, [], ["Note", 2]), (3, [], ["Ask", 3])]
            failure = pack_exception(2, ValueError("no"))
            await host.reply(0, value(3, {"a": [1]}), failure, [1])
        assert results.pop("op1") is None
        assert results.pop("op3") == {"a": [1]}
        assert isinstance(results.pop("op2"), ValueError)
        late = host.submit(0)
        await host.reply(0, [late.seq])
        while not late.answered:
            await trio.testing.wait_all_tasks_blocked()
        assert await late.wait() is None
        statistics = host.ports[0].statistics()
        assert (statistics.submitted, statistics.completed, statistics.failed) == (4, 3, 1)
        assert (statistics.in_flight, statistics.queued) == (0, 0)


async def test_a_fault_ends_the_port_and_names_a_suspect() -> None:
    host = Host(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.ports[0].run, host.on_fault)
        host.submit(0)
        host.submit(0)
        await host.received(0)
        await host.reply(0, Fault((2, 1), 700, "ILLEGAL", "why"), [1])  # nothing counts after it
    [fault] = host.faults
    assert (fault.status, fault.suspects) == (700, (2, 1))
    assert host.in_flight.keys() == {1, 2}
    await host.ends[0].aclose()


async def test_answers_that_are_still_in_the_socket_are_taken_at_the_end() -> None:
    """Answers of several times the size that is received at once."""
    host = Host(1)
    op = host.submit(0, Ask(""))
    others = [host.submit(0) for _ in range(3)]
    host.ports[0].send()
    value = msgspec.Raw(encoder.encode({"x": [1] * 100_000}))
    await host.reply(0, Value(op.seq, value), [others[0].seq])
    host.ports[0].take_last_answers()
    assert [each.answered for each in (op, *others)] == [True, True, False, False]
    host.ports[0].close()
    await host.ends[0].aclose()


def jumping(function: Callable[[], Awaitable[None]]) -> None:
    """Run it where time passes as soon as nothing happens."""
    trio.run(function, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("length", [1, 4, 9])
def test_a_frame_that_is_never_complete_is_a_fault(length: int) -> None:
    async def main() -> None:
        async with running() as host:
            ops = [host.submit(0) for _ in range(2)]
            begun = trio.current_time()
            whole, half = bytearray(), bytearray()
            append_frame(whole, [ops[0].seq])
            append_frame(half, pack_exception(ops[1].seq, ValueError("no")))
            await host.ends[0].send_all(whole + half[:length])
            await trio.testing.wait_all_tasks_blocked()
            assert not host.faults
            await trio.sleep(_port.FRAME_SECONDS + 10)
            [fault] = host.faults
            assert f"lane0: {length} bytes of a frame came, and not the rest" in fault.message
            assert fault.suspects == (ops[1].seq,)
            assert [op.answered for op in ops] == [True, False]
            assert trio.current_time() - begun < _port.FRAME_SECONDS + 11

    jumping(main)


def test_frames_that_come_in_pieces_are_no_fault() -> None:
    """Neither one that takes long, nor many that are cut one after the other."""

    async def main() -> None:
        async with running() as host:
            rest = bytearray()
            for _ in range(20):
                op = host.submit(0)
                frame = bytearray()
                append_frame(frame, [op.seq])
                await host.ends[0].send_all(rest + frame[:2])
                rest = frame[2:]
                await trio.sleep(_port.FRAME_SECONDS * 0.9)
            await host.ends[0].send_all(rest)
            await trio.sleep(10 * _port.FRAME_SECONDS)  # an idle lane has all the time it wants
            assert not host.faults
            assert not host.in_flight

    jumping(main)


async def test_answers_to_what_was_given_up_are_ignored() -> None:
    async with running(2) as host:
        op = host.submit(0)
        await host.received(0)
        fail_all(host)
        await host.reply(0, [op.seq], value(5, 5))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match=r"^op1$"):
            await op.wait()
        assert host.in_flight == {}


async def test_a_cancelled_caller_leaves_at_once_and_its_memory_later() -> None:
    memory = new_memory()
    async with running() as host:
        block = new_block(memory)
        used = memory.statistics().used
        op = host.submit(0, None, (), (block,))
        await host.received(0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await op.wait()
        assert scope.cancelled_caught
        memory.free(block)
        del block
        assert memory.statistics().used == used  # a kernel may still write there
        await host.reply(0, [op.seq])
        while not op.answered:
            await trio.testing.wait_all_tasks_blocked()
        assert memory.statistics().used == 0


async def test_unsent_op_is_withdrawn_but_keeps_its_place() -> None:
    async with running() as host:
        ops = [host.submit(0) for _ in range(WINDOW + 3)]
        for _ in range(WINDOW):
            await host.received(0)
        assert host.ports[0].statistics().queued == 3
        required = host.submit(0, Protect(5))
        for op in (ops[WINDOW + 1], required):
            with trio.CancelScope() as scope:
                scope.cancel()
                await op.wait()
            assert scope.cancelled_caught
        await host.reply(0, list(range(1, WINDOW + 1)))
        arrived = [await host.received(0) for _ in range(4)]
        messages = [message for _, _, message in arrived]
        assert messages == [
            ["Note", WINDOW + 1],
            ["Withdrawn"],
            ["Note", WINDOW + 3],
            ["Protect", 5],  # somebody else's safety depends on it
        ]


async def test_a_writer_waits_for_what_the_writer_before_it_does_not() -> None:
    memory = new_memory()
    async with running() as host:
        block = new_block(memory)
        readers = [host.submit(0, None, (block,), ()) for _ in range(3)]
        writer = host.submit(0, None, (), (block,))
        assert {seq for _, seq in writer.dependencies} == {op.seq for op in readers}
        late = host.submit(0, None, (block,), ())
        assert [seq for _, seq in late.dependencies] == [writer.seq]
        last = host.submit(0, None, (), (block,))
        assert [seq for _, seq in last.dependencies] == [late.seq]  # which comes after the writer
        await host.received(0)
        await host.reply(0, [op.seq for op in (*readers, writer, late, last)])
        await last.wait()


async def test_unencodable_op_fails_alone_and_keeps_its_place() -> None:
    memory = new_memory()
    async with running() as host:
        block = new_block(memory)
        odd = host.submit(0, Note(object()), (), (block,))
        after = host.submit(0, Note("after"), (block,))
        assert await host.received(0) == (odd.seq, [], ["Withdrawn"])
        assert await host.received(0) == (after.seq, [[0, odd.seq]], ["Note", "after"])

        async def wait_for_odd() -> None:
            with pytest.raises(TypeError, match="object"):
                await odd.wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_odd)
            await trio.testing.wait_all_tasks_blocked()
            await host.reply(0, [odd.seq, after.seq])
        await after.wait()
        with pytest.raises(TypeError, match="object"):
            await odd.wait()


async def test_a_template_goes_along_once_and_never_with_what_was_not_sent() -> None:
    encoded = msgspec.Raw(encoder.encode(Note(PLACE)))
    template, like = [MessageTemplate(3, encoded) for _ in range(2)]
    brings, names = ["CallWithTemplate", 3, ["Note", PLACE]], ["CallByTemplate", 3]

    async with running() as host:

        def call(template: MessageTemplate, address: int) -> Op:
            return host.submit(0, template, payload=CallByTemplate(3, (address,)))

        ops = [call(template, at) for at in range(3)]  # the first goes at once, the others together
        expected = [[*brings, [0]], [*brings, [1]], [*names, [2]]]
        # A frame that cannot be encoded is sent op by op: what it would have brought is not there.
        ops += [host.submit(0, Note(object())), call(like, 3), call(like, 4), call(template, 5)]
        expected += [["Withdrawn"], [*brings, [3]], [*names, [4]], [*brings, [5]]]
        # Neither is what was withdrawn.
        ops += [call(like, 6), call(like, 7)]
        ops[-2].withdraw()
        expected += [["Withdrawn"], [*brings, [7]]]
        for op, message in zip(ops, expected, strict=True):
            assert await host.received(0) == (op.seq, [], message)
        await host.reply(0, [op.seq for op in ops])
        for op in ops:
            if op is not ops[3]:
                await op.wait()
        with pytest.raises(TypeError, match="object"):
            await ops[3].wait()


async def test_a_template_goes_along_beside_what_may_be_large() -> None:
    template = MessageTemplate(3, msgspec.Raw(encoder.encode(Note(PLACE))))
    async with running() as host:

        def call(address: int) -> Op:
            return host.submit(0, template, payload=CallByTemplate(3, (address,)))

        ops = [host.submit(0), call(0), call(1), host.submit(0, Large("large")), call(2)]
        expected = [["Note", 1], ["CallWithTemplate", 3, ["Note", PLACE], [0]]]
        expected += [["CallByTemplate", 3, [1]], ["Large", "large"], ["CallByTemplate", 3, [2]]]
        for op, message in zip(ops, expected, strict=True):
            assert await host.received(0) == (op.seq, [], message)
        await host.reply(0, [op.seq for op in ops])
        await ops[-1].wait()


async def test_numbers_of_more_than_64_bits_are_an_error_that_names_the_op() -> None:
    async with running() as host:
        odd = host.submit(0, Note(2**70))
        after = host.submit(0, Note(2**63))
        assert await host.received(0) == (odd.seq, [], ["Withdrawn"])
        assert await host.received(0) == (after.seq, [], ["Note", 2**63])
        await host.reply(0, [odd.seq, after.seq])
        await after.wait()
        with pytest.raises(ValueError, match=f"{odd.name}.*more than 64 bits"):
            await odd.wait()


@pytest.mark.parametrize("size", [1 << 18, 1 << 22])
async def test_a_message_larger_than_the_socket_arrives(size: int) -> None:
    async with running() as host:
        op = host.submit(0, Note("x" * size))
        _, _, (_, text) = await host.received(0)
        assert text == "x" * size
        await host.reply(0, [op.seq])
        await op.wait()


async def test_answers_make_room_also_while_nobody_awaits() -> None:
    async with running() as host:
        (port,) = host.ports
        for _ in range(WINDOW + 50):
            host.submit(0)
        port.send()
        while port.statistics().queued > 50:  # as much as the socket takes at a time
            for _ in range(10):
                await host.received(0)
            port.send()
        assert port.statistics().queued == 50
        port.send()
        assert port.statistics().queued == 50, "a host has so many at most"
        buffer = bytearray()
        append_frame(buffer, list(range(1, 31)))
        os.write(host.ends[0].socket.fileno(), buffer)
        port.send()
        found = port.statistics()
        assert (found.completed, found.queued) == (30, 20)


async def test_answers_that_come_while_a_turn_ends_are_seen_at_once() -> None:
    async with running() as host:
        (port,) = host.ports
        ops = [host.submit(0) for _ in range(WINDOW)]
        for _ in range(WINDOW):
            await host.received(0)
        with trio.move_on_after(3) as patience:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ops[0].wait)
                await trio.testing.wait_all_tasks_blocked()
                buffer = bytearray()
                append_frame(buffer, [op.seq for op in ops])
                os.write(host.ends[0].socket.fileno(), buffer)
                last = [host.submit(0) for _ in range(2)]  # no room for these, as far as it knows
        slept = trio.current_time() >= patience.deadline
        assert not slept, "the loop sleeps, although the task may go on"
        for op in last:
            assert (await host.received(0))[0] == op.seq
        assert port.statistics().completed == WINDOW


@pytest.mark.parametrize("low_latency", [True], indirect=True)
async def test_a_turn_begins_only_some_of_many_tasks_that_may_go_on() -> None:
    steps: list[int] = []

    class Steps(trio.abc.Instrument):
        def after_io_wait(self, _timeout: float) -> None:
            steps.append(0)

        def before_task_step(self, _task: trio.lowlevel.Task) -> None:
            steps[-1] += 1

    order: list[int] = []

    async def wait(op: Op) -> None:
        try:
            await op.wait()
        finally:
            order.append(op.seq)

    async with running() as host:
        ops = [host.submit(0) for _ in range(WINDOW)]
        for _ in range(WINDOW):
            await host.received(0)
        async with trio.open_nursery() as nursery:
            for op in ops:
                nursery.start_soon(wait, op)
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(instrument := Steps())
            await trio.lowlevel.checkpoint()
            await host.reply(0, [op.seq for op in ops])
        trio.lowlevel.remove_instrument(instrument)
        # Which task of a turn comes first is trio's business.
        turns = [sorted(order[at : at + 64]) for at in range(0, WINDOW, 64)]
        assert [seq for turn in turns for seq in turn] == [op.seq for op in ops]
        assert max(steps) < 100
        assert len(steps) < WINDOW


async def test_callers_of_a_lane_that_has_ended_go_on_in_turns_too() -> None:
    async with running() as host:
        ops = [host.submit(0) for _ in range(200)]
        failed: list[str] = []

        async def wait(op: Op) -> None:
            with pytest.raises(RuntimeError) as caught:
                await op.wait()
            failed.append(str(caught.value))

        async with trio.open_nursery() as nursery:
            for op in ops:
                nursery.start_soon(wait, op)
            await trio.testing.wait_all_tasks_blocked()
            await host.ends[0].aclose()
            await trio.testing.wait_all_tasks_blocked()  # the port has ended
            made: list[Op] = []

            def error(op: Op) -> Exception:
                made.append(op)
                return RuntimeError(op.name)

            fail_all(host, error)
            assert all(op.answered for op in ops)
            assert not made  # before anybody comes to see
        assert sorted(failed) == sorted(op.name for op in ops)
        assert ops[0].error is ops[0].error is not None


async def test_a_port_that_ends_takes_no_answer_before_its_ops_have_theirs() -> None:
    async with running() as host:
        ops = [host.submit(0) for _ in range(1000)]
        await host.received(0)
        host.ports[0].end(lambda op: RuntimeError(op.name))
        fail_some(host.in_flight, lambda op: RuntimeError(op.name))
        failed = [op for op in ops if op.answered]
        assert failed == ops[: len(failed)]
        assert 0 < len(failed) <= 256
        await host.reply(0, [op.seq for op in ops[len(failed) :]])
        await trio.testing.wait_all_tasks_blocked()
        assert [op for op in ops if op.answered] == failed
        fail_all(host)
        assert [str(op.error) for op in ops] == [op.name for op in ops]


async def test_a_port_that_was_told_to_end_fails_what_is_submitted() -> None:
    async with running() as host:
        block = new_block(new_memory())
        host.ports[0].end(lambda op: RuntimeError(op.name))
        op = host.submit(0, writes=(block,))
        with pytest.raises(RuntimeError, match=op.name):
            await op.wait()
        assert not host.in_flight
        assert not block.writer
        assert host.ports[0].load == 0


async def test_gate_releases_some_of_thousands_per_turn() -> None:
    gate = StaggeredEvent()
    turns: list[int] = []
    gone = cancelled = 0

    class Look(trio.abc.Instrument):
        def before_io_wait(self, timeout: float) -> None:
            del timeout
            turns.append(gone)

    async def go() -> None:
        nonlocal gone
        await gate.wait()
        gone += 1

    async def leave(scope: trio.CancelScope) -> None:
        nonlocal cancelled
        with scope:
            await gate.wait()
        cancelled += scope.cancelled_caught

    async with trio.open_nursery() as nursery:
        scopes = [trio.CancelScope() for _ in range(10)]
        for number in range(1000):
            nursery.start_soon(go)
            if number % 100 == 0:
                nursery.start_soon(leave, scopes[number // 100])
        await trio.testing.wait_all_tasks_blocked()
        assert gone == 0
        poll_replies = Look()
        trio.lowlevel.add_instrument(poll_replies)
        for scope in scopes[1:]:
            scope.cancel()
        gate.open()
        await gate.wait()  # who comes later does not wait for those
    trio.lowlevel.remove_instrument(poll_replies)
    assert (gone, cancelled) == (1000, 9)
    assert max(after - before for before, after in itertools.pairwise(turns)) <= 64


async def test_ops_of_many_tasks_share_a_frame() -> None:
    async with running() as host:
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(host.submit(0).wait)
            requests = [await host.received(0) for _ in range(100)]
            await host.reply(0, [seq for seq, _, _ in requests])
        assert host.ports[0].statistics().frames_sent == 2  # the first at once, the others then


class TurnCounter(trio.abc.Instrument):
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.turns = 0

    def before_io_wait(self, _timeout: float) -> None:
        self.turns += 1


@pytest.mark.parametrize("low_latency", [True], indirect=True)
async def test_an_answer_and_what_follows_it_take_one_turn() -> None:
    async with running() as host:
        first = host.submit(0)
        await host.received(0)
        second: list[Op] = []

        async def ask_again() -> None:
            await first.wait()
            second.extend(host.submit(0) for _ in range(2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_again)
            await trio.testing.wait_all_tasks_blocked()
            turns = TurnCounter()
            trio.lowlevel.add_instrument(turns)
            buffer = bytearray()
            append_frame(buffer, [first.seq])
            os.write(host.ends[0].socket.fileno(), buffer)
            await trio.lowlevel.checkpoint()  # the loop looks, and runs who waits
            await trio.lowlevel.checkpoint()  # and has sent what that has submitted
            assert turns.turns == 2
            trio.lowlevel.remove_instrument(turns)
            assert [op.sent for op in second] == [True, True]


@pytest.mark.parametrize("when", ["receiving", "sending"])
async def test_failure_between_turns_is_raised(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(1)

    def broken(*_args: object) -> None:
        raise RuntimeError(when)

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.ports[0].run, host.on_fault)
            await trio.testing.wait_all_tasks_blocked()
            op = host.submit(0)
            await host.received(0)
            name = "_receive" if when == "receiving" else "_encode_what_fits"
            monkeypatch.setattr(Port, name, broken)
            if when == "receiving":
                await host.reply(0, [op.seq])
            else:
                host.submit(0)
    assert caught.group_contains(RuntimeError, match=when)
    await host.ends[0].aclose()


async def test_ports_leave_nothing_behind() -> None:
    async with running(3):
        assert (_of_run.get() is not None) is Host.low_latency
    assert _of_run.get() is None


async def test_the_end_of_the_socket_ends_the_port() -> None:
    async with running() as host:
        for _ in range(5):
            host.submit(0)
    assert len(host.in_flight) == 5  # the context answers them, it knows why


@pytest.mark.parametrize("deadline", [1.0])
async def test_only_the_head_of_a_lane_is_overdue(deadline: float) -> None:
    async with running(2) as host:
        memory = new_memory()
        block = new_block(memory)
        first, second = host.ports
        assert first.overdue(0.0, deadline) is None  # nothing in flight
        slow = host.submit(0, None, (), (block,))
        dependent = host.submit(1, None, (block,))
        assert first.overdue(10.0, deadline) is None  # seen for the first time
        assert second.overdue(10.0, deadline) is None
        assert first.overdue(10.9, deadline) is None
        assert first.overdue(11.0, deadline) is slow
        assert second.overdue(20.0, deadline) is None  # it waits for the other lane's op
        await host.reply(0, [slow.seq])
        while not slow.answered:
            await trio.testing.wait_all_tasks_blocked()
        assert first.overdue(30.0, deadline) is None
        assert second.overdue(20.5, deadline) is None
        assert second.overdue(21.0, deadline) is dependent


# --- order ---------------------------------------------------------------------------------

accesses = st.lists(
    st.tuples(
        st.integers(0, 2),  # lane
        st.frozensets(st.integers(0, 3), max_size=3),  # what it reads
        st.frozensets(st.integers(0, 3), max_size=2),  # what it writes
        st.integers(0, 9),  # how many answers arrive before it, if there are so many
    ),
    max_size=25,
)


@settings(max_examples=150)
@given(accesses=accesses)
async def test_conflicting_ops_are_always_ordered(accesses: list[Any]) -> None:
    memory = new_memory()
    blocks = [new_block(memory) for _ in range(4)]
    touched: dict[int, tuple[frozenset[int], frozenset[int]]] = {}
    after: dict[int, set[int]] = {}
    lane_of: dict[int, int] = {}

    def ordered(earlier: int, later: int) -> bool:
        """Return whether ``later`` waits for ``earlier``, directly or not."""
        seen: set[int] = set()
        todo = [later]
        while todo:
            seq = todo.pop()
            todo += after[seq] - seen
            seen |= after[seq]
        return earlier in seen

    async with running(3) as host:
        for lane, reads, writes, answers in accesses:
            # A host answers an op after those that it waits for.
            for seq in list(host.in_flight)[: max(0, answers - 6)]:
                await host.reply(lane_of[seq], [seq])
                while seq in host.in_flight:
                    await trio.testing.wait_all_tasks_blocked()
            op = host.submit(lane, None, [blocks[i] for i in reads], [blocks[i] for i in writes])
            touched[op.seq] = reads, writes
            lane_of[op.seq] = lane
            assert all(lane_of[seq] == index for index, seq in op.dependencies)
            after[op.seq] = {seq for _, seq in op.dependencies}
            assert after[op.seq] <= set(host.in_flight) - {op.seq}
            for seq in set(host.in_flight) - {op.seq}:
                their_reads, their_writes = touched[seq]
                if writes & (their_reads | their_writes) or reads & their_writes:
                    assert ordered(seq, op.seq)
        fail_all(host)
    for block in blocks:
        assert not block.writer
        assert not block.readers
