"""Letters from rank to rank: each is received once, in order, or was taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis
import trio
import trio.testing
from hypothesis import strategies as st

from atomr_accel.worlds._mail import Mail

if TYPE_CHECKING:
    from collections.abc import Callable


class Pair:
    """Two ranks that stay."""

    members = (0, 1)

    def refusal(self, what: str, members: tuple[int, ...]) -> None:
        """Accept every op."""

    def require(self, what: str, members: tuple[int, ...]) -> None:
        """Nothing is refused."""


async def never_brought(ref: Any, gone: Callable[[], object]) -> None:
    await trio.sleep_forever()


async def brought(ref: Any, gone: Callable[[], object]) -> Any:
    gone()
    await trio.lowlevel.checkpoint()
    return ref


async def run(count: int, taken: int, steps: list[tuple[str, int]]) -> None:
    """Send letters, take some, cancel senders and receivers in an order, and receive the rest."""
    letters: list[Any] = [*range(count)]
    mail, scopes = Mail(Pair()), {}
    async with trio.open_nursery() as nursery:

        async def within(scope: trio.CancelScope, function: Any, *args: Any) -> None:
            with scope:
                await function(*args)

        for who, function, args, many in (
            ("sender", mail.send, (0, 1), letters),
            ("receiver", mail.receive, (0, 1, never_brought), letters[:taken]),
        ):
            for number in many:
                scope = scopes[who, number] = trio.CancelScope()
                given = (*args, number) if who == "sender" else args
                nursery.start_soon(within, scope, function, *given)
                await trio.testing.wait_all_tasks_blocked()
        for step in steps:
            scopes[step].cancel()
            await trio.testing.wait_all_tasks_blocked()
        for number in range(taken):
            scopes["receiver", number].cancel()
        await trio.testing.wait_all_tasks_blocked()
        withdrawn = {number for who, number in steps if who == "sender"}
        left = [number for number in letters if number not in withdrawn]
        assert [await mail.receive(0, 1, brought) for _ in left] == left
        assert not len(mail._letters)


@st.composite
def cancellations(draw: st.DrawFn) -> tuple[int, int, list[tuple[str, int]]]:
    count = draw(st.integers(1, 4))
    taken = draw(st.integers(0, count))
    senders = [("sender", number) for number in range(count)]
    receivers = [("receiver", number) for number in range(taken)]
    steps = draw(st.permutations([*senders, *receivers]))
    return count, taken, steps[: draw(st.integers(0, len(steps)))]


@hypothesis.given(cancellations())
def test_messages_are_received_in_order(
    case: tuple[int, int, list[tuple[str, int]]],
) -> None:
    trio.run(run, *case)


async def test_a_letter_of_a_cancelled_sender_does_not_come_back() -> None:
    await run(2, 1, [("sender", 0), ("receiver", 0)])
