"""The page about neural networks names every call and operation."""

from __future__ import annotations

import re

import pytest

from atomr_accel.libraries.dnn.graph.user_graph import UserGraphs
from atomr_accel.libraries.dnn.ops._conv import DnnConvolutions
from atomr_accel.libraries.dnn.ops._norm import Normalizations
from atomr_accel.libraries.dnn.ops._pointwise import Activations
from atomr_accel.libraries.dnn.ops._resample import Resampling
from atomr_accel.libraries.dnn.routines._losses import Losses
from atomr_accel.libraries.dnn.routines._sampling import GridSampling
from atomr_accel.libraries.dnn.wire._node_type import REQUIRED
from atomr_accel.libraries.dnn.wire._nodes import NODES

from ..harness import ROOT

PAGE = ROOT / "docs" / "reference" / "dnn.md"


def operations() -> str:
    """The table of operations, as the page has it."""
    lines = ["| operation | inputs | attributes | what it computes |", "| --- | --- | --- | --- |"]
    for name, row in NODES.items():
        if not row.about:
            continue
        inputs = [*row.inputs, *(f"[{each}]" for each in row.optional)]
        attributes = [
            each if default is REQUIRED else f"{each}={default!r}"
            for each, default in row.attributes.items()
        ]
        cells = [f"`{name}`", ", ".join(inputs), ", ".join(attributes)]
        about = row.about.replace("``", "`").replace("|", "\\|")
        lines.append(f"| {' | '.join(cells)} | {about} |")
    return "\n".join(lines)


@pytest.mark.style
def test_its_table_is_that_of_the_operations() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("<!-- operations: begin -->\n")[2].partition("\n<!-- operations: end")[0]
    assert table == operations()


@pytest.mark.style
@pytest.mark.parametrize(
    "part",
    [Activations, DnnConvolutions, UserGraphs, Losses, Normalizations, Resampling, GridSampling],
)
def test_dnn_page_names_every_call(part: type) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    calls = {name for name in vars(part) if not name.startswith("_")}
    assert calls
    assert calls - named == set()
