"""Messages of the lanes of CUB."""

from __future__ import annotations

from typing import Any, ClassVar

from ....wire import Address, Message


class BuildCub(Message, frozen=True):
    """Prepare a build, and return the scratch memory that a call of a size needs.

    The answer is the bytes of scratch memory, the origin of the build (``"memory"``, ``"disk"`` or
    ``"built"``), and the seconds that it took.

    Attributes:
        spec: the algorithm to build, encoded.
        sizes: as in ``RunCub``.
    """

    returns: ClassVar[Any] = tuple[int, str, float]

    prepares: ClassVar[bool] = True
    lasting: ClassVar[bool] = True

    spec: bytes
    sizes: tuple[int, ...]


class RunCub(Message, frozen=True):
    """Run an algorithm, after building it if needed.

    Attributes:
        spec: the algorithm to run, encoded.
        addresses: the addresses of its buffers, in the algorithm's order; 0 for an empty one.
        sizes: the number of elements, and other counts of the algorithm.
        values: numbers that it takes from the program, as bytes.
        workspace, workspace_bytes: scratch memory; a call that needs more has its own.
    """

    unchecked: ClassVar[bool] = True

    spec: bytes
    addresses: tuple[Address, ...]
    sizes: tuple[int, ...]
    values: tuple[bytes, ...]
    workspace: Address
    workspace_bytes: int


class Count(Message, frozen=True):
    """Read a number, an int64, after all ops that write it; the answer is the number.

    Attributes:
        address: the number's address.
    """

    returns: ClassVar[Any] = int

    address: Address
