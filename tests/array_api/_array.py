"""Arrays of the Array API standard: refs, and a device to compute them."""

from __future__ import annotations

import atexit
from functools import partial
from typing import Any, Final

import numpy as np

from ..harness import Shared

_SHARED: Final = Shared(isolation="thread")
atexit.register(_SHARED.close)

CPU_DEVICE: Final = "device"


def run(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Await a call beside the device."""
    return _SHARED.run(partial(function, *args, **kwargs))


def device() -> Any:
    """The device."""
    return _SHARED.device


def on_device(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method of the device."""
    return run(getattr(_SHARED.device, name), *args, **kwargs)


def called(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function of ``device.array``."""
    return run(getattr(_SHARED.device.array, name), *args, **kwargs)


def array_of(ref: Any) -> Array:
    """A ref as an array, or several."""
    made = Array.__new__(Array)
    made._ref = ref
    return made


def unwrapped(value: Any) -> Any:
    """Return the ref of an array; return a number unchanged."""
    return value._ref if isinstance(value, Array) else value


def refs_of(values: Any) -> list[Any]:
    """Return the refs of several arrays."""
    return [unwrapped(value) for value in values]


def evaluated(expression: Any) -> Array:
    """Return the array of an expression's values."""
    return array_of(on_device("evaluate", expression))


def _kind_of(value: Any) -> int:
    return {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}[value.dtype.kind]


def _checked(x: Array, other: Any) -> Any:
    """Return the checked operand of an operator.

    Raises:
        TypeError: a Python number of a kind that the array does not hold.
    """
    if isinstance(other, Array):
        return other._ref
    if isinstance(other, bool):
        kind = 0
    elif isinstance(other, int):
        kind = 1
    elif isinstance(other, float):
        kind = 2
    elif isinstance(other, complex):
        kind = 3
    else:
        return NotImplemented
    if kind > max(_kind_of(x), 1 if x.dtype.kind != "b" else 0) and not (
        kind == 3 and x.dtype.kind == "f"
    ):
        raise TypeError(f"{other!r} with an array of {x.dtype}")
    return other


def _operator(name: str, *, reflected: bool = False) -> Any:
    function: Any = getattr(np, name)

    def call(self: Array, other: Any, /) -> Any:
        value = _checked(self, other)
        if value is NotImplemented:
            return NotImplemented
        pair = (value, self._ref) if reflected else (self._ref, value)
        return evaluated(function(*pair))

    return call


def _in_place(name: str) -> Any:
    function: Any = getattr(np, name)

    def call(self: Array, other: Any, /) -> Any:
        value = _checked(self, other)
        if value is NotImplemented:
            return NotImplemented
        on_device("evaluate", function(self._ref, value), out=self._ref)
        return self

    return call


class Array:
    """An array of the standard."""

    __slots__ = ("_ref",)
    _ref: Any

    def __new__(cls, *_args: Any) -> Array:
        return super().__new__(cls)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        import tests.array_api as namespace

        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
            raise ValueError(f"no version {api_version!r}")
        return namespace

    @property
    def dtype(self) -> Any:
        return self._ref.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._ref.shape
        return shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(self._ref.size)

    @property
    def device(self) -> str:
        return CPU_DEVICE

    @property
    def T(self) -> Array:  # noqa: N802
        if self.ndim != 2:
            raise ValueError("T is of matrices")
        return array_of(self._ref.T)

    @property
    def mT(self) -> Array:  # noqa: N802
        return array_of(self._ref.mT)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Array:
        if device != CPU_DEVICE or stream is not None:
            raise ValueError(f"no device {device!r}")
        return self

    def host(self) -> Any:
        """The values."""
        return on_device("get", self._ref)

    def _one(self) -> Any:
        if self.ndim:
            raise TypeError("only arrays of no dimensions are numbers")
        return self.host()

    def __bool__(self, /) -> bool:
        return bool(self._one())

    def __int__(self, /) -> int:
        return int(self._one())

    def __float__(self, /) -> float:
        if self.dtype.kind == "c":
            raise TypeError("a complex number is no float")
        return float(self._one())

    def __complex__(self, /) -> complex:
        return complex(self._one())

    def __index__(self, /) -> int:
        if self.dtype.kind not in "iu":
            raise TypeError("only whole numbers are indices")
        return int(self._one())

    def __len__(self, /) -> int:
        return self.shape[0]

    def __repr__(self, /) -> str:
        return f"Array({self.host()!r})"

    def __getitem__(self, key: Any, /) -> Array:
        keys = key if isinstance(key, tuple) else (key,)
        given = tuple(map(unwrapped, keys))
        if any(isinstance(each, Array) for each in keys):
            return array_of(called("getitem", self._ref, given, "raise"))
        return array_of(self._ref[given])

    def __setitem__(self, key: Any, value: Any, /) -> None:
        keys = key if isinstance(key, tuple) else (key,)
        given = tuple(map(unwrapped, keys))
        called("setitem", self._ref, given, unwrapped(value), deterministic=True)

    def __abs__(self, /) -> Array:
        return evaluated(abs(self._ref))

    def __neg__(self, /) -> Array:
        return evaluated(-self._ref)

    def __pos__(self, /) -> Array:
        return evaluated(+self._ref)

    def __invert__(self, /) -> Array:
        return evaluated(~self._ref)

    def __matmul__(self, other: Array, /) -> Array:
        from ._functions import matmul

        if not isinstance(other, Array):
            return NotImplemented
        return matmul(self, other)

    def __rmatmul__(self, other: Array, /) -> Array:
        from ._functions import matmul

        if not isinstance(other, Array):
            return NotImplemented
        return matmul(other, self)

    def __imatmul__(self, other: Array, /) -> Array:
        from ._functions import matmul

        on_device("copy", matmul(self, other)._ref, self._ref)
        return self

    def __dlpack__(
        self,
        /,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        return self.host().__dlpack__(max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self, /) -> Any:
        return self.host().__dlpack_device__()

    __hash__ = None  # type: ignore[assignment]


_OPERATORS: Final = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "power",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "left_shift",
    "rshift": "right_shift",
}
for _name, _numpy in _OPERATORS.items():
    setattr(Array, f"__{_name}__", _operator(_numpy))
    setattr(Array, f"__r{_name}__", _operator(_numpy, reflected=True))
    setattr(Array, f"__i{_name}__", _in_place(_numpy))
for _name, _numpy in {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    setattr(Array, f"__{_name}__", _operator(_numpy))
