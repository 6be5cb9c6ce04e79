"""Views as matrices: what leading dimensions and transposes say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ops import not_contiguous
from ...wire.matrices import Laid, lay

if TYPE_CHECKING:
    from ...arrays import GpuRef


def laid_out(ref: GpuRef, shape: tuple[int, ...], op: int, name: str) -> Laid:
    """Return the layout of the matrices of a view.

    A vector's ``shape`` has an axis of one element added in front or at the back.

    Raises:
        NotContiguous: rows and columns both have gaps, or a stride is negative.
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
