"""The page about coverage says what there is."""

from __future__ import annotations

import re

import pytest

from atomr_accel._torch_names import INSTEAD

from . import coverage
from .torch_names import TORCH


@pytest.mark.style
def test_the_page_is_up_to_date() -> None:
    text, made = coverage.PAGE.read_text(encoding="utf-8"), coverage.page()
    if coverage.installed() in text:
        assert text == made, "write it again: python -m tests.docs.coverage"
        return
    # Others' releases add and remove names; what the page has of ours is still there.
    names = set(re.findall(r"`(\w+)`", made))
    here = [line for line in text.splitlines() if re.match(r"\| (`device|\[expr|methods)", line)]
    assert here
    assert {name for line in here for name in re.findall(r" `(\w+)`", line)} <= names


@pytest.mark.style
def test_code_is_for_functions_that_there_are() -> None:
    assert set(INSTEAD) - set(TORCH) == set()
