"""The rows of BLAS: what each says is what its method takes and its documentation names."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from atomr_accel import Device
from atomr_accel.libraries.blas.facade import Blas
from atomr_accel.libraries.blas.host import _cpu_routines
from atomr_accel.libraries.blas.host._prototypes import PROTOTYPES
from atomr_accel.libraries.blas.wire._rows import ROWS, Row

from .. import conformance
from ..conformance import MARKS, check, on_cuda
from .rows.routines import operations

pytestmark = MARKS


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_names_the_arguments_of_its_method(row: Row) -> None:
    named = [operand.name for operand in row.operands]
    named += [name for name, _ in row.numbers]
    named += [*row.options, *row.counts]
    parameters = inspect.signature(getattr(Blas, row.name)).parameters
    assert sorted(parameters) == sorted(["self", *named])
    defaults = {name: each.default for name, each in parameters.items()}
    for operand in row.operands:
        assert (defaults[operand.name] is None) == bool(operand.made) or row.name == "geam"
    usual = {"lower": False, "unit_diagonal": False}
    for name in row.options:
        assert defaults[name] == usual.get(name, 0)
        assert type(defaults[name]) is type(usual.get(name, 0))


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_has_all_that_executes_and_describes_it(row: Row) -> None:
    assert row.name in _cpu_routines._FUNCTIONS
    assert "Vendor function: ``cublas" in " ".join((getattr(Blas, row.name).__doc__ or "").split())
    if row.vendor is not None:
        assert any(row.vendor[1].removesuffix("_v2") in symbol for symbol in PROTOTYPES)


@pytest.mark.skipif(on_cuda(), reason="what is wrong here is wrong on the CPU")
@pytest.mark.parametrize("name", ["axpy", "symv", "syr2", "trsm", "her2k"])
async def test_a_case_that_came_by_itself_finds_a_wrong_function(
    device: Device, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The formula is another one than the function's, so one of the two is wrong."""
    monkeypatch.setattr(conformance, "TALLIES", {})  # no library was checked
    row = ROWS[name]
    wrong = replace(row, formula=f"3 * ({row.formula})")
    operation = operations(wrong)[0]
    case = next(each for each in operation.cases if all(each.get(size, 1) for size in "mnk"))
    case = {**case, "length": 37} if "length" in case else case
    for dtype in row.dtypes:
        with pytest.raises(AssertionError, match="elements are wrong"):
            await check(device, operation, dtype, case, "none")


async def test_calls_that_were_checked_once_are_checked_by_all_that_counts(device: Device) -> None:
    """A checked call is not reused for a call that only looks the same."""
    x = await device.put(np.ones(4, np.float32))
    y = await device.put(np.ones(4, np.float32))
    a = await device.put(np.eye(4, dtype=np.float32))
    band = await device.put(np.ones((3, 4), np.float32))
    await device.blas.axpy(x[:1], y[:1])
    await device.blas.gbmv(4, 4, 1, 1, band, x)
    await device.blas.symv(a, x, lower=True)
    await device.blas.trmv(a, x, trans=1)
    blas: Any = device.blas
    wrong: list[tuple[Any, type[Exception]]] = [
        (lambda: blas.gbmv(4, 4, True, 1, band, x), TypeError),
        (lambda: blas.gbmv(4, 4, 1.0, 1, band, x), TypeError),
        (lambda: blas.axpy(x[:1], y[:1], a=1j), TypeError),
        (lambda: blas.symv(a, x, lower=1), TypeError),
        (lambda: blas.trmv(a, x, trans=1.0), ValueError),
        (lambda: blas.axpy(x[:3], x[1:]), ValueError),
    ]
    for call, error in wrong:
        with pytest.raises(error):
            await call()
    for _ in range(3):
        await blas.axpy(x[::2], y[1::2])
