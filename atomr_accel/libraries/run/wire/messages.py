"""Messages of a lane of functions.

A small pickle travels in the message; a large one has parts. ``Supply`` brings the parts of a call,
piece by piece in the lane's order, so they wait in the program while the lane is busy. ``Fetch``
gets the parts of a result, through shared memory and by a lane that is never busy.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec

from ...._dtypes import DTYPES
from ....wire import Address, Message

_Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 47)]


class Buffer(Message, frozen=True):
    """A buffer, which the function gets as an array.

    Attributes:
        address: of the first element.
        shape: as in NumPy.
        dtype: by name.
        sealed: whether it must not be written.
        strides: as in NumPy; None if it is C-contiguous.
    """

    address: Address
    shape: tuple[int, ...]
    dtype: str
    sealed: bool
    strides: tuple[int, ...] | None = None


class Left(msgspec.Struct, frozen=True, array_like=True):
    """An array of a result that lies on the device, for ``Keep``."""

    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=64)]
    dtype: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(DTYPES)})$")]


class Supply(Message, frozen=True):
    """Take a piece of a part of what a call is given.

    Attributes:
        ticket: the call's number.
        part: the index of the part.
        total: the bytes of the whole part.
        start: the start of the piece in it.
    """

    ticket: int
    part: int
    total: int
    start: int
    piece: memoryview


class Initialize(Message, frozen=True):
    """Make the lane's state; what ``CallFunction`` with this number passes on.

    Attributes:
        state: its number, under which parts were supplied, too.
        data: the function and its arguments, pickled; buffers are indices. Empty if this is the
            first of the parts.
    """

    unchecked: ClassVar[bool] = True

    pickles: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    state: int
    data: bytes
    buffers: tuple[Buffer, ...]


class CallFunction(Message, frozen=True):
    """Call a function.

    The answer is ``(result, arrays, sizes)``: the result, pickled, with arrays that lie on the
    device as indices; those arrays; and the bytes of its parts. The result is empty if it is
    the first of the parts. Arrays and parts are kept until ``ForgetCall``.

    Attributes:
        ticket: the call's number.
        state: the number of the state to pass first; 0 for none.
        data: the function and its arguments, pickled; buffers are indices. Empty if this is
            the first of the parts.
        traceparent: the caller's place in a trace, if it has one.
    """

    unchecked: ClassVar[bool] = True

    returns: ClassVar[Any] = tuple[bytes, list[Left], list[_Size]]
    pickles: ClassVar[bool] = True
    waits: ClassVar[bool] = True

    ticket: int
    state: int
    data: bytes
    buffers: tuple[Buffer, ...]
    traceparent: str | None = None


class Keep(Message, frozen=True):
    """Copy an array of a result into a buffer."""

    ticket: int
    index: int
    address: Address


class Fetch(Message, frozen=True):
    """Copy a piece of a part of a result into shared memory."""

    ticket: int
    part: int
    start: int
    address: Address
    nbytes: int


class ForgetCall(Message, frozen=True):
    """Free the parts that were supplied for a call, and the parts of its result."""

    ticket: int
