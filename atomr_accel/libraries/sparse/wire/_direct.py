"""Messages of the direct solvers' lane: factorizations, and solves with their factors."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from ....wire import Address, Message
from ._messages import Matrix

Kind = Literal["general", "symmetric", "hermitian", "spd"]
"""Properties of a matrix that a solver may use."""
Triangle = Literal["full", "lower", "upper"]
Reordering = Literal["default", "btf_colamd", "colamd", "amd", "nested_dissection", "none"]
Pivoting = Literal[
    "auto", "none", "global_col", "global_row", "diagonal", "local_block", "bunch_kaufman"
]


class SparseSystem(msgspec.Struct, frozen=True, array_like=True):
    """A sparse matrix to factorize, without its content, and the options.

    Attributes:
        matrix: by rows, square.
        kind: a property of the matrix.
        triangle: the stored part of a matrix of a kind other than "general".
        reordering: the order of rows and columns that keeps factors sparse.
        pivoting: the search for pivots.
        threshold: the size that a pivot must have relative to the largest one, from 0 to 1; None
            leaves it to the library.
        epsilon: pivots that are smaller count as zero; None leaves it to the library.
        refinement: steps of iterative refinement of each solve.
        deterministic: True if results must be the same each time.
    """

    matrix: Matrix
    kind: Kind
    triangle: Triangle
    reordering: Reordering
    pivoting: Pivoting
    threshold: float | None
    epsilon: float | None
    refinement: int
    deterministic: bool


class Factorize(Message, frozen=True):
    """Factorize a matrix, and keep the factors under a number.

    If the number has factors of a matrix of the same structure, their analysis is reused.

    Attributes:
        number: the number of the factors in later messages.
        system: the matrix and the options.
        parts: addresses of the matrix's three parts.
    """

    number: int
    system: SparseSystem
    parts: tuple[Address, ...]


class SolveBy(Message, frozen=True):
    """Solve with kept factors.

    Attributes:
        number: the number of the factors.
        parts: addresses of the matrix's three parts, which refinement reads.
        b: address of the right-hand sides, one after the other.
        x: address of the solutions, one after the other.
        n: rows of the matrix.
        count: the number of right-hand sides.
        trans: 0, 1 (transposed) or 2 (conjugate transposed).
    """

    number: int
    parts: tuple[Address, ...]
    b: Address
    x: Address
    n: int
    count: int
    trans: int


class Drop(Message, frozen=True):
    """Drop the factors that are kept under a number."""

    everywhere: ClassVar[bool] = True

    number: int
