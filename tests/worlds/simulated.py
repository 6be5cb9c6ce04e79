"""Ranks without devices: they are slow, and die on request."""

from __future__ import annotations

import math
import random
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import trio

from atomr_accel import ContextPoisoned, DeviceLost, LibraryError
from atomr_accel.libraries.nccl.wire.messages import CollectiveStep
from atomr_accel.worlds._engine import Engine
from atomr_accel.worlds._interfaces import RankPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atomr_accel.worlds._engine import CollectiveCall, Term

Answered = Callable[[Exception | None], object]

REBUILD = 1.0
"""Seconds until a rank that has died is back, at most."""


def poisoned(rank: int, cause: Exception | None = None) -> ContextPoisoned:
    """Return the answer to an op of a rank that dies."""
    error = ContextPoisoned(
        f"rank {rank} died", generation=1, status=700, status_name="fault", op="op"
    )
    error.__cause__ = cause
    return error


class Place:
    """A meeting point of ranks in this process."""

    def place_of(self, rank: int) -> tuple[bytes, int]:
        """The place needs no message."""
        return b"", rank

    def abort(self) -> None:
        """Ranks are aborted one by one."""

    async def close(self) -> None:
        """Nothing is held."""
        await trio.lowlevel.checkpoint()


@dataclass
class Round:
    """A collective, or joining: over when all have come."""

    wanted: int
    values: dict[int, int] = field(default_factory=dict)
    full: trio.Event = field(default_factory=trio.Event)

    def come(self, rank: int, value: int) -> None:
        """Add the value of a rank that has arrived."""
        self.values[rank] = value
        if len(self.values) == self.wanted:
            self.full.set()


class Network:
    """The network of the ranks.

    Attributes:
        holds_back: whether ranks answer only when they have nothing left to do.
        results: what each op has given each rank, by the op's number.
    """

    def __init__(self, nursery: trio.Nursery, seed: int, *, holds_back: bool) -> None:
        self.holds_back = holds_back
        self.nursery = nursery
        self.random = random.Random(seed)
        self.rounds: dict[tuple[int, int], Round] = {}
        self.sizes: dict[int, int] = {}
        self.results: dict[int, dict[int, int]] = defaultdict(dict)

    async def come(
        self, number: int, at: int, wanted: int, rank: int, value: int
    ) -> dict[int, int]:
        """Come to a round of a communicator; what all have brought there."""
        together = self.rounds.setdefault((number, at), Round(wanted))
        together.come(rank, value)
        await together.full.wait()
        return together.values

    async def meet(self, members: Sequence[Rank]) -> Place:
        """Have them meet, which takes a while, and does not go on while one hangs."""
        for member in members:
            while member.alive and member.hung:
                await member.changed.wait()
        await trio.sleep(self.random.random() / 100)
        return Place()


@dataclass(eq=False)
class Work:
    """Work of a rank's lane: one round.

    Attributes:
        joins: whether the rank is in the communicator only from here on.
        run: does it.
        answered: called with the outcome.
        scope: cancelled by who aborts it.
    """

    number: int
    joins: bool
    run: Callable[[], Awaitable[object]]
    answered: Answered
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


Answers: TypeAlias = "trio.MemoryReceiveChannel[tuple[Work, Exception | None]]"


