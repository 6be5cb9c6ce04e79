"""Handles to device memory: what programs hold instead of pointers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex, final

import msgspec
import numpy as np

from .._dtypes import as_dtype
from .._errors import DeviceLost, GpuRefSealed, GpuRefStale, said_of
from ..expressions import Operand
from ._views import Key, reshaped, selected

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ._map import MemoryMap


@final
class Epoch:
    """One generation of one device's memory.

    A block is usable while its epoch is the device's present one, or its epoch of
    sealed memory. Identity of one object answers three questions at once: is it this
    device, is it this generation, is it not freed.
    """

    __slots__ = ("generation",)

    def __init__(self, generation: int) -> None:
        self.generation: Final = generation


class Block(msgspec.Struct, eq=False, weakref=True):
    """A piece of device memory and the ops in flight on it; shared by its views.

    A struct, because each op makes one and those are made fastest.

    Attributes:
        memory: the map that it belongs to.
        address: where it is, in the device's address space (see ``host._address``); an int, or
            a ``LateAddress`` until there is memory. It may change (sealing moves the content),
            so ask when an op is submitted.
        size: bytes it takes, rounded.
        epoch: the epoch it is usable in; None once freed.
        nbytes: bytes that were asked for: what is behind them was others' before.
        generation: the generation it was made in.
        sealed: whether it is read-only for good.
        writer: sequence number of the op in flight that writes it, or 0.
        readers: those of the ops in flight that read it; None as long as none has.
        retired: pieces to release once no op in flight touches the block.
        holds: how many ``Hold`` keep the memory from being reused.
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
    retired: list[tuple[int, int]] | None = None
    holds: int = 0

    @property
    def base(self) -> Block:
        """The whole block."""
        return self

    @property
    def offset(self) -> int:
        """Where it begins in the whole block."""
        return 0

    def __del__(self) -> None:
        # Whoever drops the last handle may be the garbage collector, in any thread, in
        # the middle of anything: note it and let the program's thread do the rest. Ops
        # in flight hold their blocks, so this never comes before the last of them.
        if self.size:
            self.memory.dropped.append((self.address, self.size))
        if self.retired:
            self.memory.dropped.extend(self.retired)

    def retire(self) -> None:
        """Release the memory as soon as no op in flight touches it."""
        if self.size:
            self.retired = [*(self.retired or ()), (self.address, self.size)]
            self.size = 0
        self.settle()

    def settle(self) -> None:
        """Release retired pieces if nothing uses them any more."""
        if self.retired and not self.writer and not self.readers and not self.holds:
            for address, size in self.retired:
                self.memory.release(address, size)
            self.retired = None


def block_at(memory: MemoryMap, address: object, size: int) -> Block:
    """A block of so many bytes, of the present generation."""
    epoch = memory.epoch
    return Block(memory, address, size, epoch, size, epoch.generation)


@final
class Part(Block, eq=False):
    """A block seen from somewhere inside: what a view has.

    Everything is the whole block's, except the address. It equals the whole block, so it
    is found wherever that is looked for.
    """

    whole: Block = msgspec.UNSET  # type: ignore[assignment] # always given
    start: int = 0

    @property
    def base(self) -> Block:
        """The whole block."""
        return self.whole

    @property
    def offset(self) -> int:
        """Where it begins in the whole block."""
        return self.start

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other.base is self.base

    def __hash__(self) -> int:
        return hash(self.base)

    def __del__(self) -> None:
        """The whole block has its own."""

    def retire(self) -> None:
        """Release the whole block as soon as no op in flight touches it."""
        self.base.retire()

    def settle(self) -> None:
        """Release retired pieces if nothing is in flight any more."""
        self.base.settle()


def part_of(block: Block, offset: int) -> Part:
    """A block, or a part of one, seen from ``offset`` bytes behind its beginning."""
    whole = block.base
    return Part(whole.memory, 0, 0, None, 0, 0, whole=whole, start=block.offset + offset)


