"""Levels 1 to 3: cases for every row of ``wire/_rows``, whatever rows there are."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from atomr_accel.libraries.blas.wire._rows import ROWS, Row, RowOperand, packed

from ...conformance import HALF, Array, Case, Near, Operation, Sample, product
from .common import ALPHA, BETA, hide, inside, repacked, room, scalar, taken, turned
from .formulas import evaluate, magnitudes

DOCUMENTED: Final = ("axpy", "scal", "dot", "dotc", "nrm2", "gemv")
"""The routines that cuBLAS promises for 16-bit types."""

ALIKE: Final = ("gemm3m", "herkx", "syrkx")
"""The routines that are like others, of which fewer sizes are tried."""

SCALARS: Final[dict[str, complex]] = dict(a=ALPHA, alpha=ALPHA, beta=BETA, c=0.75, s=BETA)  # noqa: C408

LENGTHS: Final[list[Case]] = [
    *({"length": length} for length in (0, 1, 37, 300)),
    {"length": 37, "n": 5, "offx": 2, "incx": 3, "offy": 1, "incy": 2},
    {"length": 37, "n": 6, "incx": -2, "offy": 3, "incy": 5},
]
CHOICES: Final[dict[str, list[Any]]] = {
    "lower": [False, True],
    "side": [0, 1],
    "unit_diagonal": [False, True],
    "kl": [0, 2],
    "ku": [0, 1, 7],
}
MANY, SOME = 20, 5
"""Number of cases above which only every ``SOME``-th is tried without an output or in place."""
FEW: Final = 7
"""Step between the cases that are tried of routines that resemble others."""
STEPS: Final[Case] = {"offx": 1, "incx": 2, "offy": 2, "incy": 3}


def is_alike(row: Row) -> bool:
    """Return whether a row differs from others only in how its matrices are stored."""
    return row.name in ALIKE or any(each.form and each.structure for each in row.operands)


def cases(row: Row) -> list[Case]:
    """Sizes and options for a row."""
    known = {f"{word}{axis}" for axis in axes_of(row) for word in ("off", "inc")}
    if row.sizes == ("n",) and not row.options:
        lengths = LENGTHS[row.filled :]
        return [
            {key: value for key, value in case.items() if key in known or key in ("length", "n")}
            for case in lengths
        ]
    sizes: dict[str, list[int]] = {"m": [0, 1, 5, 33], "n": [0, 1, 7], "k": [0, 1, 7]}
    if "m" not in row.sizes:
        sizes["n"] = sizes["m"]
    alike = is_alike(row)
    if alike:
        sizes = {"m": [0, 5], "n": [0, 1, 7], "k": [0, 2]}
    elif row.counts:
        sizes |= {"m": [1, 6, 9], "n": [1, 6]}
    options = {
        option: CHOICES.get(option, list(row.transposes))
        for option in (*row.options, *(size for size in row.sizes if size in CHOICES))
    }
    found = product(**{size: sizes[size] for size in row.sizes if size in sizes}, **options)
    found = found[:: FEW if alike else 1]
    small = {"m": [5], "n": [7], "k": [3]}
    letters = {option: by_letters(row, option) for option in options}
    steps = {key: value for key, value in STEPS.items() if key in known}
    few = product(**{size: small[size] for size in row.sizes if size in small}, **letters)
    found += [{**case, **steps} for case in few]
    if steps:
        back = {key: -value if key == "incx" else value for key, value in steps.items()}
        found += [{**case, **back} for case in few]
    return found


def axes_of(row: Row) -> set[str]:
    """Return the letters of a row's vectors."""
    return {operand.steps for operand in row.operands if operand.steps}


def by_letters(row: Row, option: str) -> list[Any]:
    """Return the choices of an option, as letters if it has any."""
    if option == "side":
        return ["L", "R"]
    if option.startswith("trans"):
        return ["NTC"[choice] for choice in row.transposes]
    return CHOICES[option][:1]


def scalars_of(row: Row, like: Any) -> dict[str, Any]:
    return {
        name: SCALARS[name].real if is_real else scalar(SCALARS[name], like)
        for name, is_real in row.numbers
    }


