"""Every call of ``device.sparselt``, as conformance rows."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from atomr_accel.libraries.sparselt.wire._messages import RESULTS

from ..conformance import Array, Near, Operation, Sample, eps_of

DTYPES: Final = tuple(RESULTS)
NARROW: Final = ("int8", "float8_e4m3fn", "float8_e5m2")
SLACK: Final = {"float32": 2.0**-9, "float8_e4m3fn": 2.0**-12, "float8_e5m2": 2.0**-12}
"""Slack relative to the sum of magnitudes.

float32 is computed in TF32; for 8-bit floats Hopper's tensor cores keep few bits of the sums.
"""
LARGEST: Final = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
PLAIN: Final = ("float16", "bfloat16", "float32")


def groups(matrix: Array, dtype: str) -> Array:
    return matrix.reshape(-1, 2 if dtype == "float32" else 4)


# --- products -----------------------------------------------------------------------------------


def halved(sample: Sample, m: int, k: int) -> Array:
    """A matrix that can be compressed."""
    matrix = sample.array(m, k)
    if sample.dtype.name == "int8":
        matrix = (matrix // 8).astype(np.int8)
    flat = groups(matrix, sample.dtype.name)
    mask = np.zeros(flat.shape, bool)
    mask[:, : flat.shape[1] // 2] = True
    flat[~sample.rng.permuted(mask, axis=1)] = 0
    return matrix


def factor_inputs(
    sample: Sample, m: int, k: int, n: int, beta: float = 0.0, bias: bool = False,
    result: int | str = 0, **_: Any,
) -> tuple[Array, ...]:  # fmt: skip
    b = sample.array(k, n)
    if sample.dtype.name == "int8":
        b = (b // 8).astype(np.int8)
    name = sample.dtype.name
    made = result_of(name, result)
    beside = made if made not in NARROW[1:] else "float16"
    more = [sample.array(m, n, dtype=beside)] if beta else []
    if bias:
        more.append(sample.array(m, dtype="float32" if made in ("int8", "int32") else beside))
    return (halved(sample, m, k), b, *more)


def result_of(dtype: str, result: int | str) -> str:
    """The dtype of a result, by its place in the table."""
    return RESULTS[dtype][result] if isinstance(result, int) else result


async def multiply(
    device: Any, *refs: Any, m: int, k: int, n: int, beta: float = 0.0, bias: bool = False,
    result: int | str = 0, columns: bool = False, order: str = "C", alpha: float = 1.0,
    activation: str = "", autotune: bool = False,
) -> Any:  # fmt: skip
    a, b, *more = refs
    name = a.dtype.name
    if columns or a.dtype.itemsize != 2:
        b = (await device.copy(b.T)).T
    options: dict[str, Any] = {"alpha": alpha, "order": order, "autotune": autotune}
    kind = result_of(name, result)
    in_place = beta and kind not in NARROW[1:] and not columns
    if beta:
        c = await device.copy(more.pop(0))
        options |= {"beta": beta, "out" if in_place else "c": c}
        if in_place:
            options.pop("order")
    if bias:
        options["bias"] = more.pop(0)
    if activation:
        options["epilogue"] = activation + "_bias" * bias
    made = await device.sparselt.matmul(await device.sparselt.compress(a), b, dtype=kind, **options)
    if order == "F" and not in_place:
        assert made.T.contiguous
        return await device.copy(made)
    return made


def multiplied(
    *arrays: Array, m: int, k: int, n: int, beta: float = 0.0, bias: bool = False,
    result: int | str = 0, alpha: float = 1.0, activation: str = "", **_: Any,
) -> Near:  # fmt: skip
    a, b, *more = (each.astype(np.float64) for each in arrays)
    value, terms = alpha * (a @ b), abs(alpha) * (np.abs(a) @ np.abs(b))
    if beta:
        added = more.pop(0)
        value, terms = value + beta * added, terms + abs(beta) * np.abs(added)
    if bias:
        column = more.pop(0)[:, None]
        value, terms = value + column, terms + np.abs(column)
    if activation == "relu":
        value = np.maximum(value, 0)
    elif activation == "gelu":
        value = 0.5 * value * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
    return Near(value, terms)


def by_dtype(dtype: str, result: int | str) -> Any:
    """The reference of a result of another dtype than the matrices."""
    made = result_of(dtype, result)

    def expect(*arrays: Array, **case: Any) -> Near:
        near = multiplied(*arrays, **case)
        value, slack = near.value, near.magnitude * SLACK.get(dtype, 0.0)
        if made == "int8":
            value = np.clip(np.rint(value), -128, 127)
        elif made == "int32":
            value = np.rint(value)
        elif made in NARROW[1:]:
            most = LARGEST[made]
            value = np.clip(value, -most, most)
        if made in ("int8", "int32"):
            value, slack = value.astype(np.int64), 1.0
        slack = slack + near.magnitude * 2 * eps_of(np.dtype(np.float16)) * (made in NARROW[1:])
        return Near(value, near.magnitude, dtype=made, slack=slack)

    return expect


SIZES: Final = {"m": 64, "k": 96, "n": 32}
CASES: Final = [
    {**SIZES},
    {**SIZES, "columns": True, "order": "F"},
    {**SIZES, "alpha": 0.5, "beta": -2.0},
    {**SIZES, "alpha": 0.5, "beta": -2.0, "columns": True},
    {**SIZES, "bias": True, "order": "F"},
    {**SIZES, "bias": True, "activation": "relu"},
    {**SIZES, "activation": "relu", "autotune": True},
]
GELUS: Final = [
    {**SIZES, "activation": "gelu"},
    {**SIZES, "activation": "gelu", "bias": True, "order": "F"},
]


def row(dtype: str, result: int, cases: list[Any]) -> Operation:
    """Products of a dtype, with a result of another."""
    return Operation(
        "sparselt.matmul",
        (dtype,),
        [{**case, "result": result} for case in cases],
        factor_inputs,
        multiply,
        by_dtype(dtype, result),
        factor=16,
        may_refuse=(dtype,) if cases is GELUS else (),
    )


OPERATIONS: Final = [
    *[row(dtype, at, CASES) for dtype in DTYPES for at in range(len(RESULTS[dtype]))],
    *[row("int8", 1, GELUS), row("float8_e4m3fn", 3, GELUS), row("float8_e5m2", 3, GELUS)],
]
