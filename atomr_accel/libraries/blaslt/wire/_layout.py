"""Matrices inside larger buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from ....wire.options import LARGEST, whole


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """A layout in which a buffer is read as a matrix or a batch, regardless of its shape.

    Attributes:
        rows: rows of the matrix.
        columns: columns of the matrix.
        ld: leading dimension: elements from one row to the next, or with order ``"col"`` from one
            column to the next. By default rows have no gaps.
        order: ``"row"`` (C) or ``"col"`` (Fortran).
        offset: elements before the first matrix.
        batch: the number of matrices; None for one without a batch dimension.
        batch_stride: elements from one matrix to the next; 0 repeats it. By default matrices have
            no gaps.
    """

    rows: int
    columns: int
    ld: int | None = None
    order: Literal["row", "col"] = "row"
    offset: int = 0
    batch: int | None = None
    batch_stride: int | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "ld", "offset", "batch", "batch_stride"):
            value = getattr(self, name)
            # Layouts are keys, and 4.0 would be the same one as 4.
            if value is not None:
                object.__setattr__(self, name, whole(value, name, most=LARGEST))
        if self.order not in ("row", "col"):
            raise ValueError(f"order must be 'row' or 'col', not {self.order!r}")
        sizes = (self.rows, self.columns, self.offset, self.batch or 0, self.batch_stride or 0)
        if min(sizes) < 0:
            raise ValueError(f"no size of a layout may be negative: {self}")
        if self.ld is not None and self.ld < self.line:
            what = "columns" if self.order == "row" else "rows"
            raise ValueError(
                f"the leading dimension must be at least {self.line}, the number of "
                f"{what}, not {self.ld} (order={self.order!r})"
            )

    @property
    def line(self) -> int:
        """Elements of a row, or with order ``"col"`` of a column."""
        return self.columns if self.order == "row" else self.rows

    @property
    def lines(self) -> int:
        """Number of rows, or with order ``"col"`` of columns."""
        return self.rows if self.order == "row" else self.columns

    @property
    def leading(self) -> int:
        """The leading dimension."""
        return max(1, self.line) if self.ld is None else self.ld

    @property
    def matrix_size(self) -> int:
        """Elements from the first to the last of one matrix."""
        return (self.lines - 1) * self.leading + self.line if self.lines and self.line else 0

    @property
    def step(self) -> int:
        """Elements from one matrix of the batch to the next."""
        if self.batch_stride is not None:
            return self.batch_stride
        return self.lines * self.leading

    @property
    def extent(self) -> int:
        """Elements that the buffer must have."""
        batch = 1 if self.batch is None else self.batch
        if not batch or not self.matrix_size:
            return self.offset
        return self.offset + (batch - 1) * self.step + self.matrix_size