class Rank:
    """A rank on a host that works, hangs, or is being rebuilt.

    It does one thing after the other, as a lane of collectives does. Rounds begin in order, even if
    they were aborted meanwhile.

    Attributes:
        hung: it answers nothing any more.
        stuck_until: until then its lane is kept by other work.
        begins: number of ops that it still begins before its lane hangs.
        deaths: how often it has died.
        stuck_starting: whether its start does not end.
    """

    def __init__(self, network: Network, number: int) -> None:
        self.network = network
        self.number = number
        self.name = f"simulated:{number}"
        self.alive = self.lost_for_good = self.stuck_starting = False
        self.changed = trio.Event()
        self.deaths = 0

    def _revive(self) -> None:
        self.alive, self.hung, self.stuck_until, self.begins = True, False, -math.inf, math.inf
        self.life = trio.CancelScope()
        self.queue: deque[Work] = deque()  # not begun
        self.unanswered: list[Work] = []
        self.elsewhere: set[int] = set()  # communicators of another world
        self.held: list[tuple[Work, Exception | None]] = []
        self.wire, answers = trio.open_memory_channel[tuple[Work, Exception | None]](math.inf)
        self.current: Work | None = None
        self.arrived = trio.Event()
        self.joined: set[int] = set()
        self.gone: set[int] = set()
        self.begun: dict[int, int] = defaultdict(int)
        self.aborting: list[Callable[[], object]] = []
        self.network.nursery.start_soon(self._live, answers)

    def require_open(self) -> None:
        """Raise `DeviceLost` if the rank is lost for good."""
        if self.lost_for_good:
            raise DeviceLost(f"{self.name} is lost")

    async def start(self) -> None:
        """Come to life, which takes a while; begin anew after a death meanwhile."""
        while True:
            if self.lost_for_good:
                raise DeviceLost(f"{self.name} is lost")
            deaths = self.deaths
            await trio.sleep(0 if self.alive else self.network.random.random() / 20)
            if self.alive:
                return
            if deaths == self.deaths and not self.stuck_starting:
                self._revive()
                return

    async def follow(
        self, ready: Callable[[], object], lost: Callable[[Exception], object]
    ) -> None:
        """Report rebuilds."""
        self.changed = trio.Event()  # what was before is nobody's concern
        while True:
            await self.start()
            if self.changed.is_set():
                self.changed = trio.Event()
            ready()
            await self.changed.wait()
            self.changed = trio.Event()
            lost(poisoned(self.number))
            await trio.sleep(self.network.random.random() * REBUILD)

    def die(self, cause: Exception | None = None, *, for_good: bool = False) -> None:
        """Everything in flight is answered, some now and some later."""
        self.lost_for_good |= for_good
        self.deaths += 1
        if not self.alive:
            return
        self.alive = False
        self.joined.clear()
        self.life.cancel()
        for told in self.aborting:
            told()
        for work in self.unanswered:
            if self.network.random.random() < 0.5:
                work.answered(poisoned(self.number, cause))
            else:
                self.network.nursery.start_soon(self._answer_late, work.answered)
        self.changed.set()

    async def _answer_late(self, answered: Answered) -> None:
        await trio.sleep(self.network.random.random() / 100)
        answered(poisoned(self.number))

    # --- its lane --------------------------------------------------------------------------

    async def _live(self, answers: Answers) -> None:
        with self.life:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._work)
                nursery.start_soon(self._deliver, answers)

    async def _work(self) -> None:
        while True:
            await self.arrived.wait()
            self.arrived = trio.Event()
            while self.queue:
                await self._pause()
                if not self.begins:
                    await trio.sleep_forever()
                self.begins -= 1
                work = self.current = self.queue.popleft()
                with work.scope:
                    await self._begin(work)
                if work.scope.cancelled_caught:
                    self._tell(work, _aborted())
                self.current = None
                await self._pause()

    async def _begin(self, work: Work) -> None:
        there = work.joins or work.number in self.joined
        if work.number in self.gone or not there:
            self._tell(work, _aborted())
            return
        self.begun[work.number] += 1
        self.joined.add(work.number)
        await work.run()
        self._tell(work, None)

    async def _pause(self) -> None:
        """Whatever it does takes a while."""
        await trio.sleep(self.network.random.random() / 100)
        if self.hung:
            await trio.sleep_forever()
        await trio.sleep_until(self.stuck_until)

    def _tell(self, work: Work, error: Exception | None) -> None:
        """Answer, as soon as there is nothing left to do if answers are held back."""
        self.held.append((work, error))
        if self.queue and self.network.holds_back:
            return
        for each in self.held:
            self.wire.send_nowait(each)
        self.held.clear()

    async def _deliver(self, answers: Answers) -> None:
        """Deliver answers later, in order, even after the rank has died."""
        async for work, error in answers:
            await trio.sleep(self.network.random.random() / 100)
            self.unanswered.remove(work)
            work.answered(error)

    def _submit(self, work: Work) -> None:
        if self.alive:
            self.queue.append(work)
            self.unanswered.append(work)
            self.arrived.set()
        else:
            work.answered(poisoned(self.number))

    # --- what a world asks of it -----------------------------------------------------------

    def join(
        self, number: int, rank: int, size: int, place: tuple[bytes, int], answered: Answered
    ) -> None:
        """Come to the communicator's first round."""
        assert place == (b"", rank)
        assert self.network.sizes.setdefault(number, size) == size
        come = partial(self.network.come, number, 0, size, rank, 0)
        self._submit(Work(number, True, come, answered))

    def collect(self, number: int, name: str, part: RankPart, answered: Answered) -> None:
        """Add up what all ranks bring."""
        (step,) = part.steps

        async def come() -> None:
            values = await self.network.come(number, step.at, step.count, part.rank, step.source)
            self.network.results[step.target][self.number] = sum(values.values())

        self._submit(Work(number, False, come, answered))

    def ask_begun(self, number: int, answered: Callable[[int, Exception | None], object]) -> None:
        """Answer how many ops have begun, if the rank is alive."""
        if self.alive and not self.hung:
            answered(self.begun[number], None)

    def waits_elsewhere(self) -> bool:
        """Return whether the oldest unanswered op is of another world."""
        return bool(self.unanswered) and self.unanswered[0].number in self.elsewhere

    def abort(self, number: int, answered: Callable[[], object]) -> None:
        """End this rank's waits in that communicator."""
        if self.alive:
            self.gone.add(number)
            self.joined.discard(number)
            if self.hung:
                self.aborting.append(answered)
                return
            self._interrupt(number)
        answered()

    def _interrupt(self, number: int) -> None:
        if self.current is not None and self.current.number == number:
            self.current.scope.cancel()

    def kill(self, op: str, cause: Exception) -> Exception:
        """Make the rank die."""
        del op
        self.die(cause)
        return cause


