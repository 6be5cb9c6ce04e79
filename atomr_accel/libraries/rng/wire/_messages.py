"""Messages of the RNG lane."""

from __future__ import annotations

from typing import ClassVar

from ....wire import Address, Message


class Distribution(Message, frozen=True):
    """A distribution of values.

    Attributes:
        name: a row of ``_distributions.DISTRIBUTIONS``.
        dtype: of the values, by name.
        floats: its parameters.
        low: the least integer, modulo 2**64.
        span: how many integers; 0 stands for 2**64.
        table: address of a distribution function as float64, for ``search``.
        extent: its entries.
    """

    name: str
    dtype: str
    floats: tuple[float, ...] = ()
    low: int = 0
    span: int = 0
    table: Address = 0
    extent: int = 0


class Draw(Message, frozen=True):
    """Fill a buffer with random values.

    Attributes:
        distribution: of what.
        kind: the generator.
        ordering: of cuRAND's generators, by name.
        key: its seed, 64 bits.
        position: where in its sequence to begin, in words of 32 bits; a multiple of 4.
        rejection_offset: the same for what draws until it accepts, in blocks of four words.
        target: address.
        count: values.
        scratch: address of memory for the words, or 0: they fit the target.
    """

    distribution: Distribution
    kind: str
    ordering: str
    key: int
    position: int
    rejection_offset: int
    target: Address
    count: int
    scratch: Address


class Points(Message, frozen=True):
    """Fill a buffer with quasi-random points, one after the other.

    Attributes:
        distribution: of their coordinates.
        kind: the sequence.
        dimensions: coordinates of a point.
        first: index of the first point.
        target: address.
        count: points.
    """

    distribution: Distribution
    kind: str
    dimensions: int
    first: int
    target: Address
    count: int


class Pick(Message, frozen=True):
    """Choose items without repeating any, as int64.

    Attributes:
        kind, key, position, rejection_offset: as in ``Draw``.
        items: how many there are.
        count: how many to choose.
        weights: address of their weights as float64, or 0.
        target: address.
        scratch: address of a float64 for each item, or 0: then there are no weights.
    """

    kind: str
    key: int
    position: int
    rejection_offset: int
    items: int
    count: int
    weights: Address
    target: Address
    scratch: Address


class Take(Message, frozen=True):
    """Copy rows by their index: ``target[i] = rows[index[i]]``.

    Attributes:
        rows, index, target: addresses; indices are int64.
        count: indices.
        nbytes: of a row.
    """

    rows: Address
    index: Address
    target: Address
    count: int
    nbytes: int


class UploadTable(Message, frozen=True):
    """Put a table of numbers where others of these messages find it."""

    prepares: ClassVar[bool] = True

    target: Address
    data: bytes
