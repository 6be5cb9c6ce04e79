"""Constants and dtypes of the Array API standard, and functions of dtypes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import numpy as np

from ..._dtypes import as_dtype
from ...arrays.expressions import Operand
from ...arrays.expressions.promotion import common, kind_of

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

DType = np.dtype[Any]
Kind = str | DType
"""A dtype, or the name of a kind of dtypes, such as ``"real floating"``."""
Flag = bool
"""A bool, by a name that the namespace does not have."""


class FloatInfo(NamedTuple):
    """Limits of a dtype of real or complex floats.

    Attributes:
        bits: the bits of a real number.
        eps: the distance between 1 and the next number.
        max: the largest number.
        min: the least number.
        smallest_normal: the least positive number of full precision.
        dtype: the dtype of real numbers.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


_DTYPES: Final = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float32", "float64", "complex64", "complex128"),
    )
}


@final
class NamespaceInfo:
    """Description of a namespace, which its ``__array_namespace_info__()`` returns.

    Args:
        device: the name of the device.
        waits: whether calls can wait for the device, as those of batches cannot.
    """

    def __init__(self, device: str, *, waits: Flag) -> None:
        self._device: Final = device
        self._waits: Final = waits

    def capabilities(self) -> dict[str, Any]:
        """Return which optional features there are."""
        return {
            "boolean indexing": self._waits,
            "data-dependent shapes": self._waits,
            "max dimensions": 64,
        }

    def default_device(self) -> str:
        """Return the device's name."""
        return self._device

    def devices(self) -> list[str]:
        """Return the names of all devices of the namespace: this one."""
        return [self._device]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:  # noqa: ARG002
        """Return the dtypes that functions give by default."""
        names = ("float64", "complex128", "int64", "int64")
        kinds = ("real floating", "complex floating", "integral", "indexing")
        return {kind: _DTYPES[name] for kind, name in zip(kinds, names, strict=True)}

    def dtypes(
        self,
        *,
        device: str | None = None,  # noqa: ARG002 - there is only one
        kind: Kind | tuple[Kind, ...] | None = None,
    ) -> dict[str, DType]:
        """Return the dtypes by name, all or those of a kind."""
        if kind is None:
            return dict(_DTYPES)
        return {name: dtype for name, dtype in _DTYPES.items() if np.isdtype(dtype, kind)}


class StandardDtypes:
    """Constants and dtypes of the standard; they and functions of dtypes are never awaited."""

    __array_api_version__: Final = "2024.12"

    e: Final = math.e
    inf: Final = math.inf
    nan: Final = math.nan
    newaxis: Final = None
    pi: Final = math.pi

    bool: Final = _DTYPES["bool"]
    int8: Final = _DTYPES["int8"]
    int16: Final = _DTYPES["int16"]
    int32: Final = _DTYPES["int32"]
    int64: Final = _DTYPES["int64"]
    uint8: Final = _DTYPES["uint8"]
    uint16: Final = _DTYPES["uint16"]
    uint32: Final = _DTYPES["uint32"]
    uint64: Final = _DTYPES["uint64"]
    float32: Final = _DTYPES["float32"]
    float64: Final = _DTYPES["float64"]
    complex64: Final = _DTYPES["complex64"]
    complex128: Final = _DTYPES["complex128"]

    def can_cast(self, from_: Operand | DTypeLike, to: DTypeLike, /) -> Flag:
        """Return whether a dtype converts to another one by the rules of promotion."""
        return np.can_cast(from_.dtype if isinstance(from_, Operand) else from_, to)

    def finfo(self, type: Operand | DTypeLike, /) -> FloatInfo:  # noqa: A002 - the standard's name
        """Return the limits of a dtype of floats."""
        of: Any = type.dtype if isinstance(type, Operand) else type
        info: Any = np.finfo(of)
        eps, most, least = float(info.eps), float(info.max), float(info.min)
        return FloatInfo(info.bits, eps, most, least, float(info.smallest_normal), info.dtype)

    def iinfo(self, type: Operand | DTypeLike, /) -> np.iinfo[Any]:  # noqa: A002
        """Return the limits of a dtype of integers."""
        of: Any = type.dtype if isinstance(type, Operand) else type
        return np.iinfo(of)

    def isdtype(self, dtype: DTypeLike, kind: Kind | tuple[Kind, ...]) -> Flag:
        """Return whether a dtype is another one, or of a kind."""
        return np.isdtype(as_dtype(dtype), kind)

    def result_type(self, *arrays_and_dtypes: Operand | complex | DTypeLike) -> DType:
        """Return the dtype that an operation of several arrays, dtypes and numbers gives."""
        kinds: list[Any] = []
        for each in arrays_and_dtypes:
            if isinstance(each, Operand):
                kinds.append(each.dtype)
            else:
                number = isinstance(each, bool | int | float | complex | np.generic)
                kinds.append(kind_of(each) if number else as_dtype(each))
        return common(tuple(kinds))
