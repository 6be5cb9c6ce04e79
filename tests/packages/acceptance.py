"""Install the built wheel in empty environments, try it, upgrade to it, and uninstall it.

``python -m tests.packages.acceptance dist 3.11 3.13`` does so by these Pythons, or without any by
its own. ``--tests`` adds a sample of fast tests. No file of the checkout is on any path: programs
and tests are taken from the sdist.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from .build import ROOT, built, exported

NAME: Final = "atomr-accel-trio"

PACKAGES: Final = (
    "atomr_accel",
    "atomr_accel.actors",
    "atomr_accel.backends",
    "atomr_accel.ops",
    "atomr_accel.patterns",
    "atomr_accel.replay",
    "atomr_accel.solvers",
    "atomr_accel.worlds",
)
"""Packages that import without any extra."""

IMPORTS: Final = f"""
import importlib, pathlib, sys
root = {str(ROOT)!r}
assert not [path for path in sys.path if path and pathlib.Path(path).is_relative_to(root)], sys.path
names = 0
for package in {PACKAGES!r}:
    module = importlib.import_module(package)
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
    names += len([getattr(module, name) for name in module.__all__])
print(names, "public names of", sys.modules["atomr_accel"].__file__)
"""

SAMPLE: Final = ("tests/actors", "tests/arrays", "tests/patterns")
"""Folders of tests that need no extra."""


NEEDED: Final = ("pytest>=8.4", "pytest-trio", "hypothesis", "pytest-xdist")
"""Packages that those tests need."""


class Trial:
    """An empty environment, and its programs.

    Args:
        python: an interpreter.
        folder: where to make it; must not exist.
    """

    def __init__(self, python: str, folder: Path) -> None:
        self.folder: Final = folder
        (folder / "work").mkdir(parents=True)
        subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)

    def run(self, program: str, *words: str, limit: int = 1) -> str:
        """Run a program of the environment, print the end of its output, and return all of it."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        env |= {
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "ATOMR_TEST_BACKEND": "cpu",
        }
        env["PATH"] = f"{self.folder / 'venv/bin'}:{env['PATH']}"
        command = [str(self.folder / "venv/bin" / program), *words]
        where = self.folder / "work"
        done = subprocess.run(
            command,
            cwd=where,
            env=env,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = [word if "\n" not in word else "..." for word in words]
        print(f"$ {' '.join([program, *said])}", flush=True)
        for line in done.stdout.rstrip().splitlines()[-limit if done.returncode == 0 else -40 :]:
            print(f"  {line}", flush=True)
        if done.returncode:
            sys.exit(f"{program} ended with {done.returncode}")
        return done.stdout

    def install(self, where: Path, *options: str) -> None:
        """Install by name; the distribution itself comes from a folder, the rest from the index."""
        self.run("pip", "install", "-q", "--find-links", str(where), *options)

    def try_out(self, version: str, examples: Path) -> None:
        """Import all public names, run the quickstart and the command line."""
        self.run("python", "-W", "error", "-c", IMPORTS)
        assert self.run("atomr-accel", "--version") == f"atomr-accel {version}\n"
        self.run(
            "python", str(shutil.copy(examples / "quickstart.py", self.folder / "work")), limit=3
        )
        assert "of atomr-accel-trio alone" in self.run("atomr-accel", "doctor", limit=3)

    def uninstall(self) -> None:
        """Uninstall it; nothing may be left."""
        self.run("pip", "uninstall", "-q", "-y", NAME)
        (packages,) = (self.folder / "venv/lib").glob("python*/site-packages")
        left = [*packages.glob("atomr_accel*"), *(self.folder / "venv/bin").glob("atomr*")]
        assert not left, left
        print("  nothing is left")


def predecessor(out: Path, scratch: Path) -> None:
    """Build an older version, which has a module that the present one has not."""
    source = exported(scratch / "older")
    start = source / "atomr_accel/__init__.py"
    text, count = re.subn(r'__version__ = ".*"', '__version__ = "0.0.1"', start.read_text())
    assert count == 1
    start.write_text(text)
    (source / "atomr_accel/only_in_the_older.py").write_text('"""A module that was removed."""\n')
    built(source, out)


def interpreter(version: str) -> str:
    """Return a working interpreter of a version such as ``3.13``, from the path or pyenv."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for path in (shutil.which(f"python{version}"), *map(str, reversed(pyenv))):
        if (
            path
            and subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode == 0
        ):
            return path
    sys.exit(f"Python {version} is not on this machine")


def main() -> None:
    """Do all of it by each Python."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("dist", type=Path)
    words.add_argument("python", nargs="*")
    words.add_argument("--tests", action="store_true")
    args = words.parse_args()
    dist = args.dist.resolve()
    (sdist,) = dist.glob("*.tar.gz")
    version = sdist.name.removesuffix(".tar.gz").rpartition("-")[2]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        with tarfile.open(sdist) as archive:
            archive.extractall(scratch, filter="data")
        source = scratch / sdist.name.removesuffix(".tar.gz")
        predecessor(scratch / "older-dist", scratch)
        for python in map(interpreter, args.python) if args.python else (sys.executable,):
            print(f"\n== {subprocess.check_output([python, '--version'], text=True).strip()}")
            trial = Trial(python, scratch / f"trial-{len([*scratch.iterdir()])}")
            trial.install(dist, NAME)
            trial.try_out(version, source / "examples")
            trial.uninstall()
            trial.install(scratch / "older-dist", f"{NAME}==0.0.1")
            trial.run("python", "-c", "import atomr_accel.only_in_the_older")
            trial.install(dist, "--upgrade", NAME)
            gone = "import atomr_accel.only_in_the_older"
            trial.run(
                "python", "-c", f"try: {gone}\nexcept ImportError: pass\nelse: raise SystemExit(1)"
            )
            trial.try_out(version, source / "examples")
            if args.tests:
                trial.run(
                    "pip",
                    "install",
                    "-q",
                    "pytest>=8.4",
                    "pytest-trio",
                    "hypothesis",
                    "pytest-xdist",
                )
                work = trial.folder / "work"
                shutil.copytree(source / "tests", work / "tests")
                shutil.copy(source / "pyproject.toml", work)
                marks = "not slow and not headers and not style and not gpu"
                trial.run("python", "-m", "pytest", "-q", "-n", "2", "-m", marks, *SAMPLE, limit=1)
            trial.uninstall()


if __name__ == "__main__":
    main()
