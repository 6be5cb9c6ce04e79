"""A device that blocking functions call."""

from __future__ import annotations

import atexit
from functools import partial
from typing import Any, Final

import numpy as np

from atomr_accel import GpuRef

from ..harness import Shared

Array = np.ndarray[Any, Any]

_SHARED: Final = Shared(isolation="process")
atexit.register(_SHARED.close)

CALLED: Final[list[str]] = []
"""The device's functions that the running test has called."""


class OnlyTheirs(Exception):
    """A call of what a device does not have, which goes to NumPy."""


def library_of(name: str) -> Any:
    """Return a library of the device, to look at the signatures of its functions."""
    return getattr(_SHARED.device, name)


async def _called(library: str, name: str, *args: Any, **kwargs: Any) -> Any:
    device = _SHARED.device

    async def put(value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)([await put(each) for each in value])
        return await device.put(plain(value)) if isinstance(value, np.ndarray) else value

    async def got(value: Any) -> Any:
        if isinstance(value, tuple | list):
            parts = [await got(each) for each in value]
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        return await device.get(value) if isinstance(value, GpuRef) else value

    named = {key: await put(each) for key, each in kwargs.items()}
    made = getattr(getattr(device, library), name)(*[await put(each) for each in args], **named)
    made = await got(made if isinstance(made, GpuRef | tuple | list) else await made)
    if isinstance(out := kwargs.get("out"), np.ndarray):
        out[...] = await device.get(named["out"])
    return made


def on_device(library: str, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function of a library on arrays, and return its results as arrays."""
    CALLED.append(name)
    return _SHARED.run(partial(_called, library, name, *args, **kwargs))


def plain(value: Any) -> Array:
    """Return a plain array of one of the dtypes that device memory has."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        raise TypeError(f"array type {array.dtype.name} is unsupported in linalg")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(array).reshape(array.shape)


__all__ = ["CALLED", "Array", "OnlyTheirs", "library_of", "on_device", "plain"]
