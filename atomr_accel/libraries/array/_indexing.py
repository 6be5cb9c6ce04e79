"""``device.array``'s functions that choose elements by indices and masks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._dtypes import as_dtype
from ...arrays import GpuRef
from ...arrays.expressions import Operand, broadcast, cast
from ...arrays.expressions.expression import where
from ...ops import D, Request, op, op_family, require_readable, require_writable
from ._keys import (
    ArrayKey,
    Chosen,
    Indices,
    Inside,
    axes_of,
    fitting,
    gather,
    is_array,
    is_mask,
    items_of,
    mode_of,
    outside_of,
    require_inside,
    taken,
    unraveled,
    values_in,
    whole_mask,
)
from .choosing import INT64, GatherAxis, Mode, choose, first_outside, trimmed, where_set
from .steps import ArrayPart, CallSteps, target_of

if TYPE_CHECKING:
    from ...arrays.expressions import Value
    from .choosing import Kind
    from .wire.indexing import Outside


class Indexing(ArrayPart[D]):
    """Choosing elements by indices and masks.

    Indices may be negative, as in NumPy. Indices of the program are checked in the caller. Indices
    on the device are not known yet, so ``mode`` says what happens to those out of bounds. By
    default, and with ``mode="wrap"``, they wrap around. With ``"clip"`` they become the nearest
    valid index, and negative ones become 0. With ``"raise"`` they are checked on the device first,
    which is awaited and cannot be in a batch or a recording.
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
        """Take elements along an axis, by their indices; as ``numpy.take``.

        Args:
            a: an array.
            indices: the indices to take.
            axis: the axis; None flattens the array first.
            out: the buffer for the result.
            mode: the meaning of an index out of bounds; see above. NumPy's default is ``"raise"``.

        Raises:
            IndexError: an index is out of bounds, with ``"raise"``, or by default if the program
                has it; or there is an index but nothing to take.
        """
        ref, way = self._ref(a, "a"), mode_of(mode)
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)
        given = self._indices(indices, "indices", error=TypeError)

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref, "a")
            if axis is None:
                source = steps.flat(source)
            if not source.shape[at] and np.prod(given.shape):
                raise IndexError("cannot do a non-empty take from an empty axes.")
            found, outside = self._index(steps, given, source.shape[at], at, mode, way)
            chosen = Chosen(source, [(found, at)], found.shape, at)
            reads = [("a", ref), ("indices", found)]
            made = target_of(steps, out, chosen.result, ref.dtype, reads, op="take")
            gather(steps, chosen, made, outside)
            return made

        return self._several("take", build)

    @op
    def take_along_axis(
        self, arr: GpuRef, indices: Operand, axis: int | None = -1, mode: Mode | None = None
    ) -> Request[GpuRef]:
        """Take one element for each index, of its own row; as ``numpy.take_along_axis``.

        Args:
            arr: an array.
            indices: an array with as many dimensions as ``arr``; axes other than ``axis``
                broadcast.
            axis: the axis of the indices; None flattens both.
            mode: the meaning of an index out of bounds; see above.
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
            arr: the array to write.
            indices: as for ``take_along_axis``.
            values: the values to write, broadcast to the shape of the indices.
            axis: the axis of the indices; None flattens ``arr``.
            mode: the meaning of an index out of bounds; see above.

        Returns:
            ``arr``.
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
        ref, way = self._ref(arr, "arr"), mode_of(mode)
        given = self._indices(indices, "indices", error=IndexError)
        if axis is None:
            if len(given.shape) != 1:
                raise ValueError("when axis=None, `indices` must have a single dimension.")
        elif ref.ndim != len(given.shape):
            raise ValueError("`indices` and `arr` must have the same number of dimensions")
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref, "arr")
            if values is not None:
                require_writable(ref, steps.preparer.memory, "arr", strided=True)
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
                plain = values_in(steps, values, shape, source)
            seen = found.broadcast_to(shape)
            axes = [
                GatherAxis(
                    extent,
                    plain.strides[d],
                    source.strides[d] if d != at and source.shape[d] > 1 else 0,
                    (seen.strides[d],),
                )
                for d, extent in enumerate(shape)
            ]
            kind: Kind = "gather" if values is None else "set"
            ordered = values is not None and self.home.deterministic
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
            mode: the meaning of an index out of bounds; see above.

        Returns:
            A new array; with numbers and slices alone a view, which ``x[key]`` is, too.
        """
        ref, way = self._ref(x), mode_of(mode)
        items = items_of(key, ref)

        def build(steps: CallSteps) -> GpuRef:
            chosen = self._chosen(steps, steps.ref(ref), items, mode, way)
            if not chosen.indices:
                return chosen.view
            made = steps.output(chosen.result, ref.dtype)
            gather(steps, chosen, made, outside_of(way))
            return made

        return self._several("getitem", build)

    @op_family
    def setitem(
        self,
        _name: str,
        x: GpuRef,
        key: ArrayKey,
        value: Value,
        mode: Mode | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Request[GpuRef]:
        """Write ``x[key] = value``, with any key that NumPy takes.

        Args:
            x: the array to write.
            key: as for ``getitem``. A mask on the device may be in a batch if one value, or one row
                of values, goes to all places.
            value: a number, a ref or an expression, which broadcasts to the chosen places.
            mode: the meaning of an index out of bounds; see above.
            deterministic: whether the last of several values for one place counts, as in NumPy.
                Otherwise it is any of them, for each element. The default is the device's own
                setting.

        Returns:
            ``x``.
        """
        kind: Kind = "set" if _name == "setitem" else "add"
        ref, way = self._ref(x), mode_of(mode)
        items = items_of(key, ref)
        ordered = self.home.deterministic if deterministic is None else bool(deterministic)
        mask = whole_mask(items, value)
        like = fitting(value, ref)

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref)
            require_writable(ref, steps.preparer.memory, "x", strided=True)
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
            plain = values_in(steps, like, chosen.result, source)
            choose(
                steps,
                kind,
                plain,
                view,
                chosen.indices,
                chosen.loops(plain),
                chosen.rest(plain),
                outside=outside_of(way),
                ordered=ordered,
            )
            return ref

        return self._several(_name, build)

    add_at: Final = setitem.like(
        """Add to chosen elements, once for each time an index has them; as ``numpy.add.at``.

        Each sum is rounded to the dtype of ``x``. If many terms of a 16-bit float go to the same
        element, add them to a float32 array.

        With ``deterministic`` sums are made in the order of the indices, which takes longer.
        Otherwise sums of floats may be rounded differently each time. The default is the device's
        own setting. Arguments and the result are those of ``setitem``.
        """
    )

    # --- masks ------------------------------------------------------------------------------

    @op
    def nonzero(self, a: Operand) -> Request[tuple[GpuRef, ...]]:
        """Find the elements that are not zero: indices along each axis; as ``numpy.nonzero``.

        Args:
            a: a ref or an expression.
        """
        given = self._operand(a, "a")
        if not given.shape:
            raise ValueError(
                "Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() "
                "instead."
            )

        if len(given.shape) == 1:
            return where_set(self._cub, given, "nonzero", lambda n, refs: (trimmed(refs[0], n),))

        def build(steps: CallSteps) -> tuple[GpuRef, ...]:
            positions = self._positions(steps, given, "nonzero")
            return tuple(steps.evaluate(each) for each in unraveled(positions, given.shape))

        return self._several("nonzero", build)

    @op
    def flatnonzero(self, a: Operand) -> Request[GpuRef]:
        """Find the elements that are not zero, by C order; as ``numpy.flatnonzero``.

        Args:
            a: a ref or an expression.
        """
        given = self._operand(a, "a")
        return where_set(self._cub, given, "flatnonzero", lambda n, refs: trimmed(refs[0], n))

    @op
    def argwhere(self, a: Operand) -> Request[GpuRef]:
        """Find the elements that are not zero, one row of indices each; as ``numpy.argwhere``.

        Args:
            a: a ref or an expression.
        """
        given = self._operand(a, "a")

        def build(steps: CallSteps) -> GpuRef:
            positions = self._positions(steps, given, "argwhere")
            made = steps.output((positions.size, len(given.shape)), INT64)
            for at, each in enumerate(unraveled(positions, given.shape)):
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
        """Take elements along an axis for which a condition holds; as ``numpy.compress``.

        Args:
            condition: one dimension, no longer than the axis.
            a: an array.
            axis: the axis; None flattens it first.
            out: the buffer for the result.
        """
        ref, flags = self._ref(a, "a"), self._operand(condition, "condition")
        if len(flags.shape) != 1:
            raise ValueError("condition must be a 1-d array")
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)
        n = ref.size if axis is None else ref.shape[at]
        if flags.shape[0] > n:
            raise IndexError(f"a condition of {flags.shape[0]} elements for an axis of {n}")

        def build(steps: CallSteps) -> GpuRef:
            source = steps.ref(ref, "a")
            if axis is None:
                source = steps.flat(source)
            positions = self._positions(steps, flags, "compress")
            chosen = Chosen(source, [(positions, at)], positions.shape, at)
            made = target_of(steps, out, chosen.result, ref.dtype, [("a", ref)], op="compress")
            gather(steps, chosen, made, "wrap")
            return made

        return self._several("compress", build)

    @op
    def extract(self, condition: Operand, arr: GpuRef) -> Request[GpuRef]:
        """Take elements for which a condition holds, in one row; as ``numpy.extract``.

        Args:
            condition: one element for each of the array.
            arr: an array.
        """
        ref, flags = self._ref(arr, "arr"), self._operand(condition, "condition")
        if math.prod(flags.shape) != ref.size:
            raise ValueError(f"a condition of shape {flags.shape} for an array of {ref.shape}")

        def build(steps: CallSteps) -> GpuRef:
            positions = self._positions(steps, flags, "extract")
            return taken(steps, steps.flat(steps.ref(ref, "arr")), positions)

        return self._several("extract", build)

    # --- keys -------------------------------------------------------------------------------

    def _positions(self, steps: CallSteps, mask: Operand, name: str) -> GpuRef:
        """Return the positions at which a mask is set, which the program has to ask for first."""
        asked = where_set(self._cub, mask, name, lambda count, refs: refs[0][:count])
        found = steps.preparer.perform(asked)
        assert found is not None
        return found

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
        steps: CallSteps,
        given: Operand | np.ndarray[Any, Any],
        n: int,
        axis: int,
        mode: Mode | None,
        way: Mode,
    ) -> tuple[GpuRef, Outside]:
        """Return indices as a buffer, and the treatment of those out of bounds."""
        if isinstance(given, np.ndarray):
            if mode in (None, "raise"):
                require_inside(given, n, axis)
            return steps.upload(given, as_dtype(given.dtype)), outside_of(way)
        if way == "raise":
            self._require_inside(steps, given, n, axis)
        return steps.ref(given, "indices"), outside_of(way)

    def _require_inside(self, steps: CallSteps, given: Operand, n: int, axis: int) -> None:
        if not isinstance(given, GpuRef):
            raise TypeError(
                "indices to be checked must be a ref, and not an expression; compute it first: "
                "await device.evaluate(expression)"
            )
        require_readable(given, steps.preparer.memory, "indices", strided=True)
        if not given.size:
            return
        found = steps.preparer.perform(first_outside(self._cub, given, n))
        assert found is not None
        if found[0]:
            raise IndexError(f"index {found[1]} is out of bounds for axis {axis} with size {n}")

    def _chosen(
        self, steps: CallSteps, ref: GpuRef, items: list[Any], mode: Mode | None, way: Mode
    ) -> Chosen:
        """Return a key with buffers of indices instead of arrays."""
        expanded: list[Any] = []
        axis = 0
        for each in items:
            sizes = ref.shape[axis : axis + axes_of(each)]
            axis += axes_of(each)
            if not is_mask(each):
                expanded.append(each)
            elif not each.shape:  # it chooses from a new axis
                if isinstance(each, np.ndarray):
                    found = steps.upload(np.flatnonzero(each), INT64)
                else:
                    found = self._positions(steps, each, "getitem")
                expanded.append(Inside(found, new=True))
            elif isinstance(each, np.ndarray):
                expanded += np.nonzero(each)
            else:
                positions = self._positions(steps, each, "getitem")
                if len(sizes) == 1:
                    expanded.append(Inside(positions))
                else:
                    expanded += [
                        Inside(steps.evaluate(part)) for part in unraveled(positions, sizes)
                    ]
        arrays = [each for each in expanded if is_array(each)]
        basic = tuple(_basic(each) for each in expanded)
        view = ref[basic] if basic else ref
        if not arrays:
            return Chosen(view, [], (), 0)
        # Next to arrays, numbers count as arrays in the test whether arrays are side by side.
        places = [at for at, each in enumerate(expanded) if is_array(each) or isinstance(each, int)]
        together = places[-1] - places[0] + 1 == len(places)
        place = 0
        if together:
            place = sum(not isinstance(each, int) for each in expanded[: places[0]])
        indices: list[tuple[GpuRef, int]] = []
        at = axis = 0
        for each in expanded:
            if isinstance(each, Inside):
                indices.append((each.ref, at))
            elif is_array(each):
                found = self._buffer(steps, each, ref.shape[axis], axis, mode, way)
                indices.append((found, at))
            at += not isinstance(each, int)
            axis += _basic(each) is not None
        if len({found.dtype for found, _ in indices}) > 1:
            indices = [(steps.cast(found, INT64), of) for found, of in indices]
        try:
            shape = np.broadcast_shapes(*(found.shape for found, _ in indices))
        except ValueError:
            shapes = " ".join(str(found.shape).replace(" ", "") for found, _ in indices)
            raise IndexError(
                "shape mismatch: indexing arrays could not be broadcast together with shapes "
                f"{shapes}"
            ) from None
        for _, of in indices:
            if not view.shape[of] and math.prod(shape):
                raise IndexError(f"index 0 is out of bounds for axis {of} with size 0")
        return Chosen(view, indices, shape, place)

    def _buffer(
        self, steps: CallSteps, each: Any, n: int, axis: int, mode: Mode | None, way: Mode
    ) -> GpuRef:
        if isinstance(each, np.ndarray):
            require_inside(each, n, axis)
            wrapped = np.where(each < 0, each + n, each) if each.dtype.kind == "i" else each
            return steps.upload(wrapped, INT64)
        return self._index(steps, each, n, axis, mode, way)[0]


def _basic(item: Any) -> Any:
    """Return the basic form of an item of a key: arrays become full slices."""
    if isinstance(item, Inside) and item.new:
        return None
    return slice(None) if is_array(item) else item
