"""The contracts about imports refuse the imports that they forbid."""

from __future__ import annotations

import pytest

pytest.importorskip("importlinter")  # of no use to a GPU

from grimp import ImportGraph

from .import_contracts import CirclesContract, KnotsContract, PrivateContract, WallContract

PACKAGES = ("p", "p.host", "p.wire", "p.lib", "p.lib.host", "p.lib.wire")
MODULES = ("p.base", "p.device", "p.host.worker", "p.wire.messages")
LIBRARY = ("p.lib.facade", "p.lib.host.cpu", "p.lib.wire.messages")


def graph(*imports: tuple[str, str]) -> ImportGraph:
    """A program with one library, and some imports."""
    made = ImportGraph()
    for name in (*PACKAGES, *MODULES, *LIBRARY):
        made.add_module(name)
    made.add_module("trio", is_squashed=True)
    for importer, imported in imports:
        line = f"import {imported}"
        made.add_import(importer=importer, imported=imported, line_number=1, line_contents=line)
    return made


def wall(ignore: tuple[str, ...] = ()) -> WallContract:
    options = {"base": ["p.base"], "program_only": ["trio"], "ignore_imports": [*ignore]}
    return WallContract("wall", {}, options)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("p.device", "p.host.worker"),
        ("p.host.worker", "p.device"),
        ("p.host.worker", "trio"),
        ("p.lib.facade", "p.lib.host.cpu"),
        ("p.lib.host.cpu", "p.lib.facade"),
        ("p.lib.wire.messages", "p.lib.facade"),
        ("p.lib.wire.messages", "p.lib.host.cpu"),
        ("p.lib", "p.lib.facade"),  # Python imports it before p.lib.host
        ("p.lib", "trio"),
        ("p.base", "p.device"),
    ],
)
def test_no_side_imports_the_other(importer: str, imported: str) -> None:
    check = wall().check(graph((importer, imported)), verbose=False)
    assert not check.kept
    (line,) = check.metadata["broken"]
    assert line.startswith(f"{importer}:1 ")
    assert line.endswith(f" imports {imported}")


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("p.device", "p.lib.facade"),
        ("p.device", "trio"),
        ("p.lib.facade", "p.lib.wire.messages"),
        ("p.lib.host.cpu", "p.host.worker"),
        ("p.lib.host.cpu", "p.lib.wire.messages"),
        ("p.lib.wire.messages", "p.wire.messages"),
        ("p.wire.messages", "p.base"),
    ],
)
def test_both_import_what_they_share(importer: str, imported: str) -> None:
    assert wall().check(graph((importer, imported)), verbose=False).kept


def test_an_exception_is_one_import() -> None:
    made = graph(("p.device", "p.host.worker"), ("p.device", "p.lib.host.cpu"))
    check = wall(("p.device -> p.host.worker",)).check(made, verbose=False)
    assert len(check.metadata["broken"]) == 1


def test_a_circle_is_refused() -> None:
    made = graph(
        ("p.lib.facade", "p.lib.wire.messages"),
        ("p.lib.wire.messages", "p.lib.wire"),
        ("p.lib.wire", "p.lib.facade"),
    )
    check = CirclesContract("circles", {}, {}).check(made, verbose=False)
    assert not check.kept
    assert set(check.metadata["circle"]) == {"p.lib.facade", "p.lib.wire.messages", "p.lib.wire"}
    assert CirclesContract("circles", {}, {}).check(graph(), verbose=False).kept


@pytest.mark.parametrize(
    ("ring", "kept"),
    [
        (["p.a", "p.b", "p.c"], True),
        (["p.a", "p.b", "p.c", "p.d"], False),
        (["p.a", "p.lib.facade"], False),
        (["p.lib.facade", "p.lib.cpu"], True),
    ],
)
def test_modules_that_know_of_each_other_are_few_and_in_one_folder(
    ring: list[str], kept: bool
) -> None:
    made = graph()
    for importer, imported in zip(ring, [*ring[1:], ring[0]], strict=True):
        for name in (importer, imported):
            made.add_module(name)
        line = f"import {imported}"
        made.add_import(importer=importer, imported=imported, line_number=1, line_contents=line)
    contract = KnotsContract("knots", {}, {"most": "3"})
    check = contract.check_all(made)
    assert check.kept is kept
    assert check.metadata["broken"] == ([] if kept else [sorted(ring)])


@pytest.mark.parametrize(
    ("importer", "imported", "kept"),
    [
        ("p.device.core", "p.lanes._port", False),
        ("p.device.core", "p.libraries.blas._checks", False),
        ("p.libraries.fft.facade", "p.libraries.blas._checks", False),
        ("p.device.core", "p.lanes.port", True),
        ("p.lanes.port", "p.lanes._port", True),
        ("p.libraries.blas.facade", "p.libraries.blas._checks", True),
        ("p.libraries", "p.libraries.blas._checks", True),
        ("p", "p.lanes._port", True),
        ("p.device.core", "p._errors", True),
    ],
)
def test_private_modules_are_those_of_their_folder(
    importer: str, imported: str, kept: bool
) -> None:
    made = ImportGraph()
    for name in (importer, imported):
        made.add_module(name)
    line = f"import {imported}"
    made.add_import(importer=importer, imported=imported, line_number=1, line_contents=line)
    check = PrivateContract("private", {}, {}).check(made, verbose=False)
    assert check.kept is kept
    assert check.metadata["broken"] == ([] if kept else [f"{importer}:1 imports {imported}"])
