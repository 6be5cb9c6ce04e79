"""Random sparse matrices: unsorted, with empty rows, and with elements that are there twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from atomr_accel import Device, GpuRef
from atomr_accel.libraries.sparse.array import SparseRef

from ..conformance import Array, Sample

Parts = tuple[Array, Array, Array]


def random_parts(
    sample: Sample,
    shape: tuple[int, int],
    form: str = "csr",
    index: str = "int32",
    *,
    block: tuple[int, int] = (2, 3),
    fill: float = 0.2,
    once: bool = False,
) -> Parts:
    """Major, indices and data of a matrix.

    Args:
        sample: makes its numbers.
        shape: rows and columns.
        form: the format.
        index: dtype of indices.
        block: of ``bsr``.
        fill: how many elements there are, of all.
        once: whether each is there once, in order.
    """
    rng = sample.rng
    rows, columns = shape
    if form == "bsr":
        rows, columns = rows // block[0], columns // block[1]
    count = int(rows * columns * fill)
    if once:
        places = np.sort(rng.choice(rows * columns, count, replace=False))
    else:
        places = rng.integers(0, max(rows * columns, 1), count)
    row, column = np.divmod(places, max(columns, 1))
    majors, minors = (column, row) if form == "csc" else (row, column)
    order = np.argsort(majors, kind="stable")
    majors, minors = majors[order], minors[order]
    data = sample.array(count, *(block if form == "bsr" else ()))
    if form != "coo":
        bound = columns if form == "csc" else rows
        majors = np.searchsorted(majors, np.arange(bound + 1))
    return majors.astype(index), minors.astype(index), data


def dense(shape: tuple[int, int], form: str, parts: Parts) -> Array:
    """Return the matrix as a dense one, with the sums of repeated elements."""
    major, indices, data = parts
    made = np.zeros(shape, data.dtype)
    majors = major
    if form != "coo":
        majors = np.repeat(np.arange(len(major) - 1), np.diff(major))
    if form == "bsr":
        r, c = data.shape[1:]
        for i, j, block in zip(majors, indices, data, strict=True):
            made[i * r : (i + 1) * r, j * c : (j + 1) * c] += block
        return made
    at = (indices, majors) if form == "csc" else (majors, indices)
    np.add.at(made, at, data)
    return made


def sizes(shape: tuple[int, int], form: str, parts: Parts) -> Array:
    """The matrix of absolute values."""
    major, indices, data = parts
    return dense(shape, form, (major, indices, np.abs(data)))


def on_device(
    device: Device, shape: tuple[int, int], form: str, parts: tuple[GpuRef, ...]
) -> SparseRef:
    """A matrix of refs."""
    major, indices, data = parts
    if form == "coo":
        return device.sparse.coo_array((data, (major, indices)), shape)
    make: Any = getattr(device.sparse, f"{form}_array")
    made: SparseRef = make((data, indices, major), shape)
    return made


def taken(matrix: Array, trans: int) -> Array:
    """Return the matrix unchanged, transposed, or conjugate transposed."""
    return matrix if trans == 0 else matrix.T if trans == 1 else matrix.conj().T
