"""Turns for tenants: each gets its share, whatever the others ask for."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, final, overload

import outcome
import trio

from ..actors import Place, Service, serving
from ..actors.blocks import opens
from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import count, real
from ._calls import unprotected
from ._errors import Closed, Overloaded, elsewhere
from ._observer import Observer, guarded
from ._shares import MOST, Budget, Shares, WaitingRequest, amount, check_path

if TYPE_CHECKING:
    from types import TracebackType

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantStatistics:
    """A tenant, or a group of tenants, at one moment.

    Attributes:
        path: names of the groups and of the tenant, joined by slashes.
        weight: its share, relative to its siblings.
        waiting: requests that wait, of the tenant and of those below it.
        serving: requests that have a slot.
        work: work begun since the tenant was last forgotten, in units of cost.
    """

    path: str
    weight: float
    waiting: int
    serving: int
    work: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FairShareStatistics:
    """A fair share at one moment.

    Attributes:
        capacity: the number of slots.
        waiting: requests that wait for a slot.
        serving: requests that have one.
        granted: slots given so far.
        refused: requests that got a refusal.
        withdrawn: requests whose callers were cancelled while they waited.
        work: work begun so far, in units of cost.
        tenants: tenants that are not idle, and some that were active recently, sorted by path.
    """

    capacity: int
    waiting: int
    serving: int
    granted: int
    refused: int
    withdrawn: int
    work: float
    tenants: tuple[TenantStatistics, ...]


@final
class Slot(metaclass=NoPublicConstructor):
    """One turn: what `FairShare.slot` gives. ``async with`` waits for it, and gives it back."""

    _made_by = "share.slot"

    __slots__ = ("_arrived", "_entered", "_item", "_path", "_said", "_share", "_task", "_waiting")

    def __init__(self, share: FairShare, path: str, cost: float, item: object) -> None:
        self._share = share
        self._path = path
        self._said = cost
        self._item = item
        self._waiting: WaitingRequest | None = None
        self._task: trio.lowlevel.Task | None = None
        self._entered = False
        self._arrived = 0.0

    @property
    def cost(self) -> float:
        """Cost of the turn, as known so far."""
        return self._said if self._waiting is None else self._waiting.cost

    def charge(self, more: float) -> None:
        """Add to the cost what only shows while the work is done, such as tokens generated.

        The tenant's next turns come that much later. Less than zero gives something back.
        """
        waiting = self._waiting
        if waiting is None:
            raise RuntimeError("only a slot that is held can be charged")
        change = real(more, "more")
        if not 0 <= waiting.cost + change <= MOST:
            raise ValueError(
                f"more must be from {-waiting.cost:g} to {MOST:g} for a slot that costs "
                f"{waiting.cost:g}, not {change:g}"
            )
        self._share._shares.charge(waiting, change)

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Slot:
        if self._entered:
            raise RuntimeError("a slot is one turn: take another with share.slot(...)")
        self._entered = True
        await self._share._take(self, self._path, self._said)
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._share._give_back(self, error)


class FairShare(Service, metaclass=NoPublicConstructor):
    """Gives tenants turns in proportion to their weights, as `open_fair_share` returns it.

    ``async with share.slot("tenant"):`` is one turn.
    """

    _made_by = "open_fair_share"

    def __init__(
        self,
        capacity: int,
        *,
        weights: Mapping[str, float],
        budgets: Mapping[str, Budget],
        max_waiting: int,
        observer: Observer | None,
    ) -> None:
        self._capacity = count(capacity, "capacity")
        self._max_waiting = count(max_waiting, "max_waiting")
        self._shares = Shares(weights, budgets)
        self._observer = guarded(observer)
        self._waiting: dict[WaitingRequest, Slot] = {}
        self._granted = self._refused = self._withdrawn = 0
        self._thread = get_ident()
        self._closing = False
        self._closed_by: BaseException | None = None
        self._idle: trio.Event | None = None
        self._clerk: trio.lowlevel.Task | None = None
        self._sleeps_until = math.inf

    def slot(self, tenant: str, *, cost: float = 1.0) -> Slot:
        """One turn of a tenant: ``async with share.slot("tenant/user", cost=3):``.

        Entering waits for the turn. If you are cancelled meanwhile, the request is withdrawn and
        costs nothing. Requests of one tenant have their turns in the order in which they came.

        Args:
            tenant: whose turn it is: a name, or several with slashes between them. What a group
                such as ``"tenant"`` gets is shared by those below it; requests that name the group
                itself count as one of these.
            cost: how much work it is, in units of your own: more than zero, since turns for nothing
                could not be shared out.

        Raises:
            Overloaded: by the ``async with``: too many of the tenant's requests wait already.
            Closed: by the ``async with``: the block was left.
        """
        check_path(tenant)
        slot: Slot = Slot.construct(self, tenant, amount(cost, "cost"), tenant)
        return slot

    def tune(
        self, *, capacity: int | None = None, weights: Mapping[str, float] | None = None
    ) -> None:
        """Change how many slots there are, and the weights of those named, from now on.

        If this raises, nothing has changed.
        """
        if get_ident() != self._thread:
            raise elsewhere("fair share", "run_sync(partial(share.tune, ...))")
        slots = self._capacity if capacity is None else count(capacity, "capacity")
        self._shares.weigh(weights or {})
        self._capacity = slots
        self._grant()

    def statistics(self) -> FairShareStatistics:
        """A snapshot."""
        root = self._shares.root
        tenants = (
            TenantStatistics(
                path=node.path,
                weight=node.weight,
                waiting=node.queued,
                serving=node.serving,
                work=node.work,
            )
            for node in self._shares.nodes()
        )
        return FairShareStatistics(
            capacity=self._capacity,
            waiting=root.queued,
            serving=root.serving,
            granted=self._granted,
            refused=self._refused,
            withdrawn=self._withdrawn,
            work=root.work,
            tenants=tuple(sorted(tenants, key=lambda tenant: tenant.path)),
        )

    async def _take(self, slot: Slot, path: str, cost: float) -> None:
        if get_ident() != self._thread:
            raise elsewhere("fair share", "run(function_that_takes_a_slot, ...)")
        await trio.lowlevel.checkpoint_if_cancelled()
        slot._arrived = trio.current_time()
        if self._observer is not None:
            self._observer.submitted(slot._item)
        if self._closing:
            raise self._refuse(slot, self._refusal())
        queued = len(self._shares.leaf(path).queue)
        if queued >= self._max_waiting:
            raise self._refuse(
                slot,
                Overloaded(
                    f"{queued} requests of {path!r} wait already, and no more than "
                    f"{self._max_waiting} may",
                    waiting=queued,
                    capacity=self._max_waiting,
                ),
            )
        waiting = self._shares.add(path, cost)
        self._waiting[waiting] = slot
        self._grant()
        if slot._waiting is not None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return

        def withdraw(_: object) -> trio.lowlevel.Abort:
            slot._task = None
            del self._waiting[waiting]
            self._shares.withdraw(waiting)
            self._withdrawn += 1
            if self._observer is not None:
                self._observer.withdrawn(slot._item, trio.current_time() - slot._arrived)
            self._grant()
            return trio.lowlevel.Abort.SUCCEEDED

        slot._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(withdraw)

    def _give_back(self, slot: Slot, error: BaseException | None) -> None:
        waiting = slot._waiting
        assert waiting is not None
        slot._said, slot._waiting = waiting.cost, None
        self._shares.end(waiting)
        if self._observer is not None:
            seconds = trio.current_time() - slot._arrived
            if error is None:
                self._observer.answered(slot._item, seconds)
            else:
                self._observer.failed(slot._item, error, seconds)
        self._grant()

    def _grant(self) -> None:
        """Give out what slots there are, and see to it that the clerk looks in time."""
        shares = self._shares
        while shares.root.serving < self._capacity:
            waiting = shares.next(trio.current_time())
            if waiting is None:
                if shares.ready() < self._sleeps_until:
                    self._wake()
                break
            slot = self._waiting.pop(waiting)
            slot._waiting = waiting
            self._granted += 1
            if self._observer is not None:
                self._observer.started([slot._item])
            if slot._task is not None:
                trio.lowlevel.reschedule(slot._task)
                slot._task = None
        if self._idle is not None and shares.root.idle:
            self._idle.set()

    def _refuse(self, slot: Slot, error: Exception) -> Exception:
        self._refused += 1
        if self._observer is not None:
            self._observer.failed(slot._item, error, trio.current_time() - slot._arrived)
        return error

    def _refusal(self) -> Closed:
        error = Closed("the fair share is closed: its block was left, or its actor has ended")
        error.__cause__ = self._closed_by
        return error

    @trio.lowlevel.enable_ki_protection
    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Wait until a budget lets a request go, then look again.

        Slots that are held, and requests that wait, outlast a life.
        """
        self._thread = get_ident()
        task_status.started()
        while True:
            # While no slot is free there is nothing to look for: who gives one back looks.
            free = self._shares.root.serving < self._capacity
            self._sleeps_until = self._shares.ready() if free else math.inf
            self._clerk = trio.lowlevel.current_task()
            with trio.CancelScope(deadline=self._sleeps_until):
                await trio.lowlevel.wait_task_rescheduled(self._woken_otherwise)
            self._sleeps_until = -math.inf  # it looks just now
            self._grant()

    def _woken_otherwise(self, _: object) -> trio.lowlevel.Abort:
        self._clerk = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        if self._clerk is not None:
            trio.lowlevel.reschedule(self._clerk)
            self._clerk = None

    async def finish(self) -> None:
        """Take no more requests, and wait until all have had their turns."""
        self._closing = True
        if not self._shares.root.idle:
            self._idle = trio.Event()
            await self._idle.wait()

    def ended(self, cause: BaseException | None) -> None:
        """Refuse the requests that wait: there are no more turns."""
        self._closing = True
        self._closed_by = self._closed_by or cause
        for waiting, slot in self._waiting.items():
            self._shares.withdraw(waiting)
            task, slot._task = slot._task, None
            refused = outcome.Error(self._refuse(slot, self._refusal()))
            if task is not None:
                trio.lowlevel.reschedule(task, refused)
        self._waiting.clear()

    def depth(self) -> int:
        """Requests that wait or have a slot."""
        return self._shares.root.queued + self._shares.root.serving


