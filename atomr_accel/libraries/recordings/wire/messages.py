"""Messages of the recordings' lane."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from ....wire import Address, Copy, Message

Kind = Literal["call", "when", "loop"]


class RecordingStep(Message, frozen=True):
    """Op of a recording.

    Attributes:
        executor: ``module:class`` of its executor.
        name: the op's name, for people.
        message: its message, encoded.
    """

    executor: str
    name: str
    message: bytes


class Section(Message, frozen=True):
    """A part of a recording.

    Attributes:
        kind: ``"call"``: another recording; ``"when"``: executed if the flag is set; ``"loop"``:
            repeated while the flag is set.
        nodes: the steps and sections that it executes.
        flag: the flag's address.
        nbytes: the flag's size; it is set unless all its bytes are zero.
    """

    kind: Kind
    nodes: tuple[RecordingStep | Section, ...]
    flag: Address = 0
    nbytes: int = 0


Node: TypeAlias = RecordingStep | Section


class PrepareRecording(Message, frozen=True):
    """Make a recording, or change the buffers of one that was made of the same nodes.

    Attributes:
        recording: its number.
        prepare: steps that are executed now, such as loading a kernel.
        nodes: the nodes that every replay executes.
    """

    recording: int
    prepare: tuple[RecordingStep, ...]
    nodes: tuple[RecordingStep | Section, ...]


class Replay(Message, frozen=True):
    """Execute a recording, and then copies of its results.

    Attributes:
        recording: its number.
        copies: copies to the program's memory.
    """

    unchecked: ClassVar[bool] = True

    recording: int
    copies: tuple[Copy, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that it copies."""
        return sum(each.nbytes for each in self.copies)


class ReplayTogether(Message, frozen=True):
    """Execute a recording whose ops wait for other devices.

    Attributes:
        recording: its number.
        first: steps that are executed before it, such as counting the replay.
    """

    waits: ClassVar[bool] = True

    recording: int
    first: tuple[RecordingStep, ...]


class ForgetRecording(Message, frozen=True):
    """Release a recording."""

    recording: int


class Describe(Message, frozen=True):
    """A recording as a graph in the DOT language."""

    returns: ClassVar[Any] = str

    recording: int
