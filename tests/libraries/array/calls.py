"""Calls of ``device.array`` against NumPy's: any shape, dtype and layout."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from atomr_accel import Device, GpuRef
from atomr_accel.lanes import DeviceInstrument, WatchedOp

from ..conformance import dtype_of

Array = np.ndarray[Any, Any]

REAL: Final = ("int8", "int64", "uint8", "uint32", "float16", "float32", "float64", "bool")
NUMBERS: Final = (*REAL, "bfloat16", "complex64")
FLOATS: Final = ("float16", "float32", "float64")
LAYOUTS: Final = ("plain", "transposed", "gaps", "reversed")

SHAPES: Final = st.lists(st.integers(0, 4), max_size=4).map(tuple)
FILLED: Final = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
SEEDS: Final = st.integers(0, 2**20)


def sample(seed: int, shape: tuple[int, ...], dtype: str, *, strange: bool = False) -> Array:
    """Small whole numbers; if ``strange`` some NaN, infinities and zeros with signs."""
    rng = np.random.default_rng(seed)
    kind = dtype_of(dtype)
    low = 0 if kind.kind in "ub" else -4
    values: Array = np.asarray(rng.integers(low, 2 if kind.kind == "b" else 5, shape)).astype(kind)
    if kind.kind == "c":
        values = values + (1j * rng.integers(-4, 5, shape)).astype(kind)
    if strange and kind.kind in "fV" and values.size:
        odd = np.array([np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf]).astype(kind)
        chosen = rng.random(shape) < 0.3
        values = np.where(chosen, rng.choice(odd, shape), values).astype(kind)
    return values


async def put(device: Device, host: Array, layout: str = "plain") -> GpuRef:
    """An array on the device, as some view of a buffer."""
    if layout == "transposed" and host.ndim:
        return (await device.put(np.ascontiguousarray(host.T))).T
    if layout == "gaps" and host.ndim:
        return (await device.put(np.repeat(host, 2, axis=-1)))[..., ::2]
    if layout == "reversed" and host.ndim:
        return (await device.put(np.ascontiguousarray(host[::-1])))[::-1]
    return await device.put(np.ascontiguousarray(host) if host.ndim else host)


async def fetched(device: Device, made: Any) -> Any:
    """Return the results of a call as host arrays."""
    if isinstance(made, tuple | list):
        return [await device.get(each) for each in made]
    return await device.get(made)


def same(got: Any, expected: Any, *, near: float = 0.0) -> None:
    """Equal shapes, dtypes and values, NaN too; or nearly equal ones."""
    if isinstance(got, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            same(one, other, near=near)
        return
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
        return
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    one, other = got.astype(wide), expected.astype(wide)
    if near:
        np.testing.assert_allclose(one, other, rtol=near, atol=near)
    else:
        np.testing.assert_array_equal(one, other)


def by_numpy(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return NumPy's result for a call, with its warnings suppressed."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(np, name)(*args, **kwargs)


class Numpy:
    """NumPy, without its warnings."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: by_numpy(name, *args, **kwargs)


class Count(DeviceInstrument):
    """Notes the ops that are submitted."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def op_submitted(self, op: WatchedOp) -> None:
        self.names.append(op.name)
