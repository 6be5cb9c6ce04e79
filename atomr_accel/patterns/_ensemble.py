"""Ensembles: several functions are asked, and their answers combined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, Unpack, final

import trio

from .._errors import is_awaitable, said_of
from ..actors import Place
from ..actors.blocks import opens
from ..actors.nursery import PlainNursery
from ..actors.util import NoPublicConstructor
from ..wire.options import whole
from ._calls import CallsInProgress, InCallers, RequestCounts, serving_callers, unprotected
from ._errors import QuorumMissed

if TYPE_CHECKING:
    from ._observer import Observer

In = TypeVar("In")
Part = TypeVar("Part")
Out = TypeVar("Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStatistics(RequestCounts):
    """An ensemble at one moment.

    Every request that was submitted is in one of these: ``running``, ``answered``, ``failed``,
    ``refused``, ``withdrawn``.

    Attributes:
        submitted: requests so far.
        running: requests in progress.
        answered: requests that got an answer.
        failed: requests that raised an error.
        refused: requests that got a refusal: of a member that had to answer, or the block was left.
        withdrawn: requests whose callers were cancelled.
        answers: number of answers of each member that were in time.
        errors: number of failures of each member.
        stragglers: number of cancellations of each member because enough others had answered or
            failed.
    """

    answers: tuple[int, ...]
    errors: tuple[int, ...]
    stragglers: tuple[int, ...]


@final
class Ensemble(InCallers, Generic[In, Out], metaclass=NoPublicConstructor):
    """Asks all members for each request, as `open_ensemble` returns it.

    ``await ensemble(item)`` makes one request.
    """

    _made_by: ClassVar[str] = "open_ensemble(member, ...)"

    def __init__(
        self,
        members: tuple[Callable[[In], Awaitable[Any]], ...],
        combine: Callable[[list[Any]], Out],
        quorum: int,
        observer: Observer | None,
    ) -> None:
        self._members = members
        self._combine = combine
        self._quorum = quorum
        self._calls = CallsInProgress("ensemble", observer)
        self._answers = [0] * len(members)
        self._errors = [0] * len(members)
        self._stragglers = [0] * len(members)

    @trio.lowlevel.enable_ki_protection
    async def __call__(self, item: In) -> Out:
        """Ask all members at once, and combine the answers of the quorum.

        If you are cancelled, or your deadline passes, the members are cancelled too.

        Raises:
            QuorumMissed: too many members have failed for a quorum.
            Exception: any error of a member, if all have to answer.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        with self._calls.one(item), ExitStack() as leaving:
            answers: dict[int, Any] = {}
            errors: dict[int, Exception] = {}
            leaving.callback(errors.clear)  # their tracebacks have this frame in them
            spare = len(self._members) - self._quorum

            async def ask(number: int) -> None:
                try:
                    answers[number] = await unprotected(self._members[number], item)
                    self._answers[number] += 1
                except Exception as error:  # noqa: BLE001 (raised below, if it counts)
                    errors[number] = error
                    self._errors[number] += 1
                if len(answers) == self._quorum or len(errors) > spare:
                    nursery.cancel_scope.cancel()

            self._calls.tally.start(item)
            async with PlainNursery() as nursery:
                for number in range(len(self._members)):
                    nursery.start_soon(ask, number)
            for number in range(len(self._members)):
                self._stragglers[number] += number not in answers and number not in errors
            if len(answers) >= self._quorum:
                made = self._combine([answers[number] for number in sorted(answers)])
                if is_awaitable(made):
                    said_of(made)  # which closes a coroutine
                    raise TypeError("combine must be a function, not an async one")
                return made
            if not spare:
                raise next(iter(errors.values()))
            raise QuorumMissed(
                f"{self._quorum} of {len(self._members)} members have to answer, and "
                f"{len(errors)} have failed",
                quorum=self._quorum,
                answered=len(answers),
            ) from ExceptionGroup("members of an ensemble failed", [*errors.values()])

    def statistics(self) -> EnsembleStatistics:
        """A snapshot. Members are in the order in which they were given."""
        return EnsembleStatistics(
            **self._calls.tally.counts(),
            answers=tuple(self._answers),
            errors=tuple(self._errors),
            stragglers=tuple(self._stragglers),
        )


@opens
async def open_ensemble(
    *members: Callable[[In], Awaitable[Part]],
    combine: Callable[[list[Part]], Out],
    quorum: int | None = None,
    observer: Observer | None = None,
    **place: Unpack[Place],
) -> AsyncIterator[Ensemble[In, Out]]:
    """Open an ensemble: each request goes to all members, and their answers become one.

    As soon as a quorum has answered, the others are cancelled. A member that raises any error, even
    a device's fault, does not answer. To repeat its calls, wrap it in a ``Retry`` or use a replica
    pool.

    Leaving the block takes no more requests and waits for those in progress. Where an exception or
    a cancellation leaves it, those get ``Closed``.

    Args:
        members: coroutine functions, or objects that are called like them.
        combine: makes one answer of a list of answers, which are in the order of the members. A
            list may be longer than the quorum, where several answer at the same moment.
        quorum: the number of answers required; by default, all.
        observer: receives the outcomes of requests.
        **place: ``system=``, ``name=`` and ``parent=``, which make the ensemble an actor. It
            answers ``Call(item)``.
    """
    if not members:
        raise TypeError("an ensemble wants one member or more")
    for member in (*members, combine):
        if not callable(member):
            raise TypeError(f"members and combine must be functions, not {member!r}")
    needed = len(members) if quorum is None else whole(quorum, "quorum", 1, len(members))
    kind: type[Ensemble[In, Out]] = Ensemble
    ensemble = kind.construct(members, combine, needed, observer)
    async with serving_callers(ensemble, place):
        yield ensemble