def _of_the_whole(name: str) -> property:
    def get(part: Part) -> Any:
        """Of the whole block."""
        return getattr(part.whole, name)

    def set_(part: Part, value: Any) -> None:
        setattr(part.whole, name, value)

    return property(get, set_)


def _address(part: Part) -> Any:
    """Where it is, in the device's address space."""
    return part.whole.address + part.start


for _name in Block.__struct_fields__:
    setattr(Part, _name, property(_address) if _name == "address" else _of_the_whole(_name))


@final
class Hold:
    """Keeps a block's memory from being reused, whatever becomes of its refs.

    Whoever drops it may be in any thread: that is noted, for ``MemoryMap.reclaim_held``.
    """

    __slots__ = ("_block",)

    def __init__(self, block: Block) -> None:
        self._block: Block | None = block.base
        self._block.holds += 1

    def release(self) -> None:
        """Let go at once: for the program's thread, where nothing uses the memory any more."""
        block, self._block = self._block, None
        if block is not None:
            block.holds -= 1
            block.settle()

    def __del__(self) -> None:
        if self._block is not None:
            self._block.memory.dropped_holds.append(self._block)


@final
class GpuRef(Operand, msgspec.Struct, eq=False, weakref=True):
    """A handle to an array in device memory: device, generation, shape, dtype.

    It is hashable, cheap to pass in messages, and never a pointer. Refs come from a
    device (``put``, ``empty``, the libraries' results); a ref that is dropped frees its
    memory after the last op that uses it. Arrays are C-contiguous.

    ``ref[10:20]``, ``ref[3]``, ``ref.reshape(...)`` and ``ref.view(dtype)`` are views: refs
    of the same memory, which lives until the last of them is gone, and is freed, sealed and
    refused for all of them together.

    Attributes:
        shape: as in NumPy.
        dtype: a ``numpy.dtype``, also for bfloat16 and fp8 (from ``ml_dtypes``).
        nbytes: size of the data in bytes.
    """

    _block: Block
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nbytes: int

    def __setattr__(self, name: str, value: object) -> None:
        # What it says of its memory is what ops go by.
        raise AttributeError(
            f"a GpuRef's {name} cannot be set; ref.reshape(...) and ref.view(dtype) give "
            f"another view of the same buffer"
        )

    def on_block(self, block: Block) -> GpuRef:
        """The same array in another block."""
        return GpuRef(block, self.shape, self.dtype, self.nbytes)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def generation(self) -> int:
        """The device's generation in which the buffer was made."""
        return self._block.generation

    @property
    def device(self) -> str:
        """The name of the device that owns the buffer."""
        return self._block.memory.device

    @property
    def sealed(self) -> bool:
        """Whether the buffer is read-only and survives rebuilds."""
        return self._block.sealed

    @property
    def is_stale(self) -> bool:
        """Whether the content is gone: a rebuild came between, or it was freed."""
        block = self._block
        return block.epoch is None or not block.memory.current(block.epoch)

    def __getitem__(self, key: Key) -> GpuRef:
        """A view of a part, as NumPy's basic indexing gives it.

        Arrays on the device are C-contiguous, so the part must be too: whole numbers for
        leading axes, then at most one slice with step 1.

        Raises:
            IndexError: out of bounds, or more indices than dimensions.
            TypeError: an index array or a mask.
            ValueError: the part is not contiguous; the message says what to do.
        """
        shape, first = selected(self.shape, key)
        itemsize = self.dtype.itemsize
        block = part_of(self._block, first * itemsize) if first else self._block
        return GpuRef(block, shape, self.dtype, math.prod(shape) * itemsize)

    def reshape(self, *shape: int | tuple[int, ...]) -> GpuRef:
        """A view with another shape of the same size; as ``numpy.ndarray.reshape``.

        Args:
            *shape: its extents, or one tuple of them; one may be -1.

        Raises:
            ValueError: the sizes differ.
        """
        return GpuRef(self._block, reshaped(self.shape, shape), self.dtype, self.nbytes)

    def view(self, dtype: DTypeLike) -> GpuRef:
        """A view of the same bytes with another dtype; as ``numpy.ndarray.view``.

        Args:
            dtype: where its size is another, the last axis becomes longer or shorter.

        Raises:
            TypeError: no dtype that device memory holds.
            ValueError: the last axis does not divide into elements of that size, or the
                first one would not begin at a multiple of its size.
        """
        dtype = as_dtype(dtype)
        shape = self.shape
        if dtype.itemsize != self.dtype.itemsize:
            if not shape:
                raise ValueError(
                    f"a 0-d buffer of {self.dtype.name} cannot be seen as {dtype.name}"
                )
            last, rest = divmod(shape[-1] * self.dtype.itemsize, dtype.itemsize)
            if rest:
                raise ValueError(
                    f"the last axis of shape {shape} is {shape[-1] * self.dtype.itemsize} bytes of "
                    f"{self.dtype.name}, which is no whole number of {dtype.name}"
                )
            shape = (*shape[:-1], last)
        if self._block.offset % dtype.itemsize:
            raise ValueError(
                f"the view begins {self._block.offset} bytes into its buffer, which is no multiple "
                f"of the {dtype.itemsize} bytes of {dtype.name}; copy it first"
            )
        return GpuRef(self._block, shape, dtype, self.nbytes)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d GpuRef")
        return self.shape[0]

    def __iter__(self) -> None:
        # Without this, __len__ alone would make list(ref) try integer indices.
        raise TypeError("a GpuRef is not iterable; fetch it first: host = await device.get(ref)")

    def __copy__(self) -> NoReturn:
        self.__reduce_ex__(4)

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        # Also copy.deepcopy comes here.
        raise TypeError(
            "a GpuRef is a handle of this program and cannot be pickled or copied; for another "
            "process: await device.share(ref); for the content: await device.get(ref); for a "
            "second buffer: await device.copy(ref)"
        )

    def __repr__(self) -> str:
        block = self._block
        state = "freed " if block.epoch is None else "stale " if self.is_stale else ""
        sealed = "sealed " if block.sealed else ""
        return (
            f"<GpuRef {state}{sealed}{self.dtype.name}{list(self.shape)} "
            f"on {self.device}, generation {block.generation}>"
        )


