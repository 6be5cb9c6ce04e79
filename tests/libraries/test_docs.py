"""The page about libraries: its code runs, it names every method, its links lead somewhere."""

from __future__ import annotations

import inspect
import re

import pytest

from atomr_accel.libraries.blas import Blas
from atomr_accel.libraries.blaslt import BlasLt
from atomr_accel.libraries.fft import Fft
from atomr_accel.libraries.nvrtc import Nvrtc
from atomr_accel.libraries.rng import Generator, Rng

from ..pages import DOCS, dead_links, run_blocks

PAGE = DOCS / "libraries.md"


def test_its_code_runs() -> None:
    assert "kernel" in run_blocks(PAGE)


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
    assert dead_links(PAGE) == []
