"""What is sent from rank to rank, until somebody receives it."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .._errors import WorldBroken
    from ..memory import GpuRef

T = TypeVar("T")


@final
class Letter:
    """What ``send`` has given and ``recv`` has not taken yet.

    Args:
        ref: the buffer.
        members: the world's when it was sent.

    Attributes:
        withdrawn: whether who has sent it has taken it back.
        number: its place among those of the same ranks.
    """

    def __init__(self, ref: GpuRef, members: tuple[int, ...] = ()) -> None:
        self.ref: Final = ref
        self.members: Final = members
        self.done: Final = trio.Event()
        self.error: Exception | None = None
        self.withdrawn: bool = False
        self.number: int = 0

    def finish(self, error: Exception | None = None) -> None:
        """It has arrived, or never will."""
        self.error = error
        self.done.set()


@final
class Letters:
    """Letters by whom they are from and to, in the order in which they were sent."""

    def __init__(self) -> None:
        self._letters: dict[tuple[int, int], deque[Letter]] = {}
        self._numbers: Final = count(1)

    def __len__(self) -> int:
        return sum(map(len, self._letters.values()))

    def put(self, source: int, to: int, letter: Letter) -> None:
        """Leave a letter, or put one back that was taken and could not be brought."""
        if letter.withdrawn:
            return
        letter.number = letter.number or next(self._numbers)
        letters = self._letters.setdefault((source, to), deque())
        at = len(letters)
        while at and letters[at - 1].number > letter.number:
            at -= 1
        letters.insert(at, letter)

    def withdraw(self, source: int, to: int, letter: Letter) -> None:
        """Take a letter back, also one that somebody has taken and may put back."""
        letter.withdrawn = True
        letters = self._letters.get((source, to), deque())
        if letter in letters:
            letters.remove(letter)

    def take(self, source: int, to: int) -> Letter | None:
        """The next letter, if there is one."""
        letters = self._letters.get((source, to))
        return letters.popleft() if letters else None

    def take_all(self) -> list[Letter]:
        """All that there are."""
        found = [letter for letters in self._letters.values() for letter in letters]
        self._letters.clear()
        return found


class Ranks(Protocol):
    """Those who write to each other, as far as mail has to know them; an ``Engine``."""

    @property
    def members(self) -> tuple[int, ...]:
        """Who they are, in the order of their ranks."""

    def refusal(self, what: str, members: tuple[int, ...]) -> WorldBroken | None:
        """Why what was called among these members will never begin, if that is so."""

    def require(self, what: str, members: tuple[int, ...]) -> None:
        """Raise what ``refusal`` gives."""


@final
class Mail:
    """The mail of a world: a rank is a rank of those that were there at the call.

    Args:
        ranks: who they are. Whenever others are, or nobody is any more, ``look`` must be called.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._letters = Letters()
        self._arrived: Final = trio.lowlevel.ParkingLot()

    def look(self) -> None:
        """Refuse what will never be received, and have all who wait look again."""
        for letter in self._letters.take_all():
            letter.finish(self._never_received(letter))
        self._arrived.unpark_all()

    def _never_received(self, letter: Letter) -> WorldBroken | None:
        return self._ranks.refusal("the buffer was not received", letter.members)

    async def send(self, source: int, to: int, ref: GpuRef) -> None:
        """Wait until a buffer was received; who is cancelled takes it back, if it was not.

        Raises:
            WorldBroken: it never will be.
            Exception: what ``receive`` raised, to which it has come.
        """
        letter = Letter(ref, self._ranks.members)
        self._ranks.require("the buffer was not sent", letter.members)
        self._letters.put(source, to, letter)
        self._arrived.unpark_all()
        try:
            await letter.done.wait()
        except trio.Cancelled:
            self._letters.withdraw(source, to, letter)
            raise
        if letter.error is not None:
            raise letter.error

    async def receive(
        self, source: int, to: int, bring: Callable[[GpuRef, Callable[[], object]], Awaitable[T]]
    ) -> T:
        """Take what was sent, and wait for it if need be.

        Args:
            source: the rank that sends.
            to: the rank that receives.
            bring: brings a buffer there. It calls what it is given as soon as that goes on also
                if it is cancelled.

        Returns:
            What ``bring`` does.

        Raises:
            WorldBroken: nothing will ever come.
            Exception: what ``bring`` does; the sender gets that, too.
        """
        members = self._ranks.members
        while True:
            self._ranks.require("nothing was received", members)
            letter = self._letters.take(source, to)
            if letter is not None:
                break
            await self._arrived.park()
        gone = False

        def sent() -> None:
            nonlocal gone
            gone = True

        try:
            result = await bring(letter.ref, sent)
        except trio.Cancelled:
            refusal = self._never_received(letter)
            if gone or refusal is not None:
                letter.finish(None if gone else refusal)
            else:
                self._letters.put(source, to, letter)
                self._arrived.unpark_all()
            raise
        except Exception as error:
            letter.finish(error)
            raise
        letter.finish()
        return result
