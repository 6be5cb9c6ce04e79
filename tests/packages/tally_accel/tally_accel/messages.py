"""Messages of the library, which the program and its hosts share."""

from __future__ import annotations

from atomr_accel.wire import Address, Message


class CountNonzero(Message, frozen=True):
    """Write the number of nonzero elements of x to result, an int64.

    Attributes:
        x: address of the elements.
        result: address of the result.
        count: number of elements.
        dtype: their type, by name.
    """

    x: Address
    result: Address
    count: int
    dtype: str
