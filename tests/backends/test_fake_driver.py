"""The fake driver's tables against ``cuda.bindings``, and the fake against its tables."""

from __future__ import annotations

import ast
import inspect
import re
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from atomr_accel import LibraryError, LibraryMissing
from atomr_accel.backends.cuda.host import driver as _driver
from atomr_accel.backends.cuda.host.driver import STICKY, check, driver

from ..fakes.driver import ENUMS, FUNCTIONS, HANDLES, NUMBERS, STRUCTS, FakeDriver, installed

PACKAGE = Path(_driver.__file__).parents[3]


@pytest.fixture
def bindings() -> Any:
    return pytest.importorskip("cuda.bindings.driver")


@pytest.mark.headers
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_those_of_the_bindings(bindings: Any, name: str) -> None:
    takes, _, gives = FUNCTIONS[name].partition("->")
    function = getattr(bindings, name)
    assert [*inspect.signature(function).parameters] == takes.split()
    returned = function.__doc__.partition("Returns\n-------\n")[2].partition("See Also")[0]
    assert re.findall(r"^(\w+) : ", returned, re.MULTILINE) == gives.split()


@pytest.mark.headers
def test_values_and_fields_are_those_of_the_bindings(bindings: Any) -> None:
    for kind, members in ENUMS.items():
        there = getattr(bindings, kind)
        assert {name: int(getattr(there, name)) for name in members} == members
    assert {name: int(getattr(bindings, name)) for name in NUMBERS} == NUMBERS
    for name, fields in STRUCTS.items():
        outer, _, inner = name.partition(".")
        made = getattr(bindings, outer)()
        made = attrgetter(inner)(made) if inner else made
        assert [field for field in fields.split() if not hasattr(type(made), field)] == []
    for name in HANDLES:
        assert int(getattr(bindings, name)(5)) == 5


@pytest.mark.slow
def test_whatever_the_package_asks_of_the_driver_is_in_the_tables() -> None:
    asked = {
        node.attr
        for path in PACKAGE.rglob("*.py")
        if path != PACKAGE / "testing" / "_driver.py"  # it asks a driver that others have loaded
        if not path.is_relative_to(PACKAGE / "cli")  # its drivers are what it tells of one
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        if isinstance(node.value, ast.Name)
        if node.value.id == "driver"
        if node.attr.lower().startswith("cu")
    }
    assert asked - {*FUNCTIONS, *ENUMS, *STRUCTS, *HANDLES, *NUMBERS} == set()
    assert {*ENUMS["CUresult"].values()} >= STICKY


def test_fake_driver_refuses_functions_that_the_driver_lacks() -> None:
    fake = FakeDriver()
    with pytest.raises(AttributeError, match="cuMemAllocate"):
        fake.cuMemAllocate(1)
    with pytest.raises(AttributeError, match="cuMemAllocate"):
        fake.change(cuMemAllocate=lambda _nbytes: (0, 1))
    with pytest.raises(AttributeError, match="does not do cuGraphLaunch yet"):
        fake.cuGraphLaunch(1, 2)
    with pytest.raises(TypeError, match="cuMemAlloc takes bytesize"):
        fake.cuMemAlloc(1, 2)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        fake.CUevent_flags.CU_EVENT_FAST  # noqa: B018
    with pytest.raises(AttributeError, match="CUmemLocation has no field device"):
        fake.CUmemLocation().device = 1
    fake.change(cuMemAlloc=lambda nbytes: (0, 1, nbytes))
    with pytest.raises(TypeError, match="gives a status and  dptr"):
        fake.cuMemAlloc(1)
    fake.change(cuMemAlloc=lambda _nbytes: (-1, 0))
    with pytest.raises(ValueError, match="-1 is not a valid CUresult"):
        fake.cuMemAlloc(1)


def test_one_place_is_what_all_executors_call() -> None:
    with installed(FakeDriver()) as fake:
        pointer = check("cuMemAlloc", driver.cuMemAlloc(8))
        assert pointer in fake.held
        with installed(FakeDriver()) as other:
            assert check("cuMemAlloc", driver.cuMemAlloc(8)) in other.held
        check("cuMemFree", driver.cuMemFree(pointer))
        assert not fake.held
        with pytest.raises(LibraryError, match=r"cuMemFree returned CUDA_ERROR_INVALID_VALUE"):
            check("cuMemFree", driver.cuMemFree(pointer))


def test_without_bindings_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_driver.__dict__, "driver", _driver.CudaDriver())
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(LibraryMissing, match="needs cuda-bindings"):
        _driver.start_driver()


@pytest.mark.slow
def test_no_module_holds_on_to_the_drivers_functions() -> None:
    """Functions taken on import remain the real driver's, or require it to be installed."""
    held = [
        f"{path.name}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for statement in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr))
        for node in ast.walk(statement)
        if isinstance(node, ast.Attribute)
        if isinstance(node.value, ast.Name)
        if node.value.id == "driver"
    ]
    assert held == []
