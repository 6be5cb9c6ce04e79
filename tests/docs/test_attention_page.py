"""The page about attention names every call and option."""

from __future__ import annotations

import re

import pytest

from atomr_accel.libraries.dnn.attention._facade import DnnFlashAttention
from atomr_accel.libraries.dnn.attention.caches import Caches
from atomr_accel.libraries.dnn.attention.options import AttentionOptions
from atomr_accel.libraries.dnn.rnn.facade import Recurrent
from atomr_accel.libraries.dnn.routines._facade import DnnRoutines
from atomr_accel.libraries.dnn.routines._pooling import Pooling

from ..harness import ROOT

PAGE = ROOT / "docs" / "reference" / "attention.md"


def named() -> set[str]:
    return set(re.findall(r"`(\w+)", PAGE.read_text(encoding="utf-8")))


@pytest.mark.style
@pytest.mark.parametrize("part", [DnnFlashAttention, Caches, Recurrent, Pooling, DnnRoutines])
def test_attention_page_names_every_call(part: type) -> None:
    calls = {name for name in vars(part) if not name.startswith("_")}
    assert calls
    assert calls - named() == set()


@pytest.mark.style
def test_attention_page_names_every_option() -> None:
    assert set(AttentionOptions.__annotations__) - named() == set()
