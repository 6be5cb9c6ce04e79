"""The page about attention: its code runs, and it names every call and option."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import trio

from atomr_accel.libraries.dnn import AttentionOptions
from atomr_accel.libraries.dnn._attention import FlashAttention
from atomr_accel.libraries.dnn._paged import Caches
from atomr_accel.libraries.dnn._rnn import Recurrent
from atomr_accel.libraries.dnn._routines import Routines

PAGE = Path(__file__).resolve().parents[2] / "docs" / "attention.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def named() -> set[str]:
    return set(re.findall(r"`(\w+)", PAGE.read_text(encoding="utf-8")))


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
    assert "small" in names


@pytest.mark.parametrize("part", [FlashAttention, Caches, Recurrent, Routines])
def test_it_names_every_call(part: type) -> None:
    calls = {name for name in vars(part) if not name.startswith("_")}
    assert calls
    assert calls - named() == set()


def test_it_names_every_option() -> None:
    assert set(AttentionOptions.__annotations__) - named() == set()


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", PAGE.read_text(encoding="utf-8"))
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