@final
class FairServer(FairShare, Generic[In, Out]):
    """A fair share in front of a function: ``await server(item)`` is one request."""

    def __init__(
        self,
        function: Callable[[In], Awaitable[Out]],
        capacity: int,
        *,
        tenant: Callable[[In], str],
        cost: Callable[[In], float] | None,
        **options: Any,
    ) -> None:
        super().__init__(capacity, **options)
        self._function = function
        self._tenant = tenant
        self._cost = cost

    async def __call__(self, item: In) -> Out:
        """Call the function when it is the turn of the item's tenant. See `FairShare.slot`."""
        cost = 1.0 if self._cost is None else amount(self._cost(item), "cost")
        slot: Slot = Slot.construct(self, check_path(self._tenant(item)), cost, item)
        async with slot:
            return await unprotected(self._function, item)

    async def call(self, item: In, **options: Any) -> Out:
        """Answer a `Call`. It has no options."""
        return await self(item, **options)


@overload
def open_fair_share(
    function: None = None,
    *,
    capacity: int,
    weights: Mapping[str, float] = ...,
    budgets: Mapping[str, Budget] = ...,
    max_waiting: int = ...,
    observer: Observer | None = ...,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[FairShare]: ...


@overload
def open_fair_share(
    function: Callable[[In], Awaitable[Out]],
    *,
    capacity: int,
    tenant: Callable[[In], str],
    cost: Callable[[In], float] | None = ...,
    weights: Mapping[str, float] = ...,
    budgets: Mapping[str, Budget] = ...,
    max_waiting: int = ...,
    observer: Observer | None = ...,
    **place: Unpack[Place],
) -> AbstractAsyncContextManager[FairServer[In, Out]]: ...


@opens
def open_fair_share(
    function: Callable[[Any], Awaitable[Any]] | None = None,
    *,
    capacity: int,
    tenant: Callable[[Any], str] | None = None,
    cost: Callable[[Any], float] | None = None,
    weights: Mapping[str, float] | None = None,
    budgets: Mapping[str, Budget] | None = None,
    max_waiting: int = 1024,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[FairShare] | AsyncIterator[FairServer[Any, Any]]:
    """Give tenants turns in proportion to their weights.

    ``async with open_fair_share(capacity=8) as share:``, and then ``async with
    share.slot("tenant", cost=3):`` around the work. With a function, such as a batcher, ``await
    share(item)`` does both. Leaving the block waits until all who wait have had their turns; an
    exception or a cancellation that leaves it has them get `Closed`.

    Requests are begun by hierarchical start-time fair queueing (Goyal, Vin and Cheng, 1996), with
    up to ``capacity`` in service. While two tenants of one group both have requests waiting,
    compare the work begun for each, divided by its weight. The two differ by at most the sum of the
    largest request's cost of each, divided by its weight. So each tenant makes progress regardless
    of the others' requests, and the durations of requests need not be known. Work that a tenant
    does not use goes to the others. A pause earns nothing: a tenant that returns competes from then
    on. It has no debt for work that the others did not want.

    Args:
        function: the function to call for each item, when its turn comes. By default there are only
            slots.
        capacity: the number of slots: for a batcher, enough for some batches.
        tenant: returns the tenant of an item.
        cost: returns the cost of an item; one by default.
        weights: by tenant or group, such as ``{"paid": 3, "paid/ann": 2}``. One by default.
        budgets: bounds for tenants and groups, such as ``{"free": Budget(rate=100, burst=500)}``;
            ``""`` is all of them together. A tenant that has used up its budget waits. The others
            get its unused turns, and it does not get them back later.
        max_waiting: the maximum number of waiting requests of each tenant; more raise `Overloaded`.
            So a tenant that floods the queue does not affect the others.
        observer: receives the events of requests. For slots, the items are the tenants.
        **place: ``system=``, ``name=`` and ``parent=``, which make the fair share an actor. In
            front of a function, it answers ``Call(item)``.
    """
    budgets = {} if budgets is None else budgets
    check_instance("budgets", budgets, Mapping)
    for path, budget in budgets.items():
        check_instance(f"the budget of {path!r}", budget, Budget)
    options: dict[str, Any] = {
        "weights": {} if weights is None else weights, "budgets": budgets,
        "max_waiting": max_waiting, "observer": observer,
    }  # fmt: skip
    if function is None:
        if tenant is not None or cost is not None:
            raise TypeError("tenant and cost are for a function: slots are told both")
        share: FairShare = FairShare.construct(capacity, **options)
        return _opened(share, place)
    if not callable(function):
        raise TypeError(
            f"argument of open_fair_share must be an async function of an item, not {function!r}"
        )
    if not callable(tenant):
        raise TypeError(f"tenant must be a function of an item, not {tenant!r}")
    if cost is not None and not callable(cost):
        raise TypeError(f"cost must be a function of an item, not {cost!r}")
    kind: type[FairServer[Any, Any]] = FairServer
    server = kind.construct(function, capacity, tenant=tenant, cost=cost, **options)
    return _opened(server, place)


_Share = TypeVar("_Share", bound=FairShare)


async def _opened(share: _Share, place: Place) -> AsyncIterator[_Share]:
    async with serving(share, **place):
        yield share
