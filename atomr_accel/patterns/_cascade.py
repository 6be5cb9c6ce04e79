"""Cascades: cheap stages answer easy requests, and costly stages the rest."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, Unpack, final

import trio

from .._errors import LastError
from ..actors import Place
from ..actors.blocks import opens
from ..actors.util import NoPublicConstructor, check_instance
from ..wire.options import real, set_fields
from ._calls import CallsInProgress, InCallers, RequestCounts, serving_callers, unprotected
from ._errors import Refused
from ._latencies import Latencies
from ._members import is_fault

if TYPE_CHECKING:
    from ._observer import Observer

In = TypeVar("In")
Out = TypeVar("Out")

_QUANTILE: Final = 0.9


# With slots ``CascadeStage[...](...)`` would fail, on Python 3.11.
@dataclass(frozen=True)
class CascadeStage(Generic[In, Out]):
    """One stage of a cascade.

    Attributes:
        function: a coroutine function, or anything that is called like one: with a ``Batcher``,
            the items of many callers go through the stage together.
        threshold: an answer of at least this confidence is given, and no later stage is asked.
        cost: what asking it takes from a request's budget, in a unit of your own.
        name: what answers and statistics call it; by default, the function's name.
    """

    function: Callable[[In], Awaitable[Out]]
    threshold: float = 1.0
    cost: float = 1.0
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(f"a stage must be a coroutine function, not {self.function!r}")
        check_instance("name", self.name, str)
        set_fields(
            self,
            threshold=real(self.threshold, "threshold", infinity=True),
            cost=real(self.cost, "cost", least=0),
        )


# With slots ``CascadeAnswer[...](...)`` would fail, on Python 3.11.
@dataclass(frozen=True)
class CascadeAnswer(Generic[Out]):
    """The answer to a request, and how it came about."""

    value: Out
    confidence: float
    stage: str
    """The name of the stage that has given it."""
    cost: float
    """Sum of the costs of all stages that were asked."""
    skipped: tuple[str, ...]
    """Stages that would have been asked, had budget and deadline allowed it, or had they not
    failed by a device's fault or a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeStageStatistics:
    """One stage of a cascade, at one moment.

    Attributes:
        name: the stage's name.
        asked: requests that the stage has received.
        accepted: answers that were confident enough.
        failed: requests that have failed there, for whatever reason.
        over_budget: number of times that it was skipped because of its cost.
        out_of_time: number of times that it was skipped, or cancelled, because of the caller's
            deadline.
        seconds: nine of ten requests take no longer; zero before the first.
    """

    name: str
    asked: int
    accepted: int
    failed: int
    over_budget: int
    out_of_time: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeStatistics(RequestCounts):
    """A cascade at one moment.

    Every request that was submitted is in one of these: ``running``, ``answered``, ``failed``,
    ``refused``, ``withdrawn``.

    Attributes:
        submitted: requests so far.
        running: requests in progress.
        answered: requests that got an answer.
        failed: requests that raised an error.
        refused: requests that got a refusal: of the last stage that could be asked, or the block
            was left.
        withdrawn: requests whose callers were cancelled.
        cost: sum of the costs of all requests.
        stages: the stages in their order.
    """

    cost: float
    stages: tuple[CascadeStageStatistics, ...]


class _RunningStage:
    def __init__(self, stage: CascadeStage[Any, Any], number: int) -> None:
        name = stage.name or getattr(stage.function, "__name__", "") or f"stage-{number}"
        self.stage = replace(stage, name=name)
        self.latencies = Latencies()
        self.asked = self.accepted = self.failed = self.over_budget = self.out_of_time = 0

    @property
    def seconds(self) -> float:
        return self.latencies.quantile(_QUANTILE) if len(self.latencies) else 0.0


