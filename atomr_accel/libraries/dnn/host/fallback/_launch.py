"""How our own kernels are launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ....host._device_code import CudaSource

THREADS: Final = 256
"""Threads of a block."""


class Launch(NamedTuple):
    """A kernel with its arguments.

    Attributes:
        source: where it is.
        name: its name expression.
        items: the threads it can use.
        data: its arguments, packed.
    """

    source: CudaSource
    name: str
    items: int
    data: bytes
