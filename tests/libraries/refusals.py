"""Tables of bad calls, which have to be refused before anything is sent.

    test_bad_input_is_refused = refuses("blas", [("dot(i4_4, i4_4)", TypeError, "dtypes"), ...])

A call is written as in a program, without its library. Names such as ``f4_3x5`` are buffers: this
one is a float32 of shape (3, 5); ``f4_03x5`` is another.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from .conformance import dtype_of

if TYPE_CHECKING:
    from atomr_accel import Device

_DTYPES = {
    "b2": "bfloat16",
    "f2": "float16",
    "f4": "float32",
    "f8": "float64",
    "c8": "complex64",
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


def refuses(library: str, table: list[Refusal], **known: object) -> Any:
    """Make a test of a table; ``known`` are names that calls use, apart from buffers."""

    @pytest.mark.parametrize(("call", "error", "text"), table, ids=[call for call, *_ in table])
    async def refused(device: Device, call: str, error: type[Exception], text: str) -> None:
        facade = getattr(device, library)
        names = {node.id for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)}
        refs = {name: await _buffer(device, name) for name in names if name[:2] in _DTYPES}
        before = {lane.name: lane.submitted for lane in device.statistics().lanes}
        methods = {name: getattr(facade, name) for name in names - refs.keys() - known.keys()}
        with pytest.raises(error, match=text):
            await eval(call, {**methods, **known, **refs})  # the table's own text
        for lane in device.statistics().lanes:
            assert lane.submitted == before.get(lane.name, 0), "something was sent"

    return refused


async def _buffer(device: Device, name: str) -> Any:
    kind, _, sizes = name.partition("_")
    shape = tuple(int(size) for size in sizes.split("x")) if sizes else ()
    return await device.put(np.zeros(shape, dtype_of(_DTYPES[kind])))
