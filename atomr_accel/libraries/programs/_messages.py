"""What the programs' lane executes."""

from __future__ import annotations

from ...host import Message


class Step(Message, frozen=True):
    """One op of a program.

    Attributes:
        executor: ``module:class`` of what executes it.
        name: the op's name, for people.
        message: its message, encoded.
    """

    executor: str
    name: str
    message: bytes


class Record(Message, frozen=True):
    """Make a program, or change the buffers of one that was made with the same steps.

    Attributes:
        program: its number.
        prepare: steps that are executed now, such as loading a kernel.
        steps: steps that every replay executes.
    """

    program: int
    prepare: tuple[Step, ...]
    steps: tuple[Step, ...]


class Replay(Message, frozen=True):
    """Execute a program."""

    program: int


class Forget(Message, frozen=True):
    """Release a program."""

    program: int


class Describe(Message, frozen=True):
    """A program as a graph in the DOT language."""

    program: int
