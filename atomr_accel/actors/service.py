"""Services: objects that live in a block, and can have a place in the tree of actors.

A batcher, an index or a trainer is more than an actor: programs hold the object and call its
methods. Placed in a system it is an actor as well. It has a path, a state, restarts and a queue
length, and others ask it, watch it and supervise it by its ref. The object outlives its restarts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar, TypedDict, TypeVar

import trio

from ._actor import Actor, ActorRef
from ._errors import NameTaken, SupervisorStopped
from ._policy import ChildSpec, RestartType, Supervision
from ._supervisor import Supervisor
from .cell import TreeNode
from .condition import Condition
from .messages import GetStatistics, Message, collect_handlers, handler, side_by_side
from .nursery import PlainNursery
from .part import Part
from .system import ActorSystem
from .util import check_instance

S = TypeVar("S", bound="Service")


class Call(Message[Any]):
    """A call of a service, as a message: ``await ref.ask(Call(item))``.

    Attributes:
        item: the argument of the call.
        options: keyword arguments of the call.

    Raises:
        TypeError: ``options`` must be a mapping by name.
    """

    item: Any
    options: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        """Check the options."""
        given: Any = self.options
        if not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
            raise TypeError(
                f"options of a Call must be a mapping of arguments by name, not {given!r}; "
                'write Call(item, {"priority": 1})'
            )


class Place(TypedDict, total=False):
    """Place of a service in a tree of actors; none without ``system`` and ``parent``."""

    system: ActorSystem | None
    """The system, at whose top it stands."""
    name: str | None
    """Its name among its siblings. By default, one made from its class's."""
    parent: ActorRef | None
    """The actor that supervises it, in place of the system."""


