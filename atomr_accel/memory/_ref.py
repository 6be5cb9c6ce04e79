"""Handles to device memory: what programs hold instead of pointers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NoReturn, SupportsIndex, final

from .._dtypes import as_dtype
from .._errors import DeviceLost, GpuRefSealed, GpuRefStale, said_of
from ._views import Key, reshaped, selected

if TYPE_CHECKING:
    import numpy as np
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


class Block:
    """A piece of device memory and the ops in flight on it; shared by its views.

    ``address`` may change (sealing moves the content), so ask when an op is submitted.

    Attributes:
        address: where it is, in the device's address space (see ``host._address``).
        size: bytes it takes, rounded.
        nbytes: bytes that were asked for: what is behind them was others' before.
        epoch: the epoch it is usable in; None once freed.
        generation: the generation it was made in.
        sealed: whether it is read-only for good.
        writer: sequence number of the op in flight that writes it, or 0.
        readers: those of the ops in flight that read it.
        retired: pieces to release once no op in flight touches the block.
        holds: how many ``Hold`` keep the memory from being reused.
    """

    __slots__ = (
        "__weakref__",
        "address",
        "epoch",
        "generation",
        "holds",
        "memory",
        "nbytes",
        "readers",
        "retired",
        "sealed",
        "size",
        "writer",
    )

    def __init__(self, memory: MemoryMap, address: int, size: int, epoch: Epoch) -> None:
        self.memory: Final = memory
        self.address: Any = address  # an int, or a LateAddress until there is memory
        self.size: int = size
        self.nbytes: int = size
        self.epoch: Epoch | None = epoch
        self.generation: int = epoch.generation
        self.sealed: bool = False
        self.writer: int = 0
        self.readers: set[int] = set()
        self.retired: list[tuple[int, int]] | None = None
        self.holds: int = 0

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


@final
class Part(Block):
    """A block seen from somewhere inside: what a view has.

    Everything is the whole block's, except the address. It equals the whole block, so it
    is found wherever that is looked for.
    """

    __slots__ = ("base", "offset")

    def __init__(self, block: Block, offset: int) -> None:
        self.base: Final[Block] = block.base
        self.offset: Final[int] = block.offset + offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Block) and other.base is self.base

    def __hash__(self) -> int:
        return hash(self.base)

    def __del__(self) -> None:
        """The whole block has its own."""

    @property
    def address(self) -> Any:
        """Where it is, in the device's address space."""
        return self.base.address + self.offset

    def retire(self) -> None:
        """Release the whole block as soon as no op in flight touches it."""
        self.base.retire()

    def settle(self) -> None:
        """Release retired pieces if nothing is in flight any more."""
        self.base.settle()


def _of_the_base(name: str) -> property:
    def get(part: Part) -> Any:
        """Of the whole block."""
        return getattr(part.base, name)

    def set_(part: Part, value: Any) -> None:
        setattr(part.base, name, value)

    return property(get, set_)


for _name in Block.__slots__:
    if _name not in ("__weakref__", "address"):
        setattr(Part, _name, _of_the_base(_name))


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
class GpuRef:
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

    __slots__ = ("__weakref__", "_block", "dtype", "nbytes", "shape")

    def __init__(
        self, block: Block, shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int
    ) -> None:
        if TYPE_CHECKING:
            self._block: Final = block
            self.shape: Final = shape
            self.dtype: Final = dtype
            self.nbytes: Final = nbytes
        _set_block(self, block)
        _set_shape(self, shape)
        _set_dtype(self, dtype)
        _set_nbytes(self, nbytes)

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
        block = Part(self._block, first * itemsize) if first else self._block
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

    def __bool__(self) -> bool:
        # Not that of __len__, which would call every array true that has any elements.
        raise TypeError(
            "a GpuRef is neither true nor false, because what it holds is on the device; "
            "fetch it first: host = await device.get(ref); or ask: ref is not None, ref.size"
        )

    def __array__(self, *_args: object, **_kwargs: object) -> np.ndarray[Any, Any]:
        raise TypeError(
            "a GpuRef does not turn into an array by itself, because fetching it takes time; "
            "write: host = await device.get(ref)"
        )

    def __reduce_ex__(self, _protocol: SupportsIndex) -> NoReturn:
        # Also copy.copy and copy.deepcopy come here.
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


# The slots' own setters: the quickest way past ``__setattr__``, for each ref that is made.
_slots: Final = vars(GpuRef)
_set_block: Final = _slots["_block"].__set__
_set_shape: Final = _slots["shape"].__set__
_set_dtype: Final = _slots["dtype"].__set__
_set_nbytes: Final = _slots["nbytes"].__set__


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
