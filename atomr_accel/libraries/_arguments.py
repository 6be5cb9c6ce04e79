"""Checks that facades share. They run in the caller, before anything is sent."""

from __future__ import annotations

import math
import numbers
from typing import Any, Final

import numpy as np

from .._dtypes import NAMES
from ..memory import Block, GpuRef, MemoryMap, refuse, refuse_write

BLOCK_ALIGNMENT: Final = 256
"""What whole blocks are aligned to; views begin anywhere in them."""


def usable(ref: GpuRef, memory: MemoryMap, name: str) -> Block:
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
    raise refuse(ref, memory, name)


def writable(ref: GpuRef, memory: MemoryMap, name: str) -> Block:
    """Like ``usable``, for a ref that will be written.

    Raises:
        GpuRefSealed: it is sealed.
    """
    block = usable(ref, memory, name)
    if block.sealed:
        raise refuse_write(ref, name)
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


def real(value: Any, name: str) -> float:
    """A real number as a float.

    Raises:
        TypeError: it is an array, or no real number.
    """
    if isinstance(value, numbers.Real):
        return float(value)
    scalar = np.asarray(value)
    if scalar.ndim:
        raise TypeError(f"{name} must be a number, not an array of shape {scalar.shape}")
    if scalar.dtype.kind not in "biuf" and (scalar.dtype not in NAMES or scalar.dtype.kind == "c"):
        raise TypeError(f"{name} must be a real number, not {value!r}")
    return float(scalar)


def flag(value: Any, name: str) -> bool:
    """True or False.

    Raises:
        TypeError: it is anything else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False, not {value!r}")


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