class Service:
    """Base of objects that live in a block and can have a place in the tree of actors.

    ::

        class Thermometer(Service):
            async def serve(self, *, task_status):
                async with open_sensor() as self.sensor:
                    task_status.started()
                    await trio.sleep_forever()

            async def call(self, item):
                return await self.sensor.read(item)


        @opens
        async def open_thermometer(**place: Unpack[Place]):
            async with serving(Thermometer(), **place) as service:
                yield service

    Methods marked with `handler` answer further messages. Unlike those of an actor they run side by
    side, each in a task of its own. Their errors reach the asker and do not fail the service.

    Tasks that are restarted by themselves, such as replicas, are children: see `start_child`.
    """

    supervision: Supervision = Supervision()
    """Options for its children's supervisor, read when its block begins."""

    _service_served: bool = False
    _service_ref: ActorRef | None = None
    _service_supervisor: Supervisor | None = None
    _service_actor: ClassVar[type[Actor] | None] = None

    @property
    def ref(self) -> ActorRef:
        """The service's actor: others ask, watch and supervise it.

        Raises:
            RuntimeError: the service has no place in a tree.
        """
        if self._service_ref is None:
            raise RuntimeError(
                f"this {type(self).__name__} must have a place in a system to have a ref, not "
                "stand alone; open it with system=..., name=..."
            )
        return self._service_ref

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Live once: call ``task_status.started()`` when ready, and work until cancelled.

        If it raises, the service has failed: its supervisor decides whether it lives again. By
        then every call in progress has an answer, or waits for the next life.
        """
        task_status.started()
        await trio.sleep_forever()

    async def start_child(self, spec: ChildSpec, *, kind: str = "Child") -> None:
        """Start a task that is supervised by itself, and wait until it has started.

        It lives until the present life of the service ends, or `stop_child`. If its restarts exceed
        the intensity of ``supervision``, the service fails. In a place it is below the service in
        the tree, with a path and a ref to watch. It takes no messages.

        Args:
            spec: what to start, under a name that no other child has.
            kind: what the tree calls it.

        Raises:
            NameTaken: the service has a child of that name.
            SupervisorStopped: the service does not live at present.
            BaseException: what the child raised before it had started. It is then not kept.
        """
        if self._service_ref is None:
            if self._service_supervisor is None:
                raise SupervisorStopped(
                    f"cannot start {spec.name!r}: this {type(self).__name__} is not running"
                )
            await self._service_supervisor.start_child(spec)
            return
        cell = self._service_ref._cell
        if "/" in spec.name:
            raise ValueError(f"a child's name must be without '/' in a tree, not {spec.name!r}")
        await trio.lowlevel.checkpoint_if_cancelled()
        if spec.name in cell.children:
            raise NameTaken(
                f"there is an actor {cell.path}/{spec.name} already; stop it first, or choose "
                "another name"
            )
        part = Part(cell, spec.name, kind, spec.run)
        await cell.start(part, replace(spec, run=part.run))

    async def stop_child(self, name: str) -> None:
        """Stop a child for good, and wait until it has gone.

        Raises:
            NoSuchChild: no child has this name, or the child had ended.
            SupervisorStopped: the service does not live at present, so it has no children.
            BaseException: what the child raised while it was leaving.
        """
        supervisor = self._service_supervisor
        if self._service_ref is not None:
            supervisor = self._service_ref._cell.supervisor
        if supervisor is None:
            raise SupervisorStopped(
                f"cannot stop {name!r}: this {type(self).__name__} is not running"
            )
        await supervisor.stop_child(name)

    async def call(self, item: Any, **options: Any) -> Any:  # noqa: ARG002 (of those that do)
        """Answer a `Call`."""
        await trio.lowlevel.checkpoint()
        raise TypeError(f"{type(self).__name__} takes no calls by message, not one with {item!r}")

    async def finish(self) -> None:
        """Take no more calls, and wait for those in progress: the block was left normally."""
        await trio.lowlevel.checkpoint()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse all that waits: no other life follows.

        It may be called more than once, and is called before a life is cancelled because an
        exception left the block.

        Args:
            cause: the failure that ended it, or the exception that left its block.
        """

    def depth(self) -> int:
        """Calls that wait or are in progress, for display."""
        return 0

    def statistics(self) -> object:
        """The service at this moment. Dashboards and metrics show the fields of a dataclass."""
        return None

    @handler
    async def _on_call(self, message: Call) -> Any:
        return await self.call(message.item, **message.options)

    @handler
    async def _on_statistics(self, message: GetStatistics) -> Any:  # noqa: ARG002 (it is empty)
        await trio.lowlevel.checkpoint()
        return self.statistics()


class _ServiceActor(Actor):
    """A service's actor. Each class of services has a class of it, with its handlers and name."""

    def __init__(self, service: Service, left_by: list[BaseException]) -> None:
        self._service = service
        service._service_ref = self.ref
        self._cell.shown = self._shown
        self._cell.served = service.statistics

        def ended(failure: BaseException | None) -> None:
            # What left the block is the reason, if the service itself did not fail.
            service.ended(failure or next(iter(left_by), None))

        self._cell.at_end = ended

    def _shown(self, own: Condition) -> Condition:
        return own._replace(depth=own.depth + self._service.depth())

    async def started(self) -> None:
        await self.nursery.start(self._service.serve)


def _actor_of(kind: type[Service]) -> type[Actor]:
    """Return the class of actors for a class of services."""
    made = kind.__dict__.get("_service_actor")
    if made is None:
        members: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        for number, (message_type, method) in enumerate(collect_handlers(kind).items()):
            members[f"_answer_{number}"] = side_by_side(message_type)(_answered_by(method))
        made = kind._service_actor = type(kind.__name__, (_ServiceActor,), members)
    return made


def _answered_by(
    method: Callable[[Any, Any], Coroutine[Any, Any, Any]],
) -> Callable[[Any, Any], Coroutine[Any, Any, Any]]:
    return lambda actor, message: method(actor._service, message)


