"""Tables of bad calls, which have to be refused before anything is sent.

    test_bad_input_is_refused = refuses("blas", [("dot(i4_4, i4_4)", TypeError, "dtypes"), ...])

A call is written as in a program, without its library. Names such as ``f4_3x5`` are buffers: this
one is a float32 of shape (3, 5); ``f4_03x5`` is another. They hold 0, 1, ... 7, again and again.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device

from .conformance import dtype_of

_DTYPES = {
    "b2": "bfloat16",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
    "cd": "complex128",
    "b1": "bool",
    "i1": "int8",
    "i4": "int32",
    "i8": "int64",
    "u1": "uint8",
    "e4": "float8_e4m3fn",
    "e5": "float8_e5m2",
    "q4": "float4_e2m1fn",
}

Refusal = tuple[str, type[Exception], str]
"""A call, its error, and what the message contains, as a regular expression."""


def refuses(
    library: str,
    table: list[Refusal],
    *,
    batches: bool = False,
    keeps: Callable[[Device], object] = lambda _: None,
    **known: object,
) -> Any:
    """Make a test of a table.

    Args:
        library: the attribute of a device.
        table: its bad calls.
        batches: whether batches refuse them, too.
        keeps: returns what a refusal must not change.
        **known: names that calls use, apart from buffers.
    """

    @pytest.mark.parametrize(("call", "error", "text"), table, ids=[call for call, *_ in table])
    async def refused(device: Device, call: str, error: type[Exception], text: str) -> None:
        facade = getattr(device, library)
        names = {node.id for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)}
        names -= known.keys()
        refs = {name: await _buffer(device, name) for name in names if name[:2] in _DTYPES}
        before = {lane.name: lane.submitted for lane in device.statistics().lanes}
        kept = keeps(device)
        with pytest.raises(error, match=text):
            await eval(call, {**_methods(facade, names), **known, **refs})  # the table's own text
        if batches:
            async with device.batch() as batch:
                with pytest.raises(error, match=text):
                    eval(call, {**_methods(getattr(batch, library), names), **known, **refs})
        assert keeps(device) == kept
        for lane in device.statistics().lanes:
            assert lane.submitted == before.get(lane.name, 0), f"something was sent to {lane.name}"

    return refused


def _methods(facade: object, names: set[str]) -> dict[str, Any]:
    return {name: getattr(facade, name) for name in names if hasattr(facade, name)}


async def _buffer(device: Device, name: str) -> Any:
    kind, _, sizes = name.partition("_")
    shape = tuple(int(size) for size in sizes.split("x")) if sizes else ()
    numbers = np.arange(math.prod(shape)).reshape(shape) % 8
    return await device.put(numbers.astype(dtype_of(_DTYPES[kind])))
