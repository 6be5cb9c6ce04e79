"""A pytest plugin that has ``scipy.fft`` ask the device, and skips the listed tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import scipy.fft

from ._backend import DeviceBackend

SKIPS = Path(__file__).with_name("skips.txt")


def pytest_configure() -> None:
    """Before any test is imported; the only backend, so no test passes without the device."""
    scipy.fft.set_global_backend(DeviceBackend, only=True)  # type: ignore[arg-type]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the listed tests, each group with the comment in front of it for its reason."""
    reason = ""
    reasons: dict[str, str] = {}
    for line in SKIPS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            reason = f"{reason} {line[1:].strip()}".strip()
        elif line:
            reasons[line] = reason
        else:
            reason = ""
    names = {f"{item.path.stem}::{item.nodeid.partition('::')[2]}": item for item in items}
    for name in reasons.keys() & names.keys():
        names[name].add_marker(pytest.mark.skip(reason=reasons[name]))
    modules = {item.path.stem for item in items}
    unknown = {each for each in reasons if each.partition("::")[0] in modules} - names.keys()
    if unknown and not config.getoption("keyword"):
        raise pytest.UsageError(f"{SKIPS.name} names no test: {', '.join(sorted(unknown))}")