@asynccontextmanager
async def serving(
    service: S,
    *,
    system: ActorSystem | None = None,
    name: str | None = None,
    parent: ActorRef | None = None,
) -> AsyncIterator[S]:
    """Run a service for the length of a block, in a place of the tree if one is given.

    Leaving the block has the service finish its calls, and stops it. If an exception or a
    cancellation leaves the block, the service is stopped at once. In a place, a failure of the
    service is its supervisor's, which starts it again or gives up. Without a place, a failure
    leaves the block.

    Args:
        service: what to run. The block gets it.
        system: the system at whose top it stands.
        name: its name among its siblings. By default, one made from its class's.
        parent: the actor that supervises it, in place of the system.

    Raises:
        NameTaken: the parent has a child of that name.
        RuntimeError: the service is in another block already.
        SupervisorStopped: the parent, or the system, does not run.
        ValueError: a name without a system or a parent, or a parent of another system.
    """
    check_instance("argument of serving", service, Service)
    where: TreeNode | None = None
    if system is not None:
        check_instance("system", system, ActorSystem)
        where = system.root
    if parent is not None:
        check_instance("parent", parent, ActorRef)
        where = parent._cell
        if system is not None and where.system is not system:
            raise ValueError(
                f"parent must be an actor of the system given, {system.name!r}, not {parent}, "
                f"which is one of {where.system.name!r}; leave one of the two out"
            )
    if where is None and name is not None:
        raise ValueError(
            f"name must come with a place, not alone: give system=... or parent=... to {name!r}"
        )
    if service._service_served:
        raise RuntimeError(
            f"this {type(service).__name__} must be in one block at a time, and is in one already; "
            "make another"
        )
    left_by: list[BaseException] = []
    service._service_served = True
    try:
        if where is None:
            async with PlainNursery() as nursery:
                supervisor = _supervisor_of(service, nursery)
                try:
                    await nursery.start(_live_alone, service)
                    async with _ending(service, left_by):
                        yield service
                        await service.finish()
                finally:
                    await supervisor._close()
                    nursery.cancel_scope.cancel()
        else:
            async with _placed(service, where, name, left_by):
                yield service
    except BaseException as error:
        left_by[:] = [error]  # what a life failed with, in place of the cancellation of the block
        raise
    finally:
        service._service_supervisor = None
        service._service_served = False
        service.ended(next(iter(left_by), None))
        left_by.clear()  # the traceback has this frame in it


def in_place(place: Place, system: ActorSystem) -> Place:
    """Return a place, which is in a system by default, as long as that runs."""
    if place.get("system") or place.get("parent") or system.root.stopping:
        return place
    return {**place, "system": system}


def _supervisor_of(service: Service, nursery: trio.Nursery) -> Supervisor:
    """Return the supervisor of the children of a service without a place."""
    service._service_ref = None  # of an earlier block
    made: Supervisor = Supervisor.construct(type(service).__name__, nursery, service.supervision)
    service._service_supervisor = made
    return made


async def _live_alone(service: Service, *, task_status: trio.TaskStatus[None]) -> None:
    try:
        await service.serve(task_status=task_status)
    except Exception as error:
        service.ended(error)  # before the block is cancelled for it
        raise


@asynccontextmanager
async def _ending(service: Service, left_by: list[BaseException]) -> AsyncIterator[None]:
    """Tell a service what leaves its block, before its life is cancelled."""
    try:
        yield
    except BaseException as error:
        left_by.append(error)
        service.ended(error)
        raise


@asynccontextmanager
async def _placed(
    service: Service, where: TreeNode, name: str | None, left_by: list[BaseException]
) -> AsyncIterator[None]:
    ref = await where.spawn(
        _actor_of(type(service)),
        (service, left_by),
        {},
        name=name,
        restart=RestartType.PERMANENT,
        grace=5.0,
        significant=False,
        mailbox=None,
        supervision=service.supervision,
    )
    try:
        async with _ending(service, left_by):
            yield
            async with PlainNursery() as nursery:  # one that has ended for good has nothing left
                nursery.start_soon(_cancel_at_end, ref, nursery.cancel_scope)
                await service.finish()
                nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await ref.stop()


async def _cancel_at_end(ref: ActorRef, scope: trio.CancelScope) -> None:
    await ref.wait_stopped()
    scope.cancel()
