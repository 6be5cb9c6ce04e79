"""Ranks without devices: they take their time, and die when they are told to."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from atomr_accel import ContextPoisoned, DeviceLost, LibraryError, Unsupported
from atomr_accel.libraries.nccl.wire._messages import Step
from atomr_accel.worlds._engine import Engine, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atomr_accel.worlds._engine import Call, Term

Answered = Callable[[Exception | None], object]

REBUILD = 1.0
"""Seconds until a rank that has died is back, at most."""


def poisoned(rank: int) -> ContextPoisoned:
    """What an op of a rank that dies is answered with."""
    return ContextPoisoned(
        f"rank {rank} died", generation=1, status=700, status_name="fault", op="op"
    )


class Place:
    """Where ranks meet, in this process."""

    def place_of(self, rank: int) -> tuple[bytes, int]:
        """Nothing has to be told."""
        return b"", rank

    def abort(self) -> None:
        """Ranks are told one by one."""

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
        """A rank has come, with what it gives."""
        self.values[rank] = value
        if len(self.values) == self.wanted:
            self.full.set()


class Network:
    """What ranks come together in.

    Attributes:
        shrinking: what comes of shrinking communicators: ``"never"``, ``"fails"``, ``"hangs"``,
            ``"unknown"`` (they cannot be revoked) or ``"works"``.
        shrunk: how often a rank was asked to.
        results: what each op has given each rank, by the op's number.
    """

    def __init__(self, nursery: trio.Nursery, seed: int, shrinking: str) -> None:
        self.shrinking = shrinking
        self.shrunk = 0
        self.nursery = nursery
        self.random = random.Random(seed)
        self.rounds: dict[tuple[int, int], Round] = {}
        self.sizes: dict[int, int] = {}
        self.results: dict[int, dict[int, int]] = defaultdict(dict)

    def round(self, number: int, at: int, wanted: int) -> Round:
        """That of a communicator at a place, for so many ranks."""
        return self.rounds.setdefault((number, at), Round(wanted))

    async def meet(self, members: Sequence[Rank]) -> Place:
        """Have them meet, which takes a while."""
        del members
        await trio.sleep(self.random.random() / 100)
        return Place()


class Rank:
    """A rank on a host that works, hangs, or is being rebuilt."""

    def __init__(self, network: Network, number: int) -> None:
        self.network = network
        self.number = number
        self.name = f"simulated:{number}"
        self.alive = self.hung = self.stuck = self.lost_for_good = False
        self.under_way: dict[trio.CancelScope, tuple[int, Answered]] = {}
        self.joined: set[int] = set()
        self.begun: dict[int, int] = defaultdict(int)
        self.changed = trio.Event()
        self.deaths = 0

    async def follow(
        self, ready: Callable[[], object], lost: Callable[[Exception], object]
    ) -> None:
        """Tell of rebuilds."""
        self.changed = trio.Event()  # what was before is nobody's concern
        while True:
            if self.lost_for_good:
                raise DeviceLost(f"{self.name} is lost")
            self.alive, self.hung, self.stuck = True, False, False
            ready()
            await self.changed.wait()
            self.changed = trio.Event()
            lost(poisoned(self.number))
            await trio.sleep(self.network.random.random() * REBUILD)

    def die(self, *, for_good: bool = False) -> None:
        """Everything in flight is answered, some now and some later."""
        if not self.alive:
            return
        self.alive, self.lost_for_good = False, for_good
        self.deaths += 1
        self.joined.clear()
        for answered in self._stop(lambda _number: True):
            if self.network.random.random() < 0.5:
                answered(poisoned(self.number))
            else:
                self.network.nursery.start_soon(self._answer_late, answered)
        self.changed.set()

    def _stop(self, which: Callable[[int], bool]) -> list[Answered]:
        """End what is under way in some communicators; who is to be told."""
        stopped = []
        for scope, (number, answered) in list(self.under_way.items()):
            if which(number):
                scope.cancel()
                del self.under_way[scope]
                stopped.append(answered)
        return stopped

    async def _answer_late(self, answered: Answered) -> None:
        await trio.sleep(self.network.random.random() / 100)
        answered(poisoned(self.number))

    def join(
        self,
        number: int,
        rank: int,
        size: int,
        place: tuple[bytes, int],
        answered: Answered,
    ) -> None:
        """Come to the communicator's first round."""
        assert place == (b"", rank)
        assert self.network.sizes.setdefault(number, size) == size
        self.joined.add(number)
        self._start(number, 0, size, rank, 0, lambda _values: None, answered)

    @property
    def shrinks(self) -> bool:
        """Whether it may be asked to."""
        return self.network.shrinking != "never"

    def revoke(self, number: int, answered: Answered) -> None:
        """Whoever is in the midst of something there is told."""
        if self.network.shrinking == "unknown":
            answered(Unsupported("there is no ncclCommRevoke"))
        elif self.alive:
            for told in self._stop(lambda each: each == number):
                told(_aborted())
            answered(None)

    def shrink(
        self,
        number: int,
        parent: int,
        excluded: tuple[int, ...],
        rank: int,
        size: int,
        answered: Answered,
    ) -> None:
        """Come to the communicator's first round, unless that was not to be."""
        self.network.shrunk += 1
        assert self.network.sizes[parent] == size + len(excluded)
        if not self.alive:
            answered(poisoned(self.number))
        elif parent not in self.joined or self.network.shrinking == "fails":
            answered(Unsupported("there is no ncclCommShrink"))
        elif self.network.shrinking == "works":
            self.join(number, rank, size, (b"", rank), answered)

    def collect(self, number: int, name: str, part: Part, answered: Answered) -> None:
        """Add up what all ranks bring."""
        (step,) = part.steps
        self.begun[number] += not self.stuck

        def done(values: dict[int, int]) -> None:
            self.network.results[step.target][self.number] = sum(values.values())

        self._start(number, step.at, step.count, part.rank, step.source, done, answered)

    def _start(
        self,
        number: int,
        at: int,
        wanted: int,
        rank: int,
        value: int,
        done: Callable[[dict[int, int]], None],
        answered: Answered,
    ) -> None:
        if not self.alive:
            answered(poisoned(self.number))
            return
        if number not in self.joined:
            answered(_aborted())
            return
        scope = trio.CancelScope()
        self.under_way[scope] = number, answered
        self.network.nursery.start_soon(self._come, scope, number, at, wanted, rank, value, done)

    async def _come(
        self,
        scope: trio.CancelScope,
        number: int,
        at: int,
        wanted: int,
        rank: int,
        value: int,
        done: Callable[[dict[int, int]], None],
    ) -> None:
        with scope:
            await trio.sleep(self.network.random.random() / 100)
            if self.hung or self.stuck:
                await trio.sleep_forever()
            together = self.network.round(number, at, wanted)
            together.come(rank, value)
            await together.full.wait()
            await trio.sleep(self.network.random.random() / 100)
            if scope in self.under_way:
                _, answered = self.under_way.pop(scope)
                done(together.values)
                answered(None)

    def ask_begun(self, number: int, answered: Callable[[int, Exception | None], object]) -> None:
        """It says so, if it is alive."""
        if self.alive and not self.hung:
            answered(self.begun[number], None)

    def abort(self, number: int, answered: Callable[[], object]) -> None:
        """Whoever is in the midst of something there leaves."""
        self.joined.discard(number)
        for told in self._stop(lambda each: each == number):
            told(_aborted())
        answered()

    def kill(self) -> bool:
        """It dies, as soon as it can."""
        self.network.nursery.start_soon(self._die_soon)
        return True

    async def _die_soon(self) -> None:
        await trio.lowlevel.checkpoint()
        self.die()


