"""Every example does its work and checks it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from ..harness import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
GALLERY = ROOT / "docs/reference/gallery"
ALIKE = 4.0
"""Mean difference, of 255, below which pictures count as the same: rounding makes no more."""


def run_program(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path: Path, tmp_path: Path) -> None:
    """In a process of its own, as a user would run it; its picture is that of the gallery."""
    done = run_program(str(path), TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    kept = GALLERY / f"{path.stem}.png"
    if kept.exists():
        made = tmp_path / kept.name
        assert difference(pixels(made), pixels(kept)) < ALIKE, f"cp {made} {kept} if it is better"


def pixels(path: Path) -> NDArray[np.int64]:
    return np.asarray(Image.open(path).convert("RGB")).astype(np.int64)


def difference(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    return float(np.abs(one - other).mean()) if one.shape == other.shape else 255.0


def test_pictures_of_the_gallery_are_of_examples_and_small() -> None:
    pictures = sorted(GALLERY.glob("*.png"))
    assert {path.stem for path in pictures} <= {path.stem for path in EXAMPLES}
    page = (ROOT / "docs/reference/gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(gallery/(\w+)\.png\)", page)
    assert sorted(shown) == [path.stem for path in pictures]
    assert max(path.stat().st_size for path in pictures) < 50_000


def test_a_gallery_picture_is_like_no_empty_one() -> None:
    for path in GALLERY.glob("*.png"):
        picture = pixels(path)
        for empty in (np.zeros_like(picture), np.full_like(picture, round(picture.mean()))):
            assert difference(picture, empty) > ALIKE, path


@pytest.mark.slow
def test_http_server_answers_requests_of_a_rebuild_when_hypercorn_is_impatient() -> None:
    """Hypercorn cancels requests 3 s after SIGTERM by default, so the program allows more."""
    impatient = (
        "import runpy, hypercorn.config; hypercorn.config.Config.graceful_timeout = 0.001; "
        "runpy.run_path('examples/http_server.py', run_name='__main__')"
    )
    done = run_program("-c", impatient)
    assert done.returncode == 0, done.stderr
    assert ", 0 lost" in done.stdout
