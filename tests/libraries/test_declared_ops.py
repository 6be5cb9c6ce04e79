"""Ops that are made of declarations: every wrong argument is refused."""

from __future__ import annotations

import inspect
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.libraries.names import BUILT_IN
from atomr_accel.ops import DeclaredOp
from atomr_accel.testing import check_refusals

VALID: dict[str, dict[str, Any]] = {
    "sparse.axpby": {"x": "f4 3", "indices": "i4 3", "y": "f4 5"},
    "sparse.gather": {"y": "f4 5", "indices": "i4 3"},
    "sparse.scatter": {"x": "f4 3", "indices": "i4 3", "y": "f4 5"},
    "sparselt.check": {"a": "f2 32 32"},
    "sparselt.prune": {"a": "f2 32 32"},
}
"""Operands of a valid call of each op: dtype and extents."""


@pytest.mark.parametrize("op", VALID)
async def test_wrong_arguments_are_refused(device: Device, op: str) -> None:
    given = {}
    for name, text in VALID[op].items():
        dtype, *extents = text.split()
        given[name] = await device.zeros(tuple(map(int, extents)), np.dtype(dtype))
    refused = await check_refusals(device, op, **given)
    assert len(refused) >= 3 * len(given)


def test_every_declared_op_is_in_the_table() -> None:
    declared = set()
    for name, path in BUILT_IN.items():
        library = resolve_name(path)
        facade = library.facade and resolve_name(library.facade)
        for each in dir(facade):
            if isinstance(inspect.getattr_static(facade, each), DeclaredOp):
                declared.add(f"{name}.{each}")
    assert declared == VALID.keys()


async def test_only_declared_ops_have_declarations(device: Device) -> None:
    with pytest.raises(TypeError, match="one that op_of has made, not 'sparse"):
        await check_refusals(device, "sparse.dot")
