"""Checks that facades share. They run in the caller, before anything is sent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from .._errors import Unsupported
from ..memory import Block, GpuRef, MemoryMap, ref_error, sealed_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy as np

    from ._library import Home

BLOCK_ALIGNMENT: Final = 256
"""What whole blocks are aligned to; views begin anywhere in them."""

_LARGEST_INT: Final = 2**31 - 1


def require_readable(ref: GpuRef, memory: MemoryMap, name: str) -> Block:
    """The block of a ref that may be read here and now.

    Raises:
        TypeError: it is no ref.
        ValueError: it is of another device.
        GpuRefStale: it is of an older generation, or freed.
    """
    if type(ref) is GpuRef:
        block = ref._block
        epoch = block.epoch
        if epoch is memory.epoch or epoch is memory.sealed_epoch:
            return block
    raise ref_error(ref, memory, name)


def require_writable(ref: GpuRef, memory: MemoryMap, name: str) -> Block:
    """Like ``require_readable``, for a ref that will be written.

    Raises:
        GpuRefSealed: it is sealed.
    """
    block = require_readable(ref, memory, name)
    if block.sealed:
        raise sealed_error(ref, name)
    return block


def overlap(one: GpuRef, other: GpuRef) -> bool:
    """Whether two refs share memory: they may be views of one buffer, and of the same part."""
    first, second = one._block, other._block
    return first.base is second.base and (
        first.offset < second.offset + other.nbytes and second.offset < first.offset + one.nbytes
    )


def same_place(one: GpuRef, other: GpuRef) -> bool:
    """Whether two refs are the same memory, from beginning to end."""
    first, second = one._block, other._block
    return (
        first.base is second.base and first.offset == second.offset and one.nbytes == other.nbytes
    )


def require_no_alias(
    op: str,
    written: Iterable[tuple[str, GpuRef]],
    read: Iterable[tuple[str, GpuRef]] = (),
    *,
    in_place: Collection[tuple[str, str]] = (),
) -> None:
    """Nothing that an op writes shares memory with anything else that it gets.

    Each facade asks this of all buffers of the caller's, as what was made for a call is apart
    from everything. Ranges count, so parts of one buffer may be apart.

    Args:
        op: what to call it in errors.
        written: names and buffers of what it writes.
        read: of what it reads.
        in_place: pairs of names, of what is written and what is read, that may be the very
            same memory, though not share a part of it.

    Raises:
        ValueError: two of them share memory; it names both.
    """
    outputs, inputs = list(written), list(read)
    bases = {id(ref._block.base) for _, ref in outputs}
    if len(bases) == len(outputs) and bases.isdisjoint([id(ref._block.base) for _, ref in inputs]):
        return
    if in_place:
        # What is the same as an output is looked at where that is.
        inputs = [
            (name, ref)
            for name, ref in inputs
            if not any(
                (each, name) in in_place and same_place(other, ref) for each, other in outputs
            )
        ]
    every = [*outputs, *inputs]
    spans = sorted(
        (id(ref._block.base), ref._block.offset, ref._block.offset + ref.nbytes, at)
        for at, (_, ref) in enumerate(every)
        if ref.nbytes
    )
    # What reaches furthest of all that came before: of anything, and of what is written.
    # Where several do, the one that was given first.
    furthest = furthest_written = (0, 0, 0)
    for base, start, end, at in spans:
        writes = at < len(outputs)
        before, reach, given = furthest if writes else furthest_written
        if base == before and start < reach:
            one, another = (at, -given) if writes else (-given, at)
            one_name, other_name = every[one][0], every[another][0]
            what = f"{one_name} shares memory with {other_name}, which {op} does not take"
            if (one_name, other_name) in in_place:
                what += f", unless {one_name} is all of {other_name}"
            raise ValueError(f"{what}; give it a buffer of its own")
        furthest = max(furthest, (base, end, -at))
        if writes:
            furthest_written = max(furthest_written, (base, end, -at))


def alignment(ref: GpuRef) -> int:
    """The largest power of two, up to 256, that the ref's address is a multiple of."""
    return math.gcd(BLOCK_ALIGNMENT, ref._block.offset)


def require_alignment(ref: GpuRef, nbytes: int, name: str, why: str) -> None:
    """``ref`` begins at a multiple of ``nbytes``, because of ``why``.

    Where a view begins is no part of shape and dtype: a plan that is kept for these says what
    it needs, and every call is held against that.
    """
    if alignment(ref) % nbytes and ref.size:
        raise ValueError(
            f"{name} is a view that begins {ref._block.offset} bytes into its buffer, but {why}, "
            f"so it must begin at a multiple of {nbytes} bytes: copy it first"
        )


def require_dtype(ref: GpuRef, dtype: np.dtype[Any], name: str, like: str) -> None:
    """``ref`` has ``dtype``, that of the argument ``like``."""
    if ref.dtype is not dtype:
        raise TypeError(
            f"{name} has dtype {ref.dtype.name}, but {like} has {dtype.name}; "
            f"both must be the same (convert with ndarray.astype before putting it)"
        )


def require_shape(ref: GpuRef, shape: tuple[int, ...], name: str) -> None:
    """``ref`` has exactly ``shape``."""
    if ref.shape != shape:
        raise ValueError(f"{name} has shape {ref.shape}, but the result has shape {shape}")


def require_rank(ref: GpuRef, ndim: int, name: str) -> None:
    """``ref`` has ``ndim`` dimensions."""
    if len(ref.shape) != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, not shape {ref.shape}")


def require_int32(device: Home, what: str, numbers: Iterable[int]) -> None:
    """Refuse what the vendor's library cannot count, where it takes sizes and strides as ints.

    NumPy on the CPU counts further.

    Raises:
        Unsupported: one is too large.
    """
    largest = max(numbers, default=0)
    if device.capabilities.counts_in_int32 and largest > _LARGEST_INT:
        raise Unsupported(
            f"{what} of this size: the vendor's library counts elements and strides with 32 bits, "
            f"and {largest} is more than {_LARGEST_INT}; do it in parts"
        )


def require_no_race(device: Home, *, autotune: bool) -> None:
    """Refuse to let time decide which algorithm computes, where it must not.

    Raises:
        ValueError: the device was opened as deterministic.
    """
    if autotune and device.deterministic:
        raise ValueError(
            "autotune keeps what wins a race, and another run may have another winner; the device "
            "was opened with deterministic=True, so leave autotune off"
        )
