"""Steps of one call in one message: nothing is waited for, or answered, between them."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, get_args

from ....wire import Message
from ....wire.copies import CopyStrided
from ...cub.wire.messages import Run
from ._program import Interpret, RunKernels
from .indexing import (
    Choose,
    Compact,
    CopyAll,
    CountNumbers,
    Distinct,
    FindOutside,
    Histogram,
    ReadNumbers,
    RequireIntervals,
    Scan,
    Top,
    Upload,
)

Moves: TypeAlias = Choose | CopyAll | CopyStrided | Upload
Computes: TypeAlias = (
    CountNumbers | Histogram | Interpret | RequireIntervals | Run | RunKernels | Scan | Top
)
Step: TypeAlias = Moves | Computes
Asked: TypeAlias = Compact | Distinct | FindOutside | ReadNumbers

STEPS: Final = frozenset(get_args(Step))
"""Messages that ``Several`` may hold."""
ASKED: Final = frozenset(get_args(Asked))
"""Messages with which ``Question`` may end."""


class Several(Message, frozen=True):
    """Steps, one after the other on one stream.

    Attributes:
        steps: the messages of the steps; those of CUB's lane, too.
    """

    steps: tuple[Step, ...]


class Question(Message, frozen=True):
    """Steps, and then something that is answered.

    Attributes:
        steps: as of ``Several``.
        last: the message that is answered.
    """

    steps: tuple[Step, ...]
    last: Asked

    @property
    def returns(self) -> Any:
        """Type of the answer of its last message."""
        return self.last.returns
