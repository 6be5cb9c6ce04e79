"""Addresses that are not known yet: of blocks that have no memory, or may get other memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from ._block import Block


@final
class LateAddress:
    """Stands for ``block.address + offset`` in a message until the message is sent.

    A batch may use a buffer before it has memory, and a recording is replayed with other buffers
    than it was recorded with. Both put this object in messages instead of a number, and the encoder
    asks it for the number.
    """

    __slots__ = ("block", "offset")

    def __init__(self, block: Block, offset: int = 0) -> None:
        self.block: Final = block
        self.offset: Final = offset

    def __add__(self, offset: int) -> LateAddress:
        return LateAddress(self.block, self.offset + offset)

    __radd__ = __add__

    def __rshift__(self, bits: int) -> int:
        """Return the number of the slab, for ``bits`` of an offset in it."""
        return self.__index__() >> bits

    def __index__(self) -> int:
        address = self.block.address
        if not isinstance(address, int):
            raise RuntimeError(  # noqa: TRY004
                "the buffer has no memory yet: its batch or recording provides none until its "
                "block is left; use it after that"
            )
        return address + self.offset

    def __repr__(self) -> str:
        return f"<LateAddress +{self.offset}>"
