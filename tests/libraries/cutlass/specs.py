"""Shared parts of the kernel tests: specs, operands, and tolerances of results."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from atomr_accel import Device, GpuRef, LibraryMissing
from atomr_accel.libraries.cutlass.host._builds import headers
from atomr_accel.libraries.cutlass.wire._spec import CutlassSpec, EpilogueNode

from ..conformance import MARKS, dtype_of, on_cuda

Array = np.ndarray[Any, Any]


def _missing() -> str:
    """Return the error message of a header that is missing on a GPU, or an empty string."""
    try:
        if on_cuda():
            headers()
    except LibraryMissing as missing:
        return str(missing)
    return ""


_MISSING: Final = _missing()
COMPILING: Final = [*MARKS, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]
"""For ``pytestmark`` of tests that compile kernels where they run on a GPU."""

PRODUCT: Final = EpilogueNode("accumulator")


def spec(**changed: Any) -> CutlassSpec:
    given = {
        **dict.fromkeys(("a", "b", "out"), "bfloat16"),
        "trans_a": False,
        "trans_b": True,
        "epilogue": PRODUCT,
        "source": "",
        "tile": (128, 128, 64),
        "cluster": (2, 1, 1),
        "schedule": "cooperative",
        "stages": 0,
        "fast": False,
    }
    return CutlassSpec(**{**given, **changed})


FIXED: Final[Any] = {"tile": (128, 128, 64), "cluster": (2, 1, 1)}
"""One kernel for several tests, since on a GPU each takes half a minute."""

EPS: Final = {
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float32": 2.0**-9,
    "float8_e4m3fn": 2.0**-3,
    "int32": 0.0,
}
"""Roundings of results; of float32, TF32's of operands."""


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


async def put(device: Device, shape: tuple[int, ...], dtype: str) -> tuple[GpuRef, Array]:
    made = rng().integers(-4, 5, shape) / 4 if dtype != "int8" else rng().integers(-9, 9, shape)
    array = made.astype(dtype_of(dtype))
    return await device.put(array), array.astype(np.float64)


async def near(device: Device, ref: GpuRef, expected: Array, dtype: str) -> None:
    assert ref.dtype == dtype_of(dtype)
    got = (await device.get(ref)).astype(np.float64)
    bound = EPS[dtype] * (1 + np.abs(expected))
    assert got.shape == expected.shape
    assert (np.abs(got - expected) <= bound).all()
