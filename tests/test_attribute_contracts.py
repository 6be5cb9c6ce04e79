"""The checker of private attributes finds what crosses a border, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from .attribute_contracts import outside_reads, private_reads

THINGS = """
class Thing:
    __slots__ = ("_slot",)
    _field: int = 0

    def __init__(self):
        self._set = 1

    def _method(self): ...

_constant = 1
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = tmp_path / "package"
    (root / "things").mkdir(parents=True)
    (root / "guests").mkdir()
    (root / "things" / "thing.py").write_text(THINGS)
    return root


@pytest.mark.parametrize(
    "read",
    [
        *("thing._slot", "thing._field", "thing._set", "thing._method()", "things._constant"),
        *("thing.one._set", "things[0]._set", "getattr(thing, '_set')", "thing._set = 1"),
    ],
)
def test_private_attributes_of_another_folder_are_found(package: Path, read: str) -> None:
    (package / "guests" / "guest.py").write_text(f"thing = 1\n{read}\n")
    (found,) = private_reads(package)
    assert (found.folder, found.owners, found.line) == ("guests", ("things",), 2)
    (found,) = outside_reads(package / "guests", package)
    assert (found.folder, found.owners, found.line) == ("guests", ("things",), 2)


@pytest.mark.parametrize(
    "read",
    ["thing.public", "thing.__dict__", "self._set", "cls._set", "super()._set", "thing._unknown"],
)
def test_other_attributes_are_not(package: Path, read: str) -> None:
    (package / "guests" / "guest.py").write_text(f"{read}\n")
    (package / "things" / "own.py").write_text("thing._set\n")
    assert private_reads(package) == []


def test_a_name_that_the_folder_defines_itself_is_its_own(package: Path) -> None:
    (package / "guests" / "guest.py").write_text("class Guest:\n    _set = 1\n\nguest._set\n")
    assert private_reads(package) == []


@pytest.mark.style
def test_folders_read_no_private_attributes_of_each_other() -> None:
    assert [str(read) for read in private_reads()] == []
