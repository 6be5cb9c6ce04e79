"""Messages of the CUTLASS lanes."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ....wire import Address, Message

Sizes = tuple[int, ...]
"""Sizes of products: m, n, k, and the number of products; convolutions add an ``ImageWindow``."""


class BuildCutlass(Message, frozen=True):
    """Prepare a kernel for products of one size.

    The answer is its origin (``"memory"``, ``"disk"`` or ``"built"``), and the seconds spent.

    Attributes:
        spec: the kernel's ``CutlassSpec``, encoded.
        sizes: of the products.
        swizzle: as in ``RunCutlass``.
    """

    returns: ClassVar[Any] = tuple[str, float]
    lasting: ClassVar[bool] = True

    spec: bytes
    sizes: Sizes
    swizzle: int


class RunCutlass(Message, frozen=True):
    """Multiply matrices, or rows gathered from images, and build the kernel first if needed.

    Attributes:
        spec: the kernel's ``CutlassSpec``, encoded.
        sizes: of the products.
        swizzle: tiles that follow each other along the shorter side, so that their operands are in
            the cache.
        a, b, c, out: addresses; c is 0 if nothing is read there.
        buffers: addresses of the epilogue's buffers, by slot.
    """

    spec: bytes
    sizes: Sizes
    swizzle: int
    a: Address
    b: Address
    c: Address
    out: Address
    buffers: tuple[Address, ...]
    numbers: tuple[float, ...]


class Grouped(Message, frozen=True):
    """Multiply matrices of several sizes, and build the kernel first if needed.

    Attributes:
        spec: the kernel's ``CutlassSpec``, encoded.
        rows: m of each product, at least 1.
        sizes: 0, n, k, and the number of products.
        swizzle: as in ``RunCutlass``.
        a, b, out: addresses, one for each product.
        table: address of ``table_bytes`` bytes of memory.
        numbers: the epilogue's.
    """

    spec: bytes
    rows: tuple[int, ...]
    sizes: Sizes
    swizzle: int
    a: tuple[Address, ...]
    b: tuple[Address, ...]
    out: tuple[Address, ...]
    table: Address
    numbers: tuple[float, ...]


_MAP_BYTES: Final = 128
_MOST_MAPS: Final = 3
"""Tensor maps of a multiprocessor for results, and for added operands."""


def table_parts(count: int, processors: int) -> tuple[int, ...]:
    """Return the offsets of the parts of a table of products, in bytes, and its size.

    The parts are: pointers to a, b, the added operand, and the result; strides of their rows;
    sizes; tensor maps of results, and of operands, which the kernel writes.
    """
    vectors = [8 * count * number for number in range(9)]
    maps = -(-(vectors[8] + 12 * count) // _MAP_BYTES) * _MAP_BYTES
    operands = maps + _MOST_MAPS * processors * _MAP_BYTES
    return (*vectors, maps, operands, operands + 2 * processors * _MAP_BYTES)


class RecallKernel(Message, frozen=True):
    """Return the fastest kernel found for such products: its spec and swizzle, or an empty list.

    Attributes:
        wanted: a spec without tile, cluster and schedule, encoded.
        sizes: of the products.
    """

    returns: ClassVar[Any] = list[tuple[bytes, int]]

    wanted: bytes
    sizes: Sizes


class TuneCutlass(Message, frozen=True):
    """Time kernels that are already built on the same operands, and keep the fastest.

    The answer is the milliseconds of each.

    Attributes:
        wanted: as in ``RecallKernel``.
        candidates: specs and swizzles that replace its own.
    """

    returns: ClassVar[Any] = list[float]

    wanted: bytes
    product: RunCutlass
    candidates: tuple[tuple[bytes, int], ...]
