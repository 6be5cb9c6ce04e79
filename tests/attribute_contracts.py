"""Private attributes stay in their folder: which reads of ``thing._name`` cross a border.

A folder is one of the package's, or one of its libraries', as for imports. It owns the private
names that its classes and modules define. A module may read private names of its own folder, and
none that only other folders own.

``python -m tests.attribute_contracts FOLDER ...`` looks at packages outside this repository.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).resolve().parents[1] / "atomr_accel"

OWN = ("self", "cls")
"""Names of the object and the class in a method."""

NOT_OURS = {"_asdict", "_fields", "_make", "_replace"}
"""Public names of every named tuple."""

OF_OTHERS = {("testing", "_request"), ("testing", "_data"), ("testing", "_file")}
"""Attributes of pytest and coverage; names like these in our folders are coincidence."""

BY_NAME = ("getattr", "setattr", "hasattr", "delattr", "attrgetter")
"""Functions that take the name of an attribute."""


class PrivateRead(NamedTuple):
    """An attribute of another folder's object."""

    folder: str
    attribute: str
    owners: tuple[str, ...]
    path: Path
    line: int

    def __str__(self) -> str:
        """Return the place of the read and the owner of the attribute."""
        owners = " or ".join(self.owners)
        return f"{self.path}:{self.line} ({self.folder}) reads {self.attribute} of {owners}"


def is_private(name: str) -> bool:
    """Return whether a name begins with one underscore; those with two belong to Python."""
    return name.startswith("_") and not name.startswith("__") and name not in {"_", *NOT_OURS}


def folder_of(path: Path, package: Path = PACKAGE) -> str:
    """The folder that owns a file's names: ``memory``, ``libraries.blas``, or a single module."""
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[: 2 if parts[0] == "libraries" and len(parts) > 2 else 1])


def defined(tree: ast.AST) -> Iterator[str]:
    """The private names that the classes of a module and the module itself define."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef)):
            yield from filter(is_private, _of_body(node.body))
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id in OWN
            and is_private(node.attr)
        ):
            yield node.attr


def _of_body(body: list[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Assign(targets=targets, value=value):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
                if any(isinstance(x, ast.Name) and x.id == "__slots__" for x in targets):
                    yield from _texts(value)
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.If(body=then, orelse=otherwise):
                yield from _of_body([*then, *otherwise])


def _texts(value: ast.AST) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def reads(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The private attributes that a module uses of others than ``self`` and ``cls``, by line."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name)) if name in OWN:
                continue
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super"))):
                continue
            case ast.Attribute(attr=attribute, lineno=line) if is_private(attribute):
                yield attribute, line
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments):
                if name in BY_NAME:
                    texts = (x.value for x in arguments if isinstance(x, ast.Constant))
                    named = (x for x in texts if isinstance(x, str) and is_private(x))
                    yield from ((text, node.lineno) for text in named)


def owners(package: Path = PACKAGE) -> dict[str, set[str]]:
    """The folders of a package that define each private name."""
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        for name in defined(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(name, set()).add(folder_of(path, package))
    return found


def private_reads(package: Path = PACKAGE) -> list[PrivateRead]:
    """Every read of a private attribute across folders of a package."""
    return list(_found(sorted(package.rglob("*.py")), owners(package), package))


def outside_reads(root: Path, package: Path = PACKAGE) -> list[PrivateRead]:
    """Every read of a private attribute of ``package`` in the files below another folder."""
    files = sorted(root.rglob("*.py"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    own = {name for tree in trees for name in defined(tree)}
    theirs = {name: folders for name, folders in owners(package).items() if name not in own}
    return list(_found(files, theirs, root.parent))


def _found(
    files: Iterable[Path], owned: dict[str, set[str]], package: Path
) -> Iterator[PrivateRead]:
    for path in files:
        folder = folder_of(path, package)
        for attribute, line in reads(ast.parse(path.read_text(encoding="utf-8"))):
            whose = owned.get(attribute, set())
            if whose and folder not in whose and (folder, attribute) not in OF_OTHERS:
                yield PrivateRead(folder, attribute, tuple(sorted(whose)), path, line)


def counted(found: Iterable[PrivateRead]) -> dict[tuple[str, str], int]:
    """Count the reads of each attribute by folder."""
    return dict(Counter((read.folder, read.attribute) for read in found))


def main() -> int:
    """Print what packages outside this repository, or this one, read; 1 if that is anything."""
    roots = [Path(argument) for argument in sys.argv[1:]]
    found = [read for root in roots for read in outside_reads(root)] if roots else private_reads()
    sys.stdout.writelines(f"{read}\n" for read in found)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
