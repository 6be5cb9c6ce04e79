"""The built-in ways of waiting for the end of ops: see ``CompletionStrategy``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from ..wire.interface import WorkInFlight


@final
class PolledCompletion:
    """Asks without pause. It takes the GIL again and again, and a core."""

    sleeps: Final = False
    signals: Final = False

    def wait(self, work: WorkInFlight) -> None:
        """Return at once."""


@final
class HybridCompletion:
    """Asks without pause for a while, then with naps.

    Args:
        poll: seconds without pause, after an op has finished.
        longest_nap: the longest nap, in seconds.
        share: length of a nap as a share of the time without news, which is also how late an end is
            seen.
    """

    sleeps: Final = False
    signals: Final = False

    def __init__(
        self, poll: float = 1e-3, longest_nap: float = 50e-6, share: float = 1 / 64
    ) -> None:
        for name, value in (("poll", poll), ("longest_nap", longest_nap), ("share", share)):
            if not value >= 0:  # nor is NaN
                raise ValueError(f"{name} must be at least 0, not {value}")
        self._poll, self._longest, self._share = poll, longest_nap, share

    def wait(self, work: WorkInFlight) -> None:
        """Take a nap, unless something has happened just before."""
        quiet = work.quiet
        if quiet > self._poll:
            work.nap(min(quiet * self._share, self._longest))


@final
class BlockingCompletion:
    """Sleeps in the driver until the oldest op is done, and takes requests only then."""

    sleeps: Final = True
    signals: Final = False

    def wait(self, work: WorkInFlight) -> None:
        """Wait for the oldest op."""
        work.wait_for_oldest()


@final
class CallbackCompletion:
    """Has the driver wake the thread, and looks now and then all the same.

    Args:
        look: seconds between two looks, at least 0.001.
    """

    sleeps: Final = False
    signals: Final = True

    def __init__(self, look: float = 20e-3) -> None:
        if not look >= 1e-3:
            raise ValueError(f"look must be at least 0.001, not {look}")
        self._look = look

    def wait(self, work: WorkInFlight) -> None:
        """Sleep until the driver signals something, which it does not after an error."""
        work.nap(self._look)
