"""``device.xp`` through ``open_blocking``, for the standard's own tests.

    ARRAY_API_TESTS_MODULE=tests.array_api pytest array_api_tests

They call functions and operators without awaiting, so an array here evaluates its operators.
"""

from __future__ import annotations

import atexit
import inspect
import operator
from functools import wraps
from typing import Any, Final

import numpy as np

from atomr_accel import GpuRef, open_blocking
from atomr_accel.libraries.xp._facade import ArrayApi

from ..harness import BACKEND

_GPU: Final = open_blocking(0, backend=BACKEND, isolation="thread")
atexit.register(_GPU.close)
__version__: Final = "of the working tree"


def _ref_of(value: Any) -> Any:
    """Return the ref of an array, also in tuples, lists and slices; other values unchanged."""
    if isinstance(value, tuple | list):
        return type(value)(_ref_of(each) for each in value)
    if isinstance(value, slice):
        parts = (value.start, value.stop, value.step)
        return slice(*(part if part is None else operator.index(part) for part in parts))
    return value._ref if isinstance(value, Array) else value


def _on_host(value: Any) -> Any:
    """Return numbers instead of arrays in nested lists."""
    if isinstance(value, tuple | list):
        return [_on_host(each) for each in value]
    return _run("get", value, of="") if isinstance(value, Array) else value


def _array_of(made: Any) -> Any:
    """Return arrays instead of refs, also in tuples."""
    if isinstance(made, GpuRef):
        return Array(made)
    if isinstance(made, tuple) and made and isinstance(made[0], GpuRef):
        arrays = [Array(each) for each in made]
        return type(made)(*arrays) if hasattr(made, "_fields") else tuple(arrays)
    return made


def _run(name: str, *args: Any, of: str = "xp", **kwargs: Any) -> Any:
    """Call a function of the device's, and wait for it."""

    given, named = _ref_of(args), {key: _ref_of(value) for key, value in kwargs.items()}

    async def call(device: Any) -> Any:
        owner = getattr(device, of) if of else device
        made = getattr(owner, name)(*given, **named)
        return await made if inspect.isawaitable(made) else made

    return _array_of(_GPU.run(call))


class Array:
    """A ref whose operators are evaluated at once."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, ref: GpuRef) -> None:
        self._ref = ref

    def __getattr__(self, name: str) -> Any:
        if name not in ("dtype", "shape", "ndim", "size", "device", "T", "mT"):
            raise AttributeError(name)
        if name == "T" and self._ref.ndim != 2:
            raise ValueError("T is of matrices")
        return _array_of(getattr(self._ref, name))

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        import tests.array_api as namespace

        return namespace

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        assert device == self.device
        return self

    def __len__(self, /) -> int:
        return len(self._ref)

    def __repr__(self, /) -> str:
        return f"Array({_run('get', self, of='')!r})"

    def __getitem__(self, key: Any, /) -> Array:
        array: Array = _run("getitem", self, key, "raise")
        return array

    def __setitem__(self, key: Any, value: Any, /) -> None:
        _run("setitem", self, key, value, deterministic=True)

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        host = _run("get", self, of="")
        return host.__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self, /) -> Any:
        return _run("get", self, of="").__dlpack_device__()


def _as_number(convert: Any, kinds: str) -> Any:
    def number(self: Array, /) -> Any:
        if self.ndim or self.dtype.kind not in kinds:
            raise TypeError(f"{convert.__name__} of {self.dtype} with {self.ndim} dimensions")
        return convert(_run("get", self, of="")[()])

    return number


def _operator(of: Any, *, reflected: bool = False, in_place: bool = False) -> Any:
    def call(self: Array, other: Any = None, /) -> Any:
        pair = _ref_of((self,) if of in _OF_ONE else (other, self) if reflected else (self, other))
        return _run("evaluate", of(*pair), out=self if in_place else None, of="")

    return call


_OF_ONE: Final = (operator.abs, operator.neg, operator.pos, operator.invert)
for _name, _convert, _kinds in (
    *(("bool", bool, "biufc"), ("int", int, "biuf"), ("float", float, "biuf")),
    *(("complex", complex, "biufc"), ("index", operator.index, "iu")),
):
    setattr(Array, f"__{_name}__", _as_number(_convert, _kinds))
for _of in _OF_ONE:
    setattr(Array, f"__{_of.__name__.strip('_')}__", _operator(_of))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Array, f"__{_name}__", _operator(getattr(operator, _name)))
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift"),
    *("rshift", "matmul"),
):
    _of = getattr(operator, f"__{_name}__")
    setattr(Array, f"__{_name}__", _operator(_of))
    setattr(Array, f"__r{_name}__", _operator(_of, reflected=True))
    setattr(Array, f"__i{_name}__", _operator(_of, in_place=True))


def __getattr__(name: str) -> Any:
    """Return a constant or a dtype of ``device.xp``, or a function that waits."""
    found: Any = getattr(ArrayApi, name)
    if not callable(found) or isinstance(found, np.dtype):
        return found

    @wraps(found)
    def call(*args: Any, **kwargs: Any) -> Any:
        if name == "asarray" and not isinstance(args[0], Array):
            args = (_on_host(args[0]),)
        made = _run(name, *args, **kwargs)
        return list(made) if name in ("broadcast_arrays", "meshgrid") else made

    signature = inspect.signature(found)
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values()][1:]
    )
    return call
