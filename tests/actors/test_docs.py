"""The code in the documentation runs.

The blocks of a page are run in order, as if they were the body of one async function.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import trio
import trio.testing

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[CodeType]:
    """The Python in a page, placed where it stands in it, so that tracebacks point there."""
    text = (DOCS / page).read_text(encoding="utf-8")
    code = []
    for match in BLOCK.finditer(text):
        padding = "\n" * text.count("\n", 0, match.start(1))
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code.append(compile(padding + match[1], str(DOCS / page), "exec", flags, dont_inherit=True))
    return code


async def run(page: str) -> None:
    names: dict[str, Any] = {"__name__": "docs"}
    for code in blocks(page):
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


@pytest.mark.parametrize("page", ["actors.md", "concepts/supervision.md"])
def test_pages_about_actors(page: str) -> None:
    assert blocks(page)
    trio.run(run, page, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        *("asyncio", "completion", "generations", "memory", "ordering", "streams", "testing"),
        "watching",
    ],
)
def test_pages_about_devices(page: str) -> None:
    """They start host processes, so they take the time that takes."""
    assert blocks(f"concepts/{page}.md")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no CUDA device")
        trio.run(run, f"concepts/{page}.md")
