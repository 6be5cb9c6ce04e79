"""Devices as actors: in a tree, under a supervisor of the program's, asked by other actors."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from atomr_accel import (
    ContextPoisoned,
    Device,
    DeviceLost,
    GpuRef,
    GpuRefStale,
    System,
    open_system,
)
from atomr_accel.actors import (
    Actor,
    ActorRef,
    ActorStopped,
    ActorTree,
    Backoff,
    ChildState,
    Directive,
    GetStatistics,
    Group,
    Intensity,
    Message,
    NameTaken,
    NoSuchActor,
    Restarted,
    Strategy,
    Supervision,
    SupervisionFailed,
    Terminated,
    UnhandledMessage,
    decide_by_type,
    handler,
    open_actor_system,
)
from atomr_accel.lanes import Isolation
from atomr_accel.testing import kill_host, poison
from atomr_accel.testing.garbage import collect_garbage
from tests.harness import BACKEND, cpu_only, opened

from ..harness import Gate

AT_ONCE = Backoff(initial=0.0, base=0.0)
EYE = np.eye(4)


async def open_in(system: System, **options: Any) -> Device:
    settings = {"backend": BACKEND, "backoff": AT_ONCE, **options}
    return await system.spawn_device(0, **settings)


def shown(tree: ActorTree) -> dict[str, tuple[str, ChildState, int | None]]:
    found = {}
    todo = [*tree.children]
    while todo:
        node = todo.pop()
        found[node.path] = (node.kind, node.state, node.generation)
        todo += node.children
    return found


async def test_a_device_and_its_parts_are_in_the_tree(isolation: Isolation) -> None:
    async with open_system("app") as system:
        device = await open_in(system, isolation=isolation)
        ref = await device.put(EYE)
        await device.blas.gemm(ref, ref)
        tree = shown(system.tree())
        for path, kind in {
            "/device-0": "DeviceActor",
            "/device-0/context": "Context",
            "/device-0/context/memory": "Lane",
            "/device-0/context/blas": "Lane",
            "/device-0/blas": "LibraryActor",
            "/device-0/rng": "LibraryActor",
        }.items():
            assert tree[path] == (kind, ChildState.RUNNING, 1), path
        assert system.find("/device-0") is device.ref
        assert system.find("/device-0/blas") is device.blas.ref
        assert device.system is system
        assert system.find("/device-0/context").statistics().generation == 1
    assert device.closed
    assert device.ref.stopped
    with pytest.raises(DeviceLost, match="is closed: it was stopped"):
        await device.put(EYE)


async def test_a_device_of_its_own_has_a_system_too() -> None:
    async with opened() as device:
        assert device.system.find("/device-0/blas") is device.blas.ref
        assert str(device.system.tree()).startswith("device  system  running")
        with pytest.raises(NoSuchActor, match="rebuild"):
            device.system.find("/device-0/rebuild")


async def test_a_system_without_devices_says_where_there_are_some() -> None:
    async with open_actor_system("app") as system:
        plain: Any = system
        with pytest.raises(AttributeError, match=r"write: async with atomr_accel\.open_system"):
            await plain.spawn_device(0)
        assert not hasattr(plain, "spawn_device")
        with pytest.raises(AttributeError, match="'ActorSystem' object has no attribute 'other'"):
            _ = plain.other
    async with open_system("app") as accelerated:
        given: Any = accelerated
        with pytest.raises(AttributeError, match="'System' object has no attribute 'other'"):
            _ = given.other


class Multiply(Message[GpuRef]):
    left: GpuRef


class News(Message[list[str]]):
    pass


class Customer(Actor):
    """Has products made by a library, which it watches with all that the library depends on."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.news: list[str] = []
        self.rebuilt = trio.Event()

    async def started(self) -> None:
        self.watch(self.device.ref)
        self.watch(self.device.blas.ref)
        self.watch(self.system.find("/device-0/context"))

    @handler
    async def multiply(self, message: Multiply) -> GpuRef:
        request = self.device.requests.blas.gemm(message.left, message.left)
        while True:
            try:
                return await self.device.blas.ref.ask(request)
            except ContextPoisoned:
                self.news.append("asked again")

    @handler
    async def tell_news(self, _: News) -> list[str]:
        return self.news

    @handler
    async def restarted(self, message: Restarted) -> None:
        assert isinstance(message.cause, ContextPoisoned)
        assert message.ref.statistics().generation == 2
        self.news.append(f"rebuilt: {message.ref.path}")

    @handler
    async def gone(self, message: Terminated) -> None:
        self.news.append(f"gone: {message.ref.path}")