def ref_error(ref: object, memory: MemoryMap, name: str) -> Exception:
    """The error for an argument that is not a usable ref of ``memory``'s device."""
    if not isinstance(ref, GpuRef):
        message = f"{name} must be a GpuRef, not {said_of(ref)}"
        if _is_data(ref):
            how = (
                f": {name} = await device.put({name})" if name.isidentifier() else ", by device.put"
            )
            message += f"; put it on the device first{how}"
        return TypeError(message)
    block = ref._block
    if block.memory is not memory:
        there, here = block.memory, memory.device
        if there.device == here:
            here = f"another {here}, which was opened {_order(memory, there)}"
        return ValueError(
            f"{name} lives on {there.device}, but the op runs on {here}; "
            f"`device.copy`, of the device that the op runs on, brings it there"
        )
    if block.epoch is None:
        return GpuRefStale(f"{name} was freed: {ref!r}")
    if memory.over is not None:
        why = f"{name} is gone: {memory.device} {memory.over}"
        return DeviceLost(why) if block.sealed else GpuRefStale(why)
    return GpuRefStale(
        f"{name} is of generation {block.generation}, but {memory.device} was rebuilt and is at "
        f"generation {memory.generation}; put the data again, or seal what must survive"
    )


def _is_data(thing: object) -> bool:
    """Whether ``put`` might take it."""
    return hasattr(type(thing), "__array__") or isinstance(thing, (bool, int, float, complex, list))


def _order(one: MemoryMap, other: MemoryMap) -> str:
    return "later" if one.number > other.number else "earlier"


def sealed_error(ref: GpuRef, name: str) -> GpuRefSealed:
    """The error for writing to a sealed ref."""
    return GpuRefSealed(f"{name} is sealed, so nothing may write to it: {ref!r}")
