"""Functions of the Array API standard, of ``device.array`` and expressions."""

# ruff: noqa: A001, A002 - the standard's names
from __future__ import annotations

import builtins
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from ._array import CPU_DEVICE, Array, array_of, called, evaluated, on_device, refs_of, unwrapped

__all__ = [
    "__array_namespace_info__",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "astype",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "clip",
    "concat",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "empty",
    "empty_like",
    "expand_dims",
    "eye",
    "finfo",
    "flip",
    "from_dlpack",
    "full",
    "full_like",
    "iinfo",
    "imag",
    "isdtype",
    "linspace",
    "matmul",
    "matrix_transpose",
    "max",
    "mean",
    "meshgrid",
    "min",
    "moveaxis",
    "nonzero",
    "ones",
    "ones_like",
    "permute_dims",
    "prod",
    "real",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "searchsorted",
    "sort",
    "squeeze",
    "stack",
    "std",
    "sum",
    "take",
    "take_along_axis",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
]


def _of_device(device: Any) -> None:
    if device not in (None, CPU_DEVICE):
        raise ValueError(f"no device {device!r}")


def _made(name: str, *args: Any, **kwargs: Any) -> Array:
    return array_of(called(name, *args, **kwargs))


# --- creation -------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: Any = None) -> Array:
    _of_device(device)
    if isinstance(obj, Array):
        if dtype is not None and dtype != obj.dtype:
            if copy is False:
                raise ValueError("another dtype takes a copy")
            return _made("astype", obj._ref, dtype)
        return array_of(on_device("copy", obj._ref)) if copy else obj
    if copy is False:
        raise ValueError("what is not on the device is copied")
    host = np.asarray(_on_host(obj), dtype=dtype)
    return array_of(on_device("put", host))


def _on_host(obj: Any) -> Any:
    if isinstance(obj, Array):
        return obj.host()
    if isinstance(obj, list | tuple):
        return [_on_host(each) for each in obj]
    return obj


def from_dlpack(x: Any, /, *, device: Any = None, copy: Any = None) -> Array:
    _of_device(device)
    if copy is False and not isinstance(x, Array):
        raise ValueError("what is not on the device is copied")
    return asarray(np.from_dlpack(x))


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Array:
    _of_device(device)
    return _made("arange", start, stop, step, dtype)


def linspace(
    start: Any,
    stop: Any,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: Any = None,
    endpoint: bool = True,
) -> Array:
    _of_device(device)
    return _made("linspace", start, stop, num, endpoint, dtype=dtype)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    _of_device(device)
    return array_of(on_device("empty", shape, dtype or np.float64))


def empty_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    _of_device(device)
    return _made("empty_like", x._ref, dtype)


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    return full(shape, 0, dtype=dtype or np.float64, device=device)


def zeros_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    _of_device(device)
    return _made("zeros_like", x._ref, dtype)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Array:
    return full(shape, 1, dtype=dtype or np.float64, device=device)


def ones_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    _of_device(device)
    return _made("ones_like", x._ref, dtype)


