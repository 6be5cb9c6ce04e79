"""Keys of arrays, taken apart, and the reads and writes of the places that they choose."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ..._dtypes import number_kind
from ..._errors import said_of
from ...arrays import GpuRef
from ...arrays.expressions import Operand, cast, constant
from ...ops import overlap
from .choosing import GatherAxis, Mode, choose

if TYPE_CHECKING:
    from .steps import CallSteps
    from .wire.indexing import Outside

Indices = Operand | np.ndarray[Any, np.dtype[Any]] | Sequence[object] | int
"""Whole numbers: a ref or an expression of them, or the program's own."""
KeyItem = Indices | slice | EllipsisType | None
ArrayKey = KeyItem | tuple[KeyItem, ...]
"""NumPy's keys: numbers, slices, ``...``, None, arrays of whole numbers or bool; on the device or
in the program.
"""

_MODES: Final = ("raise", "wrap", "clip")


class Chosen(NamedTuple):
    """A key that was taken apart.

    Attributes:
        view: the array, without what numbers and slices leave out.
        indices: arrays of indices, with the axes of the view that they are of.
        shape: the shape to which the indices broadcast.
        place: the number of other axes before those of the indices in the result.
    """

    view: GpuRef
    indices: list[tuple[GpuRef, int]]
    shape: tuple[int, ...]
    place: int

    @property
    def others(self) -> list[int]:
        """The axes of the view that are not chosen of."""
        taken = {axis for _, axis in self.indices}
        return [axis for axis in range(self.view.ndim) if axis not in taken]

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the chosen elements."""
        sizes = [self.view.shape[axis] for axis in self.others]
        return (*sizes[: self.place], *self.shape, *sizes[self.place :])

    def loops(self, plain: GpuRef) -> list[GatherAxis]:
        """The axes of the indices; ``plain`` is of the shape of the result."""
        seen = [ref.broadcast_to(self.shape) for ref, _ in self.indices]
        return [
            GatherAxis(
                extent,
                plain.strides[self.place + at],
                0,
                tuple(ref.strides[at] for ref in seen),
            )
            for at, extent in enumerate(self.shape)
        ]

    def rest(self, plain: GpuRef) -> list[GatherAxis]:
        """The other axes."""
        none = (0,) * len(self.indices)
        made = []
        for number, axis in enumerate(self.others):
            at = number if number < self.place else number + len(self.shape)
            step = self.view.strides[axis]
            made.append(GatherAxis(self.view.shape[axis], plain.strides[at], step, none))
        return made


class Inside(NamedTuple):
    """Indices that are in bounds for sure.

    Attributes:
        ref: the array that they index.
        new: whether they are of an axis that is not there yet, of one element.
    """

    ref: GpuRef
    new: bool = False


def items_of(key: Any, ref: GpuRef) -> list[Any]:
    """Return one item for each axis, and None for new axes; a mask is for several."""
    given = key if isinstance(key, tuple) else (key,)
    items: list[Any] = []
    for each in given:
        if each is None or each is ... or isinstance(each, slice):
            items.append(each)
        elif isinstance(each, bool | np.bool_):
            items.append(np.asarray(each))
        elif isinstance(each, int | np.integer):
            items.append(operator.index(each))
        elif isinstance(each, Operand):
            if each.dtype.kind not in "iub":
                raise IndexError("arrays used as indices must be of integer (or boolean) type")
            items.append(each)
        elif isinstance(each, np.ndarray | list | tuple):
            array = np.asarray(each)
            if not array.size and not isinstance(each, np.ndarray):
                array = array.astype(np.intp)
            if array.dtype.kind not in "iub":
                raise IndexError("arrays used as indices must be of integer (or boolean) type")
            items.append(array)
        else:
            raise IndexError(
                "only integers, slices (`:`), ellipsis (`...`), None and integer or boolean "
                f"arrays are valid indices, not {said_of(each)}"
            )
    if sum(each is ... for each in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    used = sum(axes_of(each) for each in items)
    if used > ref.ndim:
        raise IndexError(
            f"too many indices for array: there must be at most {ref.ndim}, not {used}"
        )
    missing = [slice(None)] * (ref.ndim - used)
    at = next((number for number, each in enumerate(items) if each is ...), len(items))
    items[at : at + 1] = missing
    axis = 0
    for each in items:
        if is_mask(each):
            sizes = ref.shape[axis : axis + len(each.shape)]
            for number, (n, m) in enumerate(zip(sizes, each.shape, strict=True)):
                if m not in (n, 0):
                    raise IndexError(
                        "boolean index did not match indexed array along axis "
                        f"{axis + number}; size of axis is {n} but size of corresponding "
                        f"boolean axis is {m}"
                    )
        axis += axes_of(each)
    return items


def mode_of(mode: object) -> Mode:
    if mode is None:
        return "wrap"
    if mode not in _MODES:
        raise ValueError(f"mode must be one of 'clip', 'raise', or 'wrap', not {mode!r}")
    return mode


def outside_of(way: Mode) -> Outside:
    return "clip" if way == "clip" else "wrap"


def is_array(item: object) -> bool:
    return isinstance(item, Operand | np.ndarray | Inside)


def is_mask(item: Any) -> bool:
    return isinstance(item, Operand | np.ndarray) and item.dtype.kind == "b"


def axes_of(item: Any) -> int:
    if item is None or item is ...:
        return 0
    return len(item.shape) if is_mask(item) else 1


def whole_mask(items: list[Any], value: Any) -> Operand | None:
    """Return the mask of a key of one mask, if one value or row of values goes to all places."""
    first, *others = items or [None]
    if not isinstance(first, Operand) or not is_mask(first):
        return None
    if any(each != slice(None) for each in others if not is_array(each)) or any(
        map(is_array, others)
    ):
        return None
    ndim = len(value.shape) if isinstance(value, Operand) else np.ndim(value)
    return first if ndim <= len(others) else None


def require_inside(indices: np.ndarray[Any, Any], n: int, axis: int) -> None:
    bad = (indices >= n) | (indices < -n) if indices.dtype.kind == "i" else indices >= n
    if bad.any():
        first = int(indices[bad].reshape(-1)[0])
        raise IndexError(f"index {first} is out of bounds for axis {axis} with size {n}")


def fitting(value: Any, ref: GpuRef) -> Operand:
    """A value that is to be written into an array, in its dtype."""
    if isinstance(value, Operand):
        if value.dtype is not ref.dtype and not np.can_cast(value.dtype, ref.dtype, "same_kind"):
            raise TypeError(
                f"Cannot cast array data from {value.dtype!r} to {ref.dtype!r} according to the "
                "rule 'same_kind'"
            )
        return cast(value, ref.dtype)
    if np.ndim(value) or not isinstance(value, complex | float | int | np.generic | np.ndarray):
        raise TypeError(
            f"the value must be a number, a ref or an expression, not {said_of(value)}; arrays "
            "are put on the device first: await device.put(array)"
        )
    order = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    if order.get(number_kind(np.asarray(value).dtype), 4) > order[number_kind(ref.dtype)]:
        raise TypeError(
            f"value must be of the kind of {ref.dtype.name}, not {value!r}; cast it first"
        )
    number: Any = value
    return constant(number[()] if isinstance(value, np.ndarray) else number, ref.dtype)


def values_in(steps: CallSteps, value: Any, shape: tuple[int, ...], target: GpuRef) -> GpuRef:
    """Return the values to write, in the shape of the places that they go to."""
    like = fitting(value, target)
    given = like.shape
    while len(given) > len(shape) and given[0] == 1:
        given = given[1:]
    extra = len(shape) - len(given)
    if extra < 0 or any(n not in (1, m) for n, m in zip(given, shape[extra:], strict=True)):
        raise ValueError(
            f"shape mismatch: value array of shape {like.shape} could not be broadcast to "
            f"indexing result of shape {shape}"
        )
    ref = steps.ref(like, "value")
    if overlap(ref, target):
        copy = steps.output(ref.shape, ref.dtype)
        steps.assign((ref, copy))
        ref = copy
    return ref[(0,) * (ref.ndim - len(given))].broadcast_to(shape)


def gather(steps: CallSteps, chosen: Chosen, made: GpuRef, outside: Outside) -> None:
    """Read chosen elements into a buffer of any dtype of the same kind."""
    view = chosen.view
    plain = made
    if made.dtype is not view.dtype:
        plain = steps.output(made.shape, view.dtype)
    loops, rest = chosen.loops(plain), chosen.rest(plain)
    choose(steps, "gather", plain, view, chosen.indices, loops, rest, outside=outside)
    if plain is not made:
        steps.assign((plain, made))


def taken(steps: CallSteps, flat: GpuRef, positions: GpuRef) -> GpuRef:
    """Elements of one row."""
    made = steps.output(positions.shape, flat.dtype)
    chosen = Chosen(flat, [(positions, 0)], positions.shape, 0)
    gather(steps, chosen, made, "wrap")
    return made


def unraveled(positions: GpuRef, shape: tuple[int, ...]) -> list[Operand]:
    """Indices along each axis."""
    made: list[Operand] = []
    size = 1
    for n in reversed(shape):
        made.append(positions // size % n if n else positions + 0)
        size *= max(n, 1)
    return made[::-1]
