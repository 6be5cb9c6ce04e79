"""Packages outside this repository, built and installed, add libraries, a backend, an actor."""

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

from ..attribute_contracts import outside_reads
from ..harness import ROOT

PACKAGES = sorted(path.parent for path in Path(__file__).parent.glob("*/pyproject.toml"))

PROGRAM = """
import sys
import numpy as np
import trio
from atomr_accel import open_system

async def main(isolation):
    async with open_system("app") as system:
        device = await system.spawn_device(0, backend="tally", isolation=isolation)
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

BESIDE = """
import numpy as np
import trio
from atomr_accel import open_system
from atomr_accel.actors import Call, GetStatistics
from atomr_accel.testing import poison
from gram_accel.totals import Forget, open_totals

async def main():
    x = np.arange(6.0).reshape(2, 3)
    async with open_system("app") as system:
        device = await system.spawn_device(0, backend="cpu")
        async with device.batch() as batch:
            total = batch.gram.total(await device.put(x))
        assert await device.get(total) == (x @ x.T).sum()
        try:
            await device.gram.total(await device.put(x[0]))
        except ValueError as error:
            assert "x must have two axes" in str(error)
        else:
            raise AssertionError("one axis is not refused")
        async with open_totals(device, system=system) as totals:
            ref = system.find("/totals")
            assert ref is totals.ref
            assert [node.path for node in system.tree().children][:2] == ["/device-0", "/totals"]
            assert await ref.ask(Call(x)) == (x @ x.T).sum()
            await poison(device)
            assert await ref.ask(Call(2 * x)) == 4 * (x @ x.T).sum()
            assert (await ref.ask(GetStatistics())).calls == 2
            assert (await ref.ask(Forget()), await ref.ask(Forget())) == (2, 0)

trio.run(main)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a fresh environment in which the packages are installed."""
    folder = tmp_path_factory.mktemp("environment")
    for source in PACKAGES:
        to = folder / source.name
        shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    # What is installed here is there, too, without being installed again.
    around = [ROOT, *(path for path in map(Path, sys.path) if path.is_dir())]
    (packages / "around.pth").write_text("".join(f"{path}\n" for path in around))
    there = str(folder / "venv/bin/python")
    install = (*("install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"),)
    words = [sys.executable, "-m", "pip", "--python", there, *install]
    words += [str(folder / source.name) for source in PACKAGES]
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


@pytest.mark.slow
def test_an_installed_package_puts_an_actor_beside_a_device(python: str) -> None:
    ran(python, "-c", BESIDE)


@pytest.mark.slow
@pytest.mark.parametrize("source", PACKAGES, ids=lambda path: path.name)
def test_packages_import_public_names_and_read_public_attributes(source: Path) -> None:
    assert list(map(str, outside_reads(source / source.name))) == []
    for path in source.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"atomr_accel[\w.]*\._\w+|atomr_accel.* import .*\b_\w+", text) == []


@pytest.mark.slow
def test_the_checker_finds_what_such_a_package_must_not_read(tmp_path: Path) -> None:
    source = next(path for path in PACKAGES if path.name == "gram_accel") / "gram_accel"
    there = shutil.copytree(source, tmp_path / "gram_accel")
    with (there / "totals.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef peek(ref):\n    return ref._cell\n")
    checker = (sys.executable, "-m", "tests.attribute_contracts", str(there))
    done = subprocess.run(checker, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (1, "")
    assert "reads _cell of actors" in done.stdout