async def test_an_actor_asks_for_a_product_while_the_device_faults(
    gate: Gate, isolation: Isolation
) -> None:
    supervision = Supervision(intensity=Intensity(restarts=9), backoff=AT_ONCE)
    async with open_system("app", supervision=supervision) as system:
        # A fault in a thread is final for the device, and for its supervisor to deal with.
        device = await open_in(system)
        sealed = await device.put(2 * EYE, sealed=True)
        hold = await gate.kernel(device)
        cells = await device.zeros(1, np.float32)
        customer = await system.spawn(Customer, device)
        before = device.blas.ref
        answers: list[GpuRef] = []

        async def ask() -> None:
            answers.append(await customer.ask(Multiply(sealed)))

        async def fault() -> None:
            with pytest.raises(ContextPoisoned):
                await hold(cells, fault=True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fault)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask)
            gate.open()
        assert np.array_equal(await device.get(answers[0]), 4 * EYE)
        news = [one for one in await customer.ask(News()) if one != "asked again"]
        assert sorted(news) == [f"rebuilt: /device-0{part}" for part in ("", "/blas", "/context")]
        assert device.blas.ref is before
        assert not before.stopped
        tree = shown(system.tree())
        assert tree["/device-0/blas"] == ("LibraryActor", ChildState.RUNNING, 2)
        assert before.statistics().restarts == 1
        assert system.find("/device-0/context").statistics().restarts == 1


async def test_a_library_waits_while_the_device_is_rebuilt() -> None:
    async with open_system("app") as system:
        device = await open_in(system)
        sealed = await device.put(2 * EYE, sealed=True)
        context = device.core.context
        assert context is not None
        await kill_host(device)
        assert shown(system.tree())["/device-0/blas"] == ("LibraryActor", ChildState.WAITING, 2)
        answer = await device.blas.ref.ask(device.requests.blas.gemm(sealed, sealed))
        assert np.array_equal(await device.get(answer), 4 * EYE)


# --- requests and the actors that carry them out -----------------------------------------


async def test_requests_are_carried_out_in_their_order() -> None:
    """Some find the lane not open, and wait; those after them do not overtake them."""
    async with opened() as device:
        blas, requests = device.blas.ref, device.requests.blas
        x = await device.put(np.ones(1))
        one = await device.put(np.ones(1))
        for _ in range(20):
            blas.tell(requests.scal(2.0, x))
            blas.tell(requests.axpy(one, x))
        await blas.ask(requests.scal(1.0, x))
        assert (await device.get(x)).tolist() == [2.0**21 - 1]


async def test_actor_that_gives_up_leaves_the_order_of_the_others() -> None:
    async with opened() as device:
        blas, requests = device.blas.ref, device.requests.blas
        x = await device.put(np.ones(1))
        one = await device.put(np.ones(1))
        blas.tell(requests.scal(2.0, x))
        scopes = [trio.CancelScope() for _ in range(8)]

        async def withdrawn(scope: trio.CancelScope) -> None:
            with scope:
                await blas.ask(requests.scal(0.0, x))

        async with trio.open_nursery() as nursery:
            for scope in scopes:
                nursery.start_soon(withdrawn, scope)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            for scope in scopes:
                scope.cancel()
        blas.tell(requests.axpy(one, x))
        await blas.ask(requests.scal(2.0, x))
        # What was withdrawn before it was sent has not happened; all of it might have.
        assert (await device.get(x)).tolist() in ([6.0], [2.0])


async def test_request_error_goes_to_its_asker() -> None:
    async with opened() as device:
        a = await device.put(np.ones((2, 3)))
        blas, requests = device.blas.ref, device.requests.blas
        with pytest.raises(ValueError, match="the inner dimensions differ"):
            await blas.ask(requests.gemm(a, a))
        stale = await device.put(np.ones((3, 2)))
        await poison(device)
        with pytest.raises(GpuRefStale):
            await blas.ask(requests.gemm(stale, stale))
        blas.tell(requests.gemm(stale, stale))
        x = await device.put(np.ones(3))
        assert (await device.get(await blas.ask(requests.dot(x, x)))).tolist() == 3.0
        statistics = blas.statistics()
        assert (statistics.failed, statistics.handled) == (3, 1)
        with pytest.raises(UnhandledMessage):
            await blas.ask(News())


