"""Direct solvers, as conformance rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import scipy.sparse

from ..conformance import COMPLEX, REAL, Array, Near, Operation, Sample, product
from .matrices import Parts, dense, on_device, taken

MATRIX: Final[Any] = scipy.sparse.csr_array(np.array([[4.0, 1, 0], [1, 3, 0], [0, 0, 2]]))
TRANS: Final = {"N": 0, "T": 1, "H": 2}


def regular_parts(sample: Sample, n: int, form: str, index: str, kind: str, triangle: str) -> Parts:
    """Major, indices and data of a matrix of a kind, far from singular."""
    rng = sample.rng
    matrix = np.where(rng.random((n, n)) < 4 / max(n, 1), sample.array(n, n), 0)
    if kind != "general":
        matrix = matrix + (matrix.T if kind == "symmetric" else matrix.conj().T)
    matrix = matrix + (10 + n**0.5) * np.eye(n)
    if triangle != "full":
        matrix = np.tril(matrix) if triangle == "lower" else np.triu(matrix)
    stored: Any = scipy.sparse.coo_array(matrix)
    made = stored.asformat(form)
    made.sort_indices()
    return made.indptr.astype(index), made.indices.astype(index), made.data.astype(sample.dtype)


def whole(n: int, form: str, parts: Parts, kind: str, triangle: str) -> Array:
    """The matrix that parts are of, of which a triangle may be stored."""
    matrix = dense((n, n), form, parts)
    if triangle == "full":
        return matrix
    other = matrix.T if kind == "symmetric" else matrix.conj().T
    return matrix + other - np.diag(np.diag(matrix))


def direct_inputs(
    sample: Sample, n: int, k: int | None, form: str = "csr", index: str = "int32",
    kind: str = "general", triangle: str = "full", **_: Any,
) -> tuple[Array, ...]:  # fmt: skip
    tail = () if k is None else (k,)
    parts = regular_parts(sample, n, form, index, kind, triangle)
    return (*parts, sample.array(n, *tail))


LOWER = {"full": None, "lower": True, "upper": False}


async def solve_by_factors(
    device: Any, *refs: Any, n: int, k: int | None, form: str = "csr", trans: str = "N",
    columns: bool = False, again: bool = False, kind: str = "general", triangle: str = "full",
    refinement: int = 0, index: str = "",
) -> Any:  # fmt: skip
    a, b = on_device(device, (n, n), form, refs[:3]), refs[3]
    first = a.with_data(await device.evaluate(a.data * 3)) if again else a
    lu = await device.sparse.splu(first, kind=kind, lower=LOWER[triangle], refinement=refinement)
    if again:
        assert await lu.refactorize(a) is lu
    if columns:
        x = await lu.solve((await device.copy(b.T)).T, trans)
        assert x.T.contiguous
        return await device.copy(x)
    return await lu.solve(b, trans)


async def solve_once(device: Any, *refs: Any, n: int, form: str = "csr", **_: Any) -> Any:
    a = on_device(device, (n, n), form, refs[:3])
    return await device.sparse.spsolve(a, refs[3], refinement=1)


async def solve_as_a_function(device: Any, *refs: Any, n: int, form: str = "csr", **_: Any) -> Any:
    solve = await device.sparse.factorized(on_device(device, (n, n), form, refs[:3]))
    return await solve(refs[3])


def solved(
    *arrays: Array, n: int, form: str = "csr", trans: str = "N", kind: str = "general",
    triangle: str = "full", **_: Any,
) -> Near:  # fmt: skip
    parts: Any = arrays[:3]
    matrix = taken(whole(n, form, parts, kind, triangle), TRANS[trans])
    wide = np.complex128 if matrix.dtype.kind == "c" else np.float64
    value = np.linalg.solve(matrix.astype(wide), arrays[3].astype(wide))
    return Near(value, np.abs(value).max(initial=1.0))


KINDS: Final = [
    *product(kind=["symmetric", "spd"], triangle=["full", "lower", "upper"]),
    *product(kind=["hermitian"], triangle=["lower"]),
]
CASES: Final = [
    *product(n=[1, 30], k=[None, 3], trans=["N", "T"], form=["csr", "csc"]),
    *product(n=[20], k=[4], index=["int64"], refinement=[0, 2], columns=[True]),
    *product(n=[20], k=[2], again=[True], form=["csr", "csc"]),
    *product(n=[0], k=[None, 3]),
    *product(n=[5], k=[0]),
    *[{**each, "n": 24, "k": 2} for each in KINDS],
]

PLAIN: Final = (*REAL, *COMPLEX)
ONE: Final = product(n=[1, 30], k=[None, 3], form=["csr", "csc"])
DIRECT: Final = [
    Operation("sparse.splu", PLAIN, CASES, direct_inputs, solve_by_factors, solved, factor=64),
    Operation(
        "sparse.splu",
        COMPLEX,
        product(n=[30], k=[None, 3], trans=["H"]),
        direct_inputs,
        solve_by_factors,
        solved,
        factor=64,
    ),
    Operation("sparse.spsolve", PLAIN, ONE, direct_inputs, solve_once, solved, factor=64),
    Operation(
        "sparse.factorized", PLAIN, ONE, direct_inputs, solve_as_a_function, solved, factor=64
    ),
]