def _aborted() -> LibraryError:
    return LibraryError(
        "aborted", library="nccl", call="ncclCommAbort", status=6, status_name="ncclRemoteError"
    )


def start(engine: Engine[Rank], term: Term, op: int, values: dict[int, int]) -> Call:
    """Begin an op of some ranks; ``values`` are what each member of them brings."""
    parts = [
        Part(
            rank,
            (Step("all_reduce", "int64", len(values), values[member], op, at=term.at),),
            (),
            (),
        )
        for rank, member in enumerate(term.members)
        if member in values
    ]
    return engine.submit(term, "all_reduce", parts, term.at + 2)


class Simulation:
    """A world of simulated ranks: ``async with Simulation(...) as simulation:``."""

    def __init__(self, size: int, seed: int = 0, shrinking: str = "never", **options: Any) -> None:
        self._size, self._seed, self._options = size, seed, options
        self._shrinking = shrinking

    async def __aenter__(self) -> Simulation:
        self._outer = trio.open_nursery()
        self.nursery = await self._outer.__aenter__()
        self.network = Network(self.nursery, self._seed, self._shrinking)
        self.ranks = [Rank(self.network, number) for number in range(self._size)]
        self.engine = Engine(self.ranks, self.network.meet, **self._options)
        await self.nursery.start(self.engine.run)
        return self

    async def __aexit__(self, *failure: Any) -> bool | None:
        self.nursery.cancel_scope.cancel()
        return await self._outer.__aexit__(*failure)
