"""Buffers that one rank sends to another, kept until they are received."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, final

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .._errors import WorldBroken
    from ..arrays import GpuRef

T = TypeVar("T")


@final
class Letter:
    """A buffer that was sent and not received yet.

    Args:
        ref: the buffer.
        members: the world's members when it was sent.

    Attributes:
        withdrawn: whether its sender has withdrawn it.
        number: its place among the letters between the same ranks.
    """

    def __init__(self, ref: GpuRef, members: tuple[int, ...] = ()) -> None:
        self.ref: Final = ref
        self.members: Final = members
        self.done: Final = trio.Event()
        self.error: Exception | None = None
        self.withdrawn: bool = False
        self.number: int = 0

    def finish(self, error: Exception | None = None) -> None:
        """Mark the letter as delivered, or as failed if there is an error."""
        self.error = error
        self.done.set()


@final
class Letters:
    """Letters by sender and receiver, in the order in which they were sent."""

    def __init__(self) -> None:
        self._letters: dict[tuple[int, int], deque[Letter]] = {}
        self._numbers: Final = count(1)

    def __len__(self) -> int:
        return sum(map(len, self._letters.values()))

    def put(self, source: int, to: int, letter: Letter) -> None:
        """Add a letter, or put back one that was taken and not delivered."""
        if letter.withdrawn:
            return
        letter.number = letter.number or next(self._numbers)
        letters = self._letters.setdefault((source, to), deque())
        at = len(letters)
        while at and letters[at - 1].number > letter.number:
            at -= 1
        letters.insert(at, letter)

    def withdraw(self, source: int, to: int, letter: Letter) -> None:
        """Withdraw a letter, even one that was taken and may be put back."""
        letter.withdrawn = True
        letters = self._letters.get((source, to), deque())
        if letter in letters:
            letters.remove(letter)

    def take(self, source: int, to: int) -> Letter | None:
        """Return the next letter, or None."""
        letters = self._letters.get((source, to))
        return letters.popleft() if letters else None

    def places(self) -> list[tuple[int, int]]:
        """Return the senders and receivers between which there are letters."""
        return [place for place, letters in self._letters.items() if letters]

    def take_all(self) -> list[Letter]:
        """Remove and return all letters."""
        found = [letter for letters in self._letters.values() for letter in letters]
        self._letters.clear()
        return found


class Ranks(Protocol):
    """The part of an ``Engine`` that mail needs."""

    @property
    def members(self) -> tuple[int, ...]:
        """Numbers of the members, in the order of their ranks."""

    def refusal(self, what: str, members: tuple[int, ...]) -> WorldBroken | None:
        """Return the error if a call for these members can never begin, else None."""

    def require(self, what: str, members: tuple[int, ...]) -> None:
        """Raise the error that ``refusal`` returns, if any."""


@final
class Mail:
    """The mail of a world. Ranks are those of the world's members at the time of a call.

    Args:
        ranks: the world's members. Call ``look`` whenever they change, or when the world ends.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._letters = Letters()
        self._arrived: Final = trio.lowlevel.ParkingLot()

    def look(self) -> None:
        """Refuse letters that can never be received, and wake all tasks that wait."""
        for letter in self._letters.take_all():
            letter.finish(self._never_received(letter))
        self._arrived.unpark_all()

    def _never_received(self, letter: Letter) -> WorldBroken | None:
        return self._ranks.refusal("the buffer was not received", letter.members)

    async def send(self, source: int, to: int, ref: GpuRef) -> None:
        """Send a buffer, and wait until it was received. If cancelled before, withdraw it.

        Raises:
            WorldBroken: the buffer will never be received.
            Exception: the error that ``receive`` raised for this buffer.
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
        """Receive a buffer, and wait for it if necessary.

        Args:
            source: the rank that sends.
            to: the rank that receives.
            bring: copies a buffer to the receiver. It calls its second argument as soon as the copy
                can no longer be cancelled.

        Returns:
            The result of ``bring``.

        Raises:
            WorldBroken: no buffer will ever arrive.
            Exception: any error of ``bring``; the sender gets it too.
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
