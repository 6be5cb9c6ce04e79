"""Checks that facades share. They run in the caller, before anything is sent."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from .._errors import Unsupported
from ..arrays import GpuRef, no_ref_error, ref_error, repeats, sealed_error, share_elements, span
from ..memory import Block, MemoryMap, NotContiguous, origin
from ..wire.options import flag

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy as np

    from ._library import DeviceView

BLOCK_ALIGNMENT: Final = 256
"""Alignment of whole blocks, in bytes. Views may begin anywhere in them."""

_LARGEST_INT: Final = 2**31 - 1


def require_ref(ref: object, name: str) -> None:
    """Check that an argument is a ref.

    Raises:
        TypeError: ``ref`` is not a ref.
    """
    if type(ref) is not GpuRef:
        raise no_ref_error(ref, name)


def require_readable(ref: GpuRef, memory: MemoryMap, name: str, *, strided: bool = False) -> Block:
    """Return the block of a ref, after a check that this device can read it now.

    Args:
        ref: the caller's argument.
        memory: the map of the device's memory.
        name: the ref's name in errors.
        strided: the op uses the ref's strides. An op that does not would take any view for a
            contiguous one.

    Raises:
        TypeError: ``ref`` is not a ref.
        ValueError: it is of another device.
        GpuRefStale: it is of an older generation, or freed.
        NotContiguous: it is not contiguous.
    """
    if type(ref) is GpuRef:
        block = ref.block
        epoch = block.epoch
        if epoch is memory.epoch or epoch is memory.sealed_epoch:
            if ref.own_strides is None:
                return block
            if strided:
                return ref.addressable_block
            raise not_contiguous(ref, name)
    raise ref_error(ref, memory, name)


def require_writable(ref: GpuRef, memory: MemoryMap, name: str, *, strided: bool = False) -> Block:
    """Like ``require_readable``, for a ref that will be written.

    Raises:
        ValueError: several of its elements are the same memory.
        GpuRefSealed: it is sealed.
    """
    block = require_readable(ref, memory, name, strided=strided)
    if block.sealed:
        raise sealed_error(ref, name)
    if ref.own_strides is not None and repeats(ref.shape, ref.own_strides):
        raise ValueError(
            f"{name} is read-only: elements of {ref!r} are the same memory, as broadcast_to has "
            "made it; write to what it was made of, or to a copy"
        )
    return block


def strided(*refs: object) -> bool:
    """Return whether any of these is a ref that is not contiguous."""
    for ref in refs:  # noqa: SIM110 - this is a hot path
        if getattr(ref, "own_strides", None) is not None:
            return True
    return False


def not_contiguous(ref: GpuRef, name: str) -> NotContiguous:
    """Return the error for a view that an op takes only as a contiguous copy."""
    return NotContiguous(
        f"{name} is not contiguous, and is needed so here: {ref!r}; copy it first: "
        f"await device.copy(...)"
    )


def overlap(one: GpuRef, other: GpuRef) -> bool:
    """Return whether two refs share memory.

    They may be views of one buffer, and of the same elements. If an exact answer takes too long,
    the result is True.
    """
    (first, start), (second, other_start) = origin(one.block), origin(other.block)
    if first is not second or not (one.nbytes and other.nbytes):
        return False
    (low, high), (other_low, other_high) = _span(one, start), _span(other, other_start)
    if low >= other_high or other_low >= high:
        return False
    if one.own_strides is None and other.own_strides is None:
        return True
    return share_elements(
        (one.shape, one.strides, start),
        (other.shape, other.strides, other_start),
        (one.dtype.itemsize, other.dtype.itemsize),
    )


def _span(ref: GpuRef, start: int) -> tuple[int, int]:
    """Return the range of a ref's memory in its buffer; its first element is at ``start``."""
    if ref.own_strides is None:
        return start, start + ref.nbytes
    low, high = span(ref.shape, ref.own_strides, ref.dtype.itemsize)
    return start + low, start + high


def same_place(one: GpuRef, other: GpuRef) -> bool:
    """Return whether two refs are the same memory, from beginning to end, in the same order."""
    (first, start), (second, other_start) = origin(one.block), origin(other.block)
    if first is not second or start != other_start:
        return False
    if one.own_strides is None and other.own_strides is None:
        return one.nbytes == other.nbytes
    same = one.shape == other.shape and one.dtype.itemsize == other.dtype.itemsize
    return same and one.own_strides == other.own_strides


