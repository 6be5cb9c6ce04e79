"""Checks of devices: a small computation of each library, compared with NumPy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._errors import AccelError, LibraryMissing, Unsupported
from ..ops import LibraryCheck
from ._documents import CheckPart
from ._libraries import known_libraries

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..device import Device

Pair = tuple["NDArray[Any]", "NDArray[Any]"]
"""The result of a device, and the expected one."""


async def _memory(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal((1 << 18,), np.float32)
    ref = await device.put(x)
    return await device.get(await device.copy(ref)), x


async def _run(device: Device, rng: np.random.Generator) -> Pair:
    x = rng.standard_normal(100)
    return np.array(await device.run(sum, x.tolist())), np.array(sum(x.tolist()))


def checks() -> tuple[tuple[str, LibraryCheck], ...]:
    """Return all checks with the names of their libraries, in the order in which they are made."""
    of_libraries = ((name, each.check) for name, each in known_libraries().all.items())
    return (
        ("memory", LibraryCheck("put, copy and get", 0.0, _memory)),
        *((name, check) for name, check in of_libraries if check is not None),
        ("run", LibraryCheck("a function in the host", 0.0, _run)),
    )


async def checked(device: Device, library: str, check: LibraryCheck) -> CheckPart:
    """Make one check.

    Returns:
        How it went; errors are in it, not raised.
    """
    rng = np.random.default_rng(hash_of(library))
    began = time.perf_counter()
    what = check.what

    def ended(
        outcome: Literal["ok", "wrong", "missing", "unsupported", "failed"],
        error: float | None = None,
        detail: str | None = None,
    ) -> CheckPart:
        return CheckPart(
            device=device.name,
            library=library,
            what=what,
            outcome=outcome,
            error=error,
            tolerance=check.tolerance,
            seconds=time.perf_counter() - began,
            detail=detail,
        )

    try:
        got, expected, *instead = await check.compute(device, rng)
        what = instead[0] if instead else what
        error = deviation(got, expected)
    except LibraryMissing as missing:
        return ended("unsupported" if check.optional else "missing", detail=str(missing))
    except Unsupported as unsupported:
        return ended("unsupported", detail=str(unsupported))
    except (AccelError, OSError, RuntimeError, TypeError, ValueError, ImportError) as failure:
        return ended("failed", detail=f"{type(failure).__name__}: {failure}")
    if error is not None and error <= check.tolerance:
        return ended("ok", error)
    return ended("wrong", error, None if error is not None else "not finite, or of another shape")


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    return int.from_bytes(text.encode(), "little") % (1 << 32)


def deviation(got: NDArray[Any], expected: NDArray[Any]) -> float | None:
    """Return the largest deviation in units of the largest element; None if it is undefined."""
    if got.shape != expected.shape or not np.isfinite(got).all():
        return None
    if not expected.size:
        return 0.0
    wide = np.result_type(expected.dtype, np.float64)
    largest = float(np.abs(expected).max())
    return float(np.abs(got.astype(wide) - expected.astype(wide)).max()) / (largest or 1.0)
