"""``device.array``'s functions that choose elements by indices and masks."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import as_dtype
from ..._errors import said_of
from ...expressions import Operand, broadcast, cast, constant
from ...expressions._expression import where
from ...memory import GpuRef
from .._arguments import overlap, require_readable, require_writable
from .._op import D, op
from .._request import Request
from ._choosing import INT64, Along, Mode, choose, first_outside, where_set
from ._steps import ArrayPart, Steps, target_of

if TYPE_CHECKING:
    from ...expressions import Value
    from ._choosing import Kind
    from .wire._indexing import Outside

Indices = Operand | np.ndarray[Any, np.dtype[Any]] | Sequence[Any] | int
"""Whole numbers: a ref or an expression of them, or the program's own."""
KeyItem = Indices | slice | None | type(...)  # type: ignore[valid-type]
ArrayKey = Any
"""As NumPy's: numbers, slices, ``...``, None, arrays of whole numbers or of bool, on the device or
in the program."""

_MODES: Final = ("raise", "wrap", "clip")
_INT: Final = as_dtype(np.intp)


class _Chosen(NamedTuple):
    """A key that was taken apart.

    Attributes:
        view: the array, without what numbers and slices leave out.
        indices: arrays of indices, with the axes of the view that they are of.
        shape: what the indices broadcast to.
        place: how many other axes come before those of the indices in the result.
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
        """The shape of what is chosen."""
        sizes = [self.view.shape[axis] for axis in self.others]
        return (*sizes[: self.place], *self.shape, *sizes[self.place :])

    def loops(self, plain: GpuRef) -> list[Along]:
        """The axes of the indices; ``plain`` is of the shape of the result."""
        seen = [ref.broadcast_to(self.shape) for ref, _ in self.indices]
        return [
            Along(
                extent,
                plain.strides[self.place + at],
                0,
                tuple(ref.strides[at] for ref in seen),
            )
            for at, extent in enumerate(self.shape)
        ]

    def rest(self, plain: GpuRef) -> list[Along]:
        """The other axes."""
        none = (0,) * len(self.indices)
        made = []
        for number, axis in enumerate(self.others):
            at = number if number < self.place else number + len(self.shape)
            step = self.view.strides[axis]
            made.append(Along(self.view.shape[axis], plain.strides[at], step, none))
        return made


class Indexing(ArrayPart[D]):
    """Choosing elements by indices and masks.

    Indices may be negative, as in NumPy. Those that the program gives are checked right here. What
    those on the device are is not known yet, so nothing undefined comes of any: by default,
    and with ``mode="wrap"``, they go round, which is the same for all that are in bounds; with
    ``"clip"`` they are taken as the nearest, negative ones as 0; and with ``"raise"`` they are
    checked on the device first, which is awaited and cannot be in a batch or a recording.
    """

    @op
    def take(
        self,
        a: GpuRef,
        indices: Indices,
        axis: int | None = None,
        out: GpuRef | None = None,
        mode: Mode | None = None,
    ) -> Request[GpuRef]:
        """Elements along an axis, by their indices; as ``numpy.take``.

        Args:
            a: an array.
            indices: which.
            axis: along which; None flattens the array first.
            out: where the result goes.
            mode: what an index out of bounds is; see above. NumPy's default is ``"raise"``.

        Raises:
            IndexError: an index that is out of bounds, with ``"raise"`` or by default of those of
                the program; or any index if there is nothing to take.
            TypeError: indices that are no whole numbers.
            Unsupported: ``mode="raise"`` in a batch or a recording, with indices on the device.
        """
        ref, way = self._ref(a, "a"), _mode(mode)
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)
        given = self._indices(indices, "indices", error=TypeError)

        def build(steps: Steps) -> GpuRef:
            source = steps.ref(ref, "a")
            if axis is None:
                source = steps.flat(source)
            if not source.shape[at] and math.prod(given.shape):
                raise IndexError("cannot do a non-empty take from an empty axes.")
            found, outside = self._index(steps, given, source.shape[at], at, mode, way)
            chosen = _Chosen(source, [(found, at)], found.shape, at)
            reads = [("a", ref), ("indices", found)]
            made = target_of(steps, out, chosen.result, ref.dtype, reads, op="take")
            _gather(steps, chosen, made, outside)
            return made

        return self._several("take", build)

    @op
    def take_along_axis(
        self, arr: GpuRef, indices: Operand, axis: int | None = -1, mode: Mode | None = None
    ) -> Request[GpuRef]:
        """One element for each index, of its own row; as ``numpy.take_along_axis``.

        Args:
            arr: an array.
            indices: of as many dimensions; other axes than ``axis`` broadcast.
            axis: along which; None flattens both.
            mode: what an index out of bounds is; see above.

        Raises:
            IndexError: as ``take``; also indices that are no whole numbers.
            ValueError: other dimensions.
        """
        return self._along("take_along_axis", arr, indices, None, axis, mode)

    @op
    def put_along_axis(
        self,
        arr: GpuRef,
        indices: Operand,
        values: Value,
        axis: int | None,
        mode: Mode | None = None,
    ) -> Request[GpuRef]:
        """Write one element for each index, into its own row; as ``numpy.put_along_axis``.

        Args:
            arr: what is written.
            indices: as for ``take_along_axis``.
            values: what to write, broadcast to the shape of the indices.
            axis: along which; None flattens ``arr``.
            mode: what an index out of bounds is; see above.

        Returns:
            ``arr``.

        Raises:
            IndexError, ValueError: as ``take_along_axis``.
            TypeError: values that do not cast to the dtype of ``arr``.
        """
        return self._along("put_along_axis", arr, indices, values, axis, mode)

    def _along(
        self,
        name: str,
        arr: GpuRef,
        indices: Operand,
        values: Value | None,
        axis: int | None,
        mode: Mode | None,
    ) -> Request[GpuRef]:
        ref, way = self._ref(arr, "arr"), _mode(mode)
        given = self._indices(indices, "indices", error=IndexError)
        if axis is None:
            if len(given.shape) != 1:
                raise ValueError("when axis=None, `indices` must have a single dimension.")
        elif ref.ndim != len(given.shape):
            raise ValueError("`indices` and `arr` must have the same number of dimensions")
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)

        def build(steps: Steps) -> GpuRef:
            source = steps.ref(ref, "arr")
            if values is not None:
                require_writable(ref, steps.driver.memory, "arr", strided=True)
            if axis is None:
                source = source.reshape(-1) if values is not None else steps.flat(source)
            n = source.shape[at]
            found, outside = self._index(steps, given, n, at, mode, way)
            shapes = [
                (*each.shape[:at], found.shape[at], *each.shape[at + 1 :])
                for each in (source, found)
            ]
            shape = np.broadcast_shapes(*shapes)
            if not n and math.prod(shape):
                raise IndexError(f"index 0 is out of bounds for axis {at} with size 0")
            if values is None:
                plain = steps.output(shape, source.dtype)
            else:
                plain = _values(steps, values, shape, source)
            seen = found.broadcast_to(shape)
            axes = [
                Along(
                    extent,
                    plain.strides[d],
                    source.strides[d] if d != at and source.shape[d] > 1 else 0,
                    (seen.strides[d],),
                )
                for d, extent in enumerate(shape)
            ]
            kind: Kind = "gather" if values is None else "set"
            ordered = values is not None and self._device.deterministic
            pairs = [(found, at)]
            choose(steps, kind, plain, source, pairs, axes, (), outside=outside, ordered=ordered)
            return plain if values is None else ref

        return self._several(name, build)

    @op
    def getitem(self, x: GpuRef, key: ArrayKey, mode: Mode | None = None) -> Request[GpuRef]:
        """``x[key]``, with any key that NumPy takes.

        Args:
            x: an array.
            key: numbers, slices, ``...``, None, and arrays of whole numbers or of bool, in one
                tuple; arrays may be refs, expressions, or the program's own if they are small.
            mode: what an index out of bounds is; see above.

        Returns:
            A new array; with numbers and slices alone a view, which ``x[key]`` is, too.

        Raises:
            IndexError: as in NumPy: too many indices, an index that is out of bounds, masks and
                indices of other shapes or dtypes.
            Unsupported: in a batch or a recording, a mask that is on the device, because the size
                of the result depends on it; or ``mode="raise"``.
        """
        ref, way = self._ref(x), _mode(mode)
        items = self._items(key, ref)

        def build(steps: Steps) -> GpuRef:
            chosen = self._chosen(steps, steps.ref(ref), items, mode, way)
            if not chosen.indices:
                return chosen.view
            made = steps.output(chosen.result, ref.dtype)
            _gather(steps, chosen, made, _outside(way))
            return made

        return self._several("getitem", build)

    @op
    def setitem(
        self,
        x: GpuRef,
        key: ArrayKey,
        value: Value,
        mode: Mode | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Request[GpuRef]:
        """``x[key] = value``, with any key that NumPy takes.

        Args:
            x: what is written.
            key: as for ``getitem``. A mask on the device may be in a batch where one value, or
                one row of them, goes to all places.
            value: a number, a ref or an expression, which broadcasts to what is chosen.
            mode: what an index out of bounds is; see above.
            deterministic: whether the last of several values for one place counts, as in NumPy.
                Otherwise it is any of them, for each element. By default as the device was opened.

        Returns:
            ``x``.

        Raises:
            IndexError, Unsupported: as ``getitem``.
            ValueError: a value of another shape.
            TypeError: a value that does not cast to the dtype of ``x`` without another kind.
            GpuRefSealed: ``x`` is sealed.
        """
        return self._write("set", x, key, value, mode, deterministic)

    @op
    def add_at(
        self,
        x: GpuRef,
        key: ArrayKey,
        value: Value,
        mode: Mode | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Request[GpuRef]:
        """Add to chosen elements, as often as they are chosen; as ``numpy.add.at``.

        Args:
            x: what is added to.
            key: as for ``setitem``.
            value: what is added.
            mode: what an index out of bounds is; see above.
            deterministic: whether sums are made in the order of the indices, which takes longer.
                Otherwise sums of floats may be rounded another way each time. By default as the
                device was opened.

        Returns:
            ``x``.

        Raises:
            IndexError, ValueError, TypeError, GpuRefSealed: as ``setitem``.
        """
        return self._write("add", x, key, value, mode, deterministic)

    def _write(
        self,
        kind: Kind,
        x: GpuRef,
        key: ArrayKey,
        value: Value,
        mode: Mode | None,
        deterministic: bool | None,
    ) -> Request[GpuRef]:
        ref, way = self._ref(x), _mode(mode)
        items = self._items(key, ref)
        ordered = self._device.deterministic if deterministic is None else bool(deterministic)
        mask = _whole_mask(items, value)
        like = _fitting(value, ref)

        def build(steps: Steps) -> GpuRef:
            source = steps.ref(ref)
            require_writable(ref, steps.driver.memory, "x", strided=True)
            if mask is not None:
                seen = mask[(..., *[None] * (ref.ndim - len(mask.shape)))]  # type: ignore[index]
                changed = like if kind == "set" else source + like
                steps.evaluate(cast(where(seen, changed, source), ref.dtype), source)
                return ref
            chosen = self._chosen(steps, source, items, mode, way)
            view = chosen.view
            if not chosen.indices:
                made = broadcast(like, view.shape) if kind == "set" else view + like
                steps.evaluate(cast(made, ref.dtype), view)
                return ref
            plain = _values(steps, like, chosen.result, source)
            choose(
                steps,
                kind,
                plain,
                view,
                chosen.indices,
                chosen.loops(plain),
                chosen.rest(plain),
                outside=_outside(way),
                ordered=ordered,
            )
            return ref

        return self._several({"set": "setitem", "add": "add_at"}.get(kind, kind), build)

    # --- masks ------------------------------------------------------------------------------

    @op
    def nonzero(self, a: Operand) -> Request[tuple[GpuRef, ...]]:
        """Where elements are not zero: indices along each axis; as ``numpy.nonzero``.

        Args:
            a: a ref or an expression.

        Raises:
            ValueError: it has no dimensions.
            Unsupported: in a batch or a recording, as only the device knows how many there are.
        """
        given = self._operand(a, "a")
        if not given.shape:
            raise ValueError(
                "Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() "
                "instead."
            )

        def build(steps: Steps) -> tuple[GpuRef, ...]:
            positions = self._positions(steps, given, "nonzero")
            return tuple(steps.evaluate(each) for each in _unraveled(positions, given.shape))

        return self._several("nonzero", build)

    @op
    def flatnonzero(self, a: Operand) -> Request[GpuRef]:
        """Where elements are not zero, counted in C order; as ``numpy.flatnonzero``.

        Args:
            a: a ref or an expression.

        Raises:
            Unsupported: in a batch or a recording, as only the device knows how many there are.
        """
        given = self._operand(a, "a")

        def build(steps: Steps) -> GpuRef:
            return steps.do(_copy_of(self._positions(steps, given, "flatnonzero")))

        return self._several("flatnonzero", build)

    @op
    def argwhere(self, a: Operand) -> Request[GpuRef]:
        """Where elements are not zero, the indices of one in a row; as ``numpy.argwhere``.

        Args:
            a: a ref or an expression.

        Raises:
            Unsupported: in a batch or a recording, as only the device knows how many there are.
        """
        given = self._operand(a, "a")

        def build(steps: Steps) -> GpuRef:
            positions = self._positions(steps, given, "argwhere")
            made = steps.output((positions.size, len(given.shape)), INT64)
            for at, each in enumerate(_unraveled(positions, given.shape)):
                steps.evaluate(each, made[:, at])
            return made

        return self._several("argwhere", build)

    @op
    def compress(
        self,
        condition: Operand,
        a: GpuRef,
        axis: int | None = None,
        out: GpuRef | None = None,
    ) -> Request[GpuRef]:
        """Elements along an axis for which a condition holds; as ``numpy.compress``.

        Args:
            condition: one dimension, no longer than the axis.
            a: an array.
            axis: along which; None flattens it first.
            out: where the result goes.

        Raises:
            ValueError: a condition of other dimensions.
            IndexError: a condition that is longer.
            Unsupported: in a batch or a recording.
        """
        ref, flags = self._ref(a, "a"), self._operand(condition, "condition")
        if len(flags.shape) != 1:
            raise ValueError("condition must be a 1-d array")
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)
        n = ref.size if axis is None else ref.shape[at]
        if flags.shape[0] > n:
            raise IndexError(f"a condition of {flags.shape[0]} elements for an axis of {n}")

        def build(steps: Steps) -> GpuRef:
            source = steps.ref(ref, "a")
            if axis is None:
                source = steps.flat(source)
            positions = self._positions(steps, flags, "compress")
            chosen = _Chosen(source, [(positions, at)], positions.shape, at)
            made = target_of(steps, out, chosen.result, ref.dtype, [("a", ref)], op="compress")
            _gather(steps, chosen, made, "wrap")
            return made

        return self._several("compress", build)

    @op
    def extract(self, condition: Operand, arr: GpuRef) -> Request[GpuRef]:
        """Elements for which a condition holds, in one row; as ``numpy.extract``.

        Args:
            condition: as many elements.
            arr: an array.

        Raises:
            ValueError: another number of elements.
            Unsupported: in a batch or a recording.
        """
        ref, flags = self._ref(arr, "arr"), self._operand(condition, "condition")
        if math.prod(flags.shape) != ref.size:
            raise ValueError(f"a condition of shape {flags.shape} for an array of {ref.shape}")

        def build(steps: Steps) -> GpuRef:
            positions = self._positions(steps, flags, "extract")
            return _taken(steps, steps.flat(steps.ref(ref, "arr")), positions)

        return self._several("extract", build)

    # --- keys -------------------------------------------------------------------------------

    def _positions(self, steps: Steps, mask: Operand, name: str) -> GpuRef:
        """Where a mask is set: of the program, so that it has to be asked for first."""
        found = steps.driver.perform(where_set(self._cub, mask, name))
        assert found is not None
        count, positions = found
        return positions[:count]

    def _indices(
        self, indices: Any, name: str, *, error: type[Exception]
    ) -> Operand | np.ndarray[Any, Any]:
        """Whole numbers, of the device or of the program."""
        given: Operand | np.ndarray[Any, Any]
        given = indices if isinstance(indices, Operand) else np.asarray(indices)
        if (
            not isinstance(given, Operand)
            and not given.size
            and not isinstance(indices, np.ndarray)
        ):
            given = given.astype(np.intp)
        if given.dtype.kind not in "iu":
            raise error(
                f"{name} must be whole numbers, not {given.dtype.name}"
                if error is TypeError
                else "arrays used as indices must be of integer (or boolean) type"
            )
        return given

    def _index(
        self,
        steps: Steps,
        given: Operand | np.ndarray[Any, Any],
        n: int,
        axis: int,
        mode: Mode | None,
        way: Mode,
    ) -> tuple[GpuRef, Outside]:
        """Indices as a buffer, and what those of them are that are out of bounds."""
        if isinstance(given, np.ndarray):
            if mode in (None, "raise"):
                _require_inside(given, n, axis)
            return steps.upload(given, as_dtype(given.dtype)), _outside(way)
        if way == "raise":
            self._require_inside(steps, given, n, axis)
        return steps.ref(given, "indices"), _outside(way)

    def _require_inside(self, steps: Steps, given: Operand, n: int, axis: int) -> None:
        if not isinstance(given, GpuRef):
            raise TypeError(
                "indices to be checked must be a ref, and not an expression; compute it first: "
                "await device.evaluate(expression)"
            )
        require_readable(given, steps.driver.memory, "indices", strided=True)
        if not given.size:
            return
        found = steps.driver.perform(first_outside(self._cub, given, n))
        assert found is not None
        if found[0]:
            raise IndexError(f"index {found[1]} is out of bounds for axis {axis} with size {n}")

    def _items(self, key: Any, ref: GpuRef) -> list[Any]:
        """One item for each axis, beside None; masks are for several."""
        given = key if isinstance(key, tuple) else (key,)
        items: list[Any] = []
        for each in given:
            if each is None or each is ... or isinstance(each, slice):
                items.append(each)
            elif isinstance(each, bool | np.bool_):
                raise IndexError(
                    "True and False as indices, which make an axis of one element or none, are "
                    "not taken; use None or a mask"
                )
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
        used = sum(_axes_of(each) for each in items)
        if used > ref.ndim:
            raise IndexError(
                f"too many indices for array: array is {ref.ndim}-dimensional, but {used} were "
                "indexed"
            )
        missing = [slice(None)] * (ref.ndim - used)
        at = next((number for number, each in enumerate(items) if each is ...), len(items))
        items[at : at + 1] = missing
        axis = 0
        for each in items:
            if _is_mask(each):
                sizes = ref.shape[axis : axis + len(each.shape)]
                for number, (n, m) in enumerate(zip(sizes, each.shape, strict=True)):
                    if n != m:
                        raise IndexError(
                            "boolean index did not match indexed array along axis "
                            f"{axis + number}; size of axis is {n} but size of corresponding "
                            f"boolean axis is {m}"
                        )
            axis += _axes_of(each)
        return items

    def _chosen(
        self, steps: Steps, ref: GpuRef, items: list[Any], mode: Mode | None, way: Mode
    ) -> _Chosen:
        """A key with buffers of indices in the place of arrays."""
        expanded: list[Any] = []
        axis = 0
        for each in items:
            sizes = ref.shape[axis : axis + _axes_of(each)]
            axis += _axes_of(each)
            if not _is_mask(each):
                expanded.append(each)
            elif isinstance(each, np.ndarray):
                expanded += np.nonzero(each)
            else:
                positions = self._positions(steps, each, "getitem")
                if len(sizes) == 1:
                    expanded.append(_Inside(positions))
                else:
                    expanded += [
                        _Inside(steps.evaluate(part)) for part in _unraveled(positions, sizes)
                    ]
        arrays = [each for each in expanded if _is_array(each)]
        basic = tuple(slice(None) if _is_array(each) else each for each in expanded)
        view = ref[basic] if basic else ref
        if not arrays:
            return _Chosen(view, [], (), 0)
        # Numbers beside arrays count as such where it is told whether those are side by side.
        places = [
            at for at, each in enumerate(expanded) if _is_array(each) or isinstance(each, int)
        ]
        together = places[-1] - places[0] + 1 == len(places)
        place = 0
        if together:
            place = sum(not isinstance(each, int) for each in expanded[: places[0]])
        indices: list[tuple[GpuRef, int]] = []
        at = axis = 0
        for each in expanded:
            if _is_array(each):
                found = self._buffer(steps, each, ref.shape[axis], axis, mode, way)
                indices.append((found, at))
            at += not isinstance(each, int)
            axis += each is not None
        try:
            shape = np.broadcast_shapes(*(found.shape for found, _ in indices))
        except ValueError:
            shapes = " ".join(str(found.shape).replace(" ", "") for found, _ in indices)
            raise IndexError(
                "shape mismatch: indexing arrays could not be broadcast together with shapes "
                f"{shapes}"
            ) from None
        for found, of in indices:
            if not view.shape[of] and math.prod(shape):
                raise IndexError(f"index 0 is out of bounds for axis {of} with size 0")
            del found
        return _Chosen(view, indices, shape, place)

    def _buffer(
        self, steps: Steps, each: Any, n: int, axis: int, mode: Mode | None, way: Mode
    ) -> GpuRef:
        if isinstance(each, _Inside):
            return each.ref
        if isinstance(each, np.ndarray):
            _require_inside(each, n, axis)
            wrapped = np.where(each < 0, each + n, each) if each.dtype.kind == "i" else each
            return steps.upload(wrapped, INT64)
        return self._index(steps, each, n, axis, mode, way)[0]


class _Inside(NamedTuple):
    """Indices that are in bounds for sure."""

    ref: GpuRef


def _mode(mode: object) -> Mode:
    if mode is None:
        return "wrap"
    if mode not in _MODES:
        raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
    return mode  # type: ignore[return-value]


def _outside(way: Mode) -> Outside:
    return "clip" if way == "clip" else "wrap"


def _is_array(item: object) -> bool:
    return isinstance(item, Operand | np.ndarray | _Inside)


def _is_mask(item: Any) -> bool:
    return isinstance(item, Operand | np.ndarray) and item.dtype.kind == "b"


def _axes_of(item: Any) -> int:
    if item is None or item is ...:
        return 0
    return len(item.shape) if _is_mask(item) else 1


def _whole_mask(items: list[Any], value: Any) -> Operand | None:
    """A mask that is all of a key, where what is written does not depend on how many are set."""
    first, *others = items or [None]
    if not isinstance(first, Operand) or not _is_mask(first):
        return None
    if any(each != slice(None) for each in others if not _is_array(each)) or any(
        map(_is_array, others)
    ):
        return None
    ndim = len(value.shape) if isinstance(value, Operand) else np.ndim(value)
    return first if ndim <= len(others) else None


def _require_inside(indices: np.ndarray[Any, Any], n: int, axis: int) -> None:
    bad = (indices >= n) | (indices < -n) if indices.dtype.kind == "i" else indices >= n
    if bad.any():
        first = int(indices[bad].reshape(-1)[0])
        raise IndexError(f"index {first} is out of bounds for axis {axis} with size {n}")


def _fitting(value: Any, ref: GpuRef) -> Operand:
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
    order = {"b": 0, "u": 1, "i": 1, "f": 2, "V": 2, "c": 3}
    kind = np.asarray(value).dtype.kind
    if order.get(kind, 4) > order[ref.dtype.kind]:
        raise TypeError(f"{value!r} does not cast to {ref.dtype.name} without another kind")
    return constant(value, ref.dtype)


def _values(steps: Steps, value: Any, shape: tuple[int, ...], target: GpuRef) -> GpuRef:
    """What is written, in the shape of the places that it goes to.

    Raises:
        ValueError: it does not broadcast to that, in NumPy's words.
    """
    fitting = _fitting(value, target)
    given = fitting.shape
    while len(given) > len(shape) and given[0] == 1:
        given = given[1:]
    extra = len(shape) - len(given)
    if extra < 0 or any(n not in (1, m) for n, m in zip(given, shape[extra:], strict=True)):
        raise ValueError(
            f"shape mismatch: value array of shape {fitting.shape} could not be broadcast to "
            f"indexing result of shape {shape}"
        )
    ref = steps.ref(fitting, "value")
    if overlap(ref, target):
        copy = steps.output(ref.shape, ref.dtype)
        steps.assign((ref, copy))
        ref = copy
    return ref[(0,) * (ref.ndim - len(given))].broadcast_to(shape)


def _gather(steps: Steps, chosen: _Chosen, made: GpuRef, outside: Outside) -> None:
    """Read what is chosen, into a buffer of any dtype of the same kind."""
    view = chosen.view
    plain = made
    if made.dtype is not view.dtype:
        plain = steps.output(made.shape, view.dtype)
    loops, rest = chosen.loops(plain), chosen.rest(plain)
    choose(steps, "gather", plain, view, chosen.indices, loops, rest, outside=outside)
    if plain is not made:
        steps.assign((plain, made))


def _taken(steps: Steps, flat: GpuRef, positions: GpuRef) -> GpuRef:
    """Elements of one row."""
    made = steps.output(positions.shape, flat.dtype)
    chosen = _Chosen(flat, [(positions, 0)], positions.shape, 0)
    _gather(steps, chosen, made, "wrap")
    return made


def _unraveled(positions: GpuRef, shape: tuple[int, ...]) -> list[Operand]:
    """Indices along each axis."""
    made: list[Operand] = []
    size = 1
    for n in reversed(shape):
        made.append(positions // size % n if n else positions + 0)
        size *= max(n, 1)
    return made[::-1]


def _copy_of(ref: GpuRef) -> Request[GpuRef]:
    from ._copy import copying

    return copying(ref, None)
