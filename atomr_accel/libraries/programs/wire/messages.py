"""Messages of the programs' lane."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias

from ....wire import Address, Message

Kind = Literal["call", "when", "loop"]


class ProgramStep(Message, frozen=True):
    """Op of a program.

    Attributes:
        executor: ``module:class`` of its executor.
        name: the op's name, for people.
        message: its message, encoded.
    """

    executor: str
    name: str
    message: bytes


class Section(Message, frozen=True):
    """A part of a program.

    Attributes:
        kind: ``"call"``: another program; ``"when"``: executed if the flag is set; ``"loop"``:
            repeated while the flag is set.
        nodes: the steps and sections that it executes.
        flag: the flag's address.
        nbytes: the flag's size; it is set unless all its bytes are zero.
    """

    kind: Kind
    nodes: tuple[ProgramStep | Section, ...]
    flag: Address = 0
    nbytes: int = 0


Node: TypeAlias = ProgramStep | Section


class RecordProgram(Message, frozen=True):
    """Make a program, or change the buffers of one that was made of the same nodes.

    Attributes:
        program: its number.
        prepare: steps that are executed now, such as loading a kernel.
        nodes: the nodes that every replay executes.
    """

    program: int
    prepare: tuple[ProgramStep, ...]
    nodes: tuple[ProgramStep | Section, ...]


class Replay(Message, frozen=True):
    """Execute a program."""

    program: int


class ForgetProgram(Message, frozen=True):
    """Release a program."""

    program: int


class Describe(Message, frozen=True):
    """A program as a graph in the DOT language."""

    returns: ClassVar[Any] = str

    program: int
