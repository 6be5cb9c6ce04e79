"""Rows of conformance: cuTENSOR's operations."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..conformance import COMPLEX, FLOATS, HALF, REAL, Case, Near, Operation, Sample

SIZES: Final = {"a": 3, "b": 4, "c": 2, "d": 5, "e": 1}


def shape_of(modes: str) -> tuple[int, ...]:
    return tuple(SIZES[mode] for mode in modes)


def magnitude(subscripts: str, *arrays: Any) -> Any:
    """Return the sum of the terms' magnitudes."""
    return np.einsum(subscripts, *(np.abs(array) for array in arrays))


# --- contractions ----------------------------------------------------------------------------

CONTRACTIONS: list[Case] = [
    {"a": "ab", "b": "bc", "out": "ac"},
    {"a": "ba", "b": "bc", "out": "ca"},
    {"a": "dabc", "b": "cedb", "out": "ead", "alpha": -1.5},
    {"a": "abd", "b": "adc", "out": "cab", "beta": 0.5},
    {"a": "ab", "b": "ab", "out": ""},
    {"a": "a", "b": "b", "out": "ba", "alpha": 2, "beta": 1},
    {"a": "", "b": "ab", "out": "ab"},
]


def contraction_inputs(
    sample: Sample, *, a: str, b: str, out: str, beta: float = 0, **_: Any
) -> tuple[Any, ...]:
    added = (sample.array(*shape_of(out)),) if beta else ()
    return sample.array(*shape_of(a)), sample.array(*shape_of(b)), *added


async def contract(
    device: Any,
    x: Any,
    y: Any,
    c: Any = None,
    *,
    a: str,
    b: str,
    out: str,
    alpha: float = 1,
    beta: float = 0,
) -> Any:
    return await device.tensor.contract(x, a, y, b, out, c=c, alpha=alpha, beta=beta)


def contraction_expected(
    x: Any, y: Any, c: Any = 0, *, a: str, b: str, out: str, alpha: float = 1, beta: float = 0
) -> Near:
    subscripts = f"{a},{b}->{out}"
    return Near(
        alpha * np.einsum(subscripts, x, y) + beta * c,
        abs(alpha) * magnitude(subscripts, x, y) + abs(beta * c),
    )


# --- contractions of three -------------------------------------------------------------------

TRINARY: list[Case] = [
    {"modes": ("ab", "bc", "cd"), "out": "ad"},
    {"modes": ("ab", "cb", "dc"), "out": "da", "alpha": 0.5},
]


def trinary_inputs(sample: Sample, *, modes: tuple[str, ...], **_: Any) -> tuple[Any, ...]:
    return tuple(sample.array(*shape_of(each)) for each in modes)


async def contract_trinary(
    device: Any, x: Any, y: Any, z: Any, *, modes: tuple[str, ...], out: str, alpha: float = 1
) -> Any:
    a, b, c = modes
    return await device.tensor.contract_trinary(x, a, y, b, z, c, out, alpha=alpha)


def trinary_expected(*arrays: Any, modes: tuple[str, ...], out: str, alpha: float = 1) -> Near:
    subscripts = f"{','.join(modes)}->{out}"
    return Near(alpha * np.einsum(subscripts, *arrays), magnitude(subscripts, *arrays))


# --- reductions ------------------------------------------------------------------------------

