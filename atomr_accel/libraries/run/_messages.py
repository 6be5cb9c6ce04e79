"""What a lane of functions executes."""

from __future__ import annotations

from ...host import Message


class Buffer(Message, frozen=True):
    """A buffer, which the function gets as an array."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    sealed: bool


class Initialize(Message, frozen=True):
    """Make the lane's state; what ``Call`` with this number passes on.

    Attributes:
        state: its number.
        data: the function and its arguments, pickled; buffers are indices.
    """

    state: int
    data: bytes
    buffers: tuple[Buffer, ...]


class Call(Message, frozen=True):
    """Call a function.

    The answer is ``(result, arrays, ticket)``: the result, pickled, with arrays that do not
    travel with it as indices; a ``(on the device, shape, dtype)`` for each of those; and
    what they are kept under until ``Forget``.

    Attributes:
        state: the number of the state to pass first; 0 for none.
        data: the function and its arguments, pickled; buffers are indices.
    """

    state: int
    data: bytes
    buffers: tuple[Buffer, ...]


class Keep(Message, frozen=True):
    """Copy an array of a result into a buffer."""

    ticket: int
    index: int
    address: int


class Fetch(Message, frozen=True):
    """Copy a part of an array of a result, which lies on the host, into shared memory."""

    ticket: int
    index: int
    start: int
    address: int
    nbytes: int


class Forget(Message, frozen=True):
    """Let go of the arrays of a result."""

    ticket: int
