"""The page about libraries: its code runs, it names every method, its links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from atomr_accel.libraries.blas._facade import Blas
from atomr_accel.libraries.blaslt._facade import BlasLt
from atomr_accel.libraries.fft._facade import Fft
from atomr_accel.libraries.nvrtc._facade import Nvrtc
from atomr_accel.libraries.rng._facade import Rng
from atomr_accel.libraries.rng._generator import Generator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "libraries.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_code(page: Path) -> dict[str, Any]:
    """Run a page's blocks in order, inside one async function; the names they leave."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "docs"}

    async def run() -> None:
        for match in BLOCK.finditer(text):
            padding = "\n" * text.count("\n", 0, match.start(1))  # so that tracebacks point there
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(padding + match[1], str(page), "exec", flags, dont_inherit=True)
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result

    trio.run(run)
    return names


def broken_links(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    return [link for link in links if not (page.parent / link).exists()]


def test_its_code_runs() -> None:
    assert "kernel" in run_code(PAGE)


@pytest.mark.parametrize("facade", [Blas, BlasLt, Fft, Rng, Generator, Nvrtc])
def test_it_names_every_method(facade: type) -> None:
    named = set(re.findall(r"`[\w.]*?(\w+)[`(]|\.(\w+)\(", PAGE.read_text(encoding="utf-8")))
    known = {name for pair in named for name in pair}
    methods = {
        name
        for name, member in inspect.getmembers(facade, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert methods
    assert methods - known == set()


def test_its_links_lead_somewhere() -> None:
    assert broken_links(PAGE) == []
