"""Services: objects that live in a block, and can have a place in the tree of actors.

A batcher, an index or a trainer is more than an actor: programs hold the object and call its
methods. Placed in a system it is an actor as well. It has a path, a state, restarts and a queue
length, and others ask it, watch it and supervise it by its ref. The object outlives its restarts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypedDict

import trio

from ._actor import Actor, ActorRef
from ._policy import RestartType
from .condition import Condition
from .messages import Message, collect_handlers, handler, side_by_side
from .nursery import PlainNursery
from .system import ActorSystem
from .util import check_instance


class Call(Message[Any]):
    """A call of a service, as a message: ``await ref.ask(Call(item))``.

    Attributes:
        item: the argument of the call.
        options: keyword arguments of the call.
    """

    item: Any
    options: Mapping[str, Any] = {}


class GetStatistics(Message[Any]):
    """A question for the statistics of a service, as ``service.statistics()`` returns them."""


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
    """

    _service_ref: ActorRef | None = None
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

    async def call(self, item: Any, **options: Any) -> Any:  # noqa: ARG002 (of those that do)
        """Answer a `Call`."""
        await trio.lowlevel.checkpoint()
        raise TypeError(f"{type(self).__name__} takes no calls by message, not one with {item!r}")

    async def drain(self) -> None:
        """Take no more calls, and wait for those in progress: the block was left normally."""
        await trio.lowlevel.checkpoint()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse all that waits: no other life follows. It may be called more than once.

        Args:
            cause: the failure that ended it, or the exception that left its block.
        """

    def load(self) -> int:
        """Calls that wait or are in progress, for display."""
        return 0

    def statistics(self) -> object:
        """The service at this moment."""
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
        self._cell.shown = self._shown

        def ended(failure: BaseException | None) -> None:
            # What left the block is the reason, if the service itself did not fail.
            service.ended(failure or next(iter(left_by), None))

        self._cell.at_end = ended

    def _shown(self, own: Condition) -> Condition:
        return own._replace(depth=own.depth + self._service.load())

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
    service: Service,
    *,
    system: ActorSystem | None = None,
    name: str | None = None,
    parent: ActorRef | None = None,
) -> AsyncIterator[None]:
    """Run a service for the length of a block, in a place of the tree if one is given.

    Leaving the block drains the service and stops it. If an exception or a cancellation leaves the
    block, the service is stopped at once. In a place, a failure of the service is its supervisor's,
    which starts it again or gives up. Without a place, a failure leaves the block.

    Args:
        service: what to run.
        system: the system at whose top it stands.
        name: its name among its siblings. By default, one made from its class's.
        parent: the actor that supervises it, in place of the system.

    Raises:
        NameTaken: the parent has a child of that name.
        SupervisorStopped: the parent, or the system, does not run.
        TypeError: an argument of a wrong type.
    """
    check_instance("argument of serving", service, Service)
    if system is not None:
        check_instance("system", system, ActorSystem)
    if parent is not None:
        check_instance("parent", parent, ActorRef)
    left_by: list[BaseException] = []
    try:
        if system is None and parent is None:
            async with PlainNursery() as nursery:
                await nursery.start(service.serve)
                yield
                await service.drain()
                nursery.cancel_scope.cancel()
        else:
            where = parent._cell if parent is not None else _root(system)
            async with _placed(service, where, name, left_by):
                yield
    except BaseException as error:
        left_by.append(error)
        raise
    finally:
        service.ended(next(iter(left_by), None))
        left_by.clear()  # the traceback has this frame in it


def _root(system: ActorSystem | None) -> Any:
    assert system is not None
    return system._root


@asynccontextmanager
async def _placed(
    service: Service, where: Any, name: str | None, left_by: list[BaseException]
) -> AsyncIterator[None]:
    service._service_ref = ref = await where.spawn(
        _actor_of(type(service)),
        (service, left_by),
        {},
        name=name,
        restart=RestartType.PERMANENT,
        grace=5.0,
        significant=False,
        mailbox=None,
        supervision=None,
    )
    try:
        yield
        async with PlainNursery() as nursery:  # a service that has ended for good has nothing left
            nursery.start_soon(_cancel_at_end, ref, nursery.cancel_scope)
            await service.drain()
            nursery.cancel_scope.cancel()
    except BaseException as error:
        left_by.append(error)
        raise
    finally:
        with trio.CancelScope(shield=True):
            await ref.stop()


async def _cancel_at_end(ref: ActorRef, scope: trio.CancelScope) -> None:
    await ref.wait_stopped()
    scope.cancel()