REDUCTIONS: list[Case] = [
    {"a": "abd", "out": "da"},
    {"a": "abd", "out": "", "alpha": 0.5},
    {"a": "abcd", "out": "cb", "op": "prod"},
    {"a": "bda", "out": "b", "beta": -2.0},
]
ORDERED: list[Case] = [
    {"a": "abd", "out": "ba", "op": "max"},
    {"a": "abd", "out": "", "op": "min"},
    {"a": "abd", "out": "d", "op": "max", "unary": "absolute"},
]
_UFUNCS: Final[dict[str, Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def reduction_inputs(
    sample: Sample, *, a: str, out: str, beta: float = 0, **_: Any
) -> tuple[Any, ...]:
    added = (sample.array(*shape_of(out)),) if beta else ()
    return sample.array(*shape_of(a)), *added


async def reduce(
    device: Any,
    x: Any,
    c: Any = None,
    *,
    a: str,
    out: str,
    op: str = "sum",
    alpha: float = 1,
    beta: float = 0,
    unary: str = "identity",
) -> Any:
    return await device.tensor.reduce(x, a, out, op, c=c, alpha=alpha, beta=beta, op_a=unary)


def reduction_expected(
    x: Any,
    c: Any = 0,
    *,
    a: str,
    out: str,
    op: str = "sum",
    alpha: float = 1,
    beta: float = 0,
    unary: str = "identity",
) -> Near:
    def reduced(values: Any) -> Any:
        axes = tuple(at for at, mode in enumerate(a) if mode not in out)
        kept = [mode for mode in a if mode in out]
        return np.transpose(_UFUNCS[op].reduce(values, axes), [kept.index(mode) for mode in out])

    values = np.abs(x) if unary == "absolute" else x
    return Near(alpha * reduced(values) + beta * c, abs(alpha) * reduced(np.abs(x)) + abs(beta * c))


# --- elementwise -----------------------------------------------------------------------------

PERMUTATIONS: list[Case] = [
    {"a": "abc", "out": "cab"},
    {"a": "abcd", "out": "dbca", "alpha": -0.5},
    {"a": "", "out": ""},
    {"a": "ab", "out": "ba", "unary": "tanh"},
]


async def permute(
    device: Any, x: Any, *, a: str, out: str, alpha: float = 1, unary: str = "identity"
) -> Any:
    return await device.tensor.permute(x, a, out, alpha=alpha, op_a=unary)


def permutation_expected(
    x: Any, *, a: str, out: str, alpha: float = 1, unary: str = "identity"
) -> Near:
    values = np.tanh(x) if unary == "tanh" else x
    return Near(alpha * np.einsum(f"{a}->{out}", values), 1)


JOINED: list[Case] = [
    {"modes": ("ab", "ba"), "ops": ("add",), "scalars": (2, -1)},
    {"modes": ("b", "dab"), "ops": ("multiply",)},
    {"modes": ("ad", "abd"), "ops": ("maximum",)},
    {"modes": ("b", "ab", "ba"), "ops": ("multiply", "add"), "scalars": (1, 2, 3)},
    {"modes": ("ca", "ab", "abc"), "ops": ("add", "minimum")},
]


def joined_inputs(sample: Sample, *, modes: tuple[str, ...], **_: Any) -> tuple[Any, ...]:
    return tuple(sample.array(*shape_of(each)) for each in modes)


async def joined(
    device: Any,
    *refs: Any,
    modes: tuple[str, ...],
    ops: tuple[str, ...],
    scalars: tuple[float, ...] = (1, 1, 1),
) -> Any:
    tensor = device.tensor
    function = tensor.elementwise_binary if len(refs) == 2 else tensor.elementwise_trinary
    names = ("alpha", "gamma") if len(refs) == 2 else ("alpha", "beta", "gamma")
    arguments = [each for pair in zip(refs, modes, strict=True) for each in pair]
    return await function(*arguments, *ops, **dict(zip(names, scalars, strict=False)))


def joined_expected(
    *arrays: Any,
    modes: tuple[str, ...],
    ops: tuple[str, ...],
    scalars: tuple[float, ...] = (1, 1, 1),
) -> Near:
    ones = np.ones(shape_of(modes[-1]))
    aligned = [
        scale * np.einsum(f"{each},{modes[-1]}->{modes[-1]}", array, ones)
        for array, each, scale in zip(arrays, modes, scalars, strict=False)
    ]
    result = aligned[0]
    for op, other in zip(ops, aligned[1:], strict=True):
        result = getattr(np, op)(result, other)
    return Near(result, sum(abs(each) for each in aligned))


# --- all of it -------------------------------------------------------------------------------

ROWS: Final = [
    Operation(
        "tensor.contract",
        FLOATS,
        CONTRACTIONS,
        contraction_inputs,
        contract,
        contraction_expected,
    ),
    Operation(
        "tensor.contract_trinary",
        FLOATS,
        TRINARY,
        trinary_inputs,
        contract_trinary,
        trinary_expected,
        may_refuse=FLOATS,
    ),
    Operation("tensor.reduce", FLOATS, REDUCTIONS, reduction_inputs, reduce, reduction_expected),
    Operation(
        "tensor.reduce",
        (*HALF, *REAL),
        ORDERED,
        reduction_inputs,
        reduce,
        reduction_expected,
        may_refuse=HALF,
    ),
    Operation(
        "tensor.permute",
        FLOATS,
        PERMUTATIONS[:-1],
        reduction_inputs,
        permute,
        permutation_expected,
    ),
    Operation(
        "tensor.permute", REAL, PERMUTATIONS[-1:], reduction_inputs, permute, permutation_expected
    ),
    Operation("tensor.elementwise", (*HALF, *REAL), JOINED, joined_inputs, joined, joined_expected),
    Operation(
        "tensor.elementwise",
        COMPLEX,
        JOINED[:2] + JOINED[3:4],
        joined_inputs,
        joined,
        joined_expected,
    ),
]
"""All rows."""
