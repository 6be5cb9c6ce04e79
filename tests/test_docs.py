"""All pages of the documentation: their links lead somewhere, and the README leads to them."""

from __future__ import annotations

import re

import pytest

from .harness import ROOT

README = "README.md"
PAGES = [README, *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("docs/**/*.md")))]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def links(page: str) -> list[tuple[str, str]]:
    """Paths from the root, and headings or nothing, of what a page links to in the repository."""
    found = re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", text_of(page))
    here = (ROOT / page).parent
    return [
        (str((here / path).resolve().relative_to(ROOT)) if path else page, heading)
        for path, heading in found
    ]


def headings(page: str) -> set[str]:
    """What links can point to inside a page, by the names that hosts of Markdown give it."""
    found = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    assert [path for path, _ in links(page) if not (ROOT / path).exists()] == []
    inside = [(path, heading) for path, heading in links(page) if heading]
    assert [(path, heading) for path, heading in inside if heading not in headings(path)] == []


def test_the_readme_leads_to_every_page_and_example() -> None:
    examples = [str(path.relative_to(ROOT)) for path in ROOT.glob("examples/*.py")]
    assert {*PAGES, *examples} - {README} - {path for path, _ in links(README)} == set()
