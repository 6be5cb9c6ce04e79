"""Which of the ops in flight is suspected of a fault."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from atomr_accel import DeviceInstrument
from atomr_accel.device.contexts._reporting import likeliest, suspect_of
from atomr_accel.lanes import MessageTemplate, Op
from atomr_accel.wire import Message
from atomr_accel.wire.blackbox import BOX_BYTES, FUNCTION, LAUNCHED, SEQ, BlackBox

from ..harness import opened


class Careful(Message, frozen=True):
    """An op that its caller has checked."""


class Reckless(Message, frozen=True):
    """An op that runs code of the program on the device."""

    unchecked: ClassVar[bool] = True


class Function(Reckless, frozen=True):
    """A function of the program."""

    pickles: ClassVar[bool] = True


def ops_of(**lanes: list[Message]) -> dict[int, Op]:
    """Return ops in flight, from 1 on, in lanes by name."""
    in_flight: dict[int, Op] = {}
    for name, messages in lanes.items():
        port = SimpleNamespace(name=name)
        for message in messages:
            seq = len(in_flight) + 1
            in_flight[seq] = Op(port, seq, f"op{seq}", message, (), (), sent=True)  # type: ignore[arg-type]
    return in_flight


def suspected(in_flight: dict[int, Op], box: BlackBox, *, asynchronous: bool) -> tuple[int, bool]:
    core = SimpleNamespace(
        in_flight=in_flight, capabilities=SimpleNamespace(asynchronous=asynchronous)
    )
    op, certain = suspect_of(core, box)  # type: ignore[arg-type]
    return (0 if op is None else op.seq), certain


def noted(number: int, box: BlackBox, *, seq: int, function: int = 0, launched: int = 0) -> None:
    record = box.record(number)
    record[SEQ], record[FUNCTION], record[LAUNCHED] = seq, function, launched


def test_a_running_function_is_suspected_before_ops_that_are_older() -> None:
    box = BlackBox(bytearray(BOX_BYTES))
    in_flight = ops_of(blas=[Careful()], kernels=[Reckless()], run=[Function()])
    noted(1, box, seq=1)
    noted(2, box, seq=2, function=2)
    for asynchronous in (False, True):
        assert suspected(in_flight, box, asynchronous=asynchronous) == (2, False)
    noted(3, box, seq=3, function=3)
    assert suspected(in_flight, box, asynchronous=False) == (3, False)


def test_an_op_that_a_thread_has_launched_is_no_suspect_where_that_is_its_execution() -> None:
    box = BlackBox(bytearray(BOX_BYTES))
    in_flight = ops_of(blas=[Careful()], memory=[Careful()])
    noted(1, box, seq=1, launched=1)
    noted(2, box, seq=2)
    assert suspected(in_flight, box, asynchronous=False) == (2, False)
    assert suspected(in_flight, box, asynchronous=True) == (1, False)
    del in_flight[2]  # it is answered
    assert suspected(in_flight, box, asynchronous=False) == (1, False)


def test_an_op_that_no_check_makes_safe_is_suspected_first() -> None:
    first, second, third = ops_of(blas=[Careful()], kernels=[Reckless(), Reckless()]).values()
    assert likeliest([first, second, third]) is second
    assert likeliest([first]) is first
    assert likeliest([]) is None


class Submitted(DeviceInstrument):
    """An instrument that keeps the ops."""

    def __init__(self) -> None:
        self.ops: list[tuple[str, Any]] = []

    def op_submitted(self, op: Any) -> None:
        """Keep an op's message, which the op loses with its answer."""
        self.ops.append((op.name, op.message))


async def test_ops_with_templates_are_unchecked_as_their_messages_are() -> None:
    seen = Submitted()
    async with opened(isolation="thread", instruments=[seen]) as device:
        x = await device.put(np.eye(4, dtype="f4"))
        y, at = await device.put(np.ones(4, "f4")), await device.put(np.array([1, 2], "i4"))
        for _ in range(4):  # calls after the first have templates
            await device.blas.gemm(x, x)
            await device.sparse.gather(y, at)
    for name, unchecked in (("blas.gemm", False), ("sparse.gather", True)):
        messages = [message for found, message in seen.ops if found == name]
        assert MessageTemplate in {*map(type, messages)}
        assert {message.unchecked for message in messages} == {unchecked}
