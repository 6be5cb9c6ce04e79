"""The page about libraries names every method."""

from __future__ import annotations

import inspect
import re

import pytest

from atomr_accel.libraries.blas.facade import Blas
from atomr_accel.libraries.blaslt._facade import BlasLt
from atomr_accel.libraries.cub.facade import Cub
from atomr_accel.libraries.cutlass._facade import Cutlass
from atomr_accel.libraries.fft._facade import Fft
from atomr_accel.libraries.linalg._facade import Linalg
from atomr_accel.libraries.nvrtc._facade import Nvrtc
from atomr_accel.libraries.rng._facade import Rng
from atomr_accel.libraries.rng.generator import Generator
from atomr_accel.libraries.sparse._facade import Sparse
from atomr_accel.libraries.sparselt._facade import SparseLt
from atomr_accel.libraries.tensor._facade import Tensor

from ..harness import ROOT

PAGE = ROOT / "docs" / "reference" / "libraries.md"


@pytest.mark.style
@pytest.mark.parametrize(
    "facade",
    [Blas, BlasLt, Cub, Cutlass, Fft, Linalg, Rng, Generator, Nvrtc, Sparse, SparseLt, Tensor],
)
def test_libraries_page_names_every_method(facade: type) -> None:
    named = set(re.findall(r"`[\w.]*?(\w+)[`(]|\.(\w+)\(", PAGE.read_text(encoding="utf-8")))
    known = {name for pair in named for name in pair}
    methods = {
        name
        for name, member in inspect.getmembers(facade, inspect.iscoroutinefunction)
        if not name.startswith("_")
    }
    assert methods
    assert methods - known == set()
