"""Reports of drivers and of the vendor's libraries, read in a child process."""

from __future__ import annotations

import msgspec

from ._children import ChildFailed, ask_child
from ._documents import DriverPart, GpuPart

_SECONDS = 60.0
"""Limit of the wait; a driver that wakes GPUs, or a cold disk, takes its time."""


class VendorAnswer(msgspec.Struct, frozen=True):
    """The answer.

    Attributes:
        driver: the GPU driver.
        gpus: the GPUs of the driver.
        libraries: version, path and problem of each library, by its name.
    """

    driver: DriverPart
    gpus: list[GpuPart]
    libraries: dict[str, dict[str, str | None]]


def ask_vendor() -> VendorAnswer:
    """Ask; if the child fails, that is the driver's problem."""
    try:
        return msgspec.json.decode(ask_child("_vendor", b"", _SECONDS), type=VendorAnswer)
    except ChildFailed as failure:
        problem = f"looking at it failed: {failure}"
        return VendorAnswer(DriverPart(version=None, cuda=None, problem=problem), [], {})
