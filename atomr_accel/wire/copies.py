"""Messages of the array lane."""

from __future__ import annotations

from . import Address, Message


class CopyStrided(Message, frozen=True):
    """Copy elements from one layout to another.

    Axes are merged and sorted, see ``_layout``: the last one has the smallest step in the target,
    where all steps are positive.

    Attributes:
        source: address of the first element.
        target: the same of the target, which shares no memory with the source.
        itemsize: bytes of an element: 1, 2, 4, 8 or 16.
        shape: no extent is 1; none for one element.
        source_strides: bytes from one element to the next along each axis; of any sign, or 0.
        target_strides: the same of the target.
    """

    source: Address
    target: Address
    itemsize: int
    shape: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]
