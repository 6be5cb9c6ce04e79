"""Evaluation of row formulas on arrays: the reference of levels 1 to 3 and of the fake cuBLAS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from atomr_accel.libraries.blas.host._cpu_rotations import rotg, rotm, rotmg
from atomr_accel.libraries.blas.wire._rows import Row, RowOperand

from ...conformance import Array, Case
from .common import banded, diagonals, op, repacked, solve, symmetric, triangular, unpacked

FUNCTIONS: dict[str, Any] = {
    name: getattr(np, name)
    for name in ("abs", "argmax", "argmin", "conj", "diag", "imag", "outer", "real", "sqrt", "sum")
} | {"rotg": rotg, "rotm": rotm, "rotmg": rotmg}


def evaluate(row: Row, arrays: dict[str, Array], scalars: Case, case: Case) -> list[Any]:
    """Return the arrays that the row writes, in the order of its operands.

    Args:
        row: the routine.
        arrays: its operands by name: vectors without the elements between, matrices in their stored
            form.
        scalars: by name.
        case: options and sizes.
    """
    names: dict[str, Any] = {
        operand.name: whole(operand, arrays[operand.name], case)
        for operand in row.operands
        if operand.name in arrays
    }
    beta = scalars.get("beta", 0)
    for operand in row.operands:
        if operand.access == "beta" and beta == 0:  # its content does not matter, NaNs included
            names[operand.name] = np.zeros_like(names[operand.name])
    right = case.get("side") in (1, "R")
    names |= FUNCTIONS | scalars
    names["mul"] = lambda a, b: b @ a if right else a @ b
    names["solve"] = lambda a, b: solve(a.T, b.T).T if right else solve(a, b)
    formula = compile(row.formula, row.name, "eval")
    values = eval(formula, {"__builtins__": {}}, names)
    found = []
    for at, value in zip(row.written, values if len(row.written) > 1 else [values], strict=True):
        operand = row.operands[at]
        result = np.array(value)
        if operand.structure:
            half = np.tril if case["lower"] else np.triu
            inside = half(np.ones(result.shape, bool))
            result = np.where(inside, result, whole(operand, arrays[operand.name], case))
            if operand.structure == "hermitian" and result.dtype.kind == "c":
                np.fill_diagonal(result.imag, 0)
        if operand.form:
            result = repacked(result, case)
        found.append(result)
    return found


def magnitudes(row: Row, arrays: dict[str, Array], scalars: Case, case: Case) -> list[Any] | None:
    """Return the magnitudes of the terms that the results sum up, or None if they are unknown."""
    if "solve" in row.formula or "arg" in row.formula:
        return None
    positive = row.formula.replace(" - ", " + ")
    sizes = {name: np.abs(array) for name, array in arrays.items()}
    factors = {name: abs(value) for name, value in scalars.items()}
    return evaluate(replace(row, formula=positive), sizes, factors, case)


def whole(operand: RowOperand, array: Array, case: Case) -> Array:
    """An operand as it counts."""
    if operand.form:
        form = unpacked if operand.form == "packed" else diagonals if operand.structure else banded
        array = form(array, case)
    if operand.written:
        return array
    if operand.structure == "triangular":
        array = triangular(array, case)
    elif operand.structure:
        array = symmetric(array, case, hermitian=operand.structure == "hermitian")
    return op(array, case.get(operand.trans, 0))
