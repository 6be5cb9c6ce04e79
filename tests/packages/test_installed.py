"""A package outside this repository, built and installed, adds a library and a backend."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

from ..harness import ROOT

SOURCE = Path(__file__).parent / "tally_accel"

PROGRAM = """
import sys
import numpy as np
import trio
from atomr_accel import open_system

async def main(isolation):
    async with open_system("app") as system:
        device = await system.open_device(0, backend="tally", isolation=isolation)
        assert (device.name, device.info.backend) == ("tally:0", "tally")
        x = await device.put(np.array([0.0, 1.0, 2.0]))
        assert await device.get(await device.tally.nonzero(x)) == 2
        async with device.batch() as batch:
            count = batch.tally.nonzero(x)
        assert await device.get(count) == 2
        async with device.record() as program:
            recorded = program.tally.nonzero(x)
        await program.replay()
        assert await device.get(recorded) == 2
        asked = await device.tally.ref.ask(device.requests.tally.nonzero(x))
        assert await device.get(asked) == 2
        assert "tally" in [lane.name for lane in device.statistics().lanes]
        assert "tally  LibraryActor" in str(system.tree())
        try:
            await device.tally.nonzero(await device.put(np.zeros(3, np.int8)))
        except TypeError:
            pass
        else:
            raise AssertionError("int8 is not refused")

trio.run(main, sys.argv[1])
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a fresh environment in which the package is installed."""
    folder = tmp_path_factory.mktemp("environment")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    # What is installed here is there, too, without being installed again.
    around = [ROOT, *(path for path in map(Path, sys.path) if path.is_dir())]
    (packages / "around.pth").write_text("".join(f"{path}\n" for path in around))
    there = str(folder / "venv/bin/python")
    install = (*("install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"),)
    words = [sys.executable, "-m", "pip", "--python", there, *install, str(folder / "source")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return there


def ran(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_an_installed_library_runs_on_an_installed_backend(python: str, isolation: str) -> None:
    ran(python, "-c", PROGRAM, isolation)


@pytest.mark.slow
def test_the_command_line_shows_an_installed_library(python: str) -> None:
    command = (python, "-m", "atomr_accel")
    assert re.search(r"\btally\b", ran(*command, "--help"))
    listed = json.loads(ran(*command, "libraries", "--json"))["libraries"]
    (row,) = (row for row in listed if row["name"] == "tally")
    assert (row["lanes"], row["backends"]) == (["tally"], ["cpu"])
    assert "tally-accel 1.0" in row["package"]
    words = ("probe", "--backend", "tally", "--library", "tally", "--json")
    document: dict[str, Any] = json.loads(ran(*command, *words))
    assert "tally" in document["backends"]
    (check,) = document["checks"]
    assert (check["device"], check["library"], check["outcome"]) == ("tally:0", "tally", "ok")


def test_the_package_uses_public_names_only() -> None:
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert (
            re.findall(r"atomr_accel[\w.]*\._\w+|import _\w+|\b(?!self\b)\w+\._[a-z]", text) == []
        )
