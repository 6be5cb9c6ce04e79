"""Steps of one call in one message: nothing is waited for, or answered, between them."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, get_args

from ....wire import Message
from ....wire.copies import CopyStrided
from ...cub.wire.messages import RunCub
from ._program import Interpret, RunKernels
from .indexing import (
    Choose,
    Compact,
    CopyAll,
    CountHistogram,
    CountNumbers,
    Distinct,
    FindAmong,
    FindOutside,
    Interpolate,
    ReadNumbers,
    RequireIntervals,
    ScanRows,
    Top,
    UploadBytes,
)

Moves: TypeAlias = Choose | CopyAll | CopyStrided | UploadBytes
Computes: TypeAlias = (
    CountNumbers
    | CountHistogram
    | FindAmong
    | Interpolate
    | Interpret
    | RequireIntervals
    | RunCub
    | RunKernels
    | ScanRows
    | Top
)
Step: TypeAlias = Moves | Computes
Asked: TypeAlias = Compact | Distinct | FindOutside | ReadNumbers

STEPS: Final = frozenset(get_args(Step))
"""Messages that ``StepSequence`` may hold."""
ASKED: Final = frozenset(get_args(Asked))
"""Messages with which ``StepsThenAnswer`` may end."""


class StepSequence(Message, frozen=True):
    """Steps, one after the other on one stream.

    Attributes:
        steps: the messages of the steps; those of CUB's lane, too.
    """

    steps: tuple[Step, ...]


class StepsThenAnswer(Message, frozen=True):
    """Steps, and then something that is answered.

    Attributes:
        steps: as of ``StepSequence``.
        last: the message that is answered.
    """

    steps: tuple[Step, ...]
    last: Asked

    @property
    def returns(self) -> Any:
        """Type of the answer of its last message."""
        return self.last.returns
