"""All pages: those of the site, skills, and what stands at the root."""

from __future__ import annotations

import ast
import re
from types import CodeType

from ..harness import ROOT

README = "README.md"
CONTRIBUTING = "CONTRIBUTING.md"
PAGES = [
    README,
    CONTRIBUTING,
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md"))),
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("ai-skills/**/*.md"))),
]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[CodeType]:
    """The Python in a page, placed where it stands in it, so that tracebacks point there."""
    text = text_of(page)
    code = []
    for match in BLOCK.finditer(text):
        padding = "\n" * text.count("\n", 0, match.start(1))
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code.append(compile(padding + match[1], str(ROOT / page), "exec", flags, dont_inherit=True))
    return code
