"""What the lane of direct solvers executes: factorizations, and solves with their factors."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from ....wire import Message
from ._messages import Matrix

Kind = Literal["general", "symmetric", "hermitian", "spd"]
"""What is known of a matrix."""
Triangle = Literal["full", "lower", "upper"]
Reordering = Literal["default", "btf_colamd", "colamd", "amd", "nested_dissection", "none"]
Pivoting = Literal[
    "auto", "none", "global_col", "global_row", "diagonal", "local_block", "bunch_kaufman"
]


class System(msgspec.Struct, frozen=True, array_like=True):
    """A sparse matrix to be factorized, without its content, and how to do that.

    Attributes:
        matrix: by rows, square.
        kind: what is known of it.
        triangle: which part of a matrix that is no general one is stored.
        reordering: how rows and columns are ordered, so that factors stay sparse.
        pivoting: where pivots are looked for.
        threshold: how much smaller than the largest a pivot may be that is taken instead, from 0
            to 1; None leaves it to the library.
        epsilon: pivots that are smaller count as zero; None leaves it to the library.
        refinement: steps of iterative refinement of each solve.
        deterministic: whether results must be the same each time.
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

    If those of a matrix of the same structure are there already, what was found of it serves again.

    Attributes:
        number: their name from now on.
        system: what, and how.
        parts: addresses of the matrix's three parts.
    """

    number: int
    system: System
    parts: tuple[int, ...]


class SolveBy(Message, frozen=True):
    """Solve with factors that are kept.

    Attributes:
        number: what they are kept under.
        parts: addresses of the matrix's three parts, which refinement reads.
        b: address of the right sides, one after the other.
        x: address of the solutions, likewise.
        n: rows of the matrix.
        count: how many right sides there are.
        trans: 0, 1 (transposed) or 2 (conjugate transposed).
    """

    number: int
    parts: tuple[int, ...]
    b: int
    x: int
    n: int
    count: int
    trans: int


class Drop(Message, frozen=True):
    """Drop the factors that are kept under a number."""

    everywhere: ClassVar[bool] = True

    number: int
