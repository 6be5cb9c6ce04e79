"""Pages of documentation: their code runs, and their links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING, Any, Final

import trio

from .harness import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS: Final = ROOT / "docs"

_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"\]\((?!https?:)([^)#]+)")


def run_blocks(page: Path) -> dict[str, Any]:
    """Run the code of a page, in order and in one async function; what it has defined."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "docs"}

    async def run() -> None:
        for match in _BLOCK.finditer(text):
            padding = "\n" * text.count("\n", 0, match.start(1))  # so that tracebacks point there
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(padding + match[1], str(page), "exec", flags, dont_inherit=True)
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result

    trio.run(run)
    return names


def dead_links(page: Path) -> list[str]:
    """Links to files that are not there."""
    links = _LINK.findall(page.read_text(encoding="utf-8"))
    return [link for link in links if not (page.parent / link).exists()]