def size_of(size: str, case: Case) -> Any:
    """A size by its name; None for a vector that is taken as far as it goes."""
    if size == "s":
        size = "n" if case["side"] in (1, "R") else "m"
    return case.get(size)


def shape_of(operand: RowOperand, case: Case) -> tuple[int, ...]:
    """The shape of an operand's buffer."""
    if "length" in case:
        return (case["length"],)
    if operand.steps:
        return (room(size_of(operand.shape[0], case), *steps_of(operand, case)),)
    m, n = (size_of(size, case) for size in operand.shape)
    m, n = turned(m, n, case.get(operand.trans, 0))
    if operand.form == "packed":
        return (packed(n),)
    if operand.form:
        return ((case["k"] if operand.structure else case["kl"] + case["ku"]) + 1, n)
    return m, n


def steps_of(operand: RowOperand, case: Case) -> tuple[int, int]:
    return case.get(f"off{operand.steps}", 0), case.get(f"inc{operand.steps}", 1)


def given(row: Row, left_out: str = "") -> list[RowOperand]:
    """The operands that a case has buffers for."""
    return [each for each in row.operands if each.shape and each.name != left_out]


def inputs(row: Row, left_out: str, sample: Sample, **case: Any) -> tuple[Array, ...]:
    arrays = []
    for operand in given(row, left_out):
        shape = shape_of(operand, case)
        if operand.form and operand.structure:
            array = partly(operand, sample, case)
        elif operand.structure == "triangular":
            array = hide(sample.triangular(shape[0], unit=case["unit_diagonal"]), **case)
        elif operand.structure and not operand.written:
            array = hide(sample.array(*shape), lower=case["lower"])
        else:
            array = sample.array(*shape)
        arrays.append(array)
    return tuple(arrays)


def partly(operand: RowOperand, sample: Sample, case: Case) -> Array:
    """Return a matrix in a band or packed; elements that must not be read are NaN."""
    n = case["n"]
    whole = sample.array(n, n)
    if operand.structure == "triangular":
        whole = sample.triangular(n, unit=case["unit_diagonal"])
        if case["unit_diagonal"]:
            np.fill_diagonal(whole, np.nan)
    if operand.form == "packed":
        return repacked(whole, case)
    k = case["k"]
    band = np.full((k + 1, n), np.nan, whole.dtype)
    for i, j in inside(n, case, k):
        band[i - j if case["lower"] else k + i - j, j] = whole[i, j]
    return band


async def call(
    row: Row, left_out: str, place: str, device: Any, *refs: Any, placed: Any = None, **case: Any
) -> Any:
    """Call the method without the operand that is left out, on views of the vectors.

    The method makes that operand, or gets the operand ``place`` instead. Scalars are those of all
    cases, except for the placed ones. The results are whole buffers.
    """
    arguments = {}
    buffers: dict[int, Any] = {}
    for operand, ref in zip(given(row, left_out), refs, strict=True):
        view = ref
        if operand.steps:
            view = taken(ref, size_of(operand.shape[0], case), *steps_of(operand, case))
        arguments[operand.name] = view
        buffers[id(view)] = ref
    options = (scalars_of(row, refs[0]) | (placed or {})) | {
        key: value for key, value in case.items() if key in (*row.options, *row.counts)
    }
    if "m" in row.counts:  # the sizes before transposing
        options["m"], options["n"] = turned(case["m"], case["n"], case["trans"])
    if place:
        arguments[left_out] = arguments[place]
    elif left_out:
        left = {"beta"} if row.operands[row.written[-1]].access == "beta" else set()
        options = {key: value for key, value in options.items() if key not in left}
    made = await getattr(device.blas, row.name)(**arguments, **options)
    results = made if isinstance(made, tuple) else (made,)
    return tuple(buffers.get(id(each), each) for each in results)


