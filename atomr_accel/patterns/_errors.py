"""The errors of patterns: one branch of the package's tree.

    AccelError
    └── PatternError
        ├── Refused              the request was not done, for a reason of the pattern's own
        │   ├── Overloaded       there was no room for it
        │   ├── Dropped          it made room for a later one
        │   ├── Closed           the pattern's block was left
        │   ├── CircuitOpen      too much has failed of late
        │   └── SwapInProgress   another version is being rolled out just now
        ├── WrongResults         a function answered with what is no answer to what it was given
        ├── ReplicaLost          a replica, or a version, ended while it had the request
        ├── RolledBack           a new version did not take over
        ├── QuorumMissed         too few members of an ensemble have answered
        ├── RankFailed           one of several devices that work together has faulted
        └── MalformedStream      the bytes of a stream are no lines or frames as expected

What the functions of a program raise reaches who asked as it is, not wrapped in any of these.
"""

from __future__ import annotations

from .._errors import AccelError


class PatternError(AccelError):
    """Base of the errors of patterns."""


class Refused(PatternError):
    """The request was not done, for a reason of the pattern's own.

    It may be asked again, here or elsewhere, once the reason is gone.
    """


class Overloaded(Refused):
    """There was no room for one more request, and the pattern does not wait for it.

    Attributes:
        waiting: how many requests were waiting.
        capacity: how many may.
    """

    _fields = ("waiting", "capacity")

    def __init__(self, message: str, *, waiting: int, capacity: int) -> None:
        super().__init__(message)
        self.waiting = waiting
        self.capacity = capacity


class Dropped(Refused):
    """The request waited where the oldest makes room for the next, and was the oldest."""


class Closed(Refused):
    """The block of the pattern was left, or is being left.

    You get it for requests made after that. Where the block was left by an exception or a
    cancellation, you get it for those that were waiting or in progress as well, and ``__cause__``
    is the exception.
    """


class CircuitOpen(Refused):
    """Too much has failed of late, so nothing is tried for a while.

    Attributes:
        retry_in: seconds until the next try is let through; zero where one is being made, whose
            outcome decides.
    """

    _fields = ("retry_in",)

    def __init__(self, message: str, *, retry_in: float) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class WrongResults(PatternError):
    """A function that is given a list must return one result for each item, in their order.

    Every request of the batch gets it: with a result too few or too many, nobody can tell whose
    is whose. In speculative decoding a model has returned no cache, no logits or no drafts where
    these were asked for; the message tells what came instead.

    Attributes:
        expected: how many results there should have been.
        got: how many there were, or None where what came has no length.
    """

    _fields = ("expected", "got")

    def __init__(self, message: str, *, expected: int, got: int | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got


class SwapInProgress(Refused):
    """Another version is being rolled out just now, and there is one such at a time."""


class ReplicaLost(PatternError):
    """A replica, or a version, ended while it had the request, which may have had effects.

    You get it for requests that are not marked idempotent; others are asked elsewhere.

    Attributes:
        replica: its name.
    """

    _fields = ("replica",)

    def __init__(self, message: str, *, replica: str) -> None:
        super().__init__(message)
        self.replica = replica


class RolledBack(PatternError):
    """A new version did not take over: its gate has failed, or somebody called it back.

    ``__cause__`` is what it failed with, if it has failed by itself.

    Attributes:
        version: its name.
    """

    _fields = ("version",)

    def __init__(self, message: str, *, version: str) -> None:
        super().__init__(message)
        self.version = version


class QuorumMissed(PatternError):
    """Too few members of an ensemble have answered; ``__cause__`` is a group of what they raised.

    Attributes:
        quorum: how many had to.
        answered: how many did.
    """

    _fields = ("quorum", "answered")

    def __init__(self, message: str, *, quorum: int, answered: int) -> None:
        super().__init__(message)
        self.quorum = quorum
        self.answered = answered


class RankFailed(PatternError):
    """One of several devices that work together has faulted; ``__cause__`` is what came of that.

    The others are as before. `Retry` takes it for the fault that it is.

    Attributes:
        rank: which one, counted from 0.
        device: its name.
    """

    _fields = ("rank", "device")

    def __init__(self, message: str, *, rank: int, device: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.device = device


class MalformedStream(PatternError):
    """The bytes of a stream are no lines or frames of the lengths that are allowed."""


def elsewhere(what: str, call: str) -> RuntimeError:
    """The error of who uses a pattern from another thread than its own.

    Args:
        what: the kind of pattern.
        call: what to write from there, of `trio.from_thread`: ``run(...)`` or ``run_sync(...)``.
    """
    return RuntimeError(
        f"the {what} belongs to a trio.run of another thread: from this one, write "
        f"`trio.from_thread.{call}`"
    )
