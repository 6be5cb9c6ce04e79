"""Descriptors of libraries, and the entry points that name them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from atomr_accel import DeviceUnavailable, open_device
from atomr_accel.device import _open
from atomr_accel.libraries import names, registry
from atomr_accel.libraries.blas.library import LIBRARY as BLAS
from atomr_accel.ops import Facade, LaneSpec, Library

from ..harness import ROOT

LIBRARY = Library("one", "an example", f"{__name__}:One", (LaneSpec("one", {}),))


class One(Facade[Any]):
    def __init__(self, device: Any, *used: Any) -> None:
        self.home = device


def catalogue(*libraries: Library) -> registry.Catalogue:
    return registry.Catalogue((f"package {at}", each) for at, each in enumerate(libraries))


def test_entry_points_of_the_project_are_libraries() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"][names.GROUP] == names.BUILT_IN
    assert [*registry.catalogue().all] == [*names.BUILT_IN]


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, atomr_accel.device as d; print('atomr_accel.libraries.fft' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_libraries_of_the_same_name_are_refused_with_both_packages() -> None:
    with pytest.raises(ValueError, match="library 'one': package 0 and package 1; uninstall"):
        catalogue(LIBRARY, LIBRARY)


def test_lanes_of_the_same_name_are_refused() -> None:
    with pytest.raises(ValueError, match="lane 'one' of package 1 must have a name of its own"):
        catalogue(LIBRARY, replace(LIBRARY, name="two"))


def test_libraries_that_use_each_other_in_a_circle_are_refused() -> None:
    two = replace(LIBRARY, name="two", lanes=(), uses=("one",))
    with pytest.raises(ValueError, match="uses library"):
        catalogue(replace(LIBRARY, uses=("two",)), two)
    with pytest.raises(ValueError, match="uses library 'three'"):
        catalogue(replace(two, uses=("three",)))


def test_facades_are_made_after_those_that_they_use() -> None:
    two = replace(LIBRARY, name="two", lanes=())
    known = catalogue(replace(LIBRARY, uses=("two",)), two)
    assert (known.in_order, [*known.facades]) == (["two", "one"], ["one", "two"])


@pytest.mark.parametrize("name", ["", "two words", "_hidden", "1st"])
def test_a_library_name_must_be_a_public_identifier(name: str) -> None:
    with pytest.raises(ValueError, match="public identifier"):
        replace(LIBRARY, name=name)


def test_a_facade_must_be_a_facade() -> None:
    with pytest.raises(TypeError, match="subclass of Facade, not <class 'int'>"):
        catalogue(replace(LIBRARY, facade="builtins:int"))


@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        ("no_such_module:LIBRARY", DeviceUnavailable, "'x = no_such.*cannot be loaded.*reinstall"),
        ("builtins:int", TypeError, "'x = builtins:int' .* must be a Library, not <class 'int'>"),
    ],
)
def test_a_broken_entry_point_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str, error: type[Exception], said: str
) -> None:
    entries = [EntryPoint("x", value, names.GROUP)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    with pytest.raises(error, match=said):
        registry.described()


async def test_a_library_named_like_a_method_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalogue(BLAS, replace(LIBRARY, name="batch"))
    monkeypatch.setattr(_open, "catalogue", lambda: known)
    with pytest.raises(ValueError, match="'batch' of package 1 must have another name"):
        async with open_device(0, backend="cpu", isolation="thread"):
            pytest.fail("opened")


def test_a_program_adds_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_known", registry.catalogue())
    registry.add_library(LIBRARY)
    assert registry.catalogue().facades["one"] is One
    with pytest.raises(ValueError, match="two packages bring a library 'one'"):
        registry.add_library(LIBRARY)
    with pytest.raises(TypeError, match="takes a Library, not"):
        registry.add_library(One)  # type: ignore[arg-type]