def full(shape: Any, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    _of_device(device)
    return _made("full", shape, fill_value, dtype)


def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    _of_device(device)
    return _made("full_like", x._ref, fill_value, dtype)


def eye(
    n_rows: int, n_cols: Any = None, /, *, k: int = 0, dtype: Any = None, device: Any = None
) -> Array:
    _of_device(device)
    return _made("eye", n_rows, n_cols, k, dtype or np.float64)


def meshgrid(*arrays: Array, indexing: Any = "xy") -> list[Array]:
    return [array_of(each) for each in called("meshgrid", *refs_of(arrays), indexing=indexing)]


def tril(x: Array, /, *, k: int = 0) -> Array:
    return _made("tril", x._ref, k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    return _made("triu", x._ref, k)


# --- dtypes ---------------------------------------------------------------------------------


def astype(x: Array, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    _of_device(device)
    return _made("astype", x._ref, dtype, copy=copy)


def can_cast(from_: Any, to: Any, /) -> bool:
    return bool(np.can_cast(getattr(from_, "dtype", from_), to))


def result_type(*arrays_and_dtypes: Any) -> Any:
    return np.result_type(
        *(each.dtype if isinstance(each, Array) else each for each in arrays_and_dtypes)
    )


def isdtype(dtype: Any, kind: Any) -> bool:
    return bool(np.isdtype(dtype, kind))


class _FInfo(NamedTuple):
    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any


class _IInfo(NamedTuple):
    bits: int
    max: int
    min: int
    dtype: Any


def finfo(type: Any, /) -> _FInfo:
    info = np.finfo(getattr(type, "dtype", type))
    eps, most, least = float(info.eps), float(info.max), float(info.min)
    return _FInfo(info.bits, eps, most, least, float(info.smallest_normal), info.dtype)


def iinfo(type: Any, /) -> _IInfo:
    info = np.iinfo(getattr(type, "dtype", type))
    return _IInfo(info.bits, int(info.max), int(info.min), info.dtype)


# --- elementwise ----------------------------------------------------------------------------


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    if min is None and max is None:
        return array_of(on_device("copy", x._ref))
    made = np.clip(x._ref, unwrapped(min), unwrapped(max))
    return evaluated(made.astype(x.dtype))


def real(x: Array, /) -> Array:
    return evaluated(x._ref.real)


def imag(x: Array, /) -> Array:
    return evaluated(x._ref.imag)


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    return _made("where", condition._ref, unwrapped(x1), unwrapped(x2))


# --- reductions -----------------------------------------------------------------------------


def sum(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    return _made("sum", x._ref, axis, dtype, keepdims=keepdims)


def prod(x: Array, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Array:
    return _made("prod", x._ref, axis, dtype, keepdims=keepdims)


def max(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("max", x._ref, axis, keepdims=keepdims)


def min(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("min", x._ref, axis, keepdims=keepdims)


def mean(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("mean", x._ref, axis, keepdims=keepdims)


def var(x: Array, /, *, axis: Any = None, correction: Any = 0.0, keepdims: bool = False) -> Array:
    return _made("var", x._ref, axis, ddof=correction, keepdims=keepdims)


def std(x: Array, /, *, axis: Any = None, correction: Any = 0.0, keepdims: bool = False) -> Array:
    return _made("std", x._ref, axis, ddof=correction, keepdims=keepdims)


def all(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("all", x._ref, axis, keepdims=keepdims)


def any(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("any", x._ref, axis, keepdims=keepdims)


def count_nonzero(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("count_nonzero", x._ref, axis, keepdims=keepdims)


def argmax(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("argmax", x._ref, axis, keepdims=keepdims)


def argmin(x: Array, /, *, axis: Any = None, keepdims: bool = False) -> Array:
    return _made("argmin", x._ref, axis, keepdims=keepdims)


def _cumulative(name: str, first: int, x: Array, axis: Any, dtype: Any, initial: bool) -> Array:
    if axis is None:
        if x.ndim != 1:
            raise ValueError("an axis is needed for more than one dimension")
        axis = 0
    made = _made(name, x._ref, axis, dtype)
    if not initial:
        return made
    shape = list(x.shape)
    shape[axis] = 1
    return concat([full(tuple(shape), first, dtype=made.dtype), made], axis=axis)


def cumulative_sum(
    x: Array, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    return _cumulative("cumsum", 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Array:
    return _cumulative("cumprod", 1, x, axis, dtype, include_initial)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Array:
    parts = [each for each in (prepend, x, append) if each is not None]
    made = concat(parts, axis=axis) if len(parts) > 1 else x
    key: list[Any] = [slice(None)] * normalize_axis_index(axis, x.ndim)
    for _ in range(n):
        ahead, behind = made._ref[(*key, slice(1, None))], made._ref[(*key, slice(None, -1))]
        made = evaluated(ahead != behind if x.dtype.kind == "b" else ahead - behind)
    return made


# --- sorting, searching, sets ---------------------------------------------------------------


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    return _made("sort", x._ref, axis, descending=descending)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    return _made("argsort", x._ref, axis, descending=descending)


def searchsorted(x1: Array, x2: Any, /, *, side: Any = "left", sorter: Any = None) -> Array:
    if not isinstance(x2, Array):
        x2 = asarray(x2, dtype=x1.dtype)
    return _made("searchsorted", x1._ref, x2._ref, side, unwrapped(sorter))


def nonzero(x: Array, /) -> tuple[Array, ...]:
    return tuple(map(array_of, called("nonzero", x._ref)))


class UniqueAll(NamedTuple):
    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    values: Array
    inverse_indices: Array


def unique_all(x: Array, /) -> UniqueAll:
    return UniqueAll(*map(array_of, called("unique_all", x._ref)))


def unique_counts(x: Array, /) -> UniqueCounts:
    return UniqueCounts(*map(array_of, called("unique_counts", x._ref)))


def unique_inverse(x: Array, /) -> UniqueInverse:
    return UniqueInverse(*map(array_of, called("unique_inverse", x._ref)))


def unique_values(x: Array, /) -> Array:
    return _made("unique_values", x._ref)


# --- indices --------------------------------------------------------------------------------


def take(x: Array, indices: Array, /, *, axis: Any = None) -> Array:
    return _made("take", x._ref, indices._ref, axis, mode="raise")


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    return _made("take_along_axis", x._ref, indices._ref, axis, "raise")


# --- manipulation ---------------------------------------------------------------------------


def broadcast_arrays(*arrays: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(each.shape for each in arrays))
    return [broadcast_to(each, shape) for each in arrays]


def broadcast_to(x: Array, /, shape: Any) -> Array:
    return array_of(x._ref.broadcast_to(tuple(shape)))


def concat(arrays: Any, /, *, axis: Any = 0) -> Array:
    return _made("concatenate", refs_of(arrays), axis)


def expand_dims(x: Array, /, axis: int) -> Array:
    at = normalize_axis_index(axis, x.ndim + 1)
    return array_of(x._ref[(*[slice(None)] * at, None)])


def flip(x: Array, /, *, axis: Any = None) -> Array:
    from ._array import device

    return array_of(device().array.flip(x._ref, axis))


def moveaxis(x: Array, source: Any, destination: Any, /) -> Array:
    return array_of(x._ref.moveaxis(source, destination))


def permute_dims(x: Array, /, axes: Any) -> Array:
    return array_of(x._ref.transpose(tuple(axes)))


def matrix_transpose(x: Array, /) -> Array:
    return x.mT


def repeat(x: Array, repeats: Any, /, *, axis: Any = None) -> Array:
    return _made("repeat", x._ref, unwrapped(repeats), axis)


def reshape(x: Array, /, shape: Any, *, copy: Any = None) -> Array:
    try:
        made = x._ref.reshape(tuple(shape))
    except ValueError:
        if copy is False or x._ref.contiguous:
            raise
        return array_of(on_device("copy", x._ref).reshape(tuple(shape)))
    return array_of(on_device("copy", made) if copy else made)


def roll(x: Array, /, shift: Any, *, axis: Any = None) -> Array:
    return _made("roll", x._ref, shift, axis)


def squeeze(x: Array, /, axis: Any) -> Array:
    return array_of(x._ref.squeeze(axis))


def stack(arrays: Any, /, *, axis: int = 0) -> Array:
    return _made("stack", refs_of(arrays), axis)


def tile(x: Array, repetitions: Any, /) -> Array:
    return _made("tile", x._ref, repetitions)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    at = normalize_axis_index(axis, x.ndim)
    key = (slice(None),) * at
    return tuple(array_of(x._ref[(*key, number)]) for number in range(x.shape[at]))


# --- products -------------------------------------------------------------------------------


def matmul(x1: Array, x2: Array, /) -> Array:
    a, b = x1._ref, x2._ref
    if not a.ndim or not b.ndim:
        raise ValueError("matmul of arrays of no dimensions")
    one, other = a.ndim == 1, b.ndim == 1
    if one:
        a = a[None]
    if other:
        b = b[:, None]
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"matmul of shapes {x1.shape} and {x2.shape}")
    dtype = np.result_type(a.dtype, b.dtype)
    products = a[..., :, :, None] * b[..., None, :, :]
    made = on_device("evaluate", products.sum(axis=-2, dtype=dtype))
    key: tuple[Any, ...] = (...,)
    key += (0,) if one else (slice(None),)
    key += (0,) if other else (slice(None),)
    return array_of(made[key])


def tensordot(x1: Array, x2: Array, /, *, axes: Any = 2) -> Array:
    if isinstance(axes, int):
        ours, theirs = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        ours = [normalize_axis_index(axis, x1.ndim) for axis in axes[0]]
        theirs = [normalize_axis_index(axis, x2.ndim) for axis in axes[1]]
    if [x1.shape[at] for at in ours] != [x2.shape[at] for at in theirs]:
        raise ValueError("shapes do not fit")
    a = x1._ref.transpose((*[at for at in range(x1.ndim) if at not in ours], *ours))
    b = x2._ref.transpose((*theirs, *[at for at in range(x2.ndim) if at not in theirs]))
    count = len(ours)
    free = b.ndim - count
    a = a[(..., *[None] * free)]
    dtype = np.result_type(a.dtype, b.dtype)
    axis = tuple(range(x1.ndim - count, x1.ndim))
    products = a * b
    return evaluated(products.sum(axis=axis, dtype=dtype) if count else products)


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    if not -builtins.min(x1.ndim, x2.ndim) <= axis < 0:
        raise ValueError(f"axis {axis} is out of bounds")
    if x1.shape[axis] != x2.shape[axis]:
        raise ValueError("shapes do not fit")
    dtype = np.result_type(x1.dtype, x2.dtype)
    first = np.conjugate(x1._ref) if x1.dtype.kind == "c" else x1._ref
    return evaluated((first * x2._ref).sum(axis=axis, dtype=dtype))


# --- what is there --------------------------------------------------------------------------


class _Info:
    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        return CPU_DEVICE

    def devices(self) -> list[str]:
        return [CPU_DEVICE]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        return {
            "real floating": np.dtype(np.float64),
            "complex floating": np.dtype(np.complex128),
            "integral": np.dtype(np.int64),
            "indexing": np.dtype(np.int64),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        names = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64"
        every = {name: np.dtype(name) for name in f"{names} complex64 complex128".split()}
        if kind is None:
            return every
        return {name: dtype for name, dtype in every.items() if np.isdtype(dtype, kind)}


def __array_namespace_info__() -> _Info:  # noqa: N807
    return _Info()
