"""What the lanes of CUTLASS execute."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from ....wire import Message

Sizes = tuple[int, ...]
"""Of products: m, n, k, and how many there are; of convolutions a ``Window`` follows."""


class Build(Message, frozen=True):
    """Have a kernel ready for products of a size.

    Answered by where it came from (``"memory"``, ``"disk"`` or ``"built"``), and the seconds that
    took.

    Attributes:
        spec: what is built, encoded.
        sizes: of the products.
        swizzle: as in ``Matmul``.
    """

    returns: ClassVar[Any] = tuple[str, float]
    lasting: ClassVar[bool] = True

    spec: bytes
    sizes: Sizes
    swizzle: int


class Matmul(Message, frozen=True):
    """Multiply matrices, or what is found in images, building the kernel first if it is not there.

    Attributes:
        spec: what is run, encoded.
        sizes: of the products.
        swizzle: tiles that follow each other along the shorter side, so that they find what they
            need in the cache.
        a, b, c, out: addresses; c is 0 if nothing is read there.
        buffers: addresses of what the epilogue reads and writes, by its slots.
        numbers: its numbers.
    """

    spec: bytes
    sizes: Sizes
    swizzle: int
    a: int
    b: int
    c: int
    out: int
    buffers: tuple[int, ...]
    numbers: tuple[float, ...]


class Grouped(Message, frozen=True):
    """Multiply matrices of several sizes, building the kernel first if it is not there.

    Attributes:
        spec: what is run, encoded.
        rows: m of each product, none of which is 0.
        sizes: 0, n, k, and how many there are.
        swizzle: as in ``Matmul``.
        a, b, out: addresses, one of each product.
        table: of memory for ``table_bytes`` of so many products.
        numbers: the epilogue's.
    """

    spec: bytes
    rows: tuple[int, ...]
    sizes: Sizes
    swizzle: int
    a: tuple[int, ...]
    b: tuple[int, ...]
    out: tuple[int, ...]
    table: int
    numbers: tuple[float, ...]


_MAP_BYTES: Final = 128
_MOST_MAPS: Final = 3
"""Tensor maps of a multiprocessor for results, and for what is added."""


def table_parts(count: int, processors: int) -> tuple[int, ...]:
    """Where the parts of a table of products begin, in bytes, and where it ends.

    The parts are: pointers to a, b, what is added, and the result; strides of their rows; sizes;
    tensor maps of results, and of operands, which the kernel writes.

    Args:
        count: of products.
        processors: multiprocessors of the device.
    """
    vectors = [8 * count * number for number in range(9)]
    maps = -(-(vectors[8] + 12 * count) // _MAP_BYTES) * _MAP_BYTES
    operands = maps + _MOST_MAPS * processors * _MAP_BYTES
    return (*vectors, maps, operands, operands + 2 * processors * _MAP_BYTES)


class Recall(Message, frozen=True):
    """What was found fastest for such products; answered by its spec and swizzle, if anything was.

    Attributes:
        wanted: a spec without tile, cluster and schedule, encoded.
        sizes: of the products.
    """

    returns: ClassVar[Any] = list[tuple[bytes, int]]

    wanted: bytes
    sizes: Sizes


class Tune(Message, frozen=True):
    """Time kernels, which are built already, on the same operands, and keep which is fastest.

    Answered by the milliseconds of each.

    Attributes:
        wanted: as in ``Recall``.
        product: what is run.
        candidates: specs and swizzles that take the place of its own.
    """

    returns: ClassVar[Any] = list[float]

    wanted: bytes
    product: Matmul
    candidates: tuple[tuple[bytes, int], ...]
