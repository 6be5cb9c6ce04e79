"""Launches of our own kernels."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .....executors.device_code import CudaSource

THREADS: Final = 256
"""Threads of a block."""

_SLOT: Final = 8
"""Bytes of a pointer and of a number, which lie at multiples of it."""


class Pointer(NamedTuple):
    """The place of a tensor's pointer among arguments; null without a tensor."""

    id: int | None


class NumberPlace(NamedTuple):
    """The place of a number among arguments, a double."""

    id: int


Part: TypeAlias = bytes | Pointer | NumberPlace
"""A piece of arguments: the same in every run of a graph, or different in each."""


class LaunchForm(NamedTuple):
    """A kernel with the arguments that are the same in every run of a graph.

    Attributes:
        source: the source file.
        name: its name expression.
        items: number of threads that it can use.
        data: its arguments, with zeros for those that change.
        pointers: offsets of pointers in ``data``, in words of eight bytes, with their ids.
        numbers: offsets of numbers in ``data``, in words of eight bytes, with their ids.
    """

    source: CudaSource
    name: str
    items: int
    data: bytes
    pointers: tuple[tuple[int, int], ...]
    numbers: tuple[tuple[int, int], ...]

    def filled(self, addresses: Mapping[int, int], scalars: Mapping[int, float]) -> FallbackLaunch:
        """The launch of a run, whose pointers and numbers are given by id."""
        data = bytearray(self.data)
        for at, id_ in self.pointers:
            struct.pack_into("<Q", data, at * _SLOT, addresses.get(id_, 0))
        for at, id_ in self.numbers:
            struct.pack_into("<d", data, at * _SLOT, scalars.get(id_, 0.0))
        return FallbackLaunch(self.source, self.name, self.items, bytes(data))


class FallbackLaunch(NamedTuple):
    """A kernel with all of its arguments.

    Attributes:
        source: the source file.
        name: its name expression.
        items: number of threads that it can use.
        data: its arguments, packed.
    """

    source: CudaSource
    name: str
    items: int
    data: bytes


def form(source: CudaSource, name: str, items: int, *parts: Part) -> LaunchForm:
    """The launch of a kernel whose arguments are ``parts``, one after the other."""
    data = bytearray()
    pointers, numbers = [], []
    for part in parts:
        if isinstance(part, bytes):
            data += part
            continue
        word, beyond = divmod(len(data), _SLOT)
        assert not beyond
        if isinstance(part, NumberPlace):
            numbers.append((word, part.id))
        elif part.id is not None:
            pointers.append((word, part.id))
        data += bytes(_SLOT)
    return LaunchForm(source, name, items, bytes(data), tuple(pointers), tuple(numbers))
