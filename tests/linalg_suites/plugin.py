"""A pytest plugin that puts the device's functions in the place of NumPy's and SciPy's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

from .adapted import ADAPTED

STRIDED = 199
"""NumPy has thousands of layouts for each case. An array is put on the device as a contiguous one,
so only one in this many is tried."""

SKIPS = Path(__file__).with_name("skips.txt")


def _like(name: str, function: Callable[..., Any], original: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def adapted(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    del adapted.__wrapped__
    return adapted


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported."""
    for module, functions in ((np.linalg, ADAPTED["numpy"]), (scipy.linalg, ADAPTED["scipy"])):
        for name, function in functions.items():
            setattr(module, name, _like(name, function, getattr(module, name)))


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
        modules.add(item.path.stem)
        name = "::".join([item.path.stem, *item.nodeid.split("::")[1:]])
        for part, why in skips.items():
            if part in name:
                used.add(part)
                item.add_marker(pytest.mark.skip(reason=why))
    if config.getoption("keyword"):
        return
    unused = [part for part in skips if part not in used and part.split("::")[0] in modules]
    if unused:
        raise pytest.UsageError(f"these of skips.txt name no test: {', '.join(unused)}")
