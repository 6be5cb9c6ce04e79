"""Skills have the form that assistants look for; their code is run with that of all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..harness import ROOT
from .pages import PAGES, blocks

SKILLS = sorted(ROOT.glob("ai-skills/*/SKILL.md"))


@pytest.mark.style
@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_a_skill_has_its_name_a_description_and_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    head = re.match(r"---\nname: ([\w-]+)\ndescription: (.+)\n---\n\n# ", text)
    assert head is not None
    assert head[1] == path.parent.name
    assert 40 <= len(head[2]) <= 1024
    assert len(text.splitlines()) <= 150
    page = str(path.relative_to(ROOT))
    assert page in PAGES
    assert blocks(page)


@pytest.mark.style
def test_the_readme_lists_every_skill() -> None:
    text = (ROOT / "ai-skills/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[([\w-]+)\]\(\1/SKILL\.md\) \|", text, re.MULTILINE)
    assert sorted(listed) == [path.parent.name for path in SKILLS]
    assert len(listed) >= 10
