"""Contracts of import-linter: the wall, no private modules elsewhere, no circles, few knots.

A module's folder says where it runs. In a ``host`` or ``executors`` folder: in hosts alone. In a
``wire`` folder: on both sides. The packages around such folders run on both sides, too, because
Python imports them first. Everything else is the program's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from grimp import ImportGraph, build_graph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application import contract_utils

from .attribute_contracts import private_reads

MAY_IMPORT = {
    "host": {"host", "wire", "base"},
    "wire": {"wire", "base"},
    "base": {"wire", "base"},
    "program": {"program", "wire", "base"},
}
"""``base``: what needs no other part of the package, and the packages around the folders."""

SIDES = {"host": "host", "executors": "host", "wire": "wire"}
"""Side of the modules in folders of these names."""


class _ImportsContract(Contract):
    """Base of contracts about each import by itself."""

    ignore_imports: Any = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at every import, apart from the exceptions."""
        removal = contract_utils.remove_ignored_imports_and_report(
            graph=graph,
            ignore_imports=self.ignore_imports,
            unmatched_alerting=contract_utils.AlertLevel.ERROR,
        )
        broken = sorted(self._broken(graph))
        return ContractCheck(
            kept=not broken,
            warnings=list(removal.warnings),
            ignored_import_count=removal.ignored_import_count,
            metadata={"broken": broken},
        )

    @abstractmethod
    def _broken(self, graph: ImportGraph) -> Iterator[str]:
        """Lines about the imports that are not allowed."""

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the imports that are not allowed."""
        for line in check.metadata["broken"]:
            output.print_error(line)


class WallContract(_ImportsContract):
    """Each side imports itself and what both share.

    Options:
        base: modules that everybody may import.
        program_only: packages from elsewhere that only the program imports.
        ignore_imports: the exceptions.
    """

    type_name = "wall"

    base: Any = fields.SetField(subfield=fields.StringField())
    program_only: Any = fields.SetField(subfield=fields.StringField())

    def _broken(self, graph: ImportGraph) -> Iterator[str]:
        ours = {name for name in graph.modules if not graph.is_module_squashed(name)}
        around = {
            ".".join(parts[:depth])
            for parts in (name.split(".") for name in ours)
            for depth in range(1, len(parts))
            if parts[depth] in SIDES
        }

        def side_of(name: str) -> str:
            parts = name.split(".")
            for folder, side in SIDES.items():
                if folder in parts:
                    return side
            return "base" if name in around or name in self.base else "program"

        for importer in ours:
            side = side_of(importer)
            for imported in graph.find_modules_directly_imported_by(importer):
                if imported in ours:
                    if side_of(imported) in MAY_IMPORT[side]:
                        continue
                elif side == "program" or imported not in self.program_only:
                    continue
                (detail, *_) = graph.get_import_details(importer=importer, imported=imported)
                yield f"{importer}:{detail['line_number']} ({side}) imports {imported}"


class PrivateContract(_ImportsContract):
    """Modules of a folder import no private modules of another one.

    A folder is one of the package's, or one of its libraries'. What lies around a folder, such as
    the package itself, may import its private modules.

    Options:
        ignore_imports: the exceptions.
    """

    type_name = "private"

    def _broken(self, graph: ImportGraph) -> Iterator[str]:
        for imported in graph.modules:
            _, *below = imported.split(".")
            if graph.is_module_squashed(imported) or not any(x.startswith("_") for x in below[1:]):
                continue  # modules beside the folders, such as _errors, are for all of them
            folder = _folder_of(imported)
            for importer in graph.find_modules_that_directly_import(imported):
                if folder != _folder_of(importer) and not folder.startswith(f"{importer}."):
                    (detail, *_) = graph.get_import_details(importer=importer, imported=imported)
                    yield f"{importer}:{detail['line_number']} imports {imported}"


class AttributesContract(Contract):
    """Folders read no private attributes of each other's objects, see ``attribute_contracts``."""

    type_name = "attributes"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at the syntax trees of the package."""
        broken = [str(read) for read in private_reads()]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the reads that are not allowed."""
        for line in check.metadata["broken"]:
            output.print_error(line)


def _folder_of(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["libraries"] and len(parts) > 3 else 2])


class CirclesContract(Contract):
    """No module imports itself by way of others, wherever in them the imports stand."""

    type_name = "circles"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Sort the modules by their imports; modules that cannot be sorted import in a circle."""
        imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as error:
            return ContractCheck(kept=False, metadata={"circle": error.args[1]})
        return ContractCheck(kept=True)

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print one circle."""
        output.print_error(" <- ".join(check.metadata["circle"]))


class KnotsContract(Contract):
    """Few modules know of each other, and all of them lie in one folder.

    Imports for type checkers alone count, too: a reader follows them.

    Options:
        most: the largest number of modules that know of each other.
    """

    type_name = "knots"

    most: Any = fields.IntegerField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Look at the groups of modules that import each other, directly or not."""
        (root,) = self.session_options["root_packages"]
        return self.check_all(build_graph(root))

    def check_all(self, graph: ImportGraph) -> ContractCheck:
        """Look at a graph that has the imports for type checkers."""
        broken = [
            knot
            for knot in knots(graph)
            if len(knot) > self.most or len({name.rpartition(".")[0] for name in knot}) > 1
        ]
        return ContractCheck(kept=not broken, metadata={"broken": broken})

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the groups."""
        for knot in check.metadata["broken"]:
            output.print_error(", ".join(knot))


def knots(graph: ImportGraph) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or by way of others."""
    found: list[list[str]] = []
    seen: set[str] = set()
    for name in sorted(graph.modules):
        if name not in seen:
            around = graph.find_upstream_modules(name) & graph.find_downstream_modules(name)
            knot = around | {name}
            seen |= knot
            if len(knot) > 1:
                found.append(sorted(knot))
    return found
