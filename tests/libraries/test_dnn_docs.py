"""The page about neural networks: its code runs, and it names every call and operation."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from atomr_accel.libraries.dnn._conv import Convolutions
from atomr_accel.libraries.dnn._nodes import NODES, REQUIRED
from atomr_accel.libraries.dnn._norm import Normalizations
from atomr_accel.libraries.dnn._pointwise import Activations
from atomr_accel.libraries.dnn._user import Graphs

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dnn.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


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


def test_its_table_is_that_of_the_operations() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("<!-- operations: begin -->\n")[2].partition("\n<!-- operations: end")[0]
    assert table == operations()


def test_its_code_runs() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "docs"}

    async def run() -> None:
        for match in BLOCK.finditer(text):
            padding = "\n" * text.count("\n", 0, match.start(1))  # so that tracebacks point there
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(padding + match[1], str(PAGE), "exec", flags, dont_inherit=True)
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result

    trio.run(run)
    assert "plan" in names


@pytest.mark.parametrize("part", [Activations, Convolutions, Graphs, Normalizations])
def test_it_names_every_call(part: type) -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    calls = {name for name in vars(part) if not name.startswith("_")}
    assert calls
    assert calls - named == set()


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", PAGE.read_text(encoding="utf-8"))
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