async def test_an_asker_that_is_cancelled_withdraws_its_request(gate: Gate) -> None:
    async with opened() as device:
        hold = await gate.kernel(device)
        cells = await device.zeros(1, np.float32)
        x = await device.put(np.ones(3))
        await device.blas.scal(1.0, x)
        blas, requests = device.blas.ref, device.requests.blas
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, cells)
            await trio.testing.wait_all_tasks_blocked()
            with trio.move_on_after(0) as scope:
                await blas.ask(requests.nrm2(x))
            assert scope.cancelled_caught
            gate.open()
        assert blas.statistics().mailbox.depth == 0
        assert (await device.get(await blas.ask(requests.asum(x)))).tolist() == 3.0


class Pass(Message[None]):
    request: Message[GpuRef]


class Relay(Actor):
    """Passes requests on, to a library that it knows the path of."""

    @handler
    async def pass_on(self, message: Pass) -> None:
        self.system.find("/device-0/blas").tell(message.request)


async def test_requests_are_passed_on_by_other_actors() -> None:
    async with opened() as device:
        relay = await device.system.spawn(Relay)
        x = await device.put(np.ones(3))
        await relay.ask(Pass(device.requests.blas.scal(2.0, x)))
        await device.blas.ref.ask(device.requests.blas.scal(1.0, x))
        assert (await device.get(x)).tolist() == [2.0] * 3


async def test_only_what_a_library_of_the_device_made_can_be_described() -> None:
    async with opened() as device, opened(isolation="thread") as other:
        kernel = await device.nvrtc.compile(
            'extern "C" __global__ void inc(float* x) { x[0] += 1; }', "inc", cpu=_inc
        )
        described: object = device.requests.using(kernel)
        assert isinstance(described, type(kernel))
        with pytest.raises(
            TypeError,
            match="made by a library",
        ):
            other.requests.using(kernel)
        with pytest.raises(
            TypeError,
            match="made by a library",
        ):
            device.requests.using(await device.zeros(1))  # type: ignore[call-overload]
        with pytest.raises(AttributeError, match="only a library"):
            _ = kernel.ref


def _inc(x: Any) -> None:
    x[0] += 1


async def test_contexts_and_lanes_take_no_messages_and_are_not_stopped_alone() -> None:
    async with opened() as device:
        ref = await device.put(EYE)
        for path in ("/device-0/context", "/device-0/context/memory"):
            part = device.system.find(path)
            with pytest.raises(UnhandledMessage, match="takes no messages"):
                await part.ask(device.requests.blas.gemm(ref, ref))
            with pytest.raises(UnhandledMessage):
                part.tell(News())
            with pytest.raises(RuntimeError, match="is a part of"):
                await part.stop()


async def test_a_lane_ends_with_its_context() -> None:
    async with opened() as device:
        lane = device.system.find("/device-0/context/memory")
        await poison(device)
        await device.put(EYE)
        assert lane.stopped
        assert device.system.find("/device-0/context/memory") is not lane


# --- supervisors -------------------------------------------------------------------------


class Ends(Message[list[BaseException | None]]):
    pass


class Watcher(Actor):
    def __init__(self, ref: ActorRef) -> None:
        self.ref_to_watch = ref
        self.ends: list[BaseException | None] = []

    async def started(self) -> None:
        self.watch(self.ref_to_watch)

    @handler
    async def gone(self, message: Terminated) -> None:
        self.ends.append(message.cause)

    @handler
    async def tell(self, _: Ends) -> list[BaseException | None]:
        return self.ends


@pytest.mark.slow
async def test_a_lost_device_is_restarted_by_the_programs_supervisor() -> None:
    supervision = Supervision(intensity=Intensity(restarts=3), backoff=AT_ONCE)
    async with open_system("app", supervision=supervision) as system:
        device = await open_in(system, max_restarts=0)
        sealed = await device.put(EYE, sealed=True)
        plain = await device.put(EYE)
        for generation in (2, 3):
            await poison(device)
            # Who needs the device waits for it, whoever it is that starts it again.
            assert np.array_equal(await device.get(sealed), EYE)
            assert device.generation == generation
            with pytest.raises(GpuRefStale):
                await device.get(plain)
        assert device.ref.statistics().restarts == 2
        assert system.statistics().children.restarts == 2
        assert device.blas.ref is system.find("/device-0/blas")


async def test_a_decider_that_gives_the_device_up_loses_it_and_nothing_else() -> None:
    supervision = Supervision(decider=lambda *_: Directive.STOP)
    async with open_system("app", supervision=supervision) as system:
        device = await open_in(system, max_restarts=0)
        watcher = await system.spawn(Watcher, device.ref)
        await poison(device)
        with pytest.raises(DeviceLost, match="more often than its restart intensity"):
            await device.put(EYE)
        (end,) = await watcher.ask(Ends())
        assert isinstance(end, DeviceLost)
        assert await device.ref.wait_stopped() is end
        with pytest.raises(ActorStopped):
            await device.blas.ref.ask(News())
        # The name is free, and the device can be had anew.
        again = await open_in(system)
        assert np.array_equal(await again.get(await again.put(EYE)), EYE)
        assert system.find("/device-0") is again.ref


