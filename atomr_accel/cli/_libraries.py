"""``atomr-accel libraries``: the libraries of devices, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._errors import DeviceUnavailable
from ..libraries.registry import Catalogue, catalogue
from ._documents import LibrariesDocument, LibraryRow
from ._errors import ExitCode, Refusal

if TYPE_CHECKING:
    import argparse

    from ._output import CommandOutput


def known_libraries() -> Catalogue:
    """Return the libraries, or end the command if one cannot be loaded."""
    try:
        return catalogue()
    except (DeviceUnavailable, TypeError, ValueError) as error:
        raise Refusal(str(error), ExitCode.UNAVAILABLE) from error


def run(_args: argparse.Namespace, out: CommandOutput) -> int:
    """Print a table of the libraries."""
    known = known_libraries()
    rows = [
        LibraryRow(
            name=name,
            summary=library.summary,
            package=known.brought_by[name],
            lanes=[lane.name for lane in library.lanes],
            backends=sorted({backend for lane in library.lanes for backend in lane.executors}),
            extras=sorted({need.extra for need in library.needs if need.extra is not None}),
        )
        for name, library in known.all.items()
    ]
    out.table(
        "Libraries",
        ("name", "for", "backends", "extras", "brought by"),
        [
            (row.name, row.summary, ", ".join(row.backends), ", ".join(row.extras), row.package)
            for row in rows
        ],
    )
    out.document(LibrariesDocument(libraries=rows))
    return ExitCode.OK
