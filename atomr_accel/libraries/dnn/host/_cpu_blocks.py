"""Numbers that have a scale for each block of them, with NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..wire._graph import DnnTensor

Array = np.ndarray[Any, Any]

_BIAS: Final = 127
_NAN: Final = 255


def _dequantize(
    inputs: Mapping[str, Array], attributes: Mapping[str, Any], outputs: Mapping[str, DnnTensor]
) -> dict[str, Array]:
    del outputs
    x, exponents, axis = inputs["input"], inputs["descale"].astype(np.int32), attributes["axis"]
    scales = np.ldexp(np.ones((), x.dtype), exponents - _BIAS)
    scales = np.where(exponents == _NAN, x.dtype.type(np.nan), scales)
    whole = np.repeat(scales, attributes["block_size"], axis)
    return {"y": x * np.take(whole, np.arange(x.shape[axis]), axis)}


FUNCTIONS: Final[dict[str, Any]] = {"block_scale_dequantize": _dequantize}
