"""Admission: which requests get a device, which wait, and which are refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from atomr_accel import CandidateState, DeviceLost, GetTopology, Hints, OutOfMemory, open_devices
from atomr_accel.actors import ActorRestarted, GetStatistics
from atomr_accel.device.group._placement import Placement
from atomr_accel.patterns import LeastLoaded
from atomr_accel.testing import poison

from ...harness import AT_ONCE
from .members import First, members

ANY = Hints()


async def test_only_those_with_room_are_given_to_policies() -> None:
    one, two, three, four, five = devices = members(5)
    one.state = CandidateState.LOST
    two.state = CandidateState.RECOVERING
    three.state = CandidateState.DRAINING
    four.in_flight = four.limit
    policy = First()
    assert await Placement().take(devices, policy, ANY) is five
    assert policy.given == [["fake:4"]]


async def test_placement_without_room_waits_in_line() -> None:
    (device,) = devices = members(1, limit=1)
    placement, policy = Placement(), LeastLoaded()
    order: list[int] = []

    async def work(number: int) -> None:
        await placement.take(devices, policy, ANY)
        order.append(number)

    await placement.take(devices, policy, ANY)
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(work, number)
            await trio.testing.wait_all_tasks_blocked()
        assert placement.waiting == 3
        for _ in range(3):
            placement.give_back(device, ANY)
            await trio.testing.wait_all_tasks_blocked()
    assert order == [0, 1, 2]
    assert (placement.waiting, device.in_flight) == (0, 1)


async def test_placement_that_waits_for_memory_does_not_delay_others() -> None:
    (device,) = devices = members(1, memory=100)
    placement, policy = Placement(), First()
    much = Hints(nbytes=80)
    await placement.take(devices, policy, much)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(placement.take, devices, policy, much)
        await trio.testing.wait_all_tasks_blocked()
        await placement.take(devices, policy, ANY)
        assert placement.waiting == 1
        placement.give_back(device, much)
    assert device.free_bytes == 20


async def test_memory_that_will_not_come_is_not_waited_for() -> None:
    devices = members(2, memory=100)
    placement = Placement()
    with pytest.raises(OutOfMemory, match=r"101 bytes: .* none has more than 100 bytes free"):
        await placement.take(devices, First(), Hints(nbytes=101))
    taken = await placement.take(devices, First(), ANY)
    errors = []

    async def wait() -> None:
        try:
            await placement.take(devices, First(), Hints(nbytes=101))
        except OutOfMemory as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert placement.waiting == 1
        placement.give_back(taken, ANY)  # it may have freed what it held, and has not
    assert len(errors) == 1


async def test_when_all_are_lost_everybody_is_told() -> None:
    devices = members(2)
    for device in devices:
        device.state = CandidateState.RECOVERING
    placement = Placement()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(DeviceLost, match="fake:0, fake:1 are lost"):
                await placement.take(devices, First(), ANY)

        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        devices[0].state = CandidateState.LOST
        placement.look()
        assert placement.waiting == 2  # the other one may come back
        devices[1].state = CandidateState.LOST
        placement.look()


async def test_policy_error_reaches_its_caller() -> None:
    devices = members(1, limit=1)
    placement = Placement()

    class Stranger:
        def choose(self, _candidates: Any, _hints: Any, /) -> Any:
            return members(1)[0]

    with pytest.raises(
        ValueError, match="policy must choose one of the devices that it was given, not"
    ):
        await placement.take(devices, Stranger(), ANY)
    await placement.take(devices, First(), ANY)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(ValueError, match="one of the devices that it was given"):
                await placement.take(devices, Stranger(), ANY)

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(placement.take, devices, First(), ANY)
        await trio.testing.wait_all_tasks_blocked()
        placement.give_back(devices[0], ANY)  # the one in the wrong holds nobody up


STEP = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 60)),
    st.tuples(st.just("back"), st.integers(0, 9)),
    st.tuples(st.just("cancel"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["fail", "recover", "drain"]), st.integers(0, 2)),
)


@given(steps=st.lists(STEP, max_size=30))
async def test_whatever_happens_nobody_waits_for_what_is_there(
    steps: list[tuple[str, int]],
) -> None:
    """Limits and memory are kept, and a look after any step would change nothing."""
    devices = members(3, limit=2, memory=100)
    placement = Placement()
    held: list[tuple[Any, Hints]] = []
    scopes: list[trio.CancelScope] = []

    async def take(hints: Hints) -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            try:
                held.append((await placement.take(devices, LeastLoaded(), hints), hints))
            except OutOfMemory:
                return

    async with trio.open_nursery() as nursery:
        for what, number in steps:
            if what == "take":
                nursery.start_soon(take, Hints(nbytes=number))
            elif what == "back" and held:
                placement.give_back(*held.pop(number % len(held)))
            elif what == "cancel" and scopes:
                scopes.pop(number % len(scopes)).cancel()
            elif what in ("fail", "drain", "recover"):
                devices[number].state = {
                    "fail": CandidateState.RECOVERING,
                    "drain": CandidateState.DRAINING,
                    "recover": CandidateState.READY,
                }[what]
                placement.look()
            await trio.testing.wait_all_tasks_blocked()
            waiting = placement.waiting
            placement.look()
            assert placement.waiting == waiting
            assert sum(device.in_flight for device in devices) == len(held)
            for device in devices:
                of = [hints for taken, hints in held if taken is device]
                assert len(of) == device.in_flight <= device.limit
                assert sum(hints.nbytes for hints in of) == device.reserved <= device.memory
        nursery.cancel_scope.cancel()
    assert placement.waiting == 0


async def test_freed_memory_goes_to_the_first_in_line() -> None:
    """Freed memory gives no notice, so admission checks again when the next request arrives."""
    (device,) = devices = members(1, memory=100)
    placement, order = Placement(), []
    much = Hints(nbytes=80)

    async def work(name: str) -> None:
        await placement.take(devices, First(), much)
        order.append(name)

    await placement.take(devices, First(), ANY)
    device.reserved += 50  # what it has put there
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "first")
        await trio.testing.wait_all_tasks_blocked()
        device.reserved -= 50
        nursery.start_soon(work, "second")
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["first"]
        placement.give_back(device, much)
    assert order == ["first", "second"]


@pytest.mark.slow
async def test_placement_is_an_actor_beside_its_devices_and_outlives_its_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed, look_again = trio.Event(), Placement.look

    def look(self: Placement) -> None:
        if not failed.is_set():
            failed.set()
            raise KeyError("of a follower")
        look_again(self)

    async with open_devices(range(2), backend="cpu", limit=1, backoff=AT_ONCE) as devices:
        system = devices.system
        assert system.find("/placement") is devices.ref
        assert await devices.ref.ask(GetStatistics()) == devices.statistics()
        topology = await devices.ref.ask(GetTopology())
        assert topology.devices == devices.topology().devices
        (node,) = [node for node in system.tree().children if node.kind == "Placement"]
        assert (node.service, node.depth) == (devices.statistics(), 0)
        entered: list[str] = []

        async def work() -> None:
            async with devices.place() as device:
                entered.append(device.name)

        async with trio.open_nursery() as nursery, devices.place(), devices.place():
            nursery.start_soon(work)
            await trio.testing.wait_all_tasks_blocked()
            (node,) = [node for node in system.tree().children if node.kind == "Placement"]
            assert node.depth == 3
            monkeypatch.setattr(Placement, "look", look)
            await poison(devices[0])
            await failed.wait()
            with suppress(ActorRestarted):  # of the life that has failed
                await devices.ref.ask(GetStatistics())
            await devices.ref.ask(GetStatistics())
            (node,) = [node for node in system.tree().children if node.kind == "Placement"]
            assert node.restarts == 1
            assert not entered
        assert len(entered) == 1
        nobody = trio.Event()

        async def too_late() -> None:
            with pytest.raises(DeviceLost, match="their placement has stopped"):
                async with devices.place():
                    pass
            nobody.set()

        async with trio.open_nursery() as nursery, devices.place(), devices.place():
            nursery.start_soon(too_late)
            await trio.testing.wait_all_tasks_blocked()
            await devices.ref.stop()
            await nobody.wait()
            await too_late()
