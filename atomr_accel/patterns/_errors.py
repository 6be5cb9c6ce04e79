"""The errors of patterns: one branch of the package's tree.

    AccelError
    └── PatternError
        ├── Refused              the request was not done, for a reason of the pattern's own
        │   ├── Overloaded       there was no room for it
        │   ├── Dropped          it made room for a later one
        │   ├── Closed           the pattern's block was left
        │   ├── CircuitOpen      too much has failed of late
        │   └── SwapInProgress   another version is being rolled out just now
        ├── WrongResults         a function returned results that do not fit its arguments
        ├── ReplicaLost          a replica, or a version, ended while it had the request
        ├── RolledBack           a new version did not take over
        ├── QuorumMissed         too few members of an ensemble have answered
        ├── RankFailed           one of several devices that work together has faulted
        └── MalformedStream      the bytes of a stream are no lines or frames as expected

An exception of the program's own function reaches the caller unchanged, not wrapped in these.
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
    """A request found no room, and the pattern does not wait for it.

    Attributes:
        waiting: the number of waiting requests.
        capacity: the maximum of waiting requests.
    """

    _fields = ("waiting", "capacity")

    def __init__(self, message: str, *, waiting: int, capacity: int) -> None:
        super().__init__(message)
        self.waiting = waiting
        self.capacity = capacity


class Dropped(Refused):
    """The request waited where the oldest makes room for the next, and was the oldest."""


class Closed(Refused):
    """The block of the pattern was left, or is being left, or its actor has ended.

    You get it for requests made after that. Where the block was left by an exception or a
    cancellation, or the actor ended first, you get it for those that were waiting or in progress
    as well, and ``__cause__`` is the exception.
    """


class CircuitOpen(Refused):
    """Too many calls have failed recently, so none is tried for a while.

    Attributes:
        retry_in: seconds until the next call passes; zero while a trial call runs, whose outcome
            decides.
    """

    _fields = ("retry_in",)

    def __init__(self, message: str, *, retry_in: float) -> None:
        super().__init__(message)
        self.retry_in = retry_in


class WrongResults(PatternError):
    """A function that is given a list must return one result for each item, in their order.

    Every request of the batch gets this error, because results cannot be assigned to requests if
    their number is wrong. In speculative decoding, a model returned something else than a cache,
    logits or drafts; the message names it.

    Attributes:
        expected: the number of results that were expected.
        got: the number of results, or None if the returned object has no length.
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
    """A new version did not take over: its gate failed, or ``rollback`` was called.

    ``__cause__`` is the version's error, if it failed by itself.

    Attributes:
        version: the name of the version.
    """

    _fields = ("version",)

    def __init__(self, message: str, *, version: str) -> None:
        super().__init__(message)
        self.version = version


class QuorumMissed(PatternError):
    """Too few members of an ensemble have answered; ``__cause__`` is a group of their errors.

    Attributes:
        quorum: the number of answers required.
        answered: the number of answers received.
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
