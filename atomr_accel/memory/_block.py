"""Blocks of device memory, and the epochs in which they are usable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn, final

import msgspec

from ._at_end import AtEnd

if TYPE_CHECKING:
    from ._durable import DurableState
    from ._durable_rows import RowDigests, Rows
    from .map import MemoryMap

SLICE: Final = 256
"""Dropped blocks that are released at a time, which takes a fraction of a millisecond."""


@final
class Epoch:
    """One generation of one device's memory.

    A block is usable while its epoch is the device's present one, or its epoch of sealed memory.
    Comparing one object answers three questions at once: is it this device, is it this generation,
    and is the block not freed.

    Attributes:
        generation: its number.
        lacking: the condition for blocks to get their content, in an epoch that is never the
            present one. Its blocks have memory but no content.
    """

    __slots__ = ("generation", "lacking")

    def __init__(self, generation: int, lacking: str = "") -> None:
        self.generation: Final = generation
        self.lacking: Final = lacking


class Block(msgspec.Struct, eq=False, weakref=True):
    """A piece of device memory and the ops in flight on it; shared by its views.

    It is a struct because each op makes one, and structs are the fastest to make.

    Attributes:
        memory: the map that it belongs to.
        address: the address in the device's address space (see ``wire._address``): an int, or a
            ``LateAddress`` until there is memory. It may change, because sealing moves the content,
            so read it when an op is submitted.
        size: bytes that the block takes, rounded up.
        epoch: the epoch in which the block is usable; None once freed.
        nbytes: bytes that were requested. The bytes after them may hold data of earlier blocks.
        generation: the generation in which the block was made.
        sealed: whether the block is read-only for good.
        writer: sequence number of the op in flight that writes the block, or 0.
        readers: sequence numbers of the ops in flight that read the block; None before the first.
        piece: the memory, which returns to its slab once nothing has the piece; see ``piece_of``.
        retired: former pieces, kept until no op in flight touches the block.
        kept: the pieces that each ``Hold`` keeps, with ``_HELD`` first; empty once it is gone.
        stands_for: the block that this one replaces in a recording, and the offset in that block.
        durable: the digests of a durable block, or None.
        digests: the digests of a sealed block that is verified, or None.
    """

    memory: MemoryMap
    address: Any
    size: int
    epoch: Epoch | None
    nbytes: int
    generation: int
    sealed: bool = False
    writer: int = 0
    readers: set[int] | None = None
    piece: AtEnd | None = None
    retired: list[AtEnd] | None = None
    kept: list[list[AtEnd | None]] | None = None
    stands_for: tuple[Block, int] | None = None
    durable: DurableState | RowDigests | None = None
    digests: DurableState | None = None

    @property
    def base(self) -> Block:
        """The whole block."""
        return self

    @property
    def offset(self) -> int:
        """Offset in the whole block, in bytes."""
        return 0

    @property
    def held(self) -> bool:
        """True if a ``Hold`` keeps the memory from being reused."""
        return any(self.kept or ())

    def move(self, onto: Block) -> None:
        """Take the memory of ``onto``, which is left without; present memory is retired."""
        self._give_up()
        self.address, self.size, self.piece = onto.address, onto.size, onto.piece
        onto.size, onto.piece = 0, None
        for pieces in self.kept or ():
            pieces.append(self.piece)
            if pieces[:1] != [_HELD]:  # the hold is gone, perhaps just now
                pieces.clear()

    def retire(self) -> None:
        """Release the memory as soon as no op in flight touches it, and no hold keeps it."""
        self._give_up()
        self.settle()

    def _give_up(self) -> None:
        if self.piece is not None:
            self.retired = [*(self.retired or ()), self.piece]
            self.size, self.piece = 0, None

    def settle(self) -> None:
        """Release retired pieces if no op uses them any more."""
        if self.retired and not self.writer and not self.readers:
            self.retired = None
            self.memory.collect(SLICE)


def piece_of(memory: MemoryMap, address: int, size: int) -> AtEnd:
    """Return what a block and its holds have of some memory.

    The last of them that is gone, in whatever thread and order, notes the memory for
    ``MemoryMap.collect``. So it is released once, and not before all of them are gone.
    """
    return AtEnd(memory.dropped, (address, size))


def block_at(memory: MemoryMap, address: object, size: int) -> Block:
    """Return a block of ``size`` bytes in the present generation."""
    epoch = memory.epoch
    return Block(memory, address, size, epoch, size, epoch.generation)


class BlockView(Block, eq=False):
    """A block seen from somewhere inside: what a view has.

    Everything is the whole block's, except the address. It equals the whole block, so it
    is found wherever that is looked for.

    Attributes:
        whole: the whole block.
        start: offset of the view in it, in bytes.
        extent: offsets of the view's first byte and the one after its last; None if unknown. Only
            views of durable blocks have it.
        rows: the rows that an op writes by it, of a block with digests of rows; None if unknown.
    """

    whole: Block = msgspec.UNSET  # type: ignore[assignment] # always given
    start: int = 0
    extent: tuple[int, int] | None = None
    rows: Rows | None = None

    @property
    def base(self) -> Block:
        """The whole block."""
        return self.whole

    @property
    def offset(self) -> int:
        """Offset in the whole block, in bytes."""
        return self.start

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other.base is self.base

    def __hash__(self) -> int:
        return hash(self.base)

    def retire(self) -> None:
        """Release the whole block as soon as no op in flight touches it."""
        self.base.retire()

    def settle(self) -> None:
        """Release retired pieces if no op is in flight any more."""
        self.base.settle()


def origin(block: Block) -> tuple[Block, int]:
    """Return the block whose memory a block uses, and its offset there.

    In a recording, a stand-in uses the memory of the block that it stands for.
    """
    whole = block.base
    if whole.stands_for is None:
        return whole, block.offset
    other, start = whole.stands_for
    return other, start + block.offset


def part_of(block: Block, offset: int) -> BlockView:
    """Return a block, or the part of it from ``offset`` bytes on."""
    whole = block.base
    return BlockView(whole.memory, 0, 0, None, 0, 0, whole=whole, start=block.offset + offset)


class NotContiguous(ValueError):
    """A view that is not contiguous, passed to code that needs a contiguous one.

    The executor then works on a copy, see ``ops``.
    """


@final
class StridedView(BlockView, eq=False):
    """The block of a view that is not contiguous.

    Reading its address raises, because code that ignores the strides would take the memory for a
    contiguous array. Code that uses the strides reads ``plain``.
    """

    @property
    def plain(self) -> BlockView:
        """Part of the same memory, with an address."""
        plain = part_of(self, 0)
        plain.extent, plain.rows = self.extent, self.rows
        return plain


def _of_the_whole(name: str) -> property:
    def get(part: BlockView) -> Any:
        """Return the attribute of the whole block."""
        return getattr(part.whole, name)

    def set_(part: BlockView, value: Any) -> None:
        setattr(part.whole, name, value)

    return property(get, set_)


def _address(part: BlockView) -> Any:
    """Return the address of a part in the device's address space."""
    return part.whole.address + part.start


