"""Views as matrices: what leading dimensions and transposes say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._arguments import not_contiguous
from ..wire._matrices import Laid, lay

if TYPE_CHECKING:
    from ...memory import GpuRef


def laid_out(ref: GpuRef, shape: tuple[int, ...], op: int, name: str) -> Laid:
    """How the matrices of a view lie.

    Args:
        ref: the view.
        shape: its shape, with an axis of one element before or behind where it has one axis only.
        op: how to take them.
        name: what to call it in errors.

    Raises:
        NotContiguous: neither rows nor columns are without gaps, or something goes backwards.
    """
    itemsize = ref.dtype.itemsize
    strides = tuple(stride // itemsize for stride in ref.strides)
    if len(strides) == 1:
        strides = (0, *strides) if shape[0] == 1 else (*strides, 0)
    found = lay(shape, strides, op, conjugates=ref.dtype.kind == "c")
    if found is None:
        raise not_contiguous(ref, name)
    if itemsize == 1 and not ref.contiguous and any(step % 4 for step in found[1:2] + found.steps):
        raise not_contiguous(ref, name)  # int8 is read four numbers at a time
    return found
