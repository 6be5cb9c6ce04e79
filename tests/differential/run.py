"""Cases of ``device.run``: functions in hosts, their arguments and results."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import numpy as np
import pytest

from atomr_accel import Device

from .cases import Case, choose, shape, values

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # hosts need not find this module


def work(kind: str, x: Any, *others: Any) -> Any:
    """Do the host's part of a call."""
    if kind == "numbers":
        return [len(others), *others]
    if kind == "error":
        raise LookupError("on purpose")
    if kind == "shape":
        return tuple(x.shape), str(x.dtype)
    if kind == "large":
        return bytes(others[0])
    if isinstance(x, np.ndarray):
        if kind == "double":
            x[...] = x + x
        return float(np.asarray(x, np.float64).sum())
    import cupy  # on CUDA buffers come as what this library takes

    array = cupy.asarray(x)
    if kind == "double":
        array[...] = array + array
    return float(array.astype(cupy.float64).sum())


async def check(device: Device, random: np.random.Generator) -> str | None:
    """Draw a case, run it, and compare."""
    case = Case(device, random)
    with case.described():
        kind = choose(random, ("numbers", "error", "shape", "large", "sum", "double"))
        array = values(random, shape(random, 1, 3), choose(random, ("float32", "float64", "int32")))
        array = np.round(array * 8).astype(array.dtype)
        case.tell(kind=kind, dtype=array.dtype.name, shape=array.shape)
        ref = await device.put(array)
        if kind == "numbers":
            given = [1, 2.5, "text", b"bytes", None, (1, 2), {"a": [3]}, True]
            others = [choose(random, given) for _ in range(int(random.integers(0, 6)))]
            assert await device.run(work, kind, None, *others) == [len(others), *others]
        elif kind == "error":
            with pytest.raises(LookupError, match="on purpose"):
                await device.run(work, kind, ref)
        elif kind == "shape":
            found = await device.run(work, kind, ref)
            assert (tuple(found[0]), found[1]) == (array.shape, str(array.dtype)), f"{found}"
        elif kind == "large":
            count = choose(random, (0, 1, 1000, 70_000, 1_000_000))
            assert await device.run(work, kind, None, count) == bytes(count)
        else:
            expected = float(array.astype(np.float64).sum()) * (2 if kind == "double" else 1)
            found = await device.run(work, kind, ref)
            assert abs(found - expected) <= 1e-6 * (1 + np.abs(array).sum()), f"{found}, {expected}"
            after = array * 2 if kind == "double" else array
            got = await device.get(ref)
            assert got.tobytes() == after.astype(array.dtype).tobytes(), "other content"
    return None