def expect(row: Row, left_out: str, place: str, *arrays: Array, **case: Any) -> Any:
    buffers = dict(zip([each.name for each in given(row, left_out)], arrays, strict=True))
    scalars = scalars_of(row, arrays[0])
    if place:
        buffers[left_out] = buffers[place]
    taken_arrays = {}
    for operand in row.operands:
        if operand.name not in buffers:
            if operand.shape:
                scalars |= {"beta": 0.0} if operand.access == "beta" else {}
                taken_arrays[operand.name] = made(operand, arrays[0], case)
            continue
        array = buffers[operand.name]
        if operand.steps:
            array = taken(array, size_of(operand.shape[0], case), *steps_of(operand, case))
        taken_arrays[operand.name] = array
    values = evaluate(row, taken_arrays, scalars, case)
    sizes = magnitudes(row, taken_arrays, scalars, case)
    found = []
    for at, written in enumerate(row.written):
        operand = row.operands[written]
        value, size = values[at], None if sizes is None else sizes[at]
        buffer = buffers.get(operand.name)
        if operand.steps and buffer is not None:
            n = size_of(operand.shape[0], case)
            value = put_back(buffer, value, n, steps_of(operand, case))
            size = None if size is None else put_back(abs(buffer), size, n, steps_of(operand, case))
        dtype = None
        if operand.dtype:
            dtype = "int64" if operand.dtype == "index" else REAL_RESULTS.get(arrays[0].dtype.name)
        found.append(Near(value, size, dtype=dtype))
    return tuple(found)


REAL_RESULTS: Final = {"complex128": "float32", "clongdouble": "float64", "complex256": "float64"}
"""The dtype of a real result, by the wide type of its input; else that of the case."""


def made(operand: RowOperand, like: Array, case: Case) -> Array:
    """Return the operand that the call makes itself, before it is written."""
    if operand.form:
        return np.zeros(shape_of(operand, case), like.dtype)
    sizes = [size_of(size, case) for size in operand.shape]
    return np.zeros([len(like) if size is None else size for size in sizes], like.dtype)


def put_back(buffer: Array, value: Array, n: int | None, steps: tuple[int, int]) -> Array:
    """The whole buffer with the elements of a vector in their places."""
    buffer = buffer.copy()
    taken(buffer, n, *steps)[...] = value
    return buffer


def operations(row: Row) -> list[Operation]:
    """All the ways to call a row: with all it takes, without an output, in place."""
    output = row.operands[row.written[-1]]
    ways = [("", "", "")]
    if output.made and output.shape:
        ways.append((" without out", output.name, ""))
    ways += [(f" in place of {place}", output.name, place) for place in row.in_place]
    found = []
    for text, left_out, place in (ways[0], ways[-1]) if is_alike(row) else ways:
        tried = cases(row)
        if place:
            trans = next(each.trans for each in row.operands if each.name == place)
            tried = [case for case in tried if case.get(trans, 0) in (0, "N") and as_placed(case)]
        elif left_out:
            tried = [case for case in tried if "n" not in case or "length" not in case]
        if left_out and len(tried) > MANY:
            tried = tried[::SOME]
        names = [each.name for each in given(row, left_out)]
        writes = [place or left_out] if left_out else [row.operands[at].name for at in row.written]
        triangular = any(each.structure == "triangular" for each in row.operands)
        found.append(
            Operation(
                f"blas.{row.name}{text}",
                row.dtypes,
                tried,
                partial(inputs, row, left_out),
                partial(call, row, left_out, place),
                partial(expect, row, left_out, place),
                writes=tuple(names.index(name) for name in writes if name in names),
                factor=64 if triangular else 8,
                may_refuse=() if row.name in DOCUMENTED else HALF,
            )
        )
    return found


def as_placed(case: Case) -> bool:
    """Return whether all vectors of a case have the same steps, so that one can replace another."""
    return all(
        case.get(f"{word}x", usual) == case.get(f"{word}y", case.get(f"{word}x", usual))
        for word, usual in (("off", 0), ("inc", 1))
    )


ROTATIONS: Final = ("rotg", "rotm", "rotmg")
"""Routines with several right answers, tested by the properties of their results."""

ROUTINES: Final = [
    operation for row in ROWS.values() if row.name not in ROTATIONS for operation in operations(row)
]