def require_no_alias(
    op: str,
    written: Iterable[tuple[str, GpuRef]],
    read: Iterable[tuple[str, GpuRef]] = (),
    *,
    in_place: Collection[tuple[str, str]] = (),
) -> None:
    """Check that the outputs of an op share no memory with each other or with its inputs.

    Facades check all buffers that the caller passes. Memory that is made for the call shares
    nothing. Only the ranges matter, so disjoint parts of one buffer pass.

    Args:
        op: the op's name in errors.
        written: names and buffers of the outputs.
        read: names and buffers of the inputs.
        in_place: pairs of the names of an output and an input that may be exactly the same memory.
            They may not overlap in part.

    Raises:
        ValueError: two buffers share memory; the message names both.
    """
    outputs, inputs = list(written), list(read)
    bases = {id(origin(ref.block)[0]) for _, ref in outputs}
    if len(bases) == len(outputs) and bases.isdisjoint(
        [id(origin(ref.block)[0]) for _, ref in inputs]
    ):
        return
    if in_place:
        # An input that is the same memory as an output is checked as that output.
        inputs = [
            (name, ref)
            for name, ref in inputs
            if not any(
                (each, name) in in_place and same_place(other, ref) for each, other in outputs
            )
        ]
    every = [*outputs, *inputs]
    if any(ref.own_strides is not None for _, ref in every):
        _require_apart(op, outputs, inputs, in_place)
        return
    places = [(*origin(ref.block), ref.nbytes) for _, ref in every]
    spans = sorted(
        (id(base), start, start + nbytes, at)
        for at, (base, start, nbytes) in enumerate(places)
        if nbytes
    )
    # The furthest end of all earlier buffers, and of the earlier outputs; among equals the first
    # argument.
    furthest = furthest_written = (0, 0, 0)
    for base, start, end, at in spans:
        writes = at < len(outputs)
        before, reach, given = furthest if writes else furthest_written
        if base == before and start < reach:
            one, another = (at, -given) if writes else (-given, at)
            raise _shares(op, every[one][0], every[another][0], in_place)
        furthest = max(furthest, (base, end, -at))
        if writes:
            furthest_written = max(furthest_written, (base, end, -at))


def _require_apart(
    op: str,
    outputs: list[tuple[str, GpuRef]],
    inputs: list[tuple[str, GpuRef]],
    in_place: Collection[tuple[str, str]],
) -> None:
    """Look at each pair: elements of one view may lie between those of another."""
    for at, (name, ref) in enumerate(outputs):
        for other_name, other in (*outputs[:at], *inputs):
            if overlap(ref, other):
                raise _shares(op, name, other_name, in_place)


def _shares(op: str, one: str, other: str, in_place: Collection[tuple[str, str]]) -> ValueError:
    what = f"{one} shares memory with {other}, which {op} does not take"
    if (one, other) in in_place:
        what += f", unless {one} is all of {other}"
    return ValueError(f"{what}; give it a buffer of its own")


def alignment(ref: GpuRef) -> int:
    """Return the largest power of two, up to 256, of which the ref's address is a multiple."""
    return math.gcd(BLOCK_ALIGNMENT, ref.block.offset)


def require_alignment(ref: GpuRef, nbytes: int, name: str, why: str) -> None:
    """Check that ``ref`` begins at a multiple of ``nbytes``, because of ``why``.

    The start of a view belongs neither to its shape nor to its dtype. So a plan, which is kept by
    shape and dtype, has the alignment that it needs, and every call is checked against it.
    """
    if alignment(ref) % nbytes and ref.size:
        raise ValueError(
            f"{name} must begin at a multiple of {nbytes} bytes, because {why}, not "
            f"{ref.block.offset} bytes into its buffer; copy it first"
        )


def require_dtype(ref: GpuRef, dtype: np.dtype[Any], name: str, like: str) -> None:
    """Check that ``ref`` has ``dtype``, the dtype of the argument ``like``."""
    if ref.dtype is not dtype:
        raise TypeError(
            f"{name} must have the dtype of {like}, {dtype.name}, not {ref.dtype.name}; "
            f"convert it: await device.array.astype({name}, {dtype.name!r})"
        )


def require_shape(ref: GpuRef, shape: tuple[int, ...], name: str) -> None:
    """``ref`` has exactly ``shape``."""
    if ref.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, not {ref.shape}")


def require_rank(ref: GpuRef, ndim: int, name: str) -> None:
    """``ref`` has ``ndim`` dimensions."""
    if len(ref.shape) != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, not shape {ref.shape}")


def require_int32(device: DeviceView, what: str, numbers: Iterable[int]) -> None:
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


def with_tf32(compute_type: str | None, tf32: str, *, allow_tf32: bool) -> str | None:
    """Return the compute type of a call whose products may be computed in TF32.

    Args:
        compute_type: the caller's compute type.
        tf32: the vendor's name for TF32.
        allow_tf32: whether products of 32-bit floats may round their factors to ten bits.

    Raises:
        ValueError: both arguments ask for something, or ``compute_type`` asks for TF32.
    """
    if compute_type == tf32:
        raise ValueError(f"compute_type must not be {tf32!r}; pass allow_tf32=True")
    if not flag(allow_tf32, "allow_tf32"):
        return compute_type
    if compute_type is not None:
        raise ValueError(f"compute_type must be None if allow_tf32 is True, not {compute_type!r}")
    return tf32


def require_no_race(device: DeviceView, *, autotune: bool) -> None:
    """Refuse to let time decide which algorithm computes, where it must not.

    Raises:
        ValueError: the device was opened as deterministic.
    """
    if autotune and device.deterministic:
        raise ValueError(
            "autotune keeps what wins a race, and another run may have another winner; the device "
            "was opened with deterministic=True, so leave autotune off"
        )
