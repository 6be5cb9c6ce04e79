"""``device.array``'s further functions that join arrays, put elements in or take them out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ..._errors import said_of
from ...arrays import GpuRef
from ...arrays.expressions import Operand, broadcast, cast, constant
from ...arrays.expressions.expression import converted, values_of, where
from ...arrays.expressions.promotion import common, kind_of
from ...ops import D, Request, op
from ._creation import _number
from ._manipulation import Manipulation, at_least_2d
from .steps import CallSteps

if TYPE_CHECKING:
    from ...arrays.expressions import Value

_NUMPY: Final[Any] = np
"""NumPy, whose functions make expressions of refs."""

Places = SupportsIndex | slice | Sequence[int] | Sequence[bool] | np.ndarray[Any, Any] | GpuRef
"""Positions along an axis. They are the program's own; ``delete`` takes a mask on the device."""


class Joining(Manipulation[D]):
    """Joining arrays in other ways, and elements that come and go."""

    @op
    def column_stack(self, tup: Sequence[GpuRef]) -> Request[GpuRef]:
        """Stack rows as columns, and matrices side by side; as ``numpy.column_stack``."""
        refs = [at_least_2d(ref).T if ref.ndim < 2 else ref for ref in self._refs(tup, "tup")]
        return self._joined("column_stack", refs, 1, None, None, "same_kind")

    @op
    def dstack(self, tup: Sequence[GpuRef]) -> Request[GpuRef]:
        """Stack arrays along their third axis; as ``numpy.dstack``. Errors: ``concatenate``'s."""
        refs = [_at_least_3d(ref) for ref in self._refs(tup, "tup")]
        return self._joined("dstack", refs, 2, None, None, "same_kind")

    @op
    def append(
        self, arr: GpuRef, values: GpuRef | complex, axis: int | None = None
    ) -> Request[GpuRef]:
        """Put elements after those of an array; as ``numpy.append``."""
        ref = self._ref(arr, "arr")
        if isinstance(values, Operand) or axis is not None:
            return self._joined(
                "append", [ref, self._ref(values, "values")], axis, None, None, "same_kind"
            )
        number = constant(_number(values, "values"))

        def build(steps: CallSteps) -> GpuRef:
            both = [ref, steps.evaluate(number)]
            return steps.do(self._joined("append", both, None, None, None, "same_kind"))

        return self._several("append", build)

    @op
    def delete(self, arr: GpuRef, obj: Places, axis: int | None = None) -> Request[GpuRef]:
        """Leave out elements along an axis; as ``numpy.delete``.

        ``obj`` is a number, a slice, or numbers of the program's; or a mask, also on the device.

        Raises:
            ValueError: a mask of another length, or more than 64 KiB of positions.
            TypeError: positions on the device, as they do not say how many differ.
        """
        ref = self._ref(arr, "arr")
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)
        n = ref.size if axis is None else ref.shape[at]
        mask = None
        if isinstance(obj, Operand):
            mask = obj
            if mask.dtype.kind != "b" or mask.shape != (n,):
                raise TypeError(
                    f"obj must be a mask of shape ({n},), or positions of the program's, not "
                    f"{said_of(obj)}; fetch positions first: await device.get(obj)"
                )
        runs, places = ([], None) if mask is not None else _left(obj, n, at)

        def build(steps: CallSteps) -> GpuRef:
            own: Any = self.as_requests(steps.preparer.home)
            ask: Any = steps.preparer.perform
            source = ref
            if axis is None:  # a mask is read before any step of this call
                request = own.ascontiguousarray(ref)
                source = (steps.do if mask is None else ask)(request).reshape(-1)
            key: list[Any] = [slice(None)] * at
            parts = [source[(*key, slice(start, end))] for start, end in runs]
            made: GpuRef
            if mask is not None:
                made = ask(own.getitem(source, (*key, ~mask)))
            elif places is not None:
                made = steps.do(own.take(source, places, at))
            else:
                made = steps.do(self._joined("delete", parts, at, None, None, "no"))
            return made

        return self._several("delete", build)

    @op
    def insert(
        self, arr: GpuRef, obj: Places, values: Value, axis: int | None = None
    ) -> Request[GpuRef]:
        """Put elements between those of an array; as ``numpy.insert``.

        ``obj`` is a number, a slice, numbers or a mask of the program's. ``values`` are cast to the
        dtype of ``arr``.

        Raises:
            ValueError: values of another shape, or more than 64 KiB of positions.
            TypeError: positions on the device.
        """
        ref = self._ref(arr, "arr")
        at = 0 if axis is None else normalize_axis_index(axis, ref.ndim)
        shape = (ref.size,) if axis is None else ref.shape
        n = shape[at]
        if isinstance(obj, Operand):
            raise TypeError(
                "obj must be positions of the program's, not those on the device; fetch them "
                "first: await device.get(obj)"
            )
        (value,) = values_of((values,))
        given = converted(value, ref.dtype)
        where_to = _inserted(obj, n, at)
        key: tuple[Any, ...] = (slice(None),) * at
        moves: list[tuple[Any, Any]]  # places in the result, and in the array; None for values
        if where_to.size == 1:
            given = _NUMPY.expand_dims(given, tuple(range(len(shape) - len(given.shape))))
            if not where_to.ndim:
                given = _NUMPY.moveaxis(given, 0, at)
            first, count = int(where_to.reshape(-1)[0]), given.shape[at]
            end = first + count
            moves = [
                (slice(first), slice(first)),
                (slice(first, end), None),
                (slice(end, None), slice(first, None)),
            ]
        else:
            count, places = where_to.size, where_to.copy()
            places[places.argsort(kind="stable")] += np.arange(count)
            rest = np.ones(n + count, np.bool_)
            rest[places] = False
            moves = [(places, None), (np.flatnonzero(rest), slice(None))]

        def build(steps: CallSteps) -> GpuRef:
            source = steps.flat(steps.ref(ref, "arr")) if axis is None else steps.ref(ref, "arr")
            made = steps.output((*shape[:at], n + count, *shape[at + 1 :]), ref.dtype)
            own: Any = self.as_requests(steps.preparer.home)
            for to, of in moves:
                content = given if of is None else source[(*key, of)]
                if isinstance(to, slice):
                    target = made[(*key, to)]
                    steps.evaluate(broadcast(content, target.shape), target)
                else:  # also at no places, for which values have to fit
                    steps.do(own.setitem(made, (*key, to), content))
            return made

        return self._several("insert", build)

    @op
    def select(
        self, condlist: Sequence[Operand], choicelist: Sequence[Value], default: Value = 0
    ) -> Request[GpuRef]:
        """Take each element from the first array whose condition holds; as ``numpy.select``."""
        if len(condlist) != len(choicelist) or not condlist:
            raise ValueError(
                "condlist must be as long as choicelist, and not empty, not "
                f"{len(condlist)} for {len(choicelist)}"
            )
        values = values_of([*choicelist, default])
        kinds = [each.dtype if isinstance(each, Operand) else kind_of(each) for each in values]
        dtype = common(tuple(kinds))
        made: Operand = converted(values[-1], dtype)
        for at in range(len(condlist) - 1, -1, -1):
            condition = self._operand(condlist[at], f"condlist[{at}]")
            if condition.dtype.kind != "b":
                raise TypeError(f"condlist[{at}] must be of bool, not {condition.dtype.name}")
            made = where(condition, converted(values[at], dtype), made)
        return self._evaluated(made)

    @op
    def apply_along_axis(
        self,
        /,
        func1d: Callable[..., Operand],
        axis: SupportsIndex,
        arr: GpuRef,
        *args: object,
        **kwargs: object,
    ) -> Request[GpuRef]:
        """Apply a function to each row along an axis; as ``numpy.apply_along_axis``.

        Each row is computed by a kernel of its own, so a function with ``axis=`` is quicker.

        ``func1d`` gets a view of one row, and the other arguments, and returns an expression.

        Raises:
            TypeError: it returns anything else, such as a coroutine of the device's.
        """
        ref = self._ref(arr, "arr")
        at = normalize_axis_index(operator.index(axis), ref.ndim)
        rows = ref.moveaxis(at, -1)
        outer = rows.shape[:-1]
        if 0 in outer:
            raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
        places = [*np.ndindex(outer)]
        made = [func1d(rows[place], *args, **kwargs) for place in places]
        for each in made:
            if not isinstance(each, Operand):
                raise TypeError(
                    f"func1d must return a ref or an expression, not {said_of(each)}; functions of "
                    "NumPy make expressions"
                )
        inner, dtype = made[0].shape, made[0].dtype
        if any(each.shape != inner for each in made):
            raise ValueError("func1d must return results of one shape, not of several")

        def build(steps: CallSteps) -> GpuRef:
            result = steps.output((*outer[:at], *inner, *outer[at:]), dtype)
            own = tuple(range(at, at + len(inner)))
            seen = result.moveaxis(own, tuple(range(-len(inner), 0))) if inner else result
            for place, each in zip(places, made, strict=True):
                steps.evaluate(cast(each, dtype), seen[place])
            return result

        return self._several("apply_along_axis", build)

    # --- views, which are not awaited -------------------------------------------------------

    def hsplit(self, ary: GpuRef, indices_or_sections: int | Sequence[int]) -> list[GpuRef]:
        """Divide an array into columns, as views; as ``numpy.hsplit``. It is not awaited."""
        if not self._ref(ary, "ary").ndim:
            raise ValueError("hsplit only works on arrays of 1 or more dimensions")
        return self.split(ary, indices_or_sections, 1 if ary.ndim > 1 else 0)

    def vsplit(self, ary: GpuRef, indices_or_sections: int | Sequence[int]) -> list[GpuRef]:
        """Divide an array into rows, as views; as ``numpy.vsplit``. It is not awaited."""
        if self._ref(ary, "ary").ndim < 2:
            raise ValueError("vsplit only works on arrays of 2 or more dimensions")
        return self.split(ary, indices_or_sections, 0)

    def atleast_1d(self, *arys: GpuRef) -> GpuRef | tuple[GpuRef, ...]:
        """Views of at least one dimension; as ``numpy.atleast_1d``. It is not awaited."""
        return _one_or_all(
            [ref if ref.ndim else ref.reshape(1) for ref in self._refs(arys, "arys")]
        )

    def atleast_2d(self, *arys: GpuRef) -> GpuRef | tuple[GpuRef, ...]:
        """Views of at least two dimensions; as ``numpy.atleast_2d``. It is not awaited."""
        return _one_or_all([at_least_2d(ref) for ref in self._refs(arys, "arys")])

    def atleast_3d(self, *arys: GpuRef) -> GpuRef | tuple[GpuRef, ...]:
        """Views of at least three dimensions; as ``numpy.atleast_3d``. It is not awaited."""
        return _one_or_all([_at_least_3d(ref) for ref in self._refs(arys, "arys")])

    def broadcast_arrays(self, *args: GpuRef) -> tuple[GpuRef, ...]:
        """Views in one shape; as ``numpy.broadcast_arrays``. It is not awaited."""
        refs = self._refs(args, "args")
        shape = np.broadcast_shapes(*(ref.shape for ref in refs))
        return tuple([ref.broadcast_to(shape) for ref in refs])