def _no_address(_part: StridedView) -> NoReturn:
    """Raise, because a ``StridedView`` block has no address."""
    raise NotContiguous(
        "a view that is not contiguous is needed so here; copy it first: device.copy"
    )


for _name in Block.__struct_fields__:
    setattr(BlockView, _name, property(_address) if _name == "address" else _of_the_whole(_name))
setattr(StridedView, "address", property(_no_address))  # noqa: B010 - to type checkers it is a field


_HELD: Final = None
"""First of what a hold keeps, also of a block that has no memory yet."""


@final
class _Keeping(msgspec.Struct, eq=False, gc=False):
    """Lets go of the pieces of a hold when the hold is gone. It ends as ``AtEnd`` does."""

    pieces: list[AtEnd | None]

    def __del__(self) -> None:
        self.pieces.clear()


@final
class Hold:
    """Keeps a block's memory from being reused, whatever becomes of its refs.

    That is all memory which the block has now, or gets until the hold is released or dropped.
    """

    __slots__ = ("_keeping",)

    def __init__(self, block: Block) -> None:
        whole = block.base
        pieces = [_HELD, *(whole.retired or ()), whole.piece]
        whole.kept = [*filter(None, whole.kept or ()), pieces]
        self._keeping: _Keeping | None = _Keeping(pieces)

    def release(self) -> None:
        """Release it, because the memory is not used any more."""
        self._keeping = None