def _aborted() -> LibraryError:
    return LibraryError(
        "aborted", library="nccl", call="ncclCommAbort", status=6, status_name="ncclRemoteError"
    )


def start(engine: Engine[Rank], term: Term, op: int, values: dict[int, int]) -> CollectiveCall:
    """Begin an op of some ranks; ``values`` are what each member of them brings."""
    parts = [
        RankPart(
            rank,
            (CollectiveStep("all_reduce", "int64", len(values), values[member], op, at=term.at),),
            (),
            (),
        )
        for rank, member in enumerate(term.members)
        if member in values
    ]
    return engine.submit(term, "all_reduce", parts, term.at + 2)


class Simulation:
    """A world of simulated ranks: ``async with Simulation(...) as simulation:``.

    ``more`` ranks are not in it yet.
    """

    def __init__(
        self,
        size: int,
        seed: int = 0,
        *,
        holds_back: bool = False,
        more: int = 0,
        **options: Any,
    ) -> None:
        self._size, self._more, self._seed, self._options = size, more, seed, options
        self._holds_back = holds_back

    async def __aenter__(self) -> Simulation:
        self._outer = trio.open_nursery()
        self.nursery = await self._outer.__aenter__()
        self.network = Network(self.nursery, self._seed, holds_back=self._holds_back)
        self.ranks = [Rank(self.network, number) for number in range(self._size + self._more)]
        self.engine = Engine(self.ranks[: self._size], self.network.meet, **self._options)
        self._run = trio.CancelScope()
        self._left = trio.Event()
        await self.nursery.start(self._serve)
        return self

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._run:
            await self.engine.run(task_status=task_status)
        self._left.set()

    async def leave(self) -> None:
        """Leave the world, whatever is under way."""
        self.engine.close()
        self._run.cancel()
        await self._left.wait()

    async def restart(self) -> None:
        """Stop the engine, whatever is under way, and have it run again."""
        self._run.cancel()
        await self._left.wait()
        self._run, self._left = trio.CancelScope(), trio.Event()
        await self.nursery.start(self._serve)

    async def __aexit__(self, *failure: Any) -> bool | None:
        self.nursery.cancel_scope.cancel()
        return await self._outer.__aexit__(*failure)
