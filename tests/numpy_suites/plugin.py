"""A pytest plugin that puts the device's functions in the place of NumPy's and SciPy's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import scipy.linalg

from . import arrays, linalg
from .shared import CALLED, OnlyTheirs

STRIDED = 199
"""NumPy has thousands of layouts for each case. An array is put on the device as a contiguous one,
so only one in this many is tried."""

LEFT_TO_NUMPY: Final[set[str]] = set()
"""Calls of the running test that went to NumPy after all, with reasons."""

SKIPS = Path(__file__).with_name("skips.txt")


_LIBRARIES: Final = ("atomr_accel", "numpy", "scipy", "tests", "trio")
"""Packages that go on calling NumPy, but for tests of NumPy and SciPy."""


_OTHERWISE: Final = {
    "DID NOT WARN": "a device warns of nothing",
    "Regex pattern did not match": "an error of the same type in other words",
    "does not match": "an error of the same type in other words",
    "_ did not warn": "a device warns of nothing",
}
"""Failures that are no faults of values."""


class _Replaced:
    """A function for tests to call; as a key it equals the original."""

    def __init__(self, function: Callable[..., Any], original: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original)
        self._function = function
        self._original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] in _LIBRARIES and ".tests." not in caller:
            return self._original(*args, **kwargs)
        try:
            return self._function(*args, **kwargs)
        except OnlyTheirs as why:
            LEFT_TO_NUMPY.add(f"{self._original.__name__} ({why})")
            return self._original(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self._original or other is self

    def __hash__(self) -> int:
        return hash(self._original)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported."""
    for module, functions in (
        (np, arrays.ADAPTED),
        (np.linalg, linalg.ADAPTED["numpy"]),
        (scipy.linalg, linalg.ADAPTED["scipy"]),
    ):
        for name, function in functions.items():
            setattr(module, name, _Replaced(function, getattr(module, name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test of which no call has reached the device."""
    CALLED.clear()
    LEFT_TO_NUMPY.clear()
    try:
        made = yield
    except (AssertionError, pytest.fail.Exception) as error:
        for said, why in _OTHERWISE.items():
            if CALLED and said in str(error):
                pytest.skip(f"{why}: {error}")
        raise
    if not CALLED:
        pytest.skip(f"asks nothing of the device; of NumPy: {', '.join(LEFT_TO_NUMPY) or 'all'}")
    return made


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the listed tests: parts of their names, with the reason in front of them."""
    modules_found = {module for item in items if (module := getattr(item, "module", None))}
    for cases in [module.CASES for module in modules_found if hasattr(module, "CASES")]:
        cases[:] = [
            case for at, case in enumerate(cases) if "strided" not in case.tags or at % STRIDED == 0
        ]
    reason, skips = "", {}
    for line in SKIPS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            reason = f"{reason} {line[1:].strip()}".strip()
        elif line:
            skips[line] = reason
        else:
            reason = ""
    used: set[str] = set()
    modules: set[str] = set()
    for item in items:
        module = f"{item.path.parents[1].name}.{item.path.stem}"
        modules |= {module, item.path.stem}
        name = "::".join([module, *item.nodeid.split("::")[1:]])
        for part, why in skips.items():
            if part in f"{name}$":  # a $ ends names that others begin with
                used.add(part)
                item.add_marker(pytest.mark.skip(reason=why))
    if config.getoption("keyword"):
        return
    unused = [part for part in skips if part not in used and part.split("::")[0] in modules]
    if unused:
        raise pytest.UsageError(f"these of skips.txt name no test: {', '.join(unused)}")