@final
class Cascade(InCallers, Generic[In, Out], metaclass=NoPublicConstructor):
    """Asks one stage after another, as `open_cascade` returns it.

    ``await cascade(item)`` makes one request.
    """

    _made_by: ClassVar[str] = "open_cascade(stage, ...)"

    def __init__(
        self,
        stages: tuple[CascadeStage[In, Out], ...],
        confidence: Callable[[Out], float],
        budget: float,
        reserve: float,
        observer: Observer | None,
    ) -> None:
        self._stages = [_RunningStage(stage, number) for number, stage in enumerate(stages, 1)]
        self._confidence = confidence
        self._budget = budget
        self._reserve = reserve
        self._calls = CallsInProgress("cascade", observer)
        self._cost = 0.0

    async def __call__(self, item: In) -> Out:
        """Ask for one item, within the cascade's budget. See ``ask``."""
        return (await self.ask(item)).value

    @trio.lowlevel.enable_ki_protection
    async def ask(self, item: In, *, budget: float | None = None) -> CascadeAnswer[Out]:
        """Ask stage after stage until one is confident enough, and give the most confident answer.

        The stages run in your own task. Once a stage has answered, a later stage is skipped if it
        would exceed the budget or if nine of ten of its requests take longer than your deadline
        allows. A stage that takes too long is cancelled in time for you to get the best answer so
        far.

        Args:
            item: the argument of the request.
            budget: the total cost that the stages may have; by default, the cascade's budget.

        Raises:
            ValueError: no stage costs as little as the budget.
            Exception: any error that a stage raised. A device's fault and a refusal are raised only
                if no stage has answered.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        limit = self._budget
        if budget is not None:
            limit = _checked_budget(budget, [one.stage for one in self._stages])
        with self._calls.one(item), LastError() as failed:
            deadline = trio.current_effective_deadline()
            best: CascadeAnswer[Out] | None = None
            skipped: list[str] = []
            spent = 0.0
            for one in self._stages:
                stage = one.stage
                if spent + stage.cost > limit:
                    one.over_budget += 1
                    skipped.append(stage.name)
                    continue
                leave_at = math.inf if best is None else deadline - self._reserve
                if trio.current_time() + one.seconds >= leave_at:
                    one.out_of_time += 1
                    skipped.append(stage.name)
                    continue
                spent += stage.cost
                self._cost += stage.cost
                try:
                    with trio.move_on_at(leave_at) as scope:
                        value: Out = await self._ask_stage(one, item)
                except Exception as error:
                    one.failed += 1
                    # Nobody's answer: another stage may have one.
                    if not (is_fault(error) or isinstance(error, Refused)):
                        raise
                    failed.add(error)
                    skipped.append(stage.name)
                    continue
                if scope.cancelled_caught:
                    one.out_of_time += 1
                    skipped.append(stage.name)
                    continue
                confidence = real(self._confidence(value), "confidence", infinity=True)
                if best is None or confidence > best.confidence:
                    best = CascadeAnswer(value, confidence, stage.name, 0.0, ())
                if confidence >= stage.threshold:
                    one.accepted += 1
                    break
            if best is None:
                failed.throw()
            return replace(best, cost=spent, skipped=tuple(skipped))

    async def call(self, item: In, **options: Any) -> Out:
        """Answer a `Call`, within a ``budget`` if it is among the options. See ``ask``."""
        return (await self.ask(item, **options)).value

    async def _ask_stage(self, one: _RunningStage, item: Any) -> Any:
        one.asked += 1
        began = trio.current_time()
        self._calls.tally.start(item)
        try:
            return await unprotected(one.stage.function, item)
        finally:
            # Also where it was cut short: it takes at least so long.
            one.latencies.add(trio.current_time() - began)

    def statistics(self) -> CascadeStatistics:
        """A snapshot."""
        return CascadeStatistics(
            **self._calls.tally.counts(),
            cost=self._cost,
            stages=tuple(
                CascadeStageStatistics(
                    name=one.stage.name,
                    asked=one.asked,
                    accepted=one.accepted,
                    failed=one.failed,
                    over_budget=one.over_budget,
                    out_of_time=one.out_of_time,
                    seconds=one.seconds,
                )
                for one in self._stages
            ),
        )


def _checked_budget(budget: float, stages: Sequence[CascadeStage[Any, Any]]) -> float:
    limit = real(budget, "budget", infinity=True)
    least = min(stage.cost for stage in stages)
    if limit < least:
        raise ValueError(
            f"budget must be at least {least:g}, which the cheapest stage costs, not {limit:g}"
        )
    return limit


@opens
async def open_cascade(
    *stages: CascadeStage[In, Out],
    confidence: Callable[[Out], float],
    budget: float = math.inf,
    reserve: float = 0.005,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[Cascade[In, Out]]:
    """Open a cascade: stages that are asked one after the other until one is sure.

    A stage that fails by a device's fault, or that refuses (``Overloaded``, ``CircuitOpen``), is
    passed over, and the next one is asked. Other errors are answers.

    Leaving the block takes no more requests and waits for those in progress. Where an exception or
    a cancellation leaves it, those get ``Closed``.

    Args:
        stages: the stages, from the cheapest to the best.
        confidence: returns the confidence of an answer, which is compared with the stages'
            thresholds.
        budget: the total cost that the stages may have for one request, unless the request sets its
            own.
        reserve: how many seconds before a caller's deadline it gets the best answer so far.
        observer: receives the outcomes of requests.
        **place: ``system=``, ``name=`` and ``parent=``, which make the cascade an actor. It answers
            ``Call(item)``, and ``Call(item, {"budget": 3.0})``.
    """
    if not stages:
        raise TypeError("a cascade wants one stage or more")
    for stage in stages:
        if not isinstance(stage, CascadeStage):
            raise TypeError(f"a cascade must be made of CascadeStage objects, not {stage!r}")
    if not callable(confidence):
        raise TypeError(f"confidence must be a function of an answer, not {confidence!r}")
    kind: type[Cascade[In, Out]] = Cascade
    cascade = kind.construct(
        stages,
        confidence,
        _checked_budget(budget, stages),
        real(reserve, "reserve", least=0),
        observer,
    )
    async with serving_callers(cascade, place):
        yield cascade
