"""Fixtures of the compiler's tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATOMR_CACHE_DIR", str(tmp_path / "cache"))
