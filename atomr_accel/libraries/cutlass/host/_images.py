"""Facts that are known when a kernel is compiled: its image holds them, and no GPU is needed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from ._source import FACTS

if TYPE_CHECKING:
    from collections.abc import Iterator

_SYMBOLS: Final = 2
"""The type of an ELF section of symbols."""
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")


class Map(NamedTuple):
    """A tensor map among a kernel's parameters.

    Attributes:
        offset: bytes of parameters before it.
        modes: the number of its dimensions.
        box: elements, rows and matrices that are loaded or stored at a time.
        swizzle: as ``CUtensorMapSwizzle``.
    """

    offset: int
    modes: int
    box: tuple[int, int, int]
    swizzle: int


class Facts(NamedTuple):
    """The facts about a kernel that the host needs.

    Attributes:
        params: bytes of its parameters.
        shared: bytes of shared memory.
        threads: of a block.
        stages: tiles that are loaded ahead.
        maps: of a, b, the added operand, and the result.
    """

    params: int
    shared: int
    threads: int
    stages: int
    maps: tuple[Map, Map, Map, Map]


def facts_of(image: bytes) -> Facts:
    """The facts in a cubin."""
    data = _variable(image, b"facts")
    numbers = struct.unpack(f"<{len(data) // 8}Q", data)
    params, shared, threads, stages, by_a, by_b = numbers[: len(FACTS)]
    cuts = by_a, by_b, 1, 1
    a, b, c, out = (
        _map(numbers[at : at + 6], cut)
        for at, cut in zip(range(len(FACTS), len(numbers), 6), cuts, strict=True)
    )
    return Facts(params, shared, threads, stages, (a, b, c, out))


def _map(numbers: tuple[int, ...], cut: int) -> Map:
    """A tensor map; each of the blocks that share a tile loads one of ``cut`` parts of it."""
    offset, modes, *box, swizzle = numbers
    for at in (2, 1, 0):  # as cute::detail::make_tma_copy_desc does it
        size = box[at]
        box[at], cut = -(-size // cut), -(-cut // size)
    return Map(offset, modes, (box[0], box[1], box[2]), swizzle)


def _variable(image: bytes, name: bytes) -> bytes:
    """Return the value of a variable of a cubin, which is an ELF file."""
    sections = [*_sections(image)]
    for _, kind, _, _, begin, size, link, *_ in sections:
        if kind != _SYMBOLS:
            continue
        names = sections[link][4]
        for at in range(begin, begin + size, _SYMBOL.size):
            text, _, _, section, value, nbytes = _SYMBOL.unpack_from(image, at)
            if image.startswith(name + b"\0", names + text):
                there = sections[section][4] + value
                return image[there : there + nbytes]
    raise ValueError(f"the image has no variable {name.decode()!r}")


def _sections(image: bytes) -> Iterator[tuple[int, ...]]:
    (begin,) = struct.unpack_from("<Q", image, 0x28)
    (count,) = struct.unpack_from("<H", image, 0x3C)
    for number in range(count):
        yield _SECTION.unpack_from(image, begin + number * _SECTION.size)
