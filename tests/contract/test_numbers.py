"""Odd numbers as arguments of public callables."""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import trio

from ..harness import SECONDS
from .number_recipes import CONTAINERS, EXCLUDED, NO_PARAMETERS, RECIPES, Bench
from .public_numbers import PublicCallable, public_callables

NO_NUMBERS: Final = (True, False, np.True_, "1", 1j, np.array([2, 3]), Decimal(1))

NUMBERS: Final = (
    float("nan"), float("inf"), -float("inf"), sys.float_info.max, 5e-324, -1.5, 0.0,
    0, -1, 2, 2**31, 2**63, 10**400, -(10**400), 10**5000,
    Fraction(1, 3), Fraction(2), Fraction(10**400), Fraction(10**5000, 3),
    np.float16(0.5), np.float32(0.5), np.float64(2), np.float32("nan"), np.longdouble("inf"),
    np.int8(2), np.uint64(2**64 - 1), np.array(2), np.array(0.5),
)  # fmt: skip

CALLABLES: Final = [each for each in public_callables() if not each.name.endswith("Statistics")]
"""Statistics are the package's to make."""


def test_each_public_number_has_a_recipe() -> None:
    names = {each.name for each in CALLABLES}
    assert not RECIPES.keys() & EXCLUDED.keys()
    assert sorted(names - RECIPES.keys() - EXCLUDED.keys()) == [], "enter a recipe"
    assert sorted((RECIPES.keys() | EXCLUDED.keys()) - names) == [], "these are no more"


def _said(value: object) -> str:
    try:
        return f"{value!r:.60} of {type(value).__name__}"
    except ValueError:  # too many digits
        return f"a huge {type(value).__name__}"


async def _give(bench: Bench, one: PublicCallable, parameter: str, value: object) -> str | None:
    """Return the fault in the answer to a number, if there is one."""
    wrap = CONTAINERS.get((one.name, parameter))
    given: Any = value if wrap is None else wrap(value)
    try:
        made = await RECIPES[one.name](bench, **{parameter: given})
    except (ValueError, TypeError) as error:
        return None if re.search("must (be|have)", str(error)) else f"refused by {error!r:.300}"
    except BaseException as error:  # noqa: BLE001 (also the end of a trio run, which it reports)
        return f"raised {error!r:.300}"
    if any(value is each for each in NO_NUMBERS):
        return "was accepted"
    if is_dataclass(made) and wrap is None and parameter in {each.name for each in fields(made)}:
        kept = getattr(made, parameter)
        if type(kept) not in (int, float):
            return f"is kept as {type(kept).__name__}"
    return None


SLOW: Final = {
    "Collectives.all_reduce", "Devices.drain", "Devices.resume", "bicgstab", "cg", "gmres", "minres"
}  # fmt: skip


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.slow] if each.name in SLOW else [])
        for each in CALLABLES
        if each.name in RECIPES
    ],
)
def test_odd_numbers_are_taken_or_refused(one: PublicCallable, tmp_path: Path) -> None:
    async def main() -> list[str]:
        wrong: list[str] = []
        with trio.fail_after(SECONDS):
            return await sweep(wrong)

    async def sweep(wrong: list[str]) -> list[str]:
        async with AsyncExitStack() as stack:
            bench = Bench(stack, tmp_path)
            for parameter in one.numbers:
                if (one.name, parameter) in NO_PARAMETERS:
                    continue
                for value in (*NUMBERS, *NO_NUMBERS):
                    found = await _give(bench, one, parameter, value)
                    if found is not None:
                        wrong.append(f"{parameter}={_said(value)} {found}")
        return wrong

    assert trio.run(main) == []