async def test_a_supervisor_that_gives_up_raises_the_loss_as_its_cause() -> None:
    supervision = Supervision(intensity=Intensity(restarts=1), backoff=AT_ONCE)
    with pytest.raises(SupervisionFailed) as info:
        async with open_system("app", supervision=supervision) as system:
            device = await open_in(system, max_restarts=0)
            await poison(device)
            await poison(device)
            await trio.sleep_forever()
    assert isinstance(info.value.__cause__, DeviceLost)
    assert isinstance(info.value.__cause__.__cause__, ContextPoisoned)


class Weak(Actor):
    @handler
    async def fail(self, _: News) -> list[str]:
        raise ZeroDivisionError


async def test_a_device_is_restarted_with_its_group() -> None:
    async with open_system("app") as system:
        group = await system.spawn(
            Group,
            name="group",
            supervision=Supervision(strategy=Strategy.ONE_FOR_ALL, backoff=AT_ONCE),
        )
        weak = await system.spawn(Weak, supervisor=group)
        device = await open_in(system, supervisor=group)
        assert device.ref.path == "/group/device-0"
        ref = await device.put(EYE)
        sealed = await device.put(EYE, sealed=True)
        async with device.watch_generation() as changes:
            with pytest.raises(ZeroDivisionError):
                await weak.ask(News())
            assert await anext(changes) == 2
        assert np.array_equal(await device.get(sealed), EYE)
        with pytest.raises(GpuRefStale):
            await device.get(ref)


async def test_restarting_group_answers_asks(gate: Gate) -> None:
    async with open_system("app") as system:
        group = await system.spawn(
            Group,
            name="group",
            supervision=Supervision(strategy=Strategy.ONE_FOR_ALL, backoff=AT_ONCE),
        )
        weak = await system.spawn(Weak, supervisor=group)
        device = await open_in(system, supervisor=group)
        hold = await gate.kernel(device)
        cells = await device.zeros(1, np.float32)
        await device.blas.scal(1.0, cells)
        answered: list[BaseException] = []

        async def ask() -> None:
            try:
                await device.blas.ref.ask(device.requests.blas.scal(1.0, cells))
            except ContextPoisoned as error:
                answered.append(error)

        async def holding() -> None:
            with pytest.raises(ContextPoisoned, match="is restarted by its supervisor"):
                await hold(cells)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(holding)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert device.blas.ref.statistics().mailbox.depth == 0
            assert shown_depth(system, "/group/device-0/blas") == 1
            with pytest.raises(ZeroDivisionError):
                await weak.ask(News())
        gate.open()
        assert len(answered) == 1


def shown_depth(system: System, path: str) -> int:
    (group,) = system.tree().children
    for device in group.children:
        for library in device.children:
            if library.path == path:
                return library.depth
    raise LookupError(path)


async def test_a_device_is_stopped_like_any_actor(isolation: Isolation) -> None:
    async with open_system("app") as system:
        device = await open_in(system, isolation=isolation)
        ref = await device.put(EYE)
        await device.ref.stop()
        assert device.closed
        with pytest.raises(GpuRefStale, match="is closed: it was stopped"):
            await device.get(ref)
        with pytest.raises(NoSuchActor):
            system.find("/device-0")


async def test_names_and_settings_are_checked() -> None:
    async with open_system("app") as system:
        await open_in(system, isolation="thread")
        with pytest.raises(NameTaken):
            await open_in(system, isolation="thread")
        other = await open_in(system, isolation="thread", name="other")
        assert other.ref.path == "/other"
        with pytest.raises(TypeError, match="no setting 'max_restart'"):
            await open_in(system, max_restart=3)
        with pytest.raises(ValueError, match="max_restarts"):
            await open_in(system, max_restarts=-1)


# --- what leaves a block -----------------------------------------------------------------


