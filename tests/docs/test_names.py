"""Names in pages exist: attributes of devices and their libraries, and names of modules."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from atomr_accel import Batch, Device, Recording
from atomr_accel.cli._arguments import COMMANDS
from atomr_accel.libraries import registry
from atomr_accel.worlds import WorldBatch, WorldRecording

from .pages import PAGES, text_of

CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
NAME = re.compile(
    r"(?<![\w.])(device|batch|recording|actors|patterns|telemetry|replay|solvers|testing|worlds)"
    r"\.([a-z]\w*)(?:\.([a-z]\w*))?(?![\w/])"
)
ON_OBJECTS = {"requests", "path"}
"""Names that devices have from their construction on, or what reports about them has."""

PLACES: dict[str, tuple[type, ...]] = {
    "device": (Device,),
    "batch": (Batch, WorldBatch),
    "recording": (Recording, WorldRecording),
}
FACADES = {name: library.facade for name, library in registry.catalogue().all.items()}
ELSEWHERE = ("docs/reference/original-names.md", "docs/concepts/")
"""Another project's names, and pages about modules, which have such paths."""


def missing_in(text: str) -> list[str]:
    """Return the names in code that nothing has."""
    found = []
    for code in CODE.findall(text):
        for match in NAME.finditer(code):
            first, second, third = match.groups()
            own = f'"{second}"' in text  # a library that the page adds
            if second != "py" and not own and not exists(first, second, third):
                found.append(match[0])
    return found


def exists(first: str, second: str, third: str | None) -> bool:
    if second in FACADES and first in PLACES:
        facade = FACADES[second]
        return third is None or facade is None or has(resolved(facade), third)
    if first in PLACES:
        return second in ON_OBJECTS or any(has(each, second) for each in PLACES[first])
    return has(import_module(f"atomr_accel.{first}"), second)


def resolved(reference: str) -> object:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def has(owner: object, name: str) -> bool:
    if hasattr(owner, name) or name in getattr(owner, "__annotations__", {}):
        return True
    try:
        import_module(f"{getattr(owner, '__name__', '')}.{name}")
    except (ImportError, ValueError):
        return False
    return True


@pytest.mark.style
@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith(ELSEWHERE)])
def test_names_in_a_page_exist(page: str) -> None:
    assert missing_in(text_of(page)) == []


@pytest.mark.style
def test_names_that_do_not_exist_are_found() -> None:
    text = "`device.blas.gemmm(a)` and `patterns.open_batch` but `device.blas.gemm`, device.nothing"
    assert missing_in(text) == ["device.blas.gemmm", "patterns.open_batch"]


@pytest.mark.style
@pytest.mark.parametrize("page", PAGES)
def test_commands_in_a_page_exist(page: str) -> None:
    named = set(re.findall(r"(?:^|`|\$ )atomr-accel ([a-z]+)\b", text_of(page), re.MULTILINE))
    assert named - {command.name for command in COMMANDS} == set()
