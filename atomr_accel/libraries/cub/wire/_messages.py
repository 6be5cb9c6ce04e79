"""What the lanes of CUB execute."""

from __future__ import annotations

from typing import Any, ClassVar

from ....wire import Message


class Build(Message, frozen=True):
    """Have a build ready, and tell how much scratch memory a call of a size needs.

    Answered by bytes of scratch memory, where the build came from (``"memory"``, ``"disk"`` or
    ``"built"``), and the seconds that took.

    Attributes:
        spec: what is built, encoded.
        sizes: as in ``Run``.
    """

    returns: ClassVar[Any] = tuple[int, str, float]

    prepares: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    spec: bytes
    sizes: tuple[int, ...]


class Run(Message, frozen=True):
    """Run an algorithm, building it first if it is not there.

    Attributes:
        spec: what is run, encoded.
        addresses: of its buffers, in an order that the algorithm has; 0 for an empty one.
        sizes: how many elements, and whatever else it counts.
        values: numbers that it takes from the program, as bytes.
        workspace, workspace_bytes: scratch memory; a call that needs more has its own.
    """

    spec: bytes
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    values: tuple[bytes, ...]
    workspace: int
    workspace_bytes: int


class Count(Message, frozen=True):
    """Read a number, an int64, once all that writes it is done; answered by it.

    Attributes:
        address: where it is.
    """

    returns: ClassVar[Any] = int

    address: int
