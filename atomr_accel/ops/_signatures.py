"""Signatures of calls: all that their templates depend on, apart from addresses and numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from .._dtypes import SCALARS
from ..arrays import GpuRef
from ..arrays.expressions import Expression, apart
from ..memory import Block, BlockView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..memory import MemoryMap

_LONGEST_TEXT: Final = 64
_PLAIN: Final = frozenset({int, bool, type(None)})
_SEALED: Final = object()
_SHARED: Final = object()
_VIEWS: Final = object()

Key = tuple[object, ...]


class HoldsRefs(Protocol):
    """An argument that holds refs, such as a sparse matrix.

    Its class has these methods if calls with it are to have templates, see ``Facade.templated``.
    """

    def split_refs(self) -> tuple[object, tuple[GpuRef, ...]]:
        """Return the rest of the value, which is hashable, and the refs."""

    def with_refs(self, refs: Sequence[GpuRef], /) -> HoldsRefs:
        """Return the value with other refs, in the order of ``split_refs``."""


def signature(
    form: tuple[object, ...], memory: MemoryMap, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Key, list[GpuRef], list[int]] | None:
    """Return the signature of a call, and the values in which calls with that signature differ.

    These values are its buffers, to which the buffers that it makes are added, and the numbers in
    its expressions, in words of four bytes.

    A call without a signature gives None. Such a call has lists or other values, or buffers that no
    call may use; the call itself then raises the error. ``HoldsRefs`` are taken apart, and
    expressions, with their numbers.
    """
    parts: list[object] = [*form]
    refs: list[GpuRef] = []
    words: list[int] = []
    blocks: list[Block] = []
    views = False
    epoch, sealed_epoch = memory.epoch, memory.sealed_epoch
    given: Iterable[Any] = args
    if kwargs:
        parts += (*kwargs, len(args))
        given = [*args, *kwargs.values()]
    for value in given:
        kind = type(value)
        if kind is GpuRef:
            block = value.block
            if isinstance(block, BlockView):  # a view: alignment and overlaps depend on its start
                views = True
                parts.append(block.start)
                parts.append(value.own_strides)
                block = block.whole
            if block.epoch is not epoch and block.epoch is not sealed_epoch:
                return None
            if block.sealed:  # also one that is of this generation, while it is being filled
                parts.append(_SEALED)
            parts.append(value.shape)
            parts.append(value.dtype)
            refs.append(value)
            blocks.append(block)
            continue
        if kind is Expression:
            rest, held, numbers = apart(value)
            for ref in held:
                seen = _seen(ref, memory, parts)
                if seen is None:
                    return None
                views = views or seen
            refs += held
            blocks += [ref.block.base for ref in held]
            words += numbers
            parts.append(rest)
            continue
        if kind is float:
            if value == 0.0 or math.isnan(value):  # both have a sign, and NaN equals nothing
                parts.append(kind)
                parts.append((repr(value), math.copysign(1.0, value)))
                continue
        elif kind is tuple:
            if not all(map(_is_int, value)):
                return None
        elif kind is str:
            if len(value) > _LONGEST_TEXT:
                return None
        elif kind is type:
            if value not in SCALARS:  # a function that is fused may read its attributes
                return None
        elif kind not in _PLAIN and not isinstance(value, np.dtype):
            if not hasattr(kind, "split_refs"):
                return None
            rest, held = value.split_refs()
            for ref in held:
                seen = _seen(ref, memory, parts)
                if seen is None:
                    return None
                views = views or seen
            refs += held
            blocks += [ref.block.base for ref in held]
            value = rest  # noqa: PLW2901 - what is left of it
        parts.append(kind)
        parts.append(value)
    if views:
        parts.append(_VIEWS)
        parts += map(blocks.index, blocks)
    elif len(blocks) > 1 and len(set(blocks)) < len(blocks):
        parts.append(_SHARED)
        parts += map(blocks.index, blocks)
    return tuple(parts), refs, words


def _seen(ref: object, memory: MemoryMap, parts: list[object]) -> bool | None:
    """Add a buffer inside an argument; whether it is a view, and None if no call may use it."""
    if type(ref) is not GpuRef:
        return None
    block = ref.block
    view = type(block) is not Block
    if view:
        parts += (block.offset, ref.own_strides)
        block = block.base
    if block.epoch is not memory.epoch and block.epoch is not memory.sealed_epoch:
        return None
    if block.sealed:
        parts.append(_SEALED)
    parts += (ref.shape, ref.dtype)
    return view


def _is_int(value: object) -> bool:
    return type(value) is int
