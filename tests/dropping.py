"""Lines that raise and drop an array, or its DLPack capsule, meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import reduce
from operator import index
from typing import Any, Final

import numpy as np

from atomr_accel.wire.interop import borrow

Take = Callable[[Any], Any]

TAKES: Final[dict[str, Take]] = {
    "capsule": lambda array: array.__dlpack__(),
    "versioned": lambda array: array.__dlpack__(max_version=(1, 0)),
    "numpy": np.from_dlpack,
    "borrowed": borrow,
}
"""Ways to take an array by DLPack."""


def _unpack(take: Take, array: Any) -> Any:
    first, second = take(array), 1 // 0
    return first, second


def _frame(take: Take, array: Any) -> Any:
    taken = take(array)
    raise KeyError(taken)


DROPS: Final[dict[str, tuple[Any, Callable[[Take, Any], Any]]]] = {
    "list": (ZeroDivisionError, lambda take, array: [take(array), 1 // 0]),
    "call": (ZeroDivisionError, lambda take, array: max(take(array), 1 // 0)),
    "unpacking": (ZeroDivisionError, _unpack),
    "set": (TypeError, lambda take, array: {take(array), []}),
    "nested": (ZeroDivisionError, lambda take, array: [[take(array)], {0: take(array)}, 1 // 0]),
    "generator": (ZeroDivisionError, lambda take, array: [1 // 0 for _ in [take(array)]]),
    "reduce": (
        ZeroDivisionError,
        lambda take, array: reduce(lambda _a, _b: 1 // 0, [take(array), take(array)]),
    ),
    "refused call": (TypeError, lambda take, array: index(*[take(array), 1])),
    "operator": ((TypeError, ValueError), lambda take, array: take(array) @ None),
    "attribute": (AttributeError, lambda take, array: take(array).nothing),
    "frame": (KeyError, _frame),
}
"""Lines, with the error that each has."""

REFUSED: Final = (RuntimeError, BufferError)
"""NumPy's errors for a dtype or a device that it does not know."""


def failures(array: Any, drops: Iterable[str]) -> list[str]:
    """Run lines with an array, taken in every way, and return those whose error did not arrive."""
    failed = []
    for name, take in TAKES.items():
        for drop in drops:
            expected, line = DROPS[drop]
            try:
                with suppress(expected, *REFUSED):
                    line(take, array)
                    failed.append(f"{drop} of {name}: no error")
            except SystemError as error:
                failed.append(f"{drop} of {name}: {error!r}")
    return failed
