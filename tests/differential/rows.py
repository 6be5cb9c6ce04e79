"""Cases that are drawn from the tables of conformance tests, with other sizes and options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atomr_accel import Device, GpuRef

from ..libraries.conformance import (
    Near,
    Operation,
    Sample,
    _as_tuple,
    _nbytes,
    compare,
    dtype_of,
    put_matrices,
    put_rows,
    put_strided,
    wide,
)
from .cases import Case, chance, choose, poisoned


@dataclass(frozen=True)
class Table:
    """Rows, and the parts of their cases that may vary.

    Attributes:
        rows: the operations.
        vary: names of a case's sizes that may be any number.
        sizes: the numbers to choose from.
        views: the first input that may be a view, by operation.
        fits: whether sizes go together.
    """

    rows: Sequence[Operation]
    vary: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (1, 2, 3, 5, 8, 16, 17, 32, 33, 64)
    views: Callable[[str], int] = lambda _: 0
    fits: Callable[[str, dict[str, Any]], bool] = lambda *_: True


async def check_row(device: Device, random: np.random.Generator, table: Table) -> str | None:
    """Run a case of one of the rows."""
    operation = choose(random, table.rows)
    dtype = choose(random, operation.dtypes)
    case = dict(choose(random, operation.cases))
    varied = dict(case)
    for name in sorted(set(case) & set(table.vary)):
        if isinstance(case[name], int) and case[name] > 0 and chance(random, 0.5):
            varied[name] = choose(random, table.sizes)
    if table.fits(operation.name, varied):
        case = varied
    sample = Sample(int(random.integers(2**40)), dtype)
    told = Case(device, random)
    told.tell(op=operation.name, dtype=dtype, case=case, sample=sample.seed)
    with told.described():
        arrays = operation.inputs(sample, **case)
        made = _as_tuple(operation.expect(*map(wide, arrays), **case))
        expected = [each if isinstance(each, Near) else Near(each) for each in made]
        refs = [
            await _put(device, array, sample, at >= table.views(operation.name), told)
            for at, array in enumerate(arrays)
        ]
        for _ in range(1 + (not operation.writes)):  # the second call goes by a template
            await poisoned(device, *[_nbytes(each, dtype) for each in expected])
            results = _as_tuple(await operation.call(device, *refs, **case))
            assert len(results) == len(expected)
            for position, (result, reference) in enumerate(zip(results, expected, strict=True)):
                got = await told.fetch(result)
                told.tell(result=position)
                compare(got, reference, dtype_of(reference.dtype or dtype), operation.factor)
        for position, (ref, array) in enumerate(zip(refs, arrays, strict=True)):
            if position not in operation.writes:
                got = await device.get(ref)
                assert got.tobytes() == array.tobytes(), f"input {position} was changed"
    return None


async def _put(
    device: Device, array: np.ndarray[Any, Any], sample: Sample, views: bool, told: Case
) -> GpuRef:
    """Send an input, perhaps as a view."""
    ways: tuple[Any, ...] = (None, None, put_strided, put_matrices, put_rows)
    way = choose(sample.rng, ways) if views else None
    told.tell(**{f"put{len(told.told)}": getattr(way, "__name__", "plain")})
    return await device.put(array) if way is None else await way(device, array, sample)