@cpu_only
@pytest.mark.filterwarnings("ignore:trio.run.*strict_exception_groups")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("block", ["device", "batch", "record", "system"])
def test_the_programs_own_error_leaves_as_it_is(strict: bool, block: str) -> None:
    error = KeyError("mine")

    async def main() -> None:
        async with open_system("app") as system, opened(isolation="thread") as device:
            ref = await device.put(EYE)
            if block == "batch":
                async with device.batch() as batch:
                    batch.blas.gemm(ref, ref)
                    raise error
            if block == "record":
                async with device.record(ref) as recording:
                    recording.blas.gemm(ref, ref)
                    raise error
            if block == "system":
                await open_in(system, isolation="thread")
            raise error

    with pytest.raises(KeyError) as info:
        trio.run(main, strict_exception_groups=strict)
    assert info.value is error


async def test_a_loss_that_several_tasks_are_told_of_is_one() -> None:
    with pytest.raises(DeviceLost) as info:
        async with opened(max_restarts=0) as device, trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(_use, device)
            await poison(device)
    assert isinstance(info.value.__cause__, ContextPoisoned)


async def _use(device: Device) -> None:
    while True:
        with suppress(ContextPoisoned):
            await device.put(EYE)


async def test_another_failure_beside_a_loss_is_told_as_well() -> None:
    with pytest.RaisesGroup(KeyError, DeviceLost):
        async with opened(max_restarts=0) as device:
            await poison(device)
            try:
                await trio.sleep_forever()
            finally:
                raise KeyError("mine")


async def test_the_fault_that_was_one_too_many_leaves_as_the_loss() -> None:
    """The loss is raised even if the block got the fault before it counted as the last one."""

    def end() -> None:
        os._exit(1)

    with pytest.raises(DeviceLost) as info:
        async with opened(isolation="process", max_restarts=0) as device:
            await device.run(end)
    assert isinstance(info.value.__cause__, ContextPoisoned)


async def test_lost_device_answers_library_asks_with_the_reason() -> None:
    gives_up = Supervision(decider=decide_by_type({DeviceLost: Directive.STOP}))
    async with open_system("app", supervision=gives_up) as system:
        device = await system.spawn_device(0, backend=BACKEND, max_restarts=0)
        x = await device.put(np.eye(2), sealed=True)
        await kill_host(device)
        with pytest.raises(DeviceLost):
            await device.blas.gemm(x, x)
        with pytest.raises(ActorStopped) as info:
            await device.blas.ref.ask(device.requests.blas.gemm(x, x))
        assert isinstance(info.value.__cause__, DeviceLost)


async def test_pinned_memory_and_recordings_have_places_that_answer_for_themselves() -> None:
    async with opened(isolation="thread") as device:
        system = device.system
        pinned = system.find("/device-0/pinned")
        assert device.pinned.ref is pinned
        async with device.pinned.array((4,)):
            assert await pinned.ask(GetStatistics()) == device.pinned.statistics()
            assert device.pinned.statistics().used
        x = await device.put(EYE)
        async with device.record(x) as recording:
            y = recording.blas.gemm(x, x)
            with recording.when(await device.full((1,), 1, np.int32)):
                recording.blas.gemm(x, y)
        ref, path = recording.ref, recording.ref.path
        assert system.find(path) is ref
        await recording.replay()
        await recording.replay()
        seen = await ref.ask(GetStatistics())
        assert seen == recording.statistics()
        assert (seen.ops, seen.replays, seen.in_flight, seen.rebuilds) == (2, 2, 0, 0)
        assert seen.nbytes == 2 * EYE.nbytes
        assert shown(system.tree())[path] == ("Recording", ChildState.RUNNING, 1)
        with pytest.raises(UnhandledMessage, match="takes no messages"):
            ref.tell(Message())
        with pytest.raises(RuntimeError, match="is a part of /device-0"):
            await ref.stop()
        del recording, y
        collect_garbage()
        await ref.wait_stopped()
        with pytest.raises(NoSuchActor):
            system.find(path)
        other = device.record()
        with pytest.raises(RuntimeError, match="has not begun"):
            _ = other.ref
        async with other:
            pass
        assert not other.ref.stopped
    assert pinned.stopped
    assert other.ref.stopped


async def test_parts_of_a_device_outlive_its_faults() -> None:
    async with opened(backoff=AT_ONCE) as device:
        x = await device.put(EYE, sealed=True)
        async with device.record(x) as recording:
            recording.blas.gemm(x, x)
        await recording.replay()
        refs = recording.ref, device.pinned.ref
        await poison(device)
        await recording.replay()
        assert (recording.ref, device.pinned.ref) == refs
        assert recording.statistics().rebuilds == 1
        (node,) = (n for n in device.system.tree().children[0].children if n.kind == "Recording")
        assert (node.restarts, node.generation, node.state) == (1, 2, ChildState.RUNNING)