def _one_or_all(refs: list[GpuRef]) -> GpuRef | tuple[GpuRef, ...]:
    return refs[0] if len(refs) == 1 else tuple(refs)


def _at_least_3d(ref: GpuRef) -> GpuRef:
    return ref if ref.ndim > 2 else at_least_2d(ref)[..., None]


def _positions(obj: Any, n: int, axis: int) -> Any:
    """Return positions as a key, which NumPy checks."""
    if isinstance(obj, slice):
        return obj
    found = np.asarray(obj)
    if not found.size and not isinstance(obj, np.ndarray):
        found = found.astype(np.intp)
    if found.dtype.kind == "b" and found.shape != (n,):
        raise ValueError(
            f"boolean array argument obj to delete must be one dimensional and match the axis "
            f"length of {n}"
        )
    if found.dtype.kind not in "iub":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    if found.dtype.kind != "b" and ((found < -n) | (found >= n)).any():
        first = int(found[(found < -n) | (found >= n)].reshape(-1)[0])
        raise IndexError(f"index {first} is out of bounds for axis {axis} with size {n}")
    return found


def _left(
    obj: Any, n: int, axis: int
) -> tuple[list[tuple[int, int]], np.ndarray[Any, np.dtype[np.intp]] | None]:
    """Return the runs of positions that are left, or these positions if there are several runs."""
    key = _positions(obj, n, axis)
    if not isinstance(key, slice) and not key.ndim and key.dtype.kind != "b":
        key = slice(int(key) % n, int(key) % n + 1)
    if isinstance(key, slice):
        gone = range(*key.indices(n))
        gone = gone if gone.step > 0 else gone[::-1]
        if not gone or gone.step == 1:
            return [(0, gone.start), (gone.stop, n)] if gone else [(0, n)], None
    kept = np.ones(n, np.bool_)
    kept[key] = False
    return [], np.flatnonzero(kept)


def _inserted(obj: Any, n: int, axis: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return positions before which elements are put, from 0 on."""
    if isinstance(obj, slice):
        found = np.arange(*obj.indices(n))
    else:
        found = np.asarray(obj)
        if found.dtype.kind == "b":
            found = np.flatnonzero(found)
        elif not found.size and not isinstance(obj, np.ndarray):
            found = found.astype(np.intp)
    if found.ndim > 1:
        raise ValueError("index array argument obj to insert must be one dimensional or scalar")
    if found.dtype.kind not in "iu":
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    whole = found.astype(np.int64)
    if ((whole < -n) | (whole > n)).any():
        first = int(whole[(whole < -n) | (whole > n)].reshape(-1)[0])
        raise IndexError(f"index {first} is out of bounds for axis {axis} with size {n}")
    return np.where(whole < 0, whole + n, whole)
